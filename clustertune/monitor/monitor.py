"""Take snapshots of a live cluster, and send requests to the scheduler plugin.

:func:`install_plugin` checks that code may be sent to all processes, and installs the
plugin. :func:`ask` sends it a request. :func:`look` takes a snapshot.

A snapshot needs one call of Dask's ``identity`` and one request to the plugin (memory
of workers, holders of the given keys). Constant facts of a worker are read once per
process. :mod:`clustertune.collections.contents` counts rows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from distributed import Client
from distributed.comm.core import CommClosedError

from clustertune.core.model import (
    CollectionInfo,
    Int64s,
    Key,
    OtherVersions,
    Snapshot,
    Thresholds,
    Unknown,
    WorkerFacts,
    WorkerSnapshot,
)
from clustertune.core.wording import printable
from clustertune.errors import (
    ClustertuneError,
    ConnectionLostError,
    LeaseHeldError,
    NoWorkersError,
    VersionMismatchError,
)
from clustertune.integrations import managers
from clustertune.monitor import connection
from clustertune.planner import machines
from clustertune.remote import keys, ship
from clustertune.remote.scheduler import plugin
from clustertune.remote.scheduler import state as scheduler_state
from clustertune.remote.worker import probe

T = TypeVar("T")
Process = tuple[str, str]  # address and local directory, which is new for each process

SILENCE = 60.0  # seconds before another request to a worker that did not answer
PATIENCE = 10.0  # seconds to wait for the facts of a worker
SOON = 1.0  # seconds to wait for values that a snapshot can do without
NOTICED = 0.2  # seconds until a client notices that its connection is broken
RECONNECT = 5.0  # seconds to wait for Dask to reconnect a client
NO_VERSIONS = Unknown("the worker did not report its versions")
#: requests that change nothing: repeated if a connection breaks
REPEATABLE = frozenset(
    (
        "holdings", "is_held", "look", "look_at_keys", "look_at_workers", "page",
        "past_runs", "progress", "report", "survey",
        "worker_changes",
    )
)  # fmt: skip


# --- processes of the cluster ---------------------------------------------------------


@dataclass
class Known:
    """Facts about the processes of a cluster, as read through one client."""

    approved: set[Process] = field(default_factory=set)  # code may be sent to these
    #: why code must not be sent to these
    objections: dict[Process, str] = field(default_factory=dict)
    silent: dict[Process, float] = field(default_factory=dict)  # since, monotonic
    facts: dict[Process, WorkerFacts | Unknown] = field(default_factory=dict)
    #: time of the last request for facts, monotonic
    requested: dict[Process, float] = field(default_factory=dict)

    @property
    def addresses(self) -> set[str]:
        """Addresses of the workers to which code may be sent."""
        return {address for address, _ in self.approved}

    @property
    def refused(self) -> set[str]:
        """Addresses of the workers to which code must not be sent."""
        return {address for address, _ in self.objections}

    def forget_all_but(self, present: Iterable[Process]) -> None:
        """Delete the facts of processes that have ended."""
        there = set(present)
        self.approved &= there
        self.objections = {p: t for p, t in self.objections.items() if p in there}
        self.silent = {p: t for p, t in self.silent.items() if p in there}
        self.facts = {p: f for p, f in self.facts.items() if p in there}
        self.requested = {p: t for p, t in self.requested.items() if p in there}


_known: WeakKeyDictionary[Client, Known] = WeakKeyDictionary()


def known(client: Client) -> Known:
    """Return the facts that were read through this client."""
    return _known.setdefault(client, Known())


def _process(address: str, entry: Mapping[str, Any]) -> Process:
    return address, str(entry["local_directory"])


def worker_id(address: str, entry: Mapping[str, Any]) -> str | int:
    """Return the id that survives a restart: the name, or the nanny's host and port."""
    return scheduler_state.worker_id(address, entry["name"], entry["nanny"])


