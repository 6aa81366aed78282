"""Reads a live cluster and where given data lies. The only reader; it changes nothing.

Whoever wants anything of the resident goes through here, too: :func:`open_door` sees
that code may be sent and puts it in place, :func:`ask` makes a request.

A look is one call of the scheduler's own (``identity``, all workers) and one of the
resident (memory, holders of the given keys). What a worker knows of itself and does
not change is asked once per process; row counts are taken at each look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from distributed import Client
from distributed.comm.core import CommClosedError

from clustertune.core.admission import is_parked_first
from clustertune.core.model import (
    Burden,
    Flow,
    Holding,
    Int64s,
    Key,
    Member,
    Room,
    Snapshot,
    Thresholds,
    Unknown,
    WorkerFacts,
    WorkerSnapshot,
)
from clustertune.core.report import Report
from clustertune.core.wording import printable
from clustertune.errors import (
    ClustertuneError,
    ConnectionLostError,
    LeaseHeldError,
    VersionMismatchError,
)
from clustertune.integrations import managers
from clustertune.monitor import connection, counting, links
from clustertune.monitor import overhead as measuring
from clustertune.planner import pricing
from clustertune.planner.memory import ceiling, space
from clustertune.remote import (
    chunks,
    keys,
    park,
    probe,
    resident,
    resize,
    runs,
    ship,
    tell,
    versions,
)

Process = tuple[str, str]

SILENCE = 60.0  # seconds for which a worker that did not answer is not asked again
PATIENCE = 10.0  # seconds in which a worker answers what it knows of itself
SOON = 1.0  # seconds in which a worker tells its memory; the scheduler hears it anyway
NOTICED = 0.2  # seconds in which a client notices that its own connection is broken
RECONNECT = 5.0  # seconds in which a client that lost its connection gets another one
#: requests that change nothing: repeated where a connection breaks
REPEATABLE = frozenset(
    (
        "burdens", "holdings", "in_vain", "is_held", "list_schedules", "look", "page",
        "past", "progress", "recall", "survey", "wanted",
    )
)  # fmt: skip


@dataclass
class Known:
    """What was learned over one client and holds for as long as a worker's process.

    A process is told by its address and its local directory, which is new with each.
    """

    approved: set[Process] = field(default_factory=set)  # code may be sent there
    silent: dict[Process, float] = field(default_factory=dict)  # since, monotonic
    facts: dict[Process, WorkerFacts | Unknown] = field(default_factory=dict)
    asked: dict[Process, float] = field(default_factory=dict)  # for facts, monotonic
    #: seconds that a task takes beside its work, and the workers with which it did
    overhead: tuple[float, frozenset[str]] | None = None

    @property
    def addresses(self) -> set[str]:
        """Of the workers to which code may be sent."""
        return {address for address, _ in self.approved}

    def forget_all_but(self, present: Iterable[Process]) -> None:
        """Let go what was learned of processes that are gone."""
        there = set(present)
        self.approved &= there
        self.silent = {p: t for p, t in self.silent.items() if p in there}
        self.facts = {p: f for p, f in self.facts.items() if p in there}
        self.asked = {p: t for p, t in self.asked.items() if p in there}


_known: WeakKeyDictionary[Client, Known] = WeakKeyDictionary()


def known(client: Client) -> Known:
    """What was learned over this client so far."""
    return _known.setdefault(client, Known())


def _process(address: str, entry: Mapping[str, Any]) -> Process:
    return address, str(entry["local_directory"])


async def identify(client: Client) -> Mapping[str, Any]:
    """The scheduler's own description of itself and of all its workers.

    Raises
    ------
    ConnectionLostError
        The client is closed, or its scheduler does not answer.
    """
    await _reconnected(client)
    scheduler = _scheduler(client)
    try:
        identity: Mapping[str, Any] = await scheduler.identity(n_workers=-1)
    except OSError as error:
        raise ConnectionLostError(connection.not_answering(error)) from error
    return identity


def _scheduler(client: Client) -> Any:
    """What calls to the scheduler are made of; of a closed client there is none."""
    connection.refuse_closed(client)
    return client.scheduler


class ResidentGoneError(ConnectionLostError):
    """The scheduler answers, and has no resident: it was started again."""


async def _reconnected(client: Client) -> None:
    """Wait a few seconds for a client that has just lost its connection.

    Dask reconnects it under the same id. A scheduler that is gone is reported after
    that time.
    """
    end = monotonic() + RECONNECT
    while True:
        if client.status != "connecting" or monotonic() > end:
            return
        await asyncio.sleep(0.05)


async def open_door(client: Client, identity: Mapping[str, Any]) -> None:
    """See that code may be sent to all sides, and put the resident in place.

    Raises
    ------
    VersionMismatchError
        A side runs software to which code must not go; nothing was sent.
    LeaseHeldError
        An older resident is at work and could not be replaced.
    """
    await approve(client, identity["workers"])
    try:
        if await ship.on_scheduler(client, resident.present) == resident.PROTOCOL:
            return
        answer = await ship.on_scheduler(client, resident.install)
    # of any kind: it is that of another process
    except Exception as error:
        raise _of_scheduler(client, error) from error
    if answer["protocol"] > resident.PROTOCOL:
        raise VersionMismatchError(
            "a newer clustertune is at work on this scheduler (protocol "
            f"{answer['protocol']}, this one speaks {resident.PROTOCOL}); "
            "upgrade clustertune here"
        )
    if answer["busy"] is not None:
        raise LeaseHeldError(_in_use(answer["protocol"], answer["busy"]))


def _in_use(protocol: int, busy: Mapping[str, Any]) -> str:
    """Why the resident of an older clustertune stays."""
    label, client = printable(busy["label"]), printable(busy["client"])
    older = f"an older clustertune (protocol {protocol})"
    if not busy["since"]:  # it does not end by itself
        return (
            f"{older} keeps {label} on this scheduler. This release would end them, so "
            "it did nothing. Use the older release, or restart the scheduler"
        )
    whose = f" (client {client})" if client else ""
    return (
        f"{older} is in use on this cluster: {label}{whose}. This release would end "
        "that, so it did nothing. Run this again when it has ended, or use the older "
        "release"
    )


def _of_scheduler(client: Client, error: Exception) -> Exception:
    """The error for a request without an answer, or that failed on the scheduler."""
    if isinstance(error, OSError):
        return ConnectionLostError(connection.not_answering(error))
    return connection.lost(client, error) or VersionMismatchError(_failed(error))


def _failed(error: BaseException) -> str:
    text = printable(repr(error), longest=300)
    return (
        f"clustertune's code failed on the scheduler: {text}; see its log, and compare "
        "versions with `clustertune doctor`"
    )


async def approve(client: Client, workers: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Ask the sides that were not asked yet for their versions.

    One that does not answer is not asked again for a while, and is sent no code.

    Returns
    -------
    set
        Addresses of the workers to which code may be sent.

    Raises
    ------
    VersionMismatchError
        A side runs software to which code must not go; nothing was sent.
    """
    memory, now = known(client), monotonic()
    processes = {a: _process(a, entry) for a, entry in workers.items()}
    memory.forget_all_but(processes.values())
    new = [
        a
        for a, p in processes.items()
        if p not in memory.approved and now - memory.silent.get(p, -SILENCE) >= SILENCE
    ]
    if not new and (memory.approved or memory.silent):
        return _approved(memory, processes)
    try:
        sides = await versions.read(client, new)
    except OSError as error:
        raise ConnectionLostError(connection.not_answering(error)) from error
    objections = sides.objections()
    if objections:
        shown = "; ".join(objections[:3])
        more = len(objections) - 3
        raise VersionMismatchError(shown + (f"; and {more} more" if more > 0 else ""))
    memory.approved.update(processes[a] for a in sides.workers)
    memory.silent |= {processes[a]: now for a in sides.silent}
    return _approved(memory, processes)


