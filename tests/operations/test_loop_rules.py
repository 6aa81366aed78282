"""The main loop with all that a workload may need: every rule holds in the end.

On a cluster in memory whose rows have values, whatever the labels, groups, partitions
and workers, also where a worker is lost or pauses in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertune.core.model import Layout, View
from clustertune.errors import AlignmentError
from clustertune.operations import prepare as preparation
from clustertune.operations.journal import Journal
from tests.builders import collection, layout, verify, view, worker
from tests.memory_cluster import MemoryCluster
from tests.operations.test_loop import (
    Once,
    remembered_searches,  # noqa: F401 (a fixture)
    run,
)

MEMBERS = ("X", "y", "qid")


def cut(data: st.DataObject, n_rows: int, label: str) -> list[int]:
    """Draw rows of partitions, some of them empty."""
    edges = data.draw(st.lists(st.integers(0, n_rows), max_size=7), label=label)
    return np.diff([0, *sorted(edges), n_rows]).tolist()


def drawn(
    data: st.DataObject, labels: tuple[str, ...], n_rows: int, n_workers: int
) -> Layout:
    """Draw collections with equal or different partitions, together or separated."""
    alike = data.draw(st.booleans(), label="alike")
    collections, rows, homes = [], [], []
    for label in labels:
        if not (alike and rows):
            rows = cut(data, n_rows, label)
            size = len(rows)
            places = st.lists(
                st.integers(0, n_workers - 1), min_size=size, max_size=size
            )
            homes = data.draw(places, label="homes")
        collections.append(collection(label, rows, homes))
    name = labels[0].rpartition(".")[0] or "training data"
    return Layout(label=name, collections=tuple(collections))


def start(
    data: st.DataObject, collections: tuple[str, ...], n_rows: int, **needs: Any
) -> View:
    """Make a cluster with data, for a workload with these needs."""
    threads = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    workers = [worker(i, nthreads=n) for i, n in enumerate(threads)]
    sets = [drawn(data, collections, n_rows, len(workers))]
    if needs.get("eval_copies"):
        labels = tuple(f"eval_set[0].{m}" for m in collections)
        sets.append(drawn(data, labels, data.draw(st.integers(1, 9)), len(workers)))
    seen = view(workers, sets)
    workload = replace(seen.goal.workload, **needs)
    return replace(seen, goal=replace(seen.goal, workload=workload))


def faults(data: st.DataObject) -> Once:
    """Draw the end or pause of the last running worker, unless it is the only one."""
    strike = data.draw(st.sampled_from([MemoryCluster.kill, MemoryCluster.pause]))

    def fault(cluster: MemoryCluster) -> None:
        running = [a for a, w in cluster.workers.items() if w.running]
        if len(running) > 1:
            strike(cluster, running[-1])

    return Once(data.draw(st.integers(0, 60), label="after"), fault)


def assert_paired(cluster: MemoryCluster, journal: Journal) -> None:
    """Assert that every row exists once, with its label, on one worker."""
    verify(journal.views[0], journal.views[-1])
    for number, x in enumerate(cluster.layouts):
        first, *others = (cluster.contents[m.label] for m in x.collections)
        assert all(other == first for other in others)
        homes = [cluster.homes[m.label] for m in x.collections]
        for rows, places, *others in zip(first, *homes, strict=True):
            assert len(places) == 1
            # of a partition without rows nothing has to come together
            assert not rows or all(other == places for other in others)
        if number == 0:
            rows = sorted(row for partition in first for row in partition)
            assert rows == list(range(len(rows)))


def by_worker(cluster: MemoryCluster, label: str = "X") -> dict[str, list[int]]:
    """Return the rows on each eligible worker, in the order of partitions."""
    found: dict[str, list[int]] = {
        a: [] for a, w in cluster.workers.items() if w.running
    }
    partitions = zip(cluster.contents[label], cluster.homes[label], strict=True)
    for rows, (place,) in partitions:
        if rows:  # an empty partition may stay on a paused worker
            found[place] += rows
    return found


# --- classes --------------------------------------------------------------------------


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_every_worker_has_every_class(data: st.DataObject) -> None:
    """Otherwise a class has too few rows, which is reported."""
    n_rows = data.draw(st.integers(1, 60), label="rows")
    some = st.integers(0, data.draw(st.integers(0, 5), label="classes"))
    labels = data.draw(st.lists(some, min_size=n_rows, max_size=n_rows))
    if data.draw(st.booleans(), label="sorted"):
        labels.sort()
    seen = start(
        data,
        ("X", "y"),
        n_rows,
        needs_all_classes=True,
        eval_copies=data.draw(st.booleans(), label="eval"),
    )
    y = np.array(labels)
    cluster = MemoryCluster(seen, fault=faults(data), values={"y": y})
    try:
        journal = run(cluster)
    except AlignmentError as error:
        if "class" not in str(error):
            raise
        running = sum(w.running for w in cluster.workers.values())
        assert np.unique(y, return_counts=True)[1].min() < running
        return
    assert_paired(cluster, journal)
    if len(set(labels)) > 1:
        for rows in by_worker(cluster).values():
            assert set(y[rows].tolist()) == set(labels)
    assert not journal.plans[-1].steps
    if len(cluster.layouts) > 1:
        assert_copied(cluster)


def assert_copied(cluster: MemoryCluster) -> None:
    """Assert that each worker has all eval rows in its first training partition."""
    label = cluster.layouts[1].collections[0].label
    every = by_worker(cluster, label)
    full = sorted(max(every.values(), key=len))
    places = [p for (p,) in cluster.homes[label]]
    for place, rows in by_worker(cluster).items():
        assert sorted(every[place]) == (full if rows else [])
        if rows:
            first = next(
                i
                for i, (p, partition) in enumerate(
                    zip(places, cluster.contents["X"], strict=True)
                )
                if p == place and partition
            )
            assert len(cluster.contents[label][first]) == len(full)
    for rows, place, home in zip(
        cluster.contents[label], cluster.homes[label], cluster.homes["X"], strict=True
    ):
        assert not rows or place == home  # one without rows may be anywhere, as above


# --- groups ---------------------------------------------------------------------------


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_groups_are_whole_and_in_order(data: st.DataObject) -> None:
    """Each group is on one worker, with its rows in order; sorted on request."""
    n_rows = data.draw(st.integers(1, 60), label="rows")
    some = st.integers(0, data.draw(st.integers(0, 20), label="groups"))
    groups = data.draw(st.lists(some, min_size=n_rows, max_size=n_rows))
    if data.draw(st.booleans(), label="sorted"):
        groups.sort()
    qid = np.array(groups)
    if data.draw(st.booleans(), label="texts"):
        qid = np.char.add("group ", qid.astype(str))
    copies = data.draw(st.booleans(), label="eval")
    seen = start(data, MEMBERS, n_rows, groups="together", eval_copies=copies)
    values = {"qid": qid, "eval_set[0].qid": np.arange(9) // 2}
    cluster = MemoryCluster(seen, fault=faults(data), values=values)
    try:
        journal = run(cluster)
    except AlignmentError as error:
        if "come back" in str(error):
            assert 1 + int((qid[1:] != qid[:-1]).sum()) > len(set(groups))
        else:
            assert len(set(groups)) < sum(w.running for w in cluster.workers.values())
        return
    assert_paired(cluster, journal)
    assert not journal.plans[-1].steps
    rows = [row for partition in cluster.contents["X"] for row in partition]
    assert rows == list(range(n_rows))
    for partition, after in zip(
        cluster.contents["X"], [*cluster.contents["X"][1:], []]
    ):
        if partition and after:
            assert qid[partition[-1]] != qid[after[0]]
    places: dict[Any, set[str]] = {}
    for place, own in by_worker(cluster).items():
        for group in qid[own].tolist():
            places.setdefault(group, set()).add(place)
    assert all(len(x) == 1 for x in places.values())
    if copies:
        assert_copied(cluster)


# --- all of it ------------------------------------------------------------------------


def everything(**goal: Any) -> View:
    """Lazy data on one worker, for which each phase has a step."""
    training = replace(
        layout([30, 30], None, MEMBERS, derived=True),
        collections=(
            collection("X", [30, 30], None, derived=True),
            *layout([20, 20, 20], None, MEMBERS[1:], derived=True).collections,
        ),
    )
    labels = tuple(f"eval_set[0].{m}" for m in MEMBERS)
    valid = layout([5, 4], None, labels, label="eval_set[0]", derived=True)
    seen = view([worker(0)], [training, valid], n_workers=3, **goal)
    workload = replace(
        seen.goal.workload, groups="together", needs_all_classes=True, eval_copies=True
    )
    return replace(seen, goal=replace(seen.goal, workload=workload))


VALUES = {
    "y": np.arange(60) % 2,
    "qid": np.arange(60)[::-1] // 3,
    "eval_set[0].qid": np.arange(9)[::-1],
}


def test_the_longest_chain() -> None:
    """Each phase runs once, and further rounds remain for faults."""
    cluster = MemoryCluster(everything(), values=VALUES)
    journal = run(cluster)
    phases = [p.phase for p in journal.plans]
    assert phases[:3] == ["scale", "load", "rechunk"]
    assert phases[-2:] == ["replicate", ""]
    assert len(phases) <= preparation.MAX_ROUNDS - 3
    assert not journal.plans[-1].steps
    rows = [row for partition in cluster.contents["X"] for row in partition]
    assert rows == list(range(60))
    for own in by_worker(cluster).values():
        assert set(VALUES["y"][own].tolist()) == {0, 1}
    assert_copied(cluster)


def test_a_dry_run_of_copies() -> None:
    """The step is planned with its price, and the cluster is unchanged."""
    data = layout([9, 9], [0, 1], MEMBERS)
    valid = layout([4], [0], ("Xv", "yv"), label="eval_set[0]")
    seen = view((), [data, valid])
    workload = replace(seen.goal.workload, eval_copies=True)
    goal = replace(seen.goal, workload=workload, tolerance=0.0)
    seen = view([worker(i) for i in range(2)], seen.layouts)
    cluster = MemoryCluster(replace(seen, goal=goal))
    journal = run(cluster, dry_run=True)
    assert cluster.calls == []
    (step,) = journal.plans[0].steps
    assert step.action == "replicate"
    assert step.price.nbytes is not None
