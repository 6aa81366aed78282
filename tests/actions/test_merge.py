"""One worker per host in place of several: no data is lost."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client, LocalCluster, wait

import clustertune
from clustertune import checks
from clustertune.actions import scale
from clustertune.checks.threads import several_workers_per_host
from clustertune.cli import main
from clustertune.core.model import (
    HeldData,
    ParkingSpace,
    Profile,
    Resize,
    Retire,
    Unknown,
    WorkerSize,
)
from clustertune.errors import RefusedError
from clustertune.integrations.managers import Gateway, SpecCluster
from clustertune.operations.journal import Journal
from clustertune.operations.prepare import tune
from clustertune.planner import guards, machines
from tests.builders import layout, snapshot, verify, view, worker
from tests.memory_cluster import MemoryCluster
from tests.processes import until, workers_of

GIB = 2**30
ALL = frozenset(range(8))  # CPUs
THREADS = Profile(
    name="t", title="T", memory_multiple={8: 2.0}, threads="worker", packages=()
)


def held(nbytes: int, actors: int = 0) -> HeldData:
    return HeldData(keys=1, unique=1, nbytes=nbytes, scattered=0, actors=actors)


def workers(*nbytes: int, **overrides: Any) -> list[Any]:
    """Equal workers of one host that hold so many bytes."""
    return [
        worker(i, affinity=ALL, held_data=held(n), managed=n, **overrides)
        for i, n in enumerate(nbytes)
    ]


# --- decisions (pure) -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([(1, 4), (1, 4)], (2, 8)),
        ([(2, 0), (2, 0), (2, 0)], (6, None)),
        ([(4, 16), (1, 4), (1, 4), (1, 4)], (4, 16)),
        ([(4, 16), (1, 4)], (4, 16)),
        ([(2, 4), (1, 4)], None),
        ([(3, 12), (2, 8)], None),
        ([(1, 4), (2, 8), (2, 8)], None),
    ],
    ids=[
        "two",
        "without limits",
        "an interrupted merge",
        "one left of four",
        "more threads only",
        "less than both",
        "two large ones",
    ],
)
def test_merged_size(sizes: Any, merged: Any) -> None:
    """It is the sum, or the size of the worker that was resized already."""
    some = tuple(
        worker(i, nthreads=n, memory_limit=limit) for i, (n, limit) in enumerate(sizes)
    )
    found = machines.merged_size(some)
    assert (found and (found.nthreads, found.memory_limit)) == merged


def test_prepare_merges_all_or_nothing() -> None:
    """If one worker cannot retire, prepare resizes none: the host would have more."""
    some = workers(10, 30)
    actor = replace(some[0], held_data=held(10, actors=1))
    found = view([actor, some[1]], merge_workers=True)
    with pytest.raises(RefusedError, match=r"nothing was changed: .*actor"):
        list(scale.propose_merges((), found))
    assert len(list(scale.propose_merges((), view(some, merge_workers=True)))) == 2


def test_steps() -> None:
    """The worker with the most data is resized, then the others move theirs to it."""
    found = view(workers(10, 30, 20))
    first, *others = scale.merges(found)
    assert first.args.id == 1
    assert (first.args.size.nthreads, first.args.size.memory_limit) == (3, 12 * GIB)
    assert [s.args.id for s in others] == [0, 2]
    for step in others:
        assert isinstance(step.args, Retire)
        assert step.args.process_limits == {1: int(0.7 * 12 * GIB)}
        assert step.action == "merge"
        assert "move to worker 1" in step.summary
    assert all(no is None for _, no in guards.sort_out([first, *others], found))
    assert list(scale.propose_merges((), found)) == []
    requested = view(workers(10, 30), merge_workers=True)
    assert len(list(scale.propose_merges((), requested))) == 2


def test_limits_above_the_memory_of_the_host() -> None:
    """Dask limits the kept worker to that memory, and another merge goes on."""
    some = workers(30, 10, memory_limit=20 * GIB, host_memory=32 * GIB)
    resize, retirement = scale.merges(view(some))
    assert resize.args.size.memory_limit == 32 * GIB
    later = view([replace(some[0], nthreads=2, memory_limit=32 * GIB), some[1]])
    assert guards.replacement_has_its_size(retirement.args, later) is None
    (again,) = scale.merges(later)
    assert (again.args.id, type(again.args)) == (1, Retire)
    alone = view([replace(w, nanny=None) for w in some])
    with pytest.raises(RefusedError, match="--memory-limit 32768MiB"):
        list(scale.merges(alone))


def test_parked_keys_are_brought_back_once() -> None:
    """Hosts with different sizes have one step for them."""
    parked = worker("p", host="third", parking=True, held_data=held(5))
    some = workers(0, 0) + [
        replace(w, id=w.id + 2, host="other") for w in workers(0, 0, nthreads=2)
    ]
    steps = list(scale.merges(view([*some, parked])))
    assert [s.args.id for s in steps].count("p") == 1


def test_equal_workers() -> None:
    """Without data the first worker is kept; each host has its own."""
    some = workers(0, 0) + [
        replace(w, id=w.id + 2, host="other") for w in workers(0, 0, nthreads=2)
    ]
    steps = list(scale.merges(view(some)))
    resized = [s.args for s in steps if isinstance(s.args, Resize)]
    assert [args.id for args in resized] == [0, 2]
    assert [args.size.nthreads for args in resized] == [2, 4]
    assert list(scale.merges(view(some), {0, 2})) == []
    assert len(list(scale.merges(view(some), {0, 1}))) == 2


def test_an_interrupted_merge() -> None:
    """It goes on: the worker that has the size is kept."""
    first, second, third = workers(1, 9, 9)
    first = replace(first, nthreads=3, memory_limit=12 * GIB)
    steps = list(scale.merges(view([first, second, third])))
    assert [(s.args.id, type(s.args)) for s in steps] == [(1, Retire), (2, Retire)]
    assert steps[0].args.process_limits.keys() == {0}


def test_workers_without_limits() -> None:
    """The kept worker has none either, so no guard compares data with a limit of 0."""
    some = workers(GIB, GIB, memory_limit=0)
    found = view(some)
    steps = list(scale.merges(found))
    assert all(no is None for _, no in guards.sort_out(steps, found))
    assert str(steps[0].args.size) == "2 threads"
    later = view([replace(some[0], nthreads=2), some[1]])
    assert guards.replacement_has_its_size(steps[1].args, later) is None


def test_a_worker_that_was_not_resized() -> None:
    """Nothing moves to it: its limit is not that of the plan."""
    found = view(workers(10, 30))
    _, retirement = scale.merges(found)
    refused = guards.refusal(retirement, found)
    assert refused is not None
    assert refused.guard == "replacement_has_its_size"
    alone = view(workers(10))
    assert "has left" in str(guards.replacement_has_its_size(retirement.args, alone))


def test_too_little_memory() -> None:
    """The keys of all retired workers are counted before anything changes."""
    space = ParkingSpace(memory=64 * GIB, disk=0)
    some = workers(*[int(3.5 * GIB)] * 4, process=int(3.6 * GIB), parking_space=space)
    found = list(guards.sort_out(scale.merges(view(some)), view(some)))
    assert [no is None for _, no in found] == [True, True, True, False]
    refused = found[-1][1]
    assert refused is not None
    assert refused.guard == "restart_loses_nothing"


def test_keys_that_fit_only_with_other_hosts() -> None:
    """Then other hosts get some."""
    some = workers(GIB, 3 * GIB, process=3 * GIB)
    some[1] = replace(some[1], process=7 * GIB)
    away = worker("away", host="other", memory_limit=64 * GIB)
    _, retirement = scale.merges(view([*some, away]))
    assert retirement.args.process_limits.keys() == {1, "away"}
    assert "move to the other workers" in retirement.summary


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"setup": {"resources": "GPU=1"}}, "would not add up their GPU=1"),
        ({"affinity": frozenset({0})}, "different CPUs"),
        ({"memory_limit": GIB}, "different threads or memory limits"),
        ({"nanny": None}, "without a nanny"),
        ({"facts": Unknown("it is silent")}, "unknown: it is silent"),
        ({"setup": {"CUDA_VISIBLE_DEVICES": "1"}}, "different CUDA_VISIBLE_DEVICES"),
        ({"setup": {"preload modules": "a.py"}}, "different preload modules"),
    ],
)
def test_workers_that_differ(change: dict[str, Any], reason: str) -> None:
    """They are not merged, and unless a nanny is missing, there is no finding."""
    first, _ = workers(0, 0)
    if "resources" in change.get("setup", {}):
        first = worker(0, affinity=ALL, **change)
    second = worker(1, **({"affinity": ALL} | change))
    found = view([first, second], workload=THREADS)
    with pytest.raises(RefusedError, match=reason) as refused:
        list(scale.merges(found))
    assert "dask worker tcp://127.0.0.1:8786 --nthreads 2" in str(refused.value)
    assert bool(list(several_workers_per_host(found))) == ("nanny" in change)


@pytest.mark.parametrize(
    "adaptive", [(0, 4), (0, math.inf), Unknown("the server knows")]
)
def test_adaptive_scaling(adaptive: Any) -> None:
    """It would start the workers again."""
    moment = snapshot(workers(0, 0), adaptive=adaptive)
    with pytest.raises(RefusedError, match="--nthreads 2 --memory-limit"):
        list(scale.merges(view(snapshots=[moment])))


def test_managers() -> None:
    """They would start the workers again, too; the text has the size."""
    reason = Gateway(object()).merge_obstacle()
    moment = snapshot(workers(0, 0), can_merge=reason)
    with pytest.raises(RefusedError, match="one worker per host, 2 threads and 8192"):
        list(scale.merges(view(snapshots=[moment])))


def test_a_worker_that_is_missing(local_cluster: Any) -> None:
    """It may return with its threads, so the others are not merged before a timeout."""
    local, client = local_cluster(3, memory_limit="1 GiB")
    assert SpecCluster(local).merge_obstacle() is None
    nanny = local.workers[2]
    nanny.close_gracefully()  # it will not start the worker again
    address = nanny.worker_address
    os.kill(client.run(os.getpid)[address], signal.SIGKILL)
    until(lambda: len(local.observed) == 2)
    with pytest.raises(RefusedError, match="only 2 of 3 workers of the LocalCluster"):
        clustertune.merge_workers(client)
    assert sizes(client) == [(1, GIB)] * 2
    del local.workers[2]  # as Dask does after distributed.deploy.lost-worker-timeout
    assert clustertune.merge_workers(client).status == "done"
    assert sizes(client) == [(2, 2 * GIB)]
    assert len(local.worker_spec) == 1


# --- in memory ------------------------------------------------------------------------


def test_prepare_in_memory() -> None:
    """The workers are merged before any other phase."""
    start = view(workers(0, 0, 0), [layout([10, 20, 30], [0, 1, 2])])
    start = replace(start, goal=replace(start.goal, merge_workers=True))
    memory = MemoryCluster(start)
    journal = Journal(call="prepare")
    asyncio.run(tune(memory, journal, notify=lambda *_: None))
    (left,) = memory.workers.values()
    assert (left.nthreads, left.memory_limit) == (3, 12 * GIB)
    verify(start, journal.views[-1])
    assert {o.step.action for o in journal.outcomes} == {"merge"}
    assert journal.status(dry_run=False) == "done"


# --- live -----------------------------------------------------------------------------


def load(client: Client) -> tuple[da.Array, da.Array, list[Any], float]:
    """Persisted and scattered data, and a sum of it."""
    X = da.random.default_rng(0).random((40_000, 20), chunks=(2_000, 20))
    X, y = client.persist([X, (X[:, 0] > 0.5).astype("i4")])
    kept = client.scatter([np.full(9, i) for i in range(8)], hash=False)
    wait([X, y])
    return X, y, kept, float(X.sum().compute())


def assert_whole(client: Client, X: Any, kept: list[Any], total: float) -> None:
    assert all(client.who_has(X).values())
    assert float(X.sum().compute()) == total
    assert [int(v[0]) for v in client.gather(kept)] == list(range(8))


def sizes(client: Client) -> list[tuple[int, int]]:
    found = [(w["nthreads"], w["memory_limit"]) for w in workers_of(client).values()]
    return sorted(found)


def actual(dask_worker: Any) -> tuple[int, int | None]:
    return dask_worker.state.nthreads, dask_worker.memory_manager.memory_limit


def test_merge_of_a_local_cluster(local_cluster: Any) -> None:
    """All data is kept, also what is scattered; so is the shape of later workers."""
    n_workers = 3
    local, client = local_cluster(n_workers, memory_limit="1 GiB")
    X, y, kept, total = load(client)
    plan = clustertune.merge_workers(client, X, y, dry_run=True)
    assert len(plan.steps) == n_workers
    assert sizes(client) == [(1, GIB)] * n_workers
    report = clustertune.merge_workers(client, X, y)
    assert report.status == "done", str(report)
    assert sum(step.lost for step in report.steps) == 0
    whole = (n_workers, n_workers * GIB)
    assert list(client.run(actual).values()) == [whole]
    assert_whole(client, X, kept, total)
    (name,) = local.worker_spec
    assert clustertune.merge_workers(client).status == "fine"
    # as docs/workers.md shows
    clustertune.resize_workers(client, X, y, nthreads=1, memory_limit="1 GiB")
    clustertune.scale(client, n_workers, X, y)
    assert sizes(client) == [(1, GIB)] * n_workers
    assert_whole(client, X, kept, total)


def test_merge_without_limits(local_cluster: Any) -> None:
    """The worker that is left has no limit either, and all data."""
    _, client = local_cluster(2, memory_limit=0)
    X, y, kept, total = load(client)
    report = clustertune.merge_workers(client, X, y)
    assert report.status == "done", str(report)
    assert list(client.run(actual).values()) == [(2, None)]
    assert_whole(client, X, kept, total)


def on(text: str, act: Callable[[], None]) -> Callable[[str, float | None], None]:
    """Return a progress function that acts once, at the first text like this."""
    left = [act]

    def progress(shown: str, _fraction: float | None) -> None:
        if left and shown.startswith(text):
            left.pop()()

    return progress


@pytest.mark.parametrize("moment", ["resize worker", "retire"])
def test_interrupted(local_cluster: Any, moment: str) -> None:
    """After ^C all data is there, and another call completes the merge."""
    _, client = local_cluster(4, memory_limit="1 GiB")
    X, y, kept, total = load(client)
    thread = threading.main_thread().ident
    assert thread is not None
    stop = on(moment, lambda: signal.pthread_kill(thread, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        clustertune.merge_workers(client, X, y, progress=stop)
    assert_whole(client, X, kept, total)
    report = clustertune.merge_workers(client, X, y)
    assert report.status in ("done", "fine"), str(report)
    assert sizes(client) == [(4, 4 * GIB)]
    assert_whole(client, X, kept, total)


def test_a_killed_worker(local_cluster: Any) -> None:
    """Its keys are computed again, and those of the others are there."""
    _, client = local_cluster(3, memory_limit="1 GiB")
    X, _, _, total = load(client)
    pids = {w["name"]: w["pid"] for w in _details(client)}

    def kill() -> None:
        os.kill(pids[2], signal.SIGKILL)

    report = clustertune.merge_workers(client, X, progress=on("retire worker 2", kill))
    assert report.status in ("done", "left"), str(report)

    def is_merged() -> bool:
        """Merge again: the nanny may have started the killed worker once more."""
        try:
            status = clustertune.merge_workers(client).status
        except RefusedError:  # it is starting
            return False
        return status in ("done", "fine") and sizes(client) == [(3, 3 * GIB)]

    until(is_merged)
    wait(X)
    assert float(X.sum().compute()) == total


def _details(client: Client) -> list[dict[str, Any]]:
    pids = client.run(os.getpid)
    return [w | {"pid": pids[a]} for a, w in workers_of(client).items()]


def test_spilled_data_that_does_not_fit(local_cluster: Any) -> None:
    """It is refused before anything is changed."""
    _, client = local_cluster(2, memory_limit="600 MiB")
    big = [
        client.submit(np.ones, 2_500_000, workers=[address], pure=False)
        for address in workers_of(client)
        for _ in range(36)
    ]
    wait(big)
    with pytest.raises(RefusedError, match="the others have room for"):
        clustertune.merge_workers(client)
    assert sizes(client) == [(1, 600 * 2**20)] * 2


# --- fits -----------------------------------------------------------------------------


@pytest.fixture
def two(local_cluster: Any) -> tuple[LocalCluster, Client]:
    found: tuple[LocalCluster, Client] = local_cluster(2, memory_limit="2 GiB")
    return found


def test_prepare_and_fit(two: Any) -> None:
    """One call merges, prepares and fits, on all threads; a dry run changes nothing."""
    dxgb = pytest.importorskip("xgboost.dask")
    _, client = two
    X, y, kept, total = load(client)
    model = dxgb.DaskXGBClassifier(n_estimators=5, tree_method="hist")
    plan = clustertune.prepare(
        client, X, y, estimator=model, merge_workers=True, dry_run=True
    )
    assert [s.action for s in plan.report.steps] == ["merge", "merge"]
    assert len(workers_of(client)) == 2
    model = clustertune.fit(client, model, X, y, merge_workers=True)
    assert sizes(client) == [(2, 4 * GIB)]
    assert "resized 1 of 1 worker" in str(model.clustertune_report_)
    assert float((model.predict(X) == y).mean().compute()) > 0.99
    assert_whole(client, X, kept, total)
    with pytest.raises(TypeError, match="does not combine with n_workers"):
        clustertune.prepare(client, X, y, merge_workers=True, n_workers=2)


# --- commands and playbooks -----------------------------------------------------------


def test_command(two: Any) -> None:
    """It plans, asks, and acts. It has an address only: nannies suffice to merge."""
    _, client = two
    address = client.scheduler.address
    done = CliRunner().invoke(main, ["merge", "--dry-run", address])
    assert done.exit_code == 0, done.output
    assert "retire worker 1" in done.output
    assert len(workers_of(client)) == 2
    X, _, kept, total = load(client)
    done = CliRunner().invoke(main, ["merge", "--yes", "--quiet", address])
    assert done.exit_code == 0, done.output
    assert sizes(client) == [(2, 4 * GIB)]
    assert_whole(client, X, kept, total)


PLAYBOOK = """
version: 1
name: one-worker
steps:
  - when: several_workers_per_host
    at_least: info
    do: merge
    with: {workers: named}