def _approved(memory: Known, processes: Mapping[str, Process]) -> set[str]:
    return {a for a, process in processes.items() if process in memory.approved}


async def ask(client: Client, method: str, **arguments: Any) -> Any:
    """One request to the resident; plain types both ways, no code.

    Raises
    ------
    ConnectionLostError
        The scheduler does not answer, or was started again and has no resident.
    LeaseHeldError
        The lease of this plan has ended: another client may hold the cluster now.
    VersionMismatchError
        The resident fails at it.
    """
    await _reconnected(client)
    request = {"method": method, "asker": client.id, **arguments}
    try:
        answer = await _request(client, request, again=method in REPEATABLE)
    except ClustertuneError:
        raise
    # of any kind: it is that of another process
    except Exception as error:
        raise _of_scheduler(client, error) from error
    if answer is None:  # what distributed answers where there is no such handler
        raise ResidentGoneError(
            "the scheduler does not answer any more: it is closing, or was started "
            "again and has lost all data in memory. Connect to the new one: "
            "Client(address)"
        )
    if "lease_ended" in answer:
        raise LeaseHeldError(printable(answer["lease_ended"]))
    return answer["result"]


async def _request(client: Client, request: Mapping[str, Any], *, again: bool) -> Any:
    scheduler = _scheduler(client)
    try:
        return await scheduler.clustertune(**request)
    except CommClosedError:
        # the network broke all connections; the client's own is made again by Dask
        if not again:
            raise
        await asyncio.sleep(NOTICED)
        await _reconnected(client)
        return await _scheduler(client).clustertune(**request)


