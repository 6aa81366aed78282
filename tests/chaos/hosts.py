"""Rounds on a lab of hosts: a call on unlike hosts, and a fault of a host or a link.

Afterwards every row has its label, data of hosts that did not fail exists, no lease,
hold, job, parking or paused worker remains, and the next call works.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from distributed import Client
from lightgbm import DaskLGBMRegressor
from lightgbm.basic import LightGBMError
from xgboost.core import XGBoostError
from xgboost.dask import DaskXGBRegressor

import clustertune
from clustertune.errors import ClustertuneError
from tests.chaos.rounds import Round
from tests.hosts import lab as labs
from tests.hosts.clusters import (
    MIB,
    Cluster,
    assert_intact,
    assert_scattered,
    assert_settled,
    load,
    scatter,
)
from tests.hosts.lab import WORKERS, Host, sh
from tests.processes import until, workers_of

logger = logging.getLogger(__name__)

BLOCK = 4  # consecutive seeds on the same hosts
TIMEOUT = "100 s"  # of a call
DISK = 40  # MB of a small disk
#: what happens to a host during a call, and whether its processes and data remain
FAULTS: dict[str, Callable[[Host, float], Any]] = {
    "none": lambda host, seconds: None,
    "kill": lambda host, seconds: host.kill(),
    "cable": lambda host, seconds: _for(seconds, host.pull, host.plug),
    "interface": lambda host, seconds: _for(seconds, host.switch_off, host.switch_on),
    "freeze": lambda host, seconds: _for(seconds, host.freeze, host.thaw),
    "slow": lambda host, seconds: host.rate("20mbit"),
    "loss": lambda host, seconds: host.lose(10),
    "full disk": lambda host, seconds: _fill(host),
}
CALLS: dict[str, Callable[[Client, Any, Any, Random], Any]] = {
    "move": lambda c, X, y, rng: _prepare(c, X, y, rechunk=False),
    "cut": lambda c, X, y, rng: _prepare(c, X, y, rechunk=rng.randint(20, 40)),
    "restart": lambda c, X, y, rng: clustertune.restart_workers(
        c, X, y, timeout=TIMEOUT
    ),
    "merge": lambda c, X, y, rng: clustertune.merge_workers(c, X, y, timeout=TIMEOUT),
    "scale down": lambda c, X, y, rng: clustertune.scale(
        c, max(1, _count(c) - rng.randint(1, 2)), X, y, timeout=TIMEOUT
    ),
    "fit xgboost": lambda c, X, y, rng: _fit(c, X, y, rng.choice((0, 1, -1)), XGBOOST),
    "fit lightgbm": lambda c, X, y, rng: _fit(
        c, X, y, rng.choice((0, 1, -1)), LIGHTGBM
    ),
}
TREES = 100
XGBOOST = partial(DaskXGBRegressor, n_estimators=TREES, max_depth=4, verbosity=0)
LIGHTGBM = partial(DaskLGBMRegressor, n_estimators=TREES, num_leaves=15, verbose=-1)
LONG = 75.0  # seconds of a fault after which a fit has lost the host


def _count(client: Client) -> int:
    return len(workers_of(client))


def _prepare(client: Client, X: Any, y: Any, **options: Any) -> Any:
    options = {"progress": False, "timeout": TIMEOUT, "estimator": "xgboost"} | options
    return clustertune.prepare(client, X, y, **options)


def _fit(client: Client, X: Any, y: Any, failures: int, made: Any) -> Any:
    """Train, and return the report."""
    model = made()
    options = {"progress": False, "timeout": TIMEOUT}
    options |= {"checkpoint_every": "0.5s"} if failures else {}
    clustertune.fit(client, model, X, y, max_failures=failures, **options)
    assert _rounds(model) == TREES
    return model.clustertune_report_


def _rounds(model: Any) -> int:
    if isinstance(model, DaskXGBRegressor):
        return int(model.get_booster().num_boosted_rounds())
    return int(model.booster_.num_trees())


def _for(seconds: float, begin: Callable[[], None], end: Callable[[], None]) -> None:
    begin()
    threading.Event().wait(seconds)
    end()


def _fill(host: Host) -> None:
    sh(f"head -c 100M /dev/zero > {host.folder}/disk/fill || true")


@dataclass(frozen=True, kw_only=True)
class Case:
    """The hosts, data, call and fault of a seed."""

    seed: int
    hosts: dict[str, dict[str, Any]]  # options of their workers
    cpus: dict[str, float]
    call: str
    fault: str
    victim: str
    after: int  # bytes that cross before the fault
    seconds: float  # that it lasts
    mib: int
    partitions: int
    source: tuple[str, ...]  # hosts that hold X and y


def draw(seed: int) -> Case:
    """Draw the case of a seed."""
    shared, rng = Random(seed // BLOCK), Random(seed + 10**6)
    names = WORKERS[: shared.randint(2, len(WORKERS))]
    hosts: dict[str, dict[str, Any]] = {}
    for name in names:
        n = shared.choice((1, 1, 2))
        extra = ("--worker-port", "9001") if n == 1 and shared.random() < 0.3 else ()
        hosts[name] = {
            "n": n,
            "threads": shared.choice((1, 1, 2)),
            "memory": shared.choice(("500MiB", "1GiB", "1GiB")),
            "extra": (*extra, "--local-directory", "{disk}"),
        }
    cpus = {name: shared.choice((-1, -1, 0.5)) for name in names}
    call = rng.choice([*CALLS])
    return Case(
        seed=seed,
        hosts=hosts,
        cpus=cpus,
        call=call,
        fault=rng.choice([*FAULTS]),
        victim=rng.choice(names),
        after=rng.choice((0, MIB // 4, 2 * MIB)),
        seconds=LONG if "fit" in call and rng.random() < 0.3 else rng.uniform(1, 6),
        mib=rng.choice((8, 24, 48)),
        partitions=rng.randint(6, 30),
        source=tuple(rng.sample(names, rng.randint(1, len(names)))),
    )


class Player:
    """Plays rounds; a lab, and the cluster of the round before if it fits."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.lab = cluster, cluster.lab

    def play(self, case: Case) -> Round:
        begun, broken, outcome = perf_counter(), list[str](), ""
        try:
            client, wanted = self._start(case)
            outcome = self._call(case, client, broken)
            with _noting(broken, "afterwards"):
                self._check_next_call(case, client, wanted)
        finally:
            self.cluster.repair()
            if broken or case.call in ("merge", "scale down"):
                self.cluster.stop()
        return Round(
            seed=case.seed,
            action=case.call,
            outcome=outcome,
            seconds=perf_counter() - begun,
            faults=((case.fault, case.call),) if case.fault != "none" else (),
            broken=tuple(broken),
        )

    def _start(self, case: Case) -> tuple[Client, dict[str, Any]]:
        wanted = {}
        for name, options in case.hosts.items():
            host = self.lab[name]
            disk = host.folder / "disk"
            if not disk.is_mount():
                disk.mkdir(exist_ok=True)
                sh(f"mount -t tmpfs -o size={DISK}m tmpfs {disk}")
            (disk / "fill").unlink(missing_ok=True)
            extra = tuple(o.format(disk=disk) for o in options["extra"])
            wanted[name] = options | {"extra": extra}
            if not self.lab.no_limits:
                host.limit(cpus=case.cpus[name])
        return self.cluster.start(**wanted), wanted

    def _call(self, case: Case, client: Client, broken: list[str]) -> str:
        X, y = load(
            client,
            mib=case.mib,
            partitions=case.partitions,
            workers=self.cluster.on(client, *case.source),
        )
        safe = [name for name in case.hosts if name != case.victim]
        kept = scatter(client, self.cluster.on(client, safe[0])[0])
        with self._fault(case):
            try:
                done = CALLS[case.call](client, X, y, Random(case.seed))
                outcome = getattr(done, "report", done).status
                X, y = done if case.call in ("move", "cut") else (X, y)
            # a library fails if a host is frozen or a link lost, and no worker has left
            except (ClustertuneError, XGBoostError, LightGBMError) as error:
                outcome = type(error).__name__
            except Exception as error:
                logger.exception("seed %s", case.seed)
                outcome = type(error).__name__
                broken.append(f"unexpected error: {error!r}")
        if case.fault == "kill" and not self.cluster.on(client, *safe):
            # the call had moved all data to the last worker, which was killed then
            wanted = self.cluster.wanted[case.victim]
            self.cluster.start_workers(case.victim, **wanted)
            until(lambda: self.cluster.on(client, case.victim))
            kept = []
        with _noting(broken, "rows"):
            assert_intact(client, X, y)
        with _noting(broken, "scattered data"):
            assert_scattered(client, kept)
        with _noting(broken, "state"):
            assert_settled(client)
        return outcome

    @contextmanager
    def _fault(self, case: Case) -> Iterator[None]:
        """Inject the fault once enough bytes have crossed, unless the call ends."""
        ended, start = threading.Event(), sum(self.lab.traffic().values())
        host = self.lab[case.victim]

        def run() -> None:
            while sum(self.lab.traffic().values()) - start < case.after:
                if ended.wait(0.05):
                    return
            FAULTS[case.fault](host, case.seconds)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _check_next_call(
        self, case: Case, client: Client, wanted: dict[str, Any]
    ) -> None:
        """The hosts are repaired, and prepare balances new data on all workers."""
        for host in self.lab.workers:
            host.repair()
            (host.folder / "disk" / "fill").unlink(missing_ok=True)
        if case.fault == "kill" or case.seconds == LONG:
            self.lab[case.victim].kill()
            self.cluster.start_workers(case.victim, **wanted[case.victim])
            if case.call not in ("merge", "scale down"):
                self.cluster.wait_for_workers(client)
        X, y = load(client)
        X, y = p = _prepare(client, X, y)
        assert p.report.status in ("fine", "done"), str(p.report)
        assert_intact(client, X, y)
        assert_settled(client)


@contextmanager
def _noting(broken: list[str], what: str) -> Iterator[None]:
    """Add an error to the problems."""
    try:
        yield
    except Exception as error:
        logger.exception("%s", what)
        broken.append(f"{what}: {error!r}"[:2000])


@contextmanager
def opened() -> Iterator[Player]:
    """Open a lab for rounds."""
    if reason := labs.missing():
        raise SystemExit(reason)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        cluster = Cluster(stack.enter_context(labs.opened(folder)))

        def end() -> None:
            cluster.repair()
            cluster.stop()
            for host in cluster.lab.workers:
                if (host.folder / "disk").is_mount():
                    sh(f"umount -l {host.folder / 'disk'}")

        stack.callback(end)
        yield Player(cluster)