async def identify(client: Client) -> Mapping[str, Any]:
    """Return the scheduler's identity, with all its workers.

    Raises
    ------
    ConnectionLostError
        The client is closed, or its scheduler does not answer.
    """
    scheduler = await _scheduler(client)
    try:
        identity: Mapping[str, Any] = await scheduler.identity(n_workers=-1)
    except OSError as error:
        raise ConnectionLostError(connection.not_answering(error)) from error
    return identity


async def _scheduler(client: Client) -> Any:
    """Return the client's connection to its scheduler; refuse a closed client.

    If Dask reconnects the client, this waits a few seconds. The client keeps its id.
    """
    end = monotonic() + RECONNECT
    while client.status == "connecting" and monotonic() <= end:  # noqa: ASYNC110
        await asyncio.sleep(0.05)  # Dask has no event for this
    connection.refuse_closed(client)
    return client.scheduler


async def approve(client: Client, workers: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the addresses of the workers to which code may be sent.

    This reads the versions of new processes, and compares them with this one's. A
    worker that does not answer gets no code, and another request after a minute. A
    worker of other versions gets no code; its facts are ``OtherVersions``.

    Raises
    ------
    VersionMismatchError
        Code must not be sent to the scheduler, or to any worker, because of versions.
    """
    cached, now = known(client), monotonic()
    processes = {a: _process(a, entry) for a, entry in workers.items()}
    cached.forget_all_but(processes.values())
    new = [
        a
        for a, p in processes.items()
        if p not in cached.approved
        and p not in cached.objections
        and now - cached.silent.get(p, -SILENCE) >= SILENCE
    ]
    if new or not (cached.approved or cached.silent or cached.objections):
        try:
            sides = await ship.read_versions(client, new)
        except OSError as error:
            raise ConnectionLostError(connection.not_answering(error)) from error
        if objection := sides.scheduler_objection():
            raise VersionMismatchError(objection)
        found = sides.worker_objections()
        cached.objections |= {processes[a]: text for a, text in found.items()}
        cached.approved.update(processes[a] for a in sides.workers.keys() - found)
        cached.silent |= {processes[a]: now for a in sides.silent}
    if workers and len(cached.objections) == len(workers):
        shown = [f"worker {a} {text}" for (a, _), text in cached.objections.items()]
        more = [f"and {len(shown) - 3} more"] * (len(shown) > 3)
        raise VersionMismatchError("; ".join([*shown[:3], *more]))
    return approved(client, workers)


def approved(client: Client, workers: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the addresses of these workers to which code may be sent."""
    processes = known(client).approved
    return {a for a, entry in workers.items() if _process(a, entry) in processes}


async def running_workers(
    client: Client,
) -> tuple[Mapping[str, Mapping[str, Any]], list[str]]:
    """Return all workers, and the addresses of running ones that may get code."""
    workers = (await identify(client))["workers"]
    there = await approve(client, workers)
    running = [a for a, x in workers.items() if a in there and x["status"] == "running"]
    return workers, running


async def usable_workers(client: Client) -> dict[str, Mapping[str, Any]]:
    """Return running workers that may get code, by address; raise if there are none."""
    workers, running = await running_workers(client)
    if not running:
        scheduler: Any = client.scheduler
        raise NoWorkersError(
            f"the cluster {printable(scheduler.address)} has no running worker that "
            f"can run code of this client (of {len(workers)} workers). Start one, or "
            "wait: client.wait_for_workers(1)"
        )
    return {address: workers[address] for address in running}


async def held_bytes(
    client: Client, groups: Sequence[Sequence[Key]]
) -> list[dict[str, int]]:
    """Return for each group of keys its bytes on each worker, by address."""
    wanted = [key for group in groups for key in group]
    if not wanted:
        return [{} for _ in groups]
    scheduler = await _scheduler(client)
    holders: Mapping[Key, Sequence[str]] = await scheduler.who_has(keys=wanted)
    # Dask raises KeyError for the size of a key that it has forgotten
    there = [key for key, held_by in holders.items() if held_by]
    sizes: Mapping[Key, int] = await scheduler.nbytes(keys=there, summary=False)
    found = []
    for group in groups:
        held = Counter[str]()
        for key in group:
            held.update(dict.fromkeys(holders.get(key, ()), sizes.get(key, 0)))
        found.append(dict(held))
    return found


async def ask_workers(
    client: Client,
    workers: Iterable[WorkerSnapshot],
    function: Callable[..., Any],
    *,
    timeout: float = PATIENCE,
    **arguments: Any,
) -> dict[str, Any]:
    """Run a function on those workers to which code may be sent.

    The result has their answers by address, as :func:`ship.on_workers` returns them.
    """
    addresses = known(client).addresses
    chosen = [w.address for w in workers if w.address in addresses]
    return await ship.on_workers(client, function, chosen, timeout=timeout, **arguments)


def read_answer(answer: Any, parse: Callable[[Any], T]) -> T | Unknown:
    """Parse the answer of a worker; Unknown if it is an error or garbage."""
    if isinstance(answer, BaseException):
        return Unknown(f"the worker did not answer: {answer!r}")
    try:
        return parse(answer)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return Unknown(f"the worker's answer cannot be read: {error!r}")


def with_values(
    snapshot: Snapshot, name: str, values: Mapping[str, Any], default: Any = None
) -> Snapshot:
    """Set an attribute of all workers to the value of their address."""
    workers = tuple(
        replace(w, **{name: values.get(w.address, default)}) for w in snapshot.workers
    )
    return replace(snapshot, workers=workers)


# --- the scheduler plugin -------------------------------------------------------------


class PluginMissingError(ConnectionLostError):
    """The scheduler answers but has no plugin: it was restarted."""


async def install_plugin(client: Client, identity: Mapping[str, Any]) -> None:
    """Check that code may be sent to all processes, and install the plugin.

    Raises
    ------
    VersionMismatchError
        Code must not be sent to a process; nothing was sent. Or the scheduler's Dask
        lacks a name that the plugin needs; nothing was installed. Or another release
        of clustertune has installed its plugin, which is never replaced.
    """
    await approve(client, identity["workers"])
    names: dict[str, Any] = {"missing": []}
    try:
        found = await ship.on_scheduler(client, plugin.present)
        if found is None:
            names = await ship.on_scheduler(client, ship.missing_names)
        if found is None and not names["missing"]:
            code = plugin.install
            found = await ship.on_scheduler(client, code, version=ship.own_release())
    # the scheduler can raise any kind of error
    except Exception as error:
        raise _of_scheduler(client, error) from error
    if names["missing"]:
        raise VersionMismatchError(ship.missing_names_text(**names))
    if found["protocol"] != plugin.PROTOCOL:
        raise VersionMismatchError(_other_release(**found))


def _other_release(protocol: int, version: str, *, preloaded: bool) -> str:
    """Explain why the plugin of another release is neither used nor replaced."""
    there = f"{printable(version)} (protocol {protocol})"
    fix = (
        "use that release here. If no other client needs it, remove it with "
        'client.unregister_scheduler_plugin("clustertune"), which ends its scheduled '
        "restarts, and run this again"
    )
    if preloaded:
        fix = (
            "use that release here, or install this one where the scheduler starts "
            "with --preload clustertune.preload"
        )
    here = f"{ship.own_release()} (protocol {plugin.PROTOCOL})"
    return (
        f"this scheduler has the plugin of clustertune {there}, and this process has "
        f"{here}, so nothing was done: {fix}"
    )


def _of_scheduler(client: Client, error: Exception) -> Exception:
    """Translate an error of a request that was not answered or has failed."""
    if isinstance(error, OSError):
        return ConnectionLostError(connection.not_answering(error))
    text = printable(repr(error), longest=300)
    return connection.lost(client, error) or VersionMismatchError(
        f"clustertune's code failed on the scheduler: {text}; see its log, and compare "
        "versions with `clustertune check`"
    )


async def ask(client: Client, method: str, **arguments: Any) -> Any:
    """Send one request to the plugin; arguments and answers are plain types.

    Raises
    ------
    ConnectionLostError
        The scheduler does not answer, or was restarted and has no plugin.
    LeaseHeldError
        The lease of this plan has ended; another client may hold the cluster.
    VersionMismatchError
        The request failed in the plugin.
    """
    request = {"method": method, "client": client.id, **arguments}
    try:
        answer = await _request(client, request, repeatable=method in REPEATABLE)
    except ClustertuneError:
        raise
    # the scheduler can raise any kind of error
    except Exception as error:
        raise _of_scheduler(client, error) from error
    if answer is None:  # distributed's answer if there is no such handler
        raise PluginMissingError(
            "the scheduler does not answer any more: it is closing, or was started "
            "again and has lost all data in memory. Connect to the new one: "
            "Client(address)"
        )
    if "lease_ended" in answer:
        raise LeaseHeldError(printable(answer["lease_ended"]))
    return answer["result"]


async def _request(
    client: Client, request: Mapping[str, Any], *, repeatable: bool
) -> Any:
    scheduler = await _scheduler(client)
    try:
        return await scheduler.clustertune(**request)
    except CommClosedError:
        # if the network broke all connections, Dask reconnects the client's own
        if not repeatable:
            raise
        await asyncio.sleep(NOTICED)
        scheduler = await _scheduler(client)
        return await scheduler.clustertune(**request)


# --- snapshots ------------------------------------------------------------------------


async def look(
    client: Client,
    collections: Sequence[CollectionInfo],
) -> tuple[Snapshot, tuple[CollectionInfo, ...]]:
    """Take a snapshot, and add holders and bytes to the collections.

    Collections that are not loaded are returned unchanged.

    Raises
    ------
    ConnectionLostError, VersionMismatchError
        The scheduler has ended; code must not be sent to a new worker.
    """
    identity = await identify(client)
    await approve(client, identity["workers"])
    loaded = [m for m in collections if m.loaded]
    packed = [keys.pack(m.keys) for m in loaded]
    found = await ask(client, "look", collections=packed)
    snapshot = await _snapshot(client, identity, found)
    snapshot = await _with_task_counts(client, snapshot)
    if not loaded:
        return snapshot, tuple(collections)
    position = {w.address: i for i, w in enumerate(snapshot.workers)}
    renumber = np.array([position.get(a, -1) for a in found["workers"]], dtype=np.int64)
    by_label = {
        m.label: _placed(m, raw, renumber)
        for m, raw in zip(loaded, found["collections"], strict=True)
    }
    return snapshot, tuple(by_label.get(m.label, m) for m in collections)


def _placed(
    collection: CollectionInfo, raw: Mapping[str, Any], renumber: Int64s
) -> CollectionInfo:
    """Add bytes and holders; ``renumber`` maps the answer to the snapshot's workers."""
    nbytes, partition, holder = (
        np.frombuffer(raw[name], dtype=np.int64)
        for name in ("nbytes", "partitions", "holders")
    )
    holder = renumber[holder] if len(holder) else holder
    there = holder >= 0
    return replace(
        collection,
        nbytes=nbytes,
        holders=(partition[there], holder[there]),
        scattered=raw["scattered"],
    )


async def _snapshot(
    client: Client, identity: Mapping[str, Any], found: Mapping[str, Any]
) -> Snapshot:
    workers = read(identity, found, await _facts(client, identity["workers"]))
    adapter = managers.find(client.cluster)
    return Snapshot(
        time=found["time"],
        scheduler=identity["address"],
        workers=workers,
        memory_manager=found["manager"],
        can_scale=adapter.obstacle(len(workers) + 1),
        can_restart=adapter.restart_obstacle(),
        can_merge=adapter.merge_obstacle(),
        adaptive=await adapter.bounds(),
    )


async def _with_task_counts(client: Client, snapshot: Snapshot) -> Snapshot:
    """Ask workers whose last heartbeat has more running tasks than the scheduler.

    Such tasks have ended since that heartbeat, or no client waits for them any more.
    Workers without a readable answer keep the count: a task may block them.
    """
    doubtful = [w for w in snapshot.workers if w.executing > w.processing]
    answers = await ask_workers(
        client, doubtful, probe.task_counts, timeout=SOON, again=False
    )
    read = {a: read_answer(answer, _executing) for a, answer in answers.items()}
    known = {w.address: w.executing for w in snapshot.workers}
    known |= {a: n for a, n in read.items() if not isinstance(n, Unknown)}
    return with_values(snapshot, "executing", known)


def _executing(counts: Mapping[str, Any]) -> int:
    return int(counts.get("executing", 0))


def read(
    identity: Mapping[str, Any],
    found: Mapping[str, Any],
    facts: Mapping[str, WorkerFacts | Unknown],
) -> tuple[WorkerSnapshot, ...]:
    """Make the workers of a snapshot.

    ``identity`` is the scheduler's, with all workers, and ``found`` is the plugin's
    answer to ``look``. Facts are by address.
    """
    numbers = np.frombuffer(found["memory"], dtype=np.int64).reshape(-1, 5)
    memory = dict(zip(found["workers"], numbers.tolist(), strict=True))
    return machines.with_host_names(
        [
            _worker(address, entry, memory[address], facts[address], found["time"])
            for address, entry in identity["workers"].items()
            if address in memory  # a worker may have left between the two calls
        ]
    )


def _worker(
    address: str,
    entry: Mapping[str, Any],
    memory: Sequence[int],
    facts: WorkerFacts | Unknown,
    now: float,
) -> WorkerSnapshot:
    process, managed, spilled, counted, processing = memory
    metrics = entry["metrics"]
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
        facts=facts,
        # both times are the scheduler's
        heartbeat_age=max(0.0, now - entry["last_seen"]),
        loop_delay=float(metrics.get("event_loop_interval", 0.0)),
        cpu=float(metrics.get("cpu", 0.0)) / 100,
        processing=processing,
        executing=_executing(metrics.get("task_counts", {})),
        resources=bool(entry["resources"]),
        parking=scheduler_state.is_parking(entry["name"]),
    )