async def last_report(client: Client) -> Report | None:
    """The report that the resident keeps.

    Raises
    ------
    VersionMismatchError
        Another release wrote it, and it cannot be read here.
    """
    await open_door(client, await identify(client))
    text = await ask(client, "recall")
    try:
        return Report.from_json(text) if text else None
    except ValueError as error:
        raise VersionMismatchError(
            f"the last report on this scheduler cannot be read here: {error}; use the "
            "release of clustertune that wrote it"
        ) from error


async def received(client: Client, names: Sequence[str]) -> int | None:
    """Bytes of keys with these names that workers have received; None: unknown."""
    identity = await identify(client)
    approved = known(client).approved
    asked = [a for a, e in identity["workers"].items() if _process(a, e) in approved]
    answers = await ship.on_workers(
        client, probe.received_bytes, asked, timeout=PATIENCE, names=list(names)
    )
    if len(asked) < len(identity["workers"]):
        return None
    found = list(answers.values())
    return sum(found) if all(isinstance(n, int) for n in found) else None


async def look(
    client: Client, members: Sequence[Member], *, by_task: bool = True
) -> tuple[Snapshot, tuple[Member, ...]]:
    """The cluster as it is now, and the members with their holders, bytes and rows.

    Members that are not loaded come back as they are. Without ``by_task`` the rows of
    spilled partitions are unknown.

    Raises
    ------
    ConnectionLostError, VersionMismatchError
        The scheduler is gone; a worker has come to which code must not be sent.
    """
    identity = await identify(client)
    workers = identity["workers"]
    await approve(client, workers)
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
    approved = known(client).approved
    addresses = [
        (w.address, _process(w.address, workers[w.address]) in approved)
        for w in snapshot.workers
    ]
    by_task = by_task and any(w.running for w in snapshot.workers)
    counted = await counting.count_rows(client, placed, addresses, by_task=by_task)
    by_label = {m.label: m for m in counted}
    return snapshot, tuple(by_label.get(m.label, m) for m in members)


