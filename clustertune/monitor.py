"""Reads a live cluster and where given data lies. The only reader; it changes nothing.

A look is one call of the scheduler's own (``identity``, all workers) and one of the
resident (memory, holders of the given keys). What a worker knows of itself and does
not change is asked once per worker; row counts once per piece, in one call per worker
over what it has in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import time
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from distributed import Client, Future

from clustertune import adapters
from clustertune.errors import LeaseHeldError, VersionMismatchError
from clustertune.model import (
    Int64s,
    Key,
    Member,
    Snapshot,
    Thresholds,
    Unknown,
    WorkerFacts,
    WorkerSnapshot,
)
from clustertune.remote import keys, probe, resident, ship, versions
from clustertune.report import Report

PATIENCE = 10.0  # seconds in which a worker answers what it knows of itself


@dataclass
class Known:
    """What was learned over one client and holds for as long as the worker or piece."""

    approved: set[str] = field(default_factory=set)  # addresses code may be sent to
    facts: dict[str, WorkerFacts | Unknown] = field(default_factory=dict)
    rows: dict[Key, int] = field(default_factory=dict)


_known: WeakKeyDictionary[Client, Known] = WeakKeyDictionary()


def known(client: Client) -> Known:
    """What was learned over this client so far."""
    return _known.setdefault(client, Known())


async def open_door(client: Client, workers: Sequence[str]) -> None:
    """See that code may be sent to all sides, and put the resident in place.

    Raises
    ------
    VersionMismatchError
        A side runs software to which code must not go; nothing was sent.
    LeaseHeldError
        An older resident is at work and could not be replaced.
    """
    await _approve(client, workers)
    answer = await ship.on_scheduler(client, resident.install)
    if answer["protocol"] > resident.PROTOCOL:
        raise VersionMismatchError(
            "a newer clustertune is at work on this scheduler (protocol "
            f"{answer['protocol']}, this one speaks {resident.PROTOCOL}); "
            "upgrade clustertune here"
        )
    if answer["busy"] is not None:
        raise LeaseHeldError(
            "an older clustertune is carrying out a plan on this cluster "
            f"({answer['busy']['label']}); try again when it has ended"
        )


async def _approve(client: Client, workers: Iterable[str]) -> None:
    """Ask the sides that were not asked yet for their versions."""
    memory = known(client)
    new = [w for w in workers if w not in memory.approved]
    if memory.approved and not new:
        return
    sides = await versions.read(client, new)
    objections = sides.objections()
    if objections:
        shown = "; ".join(objections[:3])
        more = len(objections) - 3
        raise VersionMismatchError(shown + (f"; and {more} more" if more > 0 else ""))
    memory.approved.update(sides.workers)


async def ask(client: Client, method: str, **arguments: Any) -> Any:
    """One request to the resident; plain types both ways, no code."""
    scheduler: Any = client.scheduler
    return await scheduler.clustertune(method=method, **arguments)


async def last_report(client: Client) -> Report | None:
    """The report that the resident keeps.

    Raises
    ------
    VersionMismatchError
        Another release wrote it, and it cannot be read here.
    """
    scheduler: Any = client.scheduler
    identity = await scheduler.identity(n_workers=0)
    await open_door(client, list(identity["workers"]))
    text = await ask(client, "recall")
    try:
        return Report.from_json(text) if text else None
    except ValueError as error:
        raise VersionMismatchError(
            f"the last report on this scheduler cannot be read here: {error}; use the "
            "release of clustertune that wrote it"
        ) from error


async def look(
    client: Client, members: Sequence[Member]
) -> tuple[Snapshot, tuple[Member, ...]]:
    """The cluster as it is now, and the members with their holders, bytes and rows.

    Members that are not loaded come back as they are.

    Raises
    ------
    VersionMismatchError, LeaseHeldError
        See :func:`open_door`.
    """
    scheduler: Any = client.scheduler
    identity = await scheduler.identity(n_workers=-1)
    await _approve(client, identity["workers"])
    loaded = [m for m in members if m.loaded]
    packed = [keys.pack(m.keys) for m in loaded]
    found = await ask(client, "look", collections=packed)
    snapshot = await _snapshot(client, identity, found)
    position = {w.address: i for i, w in enumerate(snapshot.workers)}
    renumber = np.array([position.get(a, -1) for a in found["workers"]], dtype=np.int64)
    placed = [
        _placed(m, raw, renumber)
        for m, raw in zip(loaded, found["collections"], strict=True)
    ]
    counted = await _count_rows(client, placed, [w.address for w in snapshot.workers])
    by_label = {m.label: m for m in counted}
    return snapshot, tuple(by_label.get(m.label, m) for m in members)


# --- the cluster --------------------------------------------------------------------


async def _snapshot(
    client: Client, identity: Mapping[str, Any], found: Mapping[str, Any]
) -> Snapshot:
    numbers = np.frombuffer(found["memory"], dtype=np.int64).reshape(-1, 5)
    memory = dict(zip(found["workers"], numbers.tolist(), strict=True))
    facts = await _facts(client, identity["workers"])
    workers = tuple(
        _worker(address, entry, memory[address], facts[address])
        for address, entry in identity["workers"].items()
        if address in memory  # one that left between the two calls is gone
    )
    return Snapshot(
        time=time(),
        scheduler=identity["address"],
        workers=workers,
        queued=found["queued"],
        can_scale=adapters.obstacle(client.cluster, len(workers) + 1),
    )


def worker_id(address: str, entry: Mapping[str, Any]) -> str | int:
    """What survives a restart: the name that was given, else the nanny's address."""
    name: str | int | None = entry["name"]
    if name is not None and name not in ("", address):
        return name
    return str(entry["nanny"] or address)


