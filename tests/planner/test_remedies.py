"""Remedies name the workers and the data of the view."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.core.model import OtherVersions
from clustertune.planner import remedies
from tests.builders import collection, layout, view, worker


@pytest.mark.parametrize(
    ("call", "python", "command"),
    [
        (
            remedies.on_workers("resize_workers", [3, "a b"], memory_limit="1.5 GiB"),
            (
                'clustertune.resize_workers(client, memory_limit="1.5 GiB", '
                'workers=[3, "a b"])'
            ),
            "clustertune resize --memory-limit '1.5 GiB' --worker 3 --worker 'a b'",
        ),
        (
            remedies.on_workers("trim_memory", ["a\n"]),
            'clustertune.trim_memory(client, workers=["a\\n"])',
            "",  # an escaped name would be another name
        ),
    ],
)
def test_a_call(call: remedies.Fix, python: str, command: str) -> None:
    assert call == (python, command)


@pytest.mark.parametrize("count", [2, 30])
def test_a_call_for_some_workers_names_them(count: int) -> None:
    """A call without names would act on the others, too."""
    workers = [worker(i) for i in range(count)]
    some = remedies.restart(view(workers), workers[1:])
    assert f"workers=[{', '.join(map(str, range(1, count)))}]" in some.remedy
    every = remedies.restart(view(workers), workers)
    named = f", workers={list(range(count))}" if count <= 20 else ""
    assert f"restart_workers(client{named})`" in every.remedy


def test_words_before_a_call_are_in_both_forms() -> None:
    """A command without the condition would be bad advice."""
    workers = [worker(0)]
    fix = remedies.restart(view(workers), workers, "If they may be interrupted, ")
    assert fix.command == (
        "If they may be interrupted, run `clustertune restart --worker 0 ADDRESS`, "
        "which loses no data."
    )


def test_groups_that_were_given_as_sizes() -> None:
    """A remedy names ``group``, which is no collection of rows."""
    data = layout([10, 10], [0, 1])
    qid = collection("qid", [10, 10], [0, 1], from_sizes=True)
    sizes = replace(data, collections=(*data.collections, qid))
    seen = view(layouts=[sizes])
    line = "X, y, group = clustertune.prepare(client, X, y, group=group, "
    assert remedies.prepare(seen) == f"{line}estimator=model)"
    kept = "clustertune.release_data(client, keep=[X, y, group])"
    assert remedies.release(seen) == kept
    assert remedies.scale(seen, 3) == "clustertune.scale(client, 3, X, y)"
    dropped = "Drop these rows from X, y and group before you load them."
    assert remedies.drop_rows(sizes, sizes.collections[1]) == dropped
    evals = collection("eval_set[0].qid", [10], [0], from_sizes=True)
    assert evals.argument == "eval_set[0].group"


@pytest.mark.parametrize(("homes", "offered"), [(None, False), ([0], True)])
def test_data_to_keep_is_in_memory(homes: list[int] | None, *, offered: bool) -> None:
    """The call raises an error if nothing in ``keep=`` is in memory."""
    full = [worker(0, process=2**30, managed=2**30)]
    text = remedies.free_memory(view(full, [layout([10], homes)]), full).remedy
    assert ("release_data" in text) is offered


def test_a_random_order_keeps_groups_together() -> None:
    """Rows in random order would scatter each group, which a ranker refuses."""
    ranked = layout([10, 10], [0, 1], ("X", "y", "qid"))
    assert "keep the rows of each together" in remedies.random_order(ranked)
    assert "permutation(20)" in remedies.random_order(layout([10, 10], [0, 1]))


@pytest.mark.parametrize("obstacle", ["manager", "nanny", "versions"])
def test_no_restart_that_would_be_refused(obstacle: str) -> None:
    """The user gets the reason of the manager, or the tool that started the workers."""
    other = worker(1, facts=OtherVersions("it runs Python 3.9"))
    last = {"nanny": worker(1, nanny=None), "versions": other}.get(obstacle, worker(1))
    seen = view([worker(0), last])
    if obstacle == "manager":
        now = replace(seen.now, can_restart="a gateway ends a worker; scale instead")
        seen = replace(seen, snapshots=(now,))
    for fix in (
        remedies.restart(seen, seen.now.workers),
        remedies.resize(seen, seen.now.workers, nthreads=2),
        remedies.trim(seen, seen.now.workers),
    ):
        assert "restart_workers" not in fix.remedy + fix.command
        assert "resize_workers" not in fix.remedy + fix.command
    text = remedies.restart(seen, seen.now.workers).remedy
    assert ("scale instead" in text) == (obstacle == "manager")