async def held(client: Client, packed: Sequence[Any]) -> tuple[int, int]:
    """How many pieces of these packed keys are in memory, and the bytes they take."""
    found = await ask(client, "look", collections=[packed])
    (raw,) = found["collections"]
    there = np.unique(np.frombuffer(raw["pieces"], dtype=np.int64))
    return len(there), int(np.frombuffer(raw["nbytes"], dtype=np.int64).sum())


async def overhead(client: Client, snapshot: Snapshot) -> float | None:
    """Seconds that a task takes beside its work; None: it cannot be told now.

    Measured once, and again where other workers run.
    """
    memory = known(client)
    workers = frozenset(w.address for w in snapshot.workers if w.running)
    if memory.overhead is None or memory.overhead[1] != workers:
        seconds = await measuring.measure(client, snapshot)
        memory.overhead = None if seconds is None else (seconds, workers)
    return None if memory.overhead is None else memory.overhead[0]


async def speeds(client: Client, snapshot: Snapshot, flows: Sequence[Flow]) -> Snapshot:
    """The snapshot whose workers know how fast they receive and copy.

    As it was where workers have work to do, and would be timed with it.
    """
    into, out, made = (
        np.sum([getattr(f, name) for f in flows], axis=0)
        for name in ("into", "out", "made")
    )
    approved = known(client).addresses
    taking_part = [
        w.address
        for w, nbytes in zip(snapshot.workers, into + out + made, strict=True)
        if nbytes and w.running and w.address in approved
    ]
    sender = int(out.argmax())
    others = np.arange(len(into)) != sender
    receiver = int(np.where(others, into, -1).argmax())
    pair = snapshot.workers[sender].address, snapshot.workers[receiver].address
    if any(w.processing for w in snapshot.workers) or not {*pair} <= {*taking_part}:
        return snapshot
    found = await links.measure(
        client,
        taking_part,
        pair if pricing.worth_sending(flows) else None,
        copying=bool(made.any()),
    )
    workers = tuple(
        _at_speed(w, *found.get(w.address, (0, 0))) for w in snapshot.workers
    )
    return replace(snapshot, workers=workers)


def _at_speed(worker: WorkerSnapshot, received: float, copied: float) -> WorkerSnapshot:
    """With what was measured, and what was known before of the rest."""
    return replace(
        worker,
        bandwidth=received or worker.bandwidth,
        copying=copied or worker.copying,
    )


async def hear(client: Client) -> None:
    """Have all workers tell the scheduler what memory they have now.

    Of one that does not, it is known as of its last heartbeat, as ever.
    """
    workers = (await identify(client))["workers"]
    # not one that has gone: it would be waited for
    approved = known(client).approved
    there = sorted(a for a, entry in workers.items() if _process(a, entry) in approved)
    await ship.on_workers(client, tell.tell, there, timeout=SOON, again=False)


async def process_memory(client: Client, address: str) -> int | None:
    """Bytes that a worker's process measures now; None: it does not answer soon."""
    try:
        there = await approve(client, (await identify(client))["workers"])
    except (ConnectionLostError, VersionMismatchError):
        return None
    asked = [address] if address in there else []
    answers = await ship.on_workers(client, tell.tell, asked, timeout=SOON, again=False)
    nbytes = answers.get(address)
    return nbytes if isinstance(nbytes, int) else None


async def with_burdens(
    client: Client, snapshot: Snapshot, limit: int | None = None
) -> Snapshot:
    """The snapshot whose workers know what a restart of them would have to save.

    And where: if the others may lack room, the nannies are asked for theirs. With a
    ``limit`` the workers are going to have that memory limit.
    """
    addresses = [w.address for w in snapshot.workers]
    found = await ask(client, "burdens", workers=addresses)
    workers = tuple(
        replace(w, burden=_burden(found[w.address]) if w.address in found else None)
        for w in snapshot.workers
    )
    rooms = await _rooms(client, workers, limit)
    return replace(
        snapshot, workers=tuple(replace(w, room=rooms.get(w.address)) for w in workers)
    )


