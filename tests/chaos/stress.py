"""Dask's own tests on a cluster that another process disturbs without a pause.

The tests run on the cluster as they are, and again while the other process checks,
holds, trims and restarts all workers. A test that passes first must pass again.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import dask
import dask.base
import pytest
from distributed import Client

import clustertune
from clustertune.errors import ClustertuneError
from tests.chaos.clusters import LocalWorkers, becomes_true
from tests.chaos.rounds import Round

N_TESTS = 200
SETTINGS = Path(__file__).parents[1] / "peers" / "peers.ini"
#: files of Dask's tests that compute arrays and frames
FILES = (
    *("array_core", "linalg", "masked", "overlap", "percentiles", "rechunk"),
    *("reductions", "reshape", "routines", "shuffle", "slicing", "stats", "ufunc"),
    *("dataframe", "groupby", "indexing", "multi", "rolling"),
)


def _hold(client: Client) -> None:
    with clustertune.hold(client, label="stress"):
        clustertune.check(client)


CALLS: dict[str, Callable[[Client], Any]] = {
    "check": clustertune.check,
    "hold": _hold,
    "trim": lambda client: clustertune.trim_memory(client, progress=False),
    "restart": lambda client: clustertune.restart_workers(client, progress=False),
}


def disturb(address: str, seed: int, over: Any, pipe: Any) -> None:
    """Make all calls in random order, again and again, until the event is set."""
    rng, ended = Random(seed), Counter[str]()
    with Client(address) as client:
        while not over.is_set():
            for name in rng.sample(list(CALLS), len(CALLS)):
                try:
                    result = CALLS[name](client)
                    ended[f"{name} {getattr(result, 'status', '')}".strip()] += 1
                except ClustertuneError as error:
                    ended[f"{name} {type(error).__name__}"] += 1
                pipe.send(ended)


class Stress:
    """A plugin of pytest that runs tests as they are, and then disturbed.

    If results differ, it runs the tests once more on Dask alone, and a client keeps all
    earlier results. A test that fails there too gives one key to different data.
    """

    def __init__(self, cluster: LocalWorkers, seed: int) -> None:
        self.cluster, self.seed = cluster, seed
        self.computing: set[str] = set()  # tests that compute
        self.kept: list[Any] | None = None  # earlier results, if they are kept
        self.calls = Counter[str]()
        self.equal: list[str] = []
        self.mixed_up: list[str] = []
        self.broken: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        drawn = Random(self.seed).sample(range(len(items)), len(items))
        items[:] = [items[i] for i in sorted(drawn[:N_TESTS])]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        with self._everything_on_the_cluster():
            errors = self._run(session.items)
            passing = {
                test for test in self.computing if not errors.get(test, "failed")
            }
            items = [item for item in session.items if item.nodeid in passing]
            with self._disturbed():
                errors = self._run(items)
            self.equal = [test for test, error in errors.items() if not error]
            if len(self.equal) < len(errors):
                self.kept = []
                alone = self._run(items)
                self.kept = None
                self.mixed_up = [t for t, e in errors.items() if e and alone[t]]
        known = {*self.equal, *self.mixed_up}
        self.broken += [f"{t}: {e}" for t, e in errors.items() if t not in known]
        return True

    def _run(self, items: Sequence[pytest.Item]) -> dict[str, str]:
        """Run tests; return their errors, which are empty for tests that pass."""
        self.errors: dict[str, str] = {}
        for item, following in zip(items, [*items[1:], None], strict=True):
            self.test = item.nodeid
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return self.errors

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.errors[report.nodeid] = report.longreprtext.strip().splitlines()[-1]
        elif report.when == "call" and report.passed:
            self.errors.setdefault(report.nodeid, "")

    @contextmanager
    def _everything_on_the_cluster(self) -> Iterator[None]:
        """Compute graphs on the cluster that the tests compute in their process."""
        client = self.cluster.client

        def get(graph: Any, keys: Any, **options: Any) -> Any:
            self.computing.add(self.test)
            if self.kept is not None:
                tasks = graph if isinstance(graph, Mapping) else graph.__dask_graph__()
                self.kept.append(client.get(graph, list(tasks), sync=False))
            return client.get(graph, keys, **options)

        with pytest.MonkeyPatch.context() as patch:
            for name in ("sync", "synchronous", "single-threaded"):
                patch.setitem(dask.base.named_schedulers, name, get)
            with dask.config.set(scheduler="sync"):
                yield

    @contextmanager
    def _disturbed(self) -> Iterator[None]:
        """Disturb the cluster from another process, with each call at least once."""
        context = multiprocessing.get_context("spawn")
        over, (ours, theirs) = context.Event(), context.Pipe(duplex=False)
        address = self.cluster.client.scheduler.address
        other = context.Process(
            target=disturb, args=(address, self.seed, over, theirs), daemon=True
        )
        other.start()
        theirs.close()
        try:
            with suppress(EOFError):
                self.calls = ours.recv()
            yield
        finally:
            over.set()
        with suppress(EOFError):
            while True:
                self.calls = ours.recv()
        other.join()
        if other.exitcode:
            self.broken.append("a call failed with an error that is not clustertune's")


def play(seed: int, tests: Sequence[str] = ()) -> Round:
    """Play a round with these tests of Dask, or with tests drawn from the seed."""
    start, root = monotonic(), Path(dask.__file__).parent
    if not tests:
        files = (root.glob(f"*/tests/test_{name}.py") for name in FILES)
        tests = [str(file) for found in files for file in found]
    cluster = LocalWorkers(2)
    try:
        stress = Stress(cluster, seed)
        options = ["-q", "--no-header", "--no-summary", f"--config-file={SETTINGS}"]
        pytest.main([*tests, *options, f"--rootdir={root}"], [stress])
        gc.collect()  # futures in the frames of errors
        if not becomes_true(lambda: not cluster.watch.run_on_scheduler(_keys)):
            left = cluster.watch.run_on_scheduler(_keys)
            stress.broken.append(f"the scheduler keeps {left[:5]}")
    finally:
        cluster.close()
    if not stress.equal:
        stress.broken.append("no result is equal")
    names = ", ".join(stress.mixed_up) or "none"
    return Round(
        seed=seed,
        action="tests of Dask",
        outcome=f"{len(stress.equal)} equal, mixed up by Dask alone: {names}",
        seconds=monotonic() - start,
        faults=tuple((f"{n} x {call}", "tests") for call, n in stress.calls.items()),
        broken=tuple(stress.broken),
    )


def _keys(dask_scheduler: Any) -> list[str]:
    """Keys on the scheduler, and the clients that need them."""
    return [f"{ts.key}: {ts.who_wants}" for ts in dask_scheduler.tasks.values()]