async def _facts(
    client: Client, workers: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, WorkerFacts | Unknown]:
    """Return the facts of workers and nannies by address; read missing ones.

    A worker that did not answer, or whose nanny did not, gets another request after a
    minute.
    """
    cached, now = known(client), monotonic()
    processes = {a: _process(a, entry) for a, entry in workers.items()}
    new = [
        a
        for a, p in processes.items()
        if p in cached.approved
        and not _is_complete(cached.facts.get(p))
        and now - cached.requested.get(p, -SILENCE) >= SILENCE
    ]
    cached.requested.update({processes[a]: now for a in new})
    nannies = [a for a in new if workers[a]["nanny"] is not None]
    answers, limits = await asyncio.gather(
        ship.on_workers(client, probe.worker_facts, new, timeout=PATIENCE),
        ship.on_workers(
            client, probe.nanny_facts, nannies, nanny=True, timeout=PATIENCE
        ),
    )
    for a, answer in answers.items():
        found = read_answer(answer, partial(_worker_facts, terminate=limits.get(a)))
        if not isinstance(found, Unknown) or processes[a] not in cached.facts:
            cached.facts[processes[a]] = found
    others = {p: OtherVersions(f"it {text}") for p, text in cached.objections.items()}
    return {
        a: others.get(p) or cached.facts.get(p, NO_VERSIONS)
        for a, p in processes.items()
    }


def _is_complete(facts: WorkerFacts | Unknown | None) -> bool:
    if not isinstance(facts, WorkerFacts):
        return False
    return not isinstance(facts.thresholds.terminate, Unknown)


def _worker_facts(answer: Mapping[str, Any], terminate: Any) -> WorkerFacts:
    failed = isinstance(terminate, BaseException)
    return WorkerFacts(
        thresholds=Thresholds(
            target=answer["target"],
            spill=answer["spill"],
            pause=answer["pause"],
            terminate=Unknown(f"nanny: {terminate!r}") if failed else terminate,
        ),
        affinity=frozenset(answer["affinity"]),
        quotas=tuple((name, float(cpus)) for name, cpus in answer["quotas"]),
        host_memory=answer["host_memory"],
        memory_limits=tuple((name, int(n)) for name, n in answer["memory_limits"]),
        machine=answer["machine"],
        hostname=answer["hostname"],
        setup=dict(answer["setup"]),
    )