async def with_least_memory(client: Client, snapshot: Snapshot) -> Snapshot:
    """The snapshot whose workers know the least memory that their process has had."""
    approved = known(client).addresses
    there = [w.address for w in snapshot.workers if w.address in approved]
    answers = await ship.on_workers(
        client, resize.least_memory, there, timeout=PATIENCE
    )
    least = {a: n for a, n in answers.items() if isinstance(n, int)}
    return replace(
        snapshot,
        workers=tuple(replace(w, least=least.get(w.address)) for w in snapshot.workers),
    )


async def _rooms(
    client: Client, workers: Sequence[WorkerSnapshot], limit: int | None
) -> dict[str, Room | Unknown]:
    """By address, of workers whose keys may have to be parked in their nannies."""
    there = [w for w in workers if w.nanny and w.burden and w.burden.nbytes]
    free = sorted(space(w, ceiling(w, limit)) for w in workers if w.running)
    # the emptiest worker may be the one that is restarted, and others with it
    short = sum(free[:-1]) < 2 * sum(w.burden.nbytes for w in there if w.burden)
    unsure = [w.address for w in there if short or is_parked_first(w.status, w.spilled)]
    approved = known(client).addresses
    answers = await ship.on_workers(
        client,
        park.room,
        [a for a in unsure if a in approved],
        timeout=PATIENCE,
        nanny=True,
    )
    silent = Unknown("the worker did not say its versions")
    return {a: _room(answers[a]) if a in answers else silent for a in unsure}


def _room(answer: Any) -> Room | Unknown:
    if isinstance(answer, BaseException):
        return Unknown(f"its nanny did not answer: {answer!r}")
    return Room(memory=answer["memory"], disk=answer["disk"])


async def holdings(client: Client, kept: Sequence[Key]) -> tuple[Holding, ...]:
    """Which keys are in memory, and who wants them; but for those to be ``kept``."""
    asked = {"owner": client.id, "kept": keys.pack(kept)}
    return tuple(
        Holding(
            prefix=prefix,
            keys=count,
            nbytes=nbytes,
            scattered=scattered,
            coming=coming,
            mine=mine,
            others=tuple(others),
            shared=tuple((kind, name) for kind, name in shared),
        )
        for (
            prefix,
            count,
            nbytes,
            scattered,
            coming,
            mine,
            others,
            shared,
        ) in await ask(client, "holdings", **asked)
    )


def _burden(numbers: Sequence[int]) -> Burden:
    keys_, unique, nbytes, scattered, actors = numbers
    return Burden(
        keys=keys_, unique=unique, nbytes=nbytes, scattered=scattered, actors=actors
    )


# --- the cluster --------------------------------------------------------------------


async def _snapshot(
    client: Client, identity: Mapping[str, Any], found: Mapping[str, Any]
) -> Snapshot:
    workers = read(identity, found, await _facts(client, identity["workers"]))
    return Snapshot(
        time=found["time"],
        scheduler=identity["address"],
        workers=workers,
        memory_manager=found["manager"],
        can_scale=managers.obstacle(client.cluster, len(workers) + 1),
        can_restart=managers.restart_obstacle(client.cluster),
        adaptive=await managers.bounds(client.cluster),
        restarts=tuple(found["restarts"]),
    )


def read(
    identity: Mapping[str, Any],
    found: Mapping[str, Any],
    facts: Mapping[str, WorkerFacts | Unknown],
) -> tuple[WorkerSnapshot, ...]:
    """Workers, from what scheduler and resident say, and what they know of themselves.

    Parameters
    ----------
    identity
        The scheduler's ``identity(n_workers=-1)``.
    found
        The resident's ``look``.
    facts
        By address.
    """
    numbers = np.frombuffer(found["memory"], dtype=np.int64).reshape(-1, 5)
    memory = dict(zip(found["workers"], numbers.tolist(), strict=True))
    return tuple(
        _worker(address, entry, memory[address], facts[address], found["time"])
        for address, entry in identity["workers"].items()
        if address in memory  # one that left between the two calls is gone
    )