limits: {settle: 0}
"""


def test_playbook(two: Any, tmp_path: Path) -> None:
    """Its condition is the check."""
    _, client = two
    file = tmp_path / "merge.yaml"
    file.write_text(PLAYBOOK)
    (step,) = clustertune.run_playbook(client, file, estimator="generic").steps
    assert step.status == "skipped"
    (step,) = clustertune.run_playbook(client, file, estimator="xgboost").steps
    assert step.status == "done", str(step)
    assert sizes(client) == [(2, 4 * GIB)]


def test_checks_of_a_live_cluster(two: Any) -> None:
    """The check has the finding before the merge, and none afterwards.

    A merge of an adaptive cluster is refused. After a merge, the cluster object starts
    no worker again, and new workers have the new size.
    """
    local, client = two
    adaptive = local.adapt(minimum=2, maximum=2)
    with pytest.raises(RefusedError, match="adaptive scaling would start"):
        clustertune.merge_workers(client)
    assert len(workers_of(client)) == 2
    adaptive.stop()
    name = several_workers_per_host.__name__
    assert name in checks.available()
    found = clustertune.check(client, estimator="xgboost").found
    (finding,) = [f for f in found if f.check == name]
    assert finding.remedy == "Run `clustertune.merge_workers(client)`."
    assert clustertune.merge_workers(client).status == "done"
    assert len(local.worker_spec) == 1
    found = clustertune.check(client, estimator="xgboost").found
    assert name not in {f.check for f in found}
    local.scale(2)
    client.wait_for_workers(2)
    assert sizes(client) == [(2, 4 * GIB)] * 2


def test_a_size_is_given_to_a_worker() -> None:
    """Unknown parts of it stay as they are."""
    given = WorkerSize(nthreads=3).given_to(worker(0))
    assert (given.nthreads, given.memory_limit) == (3, 4 * GIB)