def _worker(
    address: str,
    entry: Mapping[str, Any],
    memory: Sequence[int],
    facts: WorkerFacts | Unknown,
) -> WorkerSnapshot:
    process, managed, spilled, executing, processing = memory
    return WorkerSnapshot(
        id=worker_id(address, entry),
        address=address,
        host=entry["host"],
        nanny=entry["nanny"],
        nthreads=entry["nthreads"],
        status=entry["status"],
        memory_limit=entry["memory_limit"] or 0,
        process=process,
        managed=managed,
        spilled=spilled,
        bandwidth=float(entry["metrics"].get("bandwidth", {}).get("total", 0.0)),
        executing=executing,
        processing=processing,
        facts=facts,
    )


async def _facts(
    client: Client, workers: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, WorkerFacts | Unknown]:
    """What workers and nannies know of themselves; asked once, unless unanswered."""
    memory = known(client)
    memory.facts = {a: f for a, f in memory.facts.items() if a in workers}
    new = [a for a in workers if isinstance(memory.facts.get(a), Unknown | None)]
    new = [a for a in new if a in memory.approved]
    nannies = [a for a in new if workers[a]["nanny"] is not None]
    answers, limits = await asyncio.gather(
        ship.on_workers(client, probe.worker_facts, new, timeout=PATIENCE),
        ship.on_workers(
            client, probe.nanny_facts, nannies, nanny=True, timeout=PATIENCE
        ),
    )
    for address in workers:
        if address in answers:
            terminate = limits.get(address)
            memory.facts[address] = _read_facts(answers[address], terminate)
        elif address not in memory.facts:
            memory.facts[address] = Unknown("the worker did not say its versions")
    return memory.facts


def _read_facts(answer: Any, terminate: Any) -> WorkerFacts | Unknown:
    if isinstance(answer, BaseException):
        return Unknown(f"the worker did not answer: {answer!r}")
    unknown = isinstance(terminate, BaseException)
    return WorkerFacts(
        thresholds=Thresholds(
            target=answer["target"],
            spill=answer["spill"],
            pause=answer["pause"],
            terminate=Unknown(f"nanny: {terminate!r}") if unknown else terminate,
        ),
        affinity=frozenset(answer["affinity"]),
        quotas=tuple((name, float(cpus)) for name, cpus in answer["quotas"]),
        host_memory=answer["host_memory"],
        cpu_count=answer["cpu_count"],
    )


# --- the data -----------------------------------------------------------------------


def _placed(member: Member, raw: Mapping[str, bytes], renumber: Int64s) -> Member:
    nbytes, piece, holder = (
        np.frombuffer(raw[name], dtype=np.int64)
        for name in ("nbytes", "pieces", "holders")
    )
    holder = renumber[holder] if len(holder) else holder
    there = holder >= 0
    return replace(member, nbytes=nbytes, holders=(piece[there], holder[there]))


async def _count_rows(
    client: Client, members: Sequence[Member], addresses: Sequence[str]
) -> tuple[Member, ...]:
    """True row counts: what is in memory is what counts, not what a collection says."""
    memory = known(client)
    given = {key for m in members for key in m.keys}
    memory.rows = {key: n for key, n in memory.rows.items() if key in given}
    asked: dict[str, list[Key]] = {}
    for member in members:
        for key, holder in _first_holders(member):
            if key not in memory.rows:
                asked.setdefault(addresses[holder], []).append(key)
    for counts in await asyncio.gather(
        *(_ask_rows(client, address, wanted) for address, wanted in asked.items())
    ):
        memory.rows.update(counts)
    return tuple(_with_rows(m, memory.rows) for m in members)


def _first_holders(member: Member) -> list[tuple[Key, int]]:
    if member.holders is None:
        return []
    piece, index = np.unique(member.holders[0], return_index=True)
    holder = member.holders[1][index]
    return [(member.keys[p], h) for p, h in zip(piece.tolist(), holder.tolist())]  # noqa: B905


async def _ask_rows(client: Client, address: str, wanted: list[Key]) -> dict[Key, int]:
    """Rows of pieces on one worker.

    Through tasks where they are spilled (Dask knows how to bring those back) and where
    the worker did not answer: a task that is a library's function ships no code.
    """
    found: dict[Key, int] = {}
    if address in known(client).approved:
        answers = await ship.on_workers(
            client, probe.row_counts, [address], timeout=PATIENCE, keys=wanted
        )
        if isinstance(counts := answers.get(address), list):
            found = {k: n for k, n in zip(wanted, counts, strict=True) if n >= 0}
    rest = [k for k in wanted if k not in found]
    return found | await _rows_by_task(client, rest)


async def _rows_by_task(client: Client, wanted: Sequence[Key]) -> dict[Key, int]:
    ours = [key for key in wanted if key in client.futures]
    lengths = [
        client.submit(np.shape, Future(key, client=client), pure=False) for key in ours
    ]
    shapes = await asyncio.gather(*lengths, return_exceptions=True)
    return {
        key: int(shape[0])
        for key, shape in zip(ours, shapes, strict=True)
        if isinstance(shape, tuple)
    }


def _with_rows(member: Member, rows: Mapping[Key, int]) -> Member:
    """Rows from row 0 of every column block; unknown if any piece is not counted."""
    counts = [rows.get(key, -1) for key in member.keys[:: member.column_blocks]]
    if min(counts, default=-1) < 0:
        return replace(member, rows=None) if member.kind != "array" else member
    return replace(member, rows=np.array(counts, dtype=np.int64))