def worker_id(address: str, entry: Mapping[str, Any]) -> str | int:
    """What survives a restart: the name that was given, else the nanny's address."""
    return runs.worker_id(address, entry["name"], entry["nanny"])


def _worker(
    address: str,
    entry: Mapping[str, Any],
    memory: Sequence[int],
    facts: WorkerFacts | Unknown,
    now: float,
) -> WorkerSnapshot:
    process, managed, spilled, counted, processing = memory
    metrics = entry["metrics"]
    counts = metrics.get("task_counts", {})
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
        counted=counted,
        bandwidth=float(metrics.get("bandwidth", {}).get("total", 0.0)),
        facts=facts,
        # both by the scheduler's clock
        silent=max(0.0, now - entry["last_seen"]),
        loop_delay=float(metrics.get("event_loop_interval", 0.0)),
        cpu=float(metrics.get("cpu", 0.0)) / 100,
        processing=processing,
        executing=int(counts.get("executing", 0)),
        cancelled=int(counts.get("cancelled", 0)),
        parking=park.is_parking(entry["name"]),
    )


async def _facts(
    client: Client, workers: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, WorkerFacts | Unknown]:
    """What workers and nannies know of themselves; asked once, unless unanswered.

    One that did not answer is not asked again for a while.
    """
    memory, now = known(client), monotonic()
    processes = {a: _process(a, entry) for a, entry in workers.items()}
    new = [
        a
        for a, p in processes.items()
        if p in memory.approved
        and isinstance(memory.facts.get(p), Unknown | None)
        and now - memory.asked.get(p, -SILENCE) >= SILENCE
    ]
    memory.asked.update({processes[a]: now for a in new})
    nannies = [a for a in new if workers[a]["nanny"] is not None]
    answers, limits = await asyncio.gather(
        ship.on_workers(client, probe.worker_facts, new, timeout=PATIENCE),
        ship.on_workers(
            client, probe.nanny_facts, nannies, nanny=True, timeout=PATIENCE
        ),
    )
    learned = {a: _read_facts(answers[a], limits.get(a)) for a in answers}
    memory.facts.update({processes[a]: fact for a, fact in learned.items()})
    nothing = Unknown("the worker did not say its versions")
    return {a: memory.facts.get(p, nothing) for a, p in processes.items()}


def _read_facts(answer: Any, terminate: Any) -> WorkerFacts | Unknown:
    if isinstance(answer, BaseException):
        return Unknown(f"the worker did not answer: {answer!r}")
    try:
        return _worker_facts(answer, terminate)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return Unknown(f"what the worker answered cannot be read: {error!r}")


def _worker_facts(answer: Mapping[str, Any], terminate: Any) -> WorkerFacts:
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
    )


# --- the data -----------------------------------------------------------------------


def _placed(member: Member, raw: Mapping[str, Any], renumber: Int64s) -> Member:
    nbytes, piece, holder = (
        np.frombuffer(raw[name], dtype=np.int64)
        for name in ("nbytes", "pieces", "holders")
    )
    holder = renumber[holder] if len(holder) else holder
    there = holder >= 0
    return replace(
        member,
        nbytes=nbytes,
        holders=(piece[there], holder[there]),
        scattered=raw["scattered"],
    )


async def chunk_types(
    client: Client, arrays: Mapping[str, Sequence[Key]]
) -> dict[str, list[str]]:
    """Names of the types of chunks by label, as far as the scheduler knows them."""
    if not arrays:
        return {}
    packed = {label: keys.pack(own) for label, own in arrays.items()}
    found: dict[str, list[str]] = await ship.on_scheduler(
        client, chunks.types, chunks=packed
    )
    return found
