"""Simulated clusters and data, drawn from a seed, with faults.

The cases combine everything that the main loop supports: workers of all sizes, some of
them paused; loaded and lazy data, replicas, separated pairs, differing boundaries,
empty partitions; groups, classes and eval sets; all workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from clustertune.core.model import (
    CollectionInfo,
    HeldData,
    KeyGroup,
    Layout,
    Notify,
    ParkingSpace,
    View,
    WorkerSnapshot,
)
from clustertune.errors import ConnectionLostError
from clustertune.integrations import libraries
from tests.builders import collection, view, worker
from tests.memory_cluster import MemoryCluster

MIB = 2**20
ACTIONS = ("prepare",) * 8 + (
    "restart",
    "restart",
    "scale",
    "resize",
    "trim",
    "release",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """The cluster, data, call and faults of a seed."""

    seed: int
    action: str
    start: View
    values: Mapping[str, Any]  # of each row, by label
    options: Mapping[str, Any]  # of the simulated cluster
    faults: Mapping[int, str]  # by moment
    dry_run: bool


def draw(seed: int) -> Case:
    """Draw the case of a seed."""
    rng = Random(seed)
    action = rng.choice(ACTIONS)
    profile = rng.choice([m.profile for m in libraries.available().values()])
    n_rows = rng.choice((1, 7, 40, 40, 120, 120))
    width = rng.choice((80, 80, 80, MIB // 4, MIB))  # bytes of a row of X
    workers = _workers(rng, n_rows * width)
    grouped = bool(profile.groups)
    data = _data(rng, n_rows, width, len(workers), grouped=grouped)
    takes = profile.takes
    sets = [data]
    if rng.random() < 0.3 and (takes is None or "eval_set" in takes):
        small = rng.randint(1, 9)
        sets.append(
            _data(
                rng,
                small,
                width,
                len(workers),
                grouped=grouped,
                name="eval_set[0]",
            )
        )
    goal = _goal(rng, len(workers), data, profile)
    start = view(workers, sets, workload=profile, **goal)
    if rng.random() < 0.15:
        adaptive = (rng.randint(0, 2), float(rng.choice((4, 16, np.inf))))
        start = replace(start, snapshots=(replace(start.now, adaptive=adaptive),))
    return Case(
        seed=seed,
        action=action,
        start=start,
        values=_values(rng, sets),
        options={
            "most": rng.choice((2, 16)),
            "arrives": _arrival(rng),
        },
        faults=_faults(rng),
        dry_run=rng.random() < 0.1,
    )


# --- workers --------------------------------------------------------------------------


def _workers(rng: Random, nbytes: int) -> list[WorkerSnapshot]:
    count = rng.choice((1, 2, 2, 3, 3, 4, 5, 8))
    # memory limits from too low for the data to much more than needed
    limit = rng.choice((4096 * MIB, 4096 * MIB, max(64 * MIB, 2 * nbytes // count)))
    if rng.random() < 0.05:
        limit = 0
    hosts = rng.choice(("127.0.0.1", None))
    found = [
        worker(
            i,
            nthreads=rng.choice((1, 1, 1, 2, 4)),
            memory_limit=rng.choice((limit, limit, limit * 2)),
            process=rng.choice((20 * MIB, limit // 10)),
            status="paused" if i and rng.random() < 0.08 else "running",
            host=hosts or f"10.0.0.{i}",
            parking_space=ParkingSpace(
                memory=rng.choice((0, nbytes)), disk=rng.choice((0, 2 * nbytes))
            ),
        )
        for i in range(count)
    ]
    if rng.random() < 0.1:
        found[-1] = replace(found[-1], nanny=None)
    return found


# --- data -----------------------------------------------------------------------------


def _data(
    rng: Random,
    n_rows: int,
    width: int,
    n_workers: int,
    *,
    grouped: bool | None,
    name: str = "training data",
) -> Layout:
    labels = ["X", *(["y"] if rng.random() < 0.9 else [])]
    qid = grouped is not None and (grouped or rng.random() < 0.15)
    labels += ["qid"] if qid else []
    labels += ["sample_weight"] if rng.random() < 0.2 else []
    if name != "training data":
        labels = [f"{name}.{label}" for label in labels]
    alike, together = rng.random() < 0.6, rng.random() < 0.5
    lazy = rng.choice((0.0, 0.0, 0.0, 1.0, 0.5))
    rows = _cut(rng, n_rows)
    homes = _homes(rng, len(rows), n_workers)
    collections = []
    for label in labels:
        if not alike:
            rows = _cut(rng, n_rows)
        if not alike or not together:
            homes = _homes(rng, len(rows), n_workers)
        loaded = rng.random() >= lazy
        collections.append(
            _collection(rng, label, rows, homes if loaded else None, width)
        )
    return Layout(label=name, collections=tuple(collections))


def _collection(
    rng: Random, label: str, rows: list[int], homes: Any, width: int
) -> CollectionInfo:
    is_x = label.endswith("X")
    kind = rng.choice(("array", "array", "dataframe" if is_x else "series"))
    more: dict[str, Any] = {"kind": kind}
    if homes is None:
        more["derived"] = rng.random() < 0.5
    made = collection(label, rows, homes, width if is_x else 8, **more)
    if is_x and kind == "array" and rng.random() < 0.1:
        made = _in_blocks(made, homes)
    return made


def _in_blocks(made: CollectionInfo, homes: Any) -> CollectionInfo:
    """The same member with two blocks of columns in each partition."""
    keys = tuple((made.label, i) for i in range(2 * made.n_partitions))
    twice = None if homes is None else [h for h in homes for _ in range(2)]
    again = collection(made.label, None, twice, made.total_bytes or 8, keys=keys)
    return replace(
        made,
        keys=keys,
        column_blocks=2,
        holders=again.holders,
        nbytes=None if made.nbytes is None else np.repeat(made.nbytes, 2) // 2,
    )


def _cut(rng: Random, n_rows: int) -> list[int]:
    """Rows of partitions: even, or random, some of them empty."""
    count = rng.randint(1, 12)
    if rng.random() < 0.4:
        edges = [n_rows * i // count for i in range(count + 1)]
    else:
        inner = sorted(rng.randint(0, n_rows) for _ in range(count - 1))
        edges = [0, *inner, n_rows]
    return np.diff(edges).tolist()


def _homes(rng: Random, count: int, n_workers: int) -> list[list[int]]:
    """Holders of partitions: one worker, even, random, or with replicas."""
    how, first = rng.choice(("one", "even", "any", "any", "copies")), rng.randrange(64)
    found = []
    for i in range(count):
        home = {"one": first, "even": i}.get(how, rng.randrange(64)) % n_workers
        held = {home}
        if how == "copies":
            held |= {rng.randrange(n_workers) for _ in range(rng.randint(0, 2))}
        found.append(sorted(held))
    return found


def _values(rng: Random, sets: list[Layout]) -> dict[str, Any]:
    """Classes and groups of rows, sorted or not."""
    found: dict[str, Any] = {}
    for x in sets:
        for m in x.collections:
            assert m.rows is not None
            n, name = int(m.rows.sum()), m.label.rpartition(".")[2]
            if name == "y":
                labels = [rng.randint(0, rng.choice((1, 3))) for _ in range(n)]
                found[m.label] = np.array(labels, dtype=np.int64)
            if name == "qid":
                few = max(1, n // rng.choice((1, 4, 20)))
                groups = np.array([rng.randrange(few) for _ in range(n)])
                found[m.label] = groups if rng.random() < 0.3 else np.sort(groups)
    return found


# --- the goal -------------------------------------------------------------------------


def _goal(rng: Random, n_workers: int, data: Layout, profile: Any) -> dict[str, Any]:
    def maybe(chance: float, *values: Any) -> Any:
        return rng.choice(values) if rng.random() < chance else None

    wanted = {
        "n_workers": maybe(0.15, 2, 4, n_workers, "fit"),
        "persist": maybe(0.1, True, False),
        "rechunk": maybe(0.25, False, 3, 9, 24),
        "restart": maybe(0.15, "auto", True),
        "release_inputs": maybe(0.15, True),
        "tolerance": maybe(0.3, 0.0, 0.3, 1.0),
        "memory_fraction": maybe(0.2, 0.1, 1.0),
        "raise_on_low_memory": maybe(0.1, True),
        "goal_workers": maybe(0.15, range(max(1, n_workers - 1))),
    }
    return {k: v for k, v in wanted.items() if v is not None}


def _arrival(rng: Random) -> Callable[[int, int], Any]:
    how, seed = rng.choice(("even", "one", "any")), rng.randrange(100)

    def arrives(count: int, n_workers: int) -> Any:
        if how == "any":
            return np.random.default_rng(seed).integers(0, n_workers, count)
        partitions = np.arange(count)
        return partitions % n_workers if how == "even" else partitions * 0

    return arrives


# --- faults ---------------------------------------------------------------------------

FAULTS = (
    *("kill", "kill", "kill", "pause", "pause", "resume", "add worker", "fill memory"),
    *("copy partition", "move partition", "lose connection", "interrupt"),
)


def _faults(rng: Random) -> dict[int, str]:
    """Draw up to three faults, early or late."""
    count = rng.choice((0, 1, 1, 1, 1, 2, 3))
    return {
        int(10 ** rng.uniform(0, 2.3)) - 1: rng.choice(FAULTS) for _ in range(count)
    }


class FaultyCluster(MemoryCluster):
    """A simulated cluster with other data and faults, each injected at its moment.

    A moment is a key that is loaded, moved or made, and the start and end of each
    method of the port.

    Attributes
    ----------
    phase, inside : str
        The last method of the port; the method that runs, if any.
    injected : list of (fault, phase)
        Faults so far.
    hidden : set of str
        Labels of members whose rows are unknown until they are loaded.
    """

    def __init__(self, case: Case):
        self.rng = Random(case.seed + 10**9)
        self.faults = case.faults
        self.moment = 0
        self.phase = "before"
        self.inside = ""
        self.injected: list[tuple[str, str]] = []
        super().__init__(
            case.start, fault=FaultyCluster.inject, values=case.values, **case.options
        )
        lazy = [
            m.label for x in case.start.layouts for m in x.collections if not m.loaded
        ]
        self.hidden = set(lazy) if self.rng.random() < 0.5 else set()

    def stop_faults(self) -> None:
        """Inject no more faults."""
        self.faults = {}

    def inject(self) -> None:
        kind = self.faults.get(self.moment)
        self.moment += 1
        # a stopped rechunk has made nothing yet
        if kind is None or (kind in STOPS and self.inside == "rechunk"):
            return
        if INJECT[kind](self):
            self.injected.append((kind, self.phase))
            if kind in STOPS:
                raise STOPS[kind]

    async def look(self, notify: Notify) -> View:
        seen = await super().look(notify)
        other = KeyGroup(prefix="sum", keys=2, nbytes=99, scattered=0, mine=True)
        now = replace(seen.now, key_groups=(other,))
        return replace(seen, snapshots=(now,))

    def _worker(self, w: WorkerSnapshot, nbytes: int) -> WorkerSnapshot:
        seen = super()._worker(w, nbytes)
        held = [
            (len(holders), int(m.nbytes[i]))
            for m in (m for x in self.layouts for m in x.collections if m.loaded)
            for i, holders in enumerate(self.homes[m.label])
            if w.address in holders
        ]
        alone = [nbytes for copies, nbytes in held if copies == 1]
        burden = HeldData(
            keys=len(held),
            unique=len(alone),
            nbytes=sum(alone),
            scattered=0,
            actors=0,
        )
        return replace(seen, held_data=burden)

    def _collection(
        self, addresses: Any, training: bool, m: CollectionInfo
    ) -> CollectionInfo:
        seen = super()._collection(addresses, training, m)
        if m.loaded or m.label not in self.hidden:
            return seen
        return replace(seen, rows=None, total_bytes=None)


def _port(name: str) -> Any:
    method = getattr(FaultyCluster, name)

    async def call(self: FaultyCluster, *args: Any) -> Any:
        self.phase = name
        self.inject()
        self.inside = name
        try:
            result = await method(self, *args)
        finally:
            self.inside = ""
        self.inject()
        return result

    return call


for _name in (
    *("look", "load", "scale", "adapt", "rechunk", "move", "restart"),
    *("trim", "release"),
):
    setattr(FaultyCluster, _name, _port(_name))


class Interrupted(BaseException):
    """Simulates ^C and a timeout, which ``except Exception`` does not catch."""


STOPS: Mapping[str, BaseException] = {
    "lose connection": ConnectionLostError("the client is closed"),
    "interrupt": Interrupted(),
}


def _running(c: FaultyCluster) -> list[str]:
    return [a for a, w in c.workers.items() if w.running]


def _partitions(c: FaultyCluster) -> Iterator[tuple[str, int]]:
    for m in (m for x in c.layouts for m in x.collections if m.loaded):
        for i in range(len(m.keys)):
            yield m.label, i


def _kill(c: FaultyCluster) -> bool:
    if len(_running(c)) < 2:
        return False
    c.kill(c.rng.choice(list(c.workers)))
    return True


def _pause(c: FaultyCluster) -> bool:
    if len(_running(c)) < 2 and c.rng.random() < 0.7:
        return False  # now and then, the last running worker is paused
    c.pause(c.rng.choice(list(c.workers)))
    return True


def _resume(c: FaultyCluster) -> bool:
    paused = [a for a, w in c.workers.items() if not w.running]
    for address in paused[:1]:
        c.workers[address] = replace(c.workers[address], status="running")
    return bool(paused)


def _add_worker(c: FaultyCluster) -> bool:
    new = worker(f"late-{c.moment}", nthreads=c.rng.choice((1, 2)))
    c.workers[new.address] = new
    return True


def _fill(c: FaultyCluster) -> bool:
    address = c.rng.choice(list(c.workers))
    one = c.workers[address]
    part = c.rng.uniform(0.1, 0.9)
    c.workers[address] = replace(
        one, process=one.process + int(part * one.memory_limit)
    )
    return True


def _elsewhere(c: FaultyCluster, *, copied: bool) -> bool:
    partitions, running = list(_partitions(c)), _running(c)
    # new partitions are not known until all are made
    if not partitions or not running or c.inside == "rechunk":
        return False
    label, i = c.rng.choice(partitions)
    target = c.rng.choice(running)
    before = c.homes[label][i]
    c.homes[label][i] = before | {target} if copied else {target}
    return c.homes[label][i] != before


INJECT: Mapping[str, Callable[[FaultyCluster], bool]] = {
    "kill": _kill,
    "pause": _pause,
    "resume": _resume,
    "add worker": _add_worker,
    "fill memory": _fill,
    "copy partition": lambda c: _elsewhere(c, copied=True),
    "move partition": lambda c: _elsewhere(c, copied=False),
    "lose connection": lambda _: True,
    "interrupt": lambda _: True,
}
