"""``run_roles``: run functions concurrently on chosen workers.

The call checks its arguments, assigns roles to workers, places the data on some of
them, registers an endpoint on each worker and submits a task for each role.
``running_roles`` manages the roles from then on.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import cloudpickle
from distributed import Client

from clustertune.collections import graphs, inputs
from clustertune.core import arguments
from clustertune.core.model import Key
from clustertune.core.wording import names_text, plural, printable, workers_text
from clustertune.errors import IncompleteError, NoWorkersError
from clustertune.monitor import monitor
from clustertune.operations.call import check_client
from clustertune.operations.hold import hold
from clustertune.operations.prepare import prepare
from clustertune.operations.prepared import Prepared
from clustertune.remote import ship
from clustertune.training import frameworks, remote_roles
from clustertune.training.frameworks import Framework
from clustertune.training.running_roles import Lifecycle, Roles, RoleState, by_role

ANSWER_TIMEOUT = 10.0  # seconds in which a worker answers
EXPIRY = 60.0  # seconds for which an endpoint without a task waits for this client
EXAMPLE = 'like {"worker": (2, train), "scorer": (1, score)}'
PRIORITY = 1000  # so that a role does not wait for queued tasks


def run_roles(
    client: Client,
    roles: Mapping[str, Any],
    *,
    data: Any = None,
    framework: str | None = None,
    target_role: str = "worker",
    batch_size: int | None = None,
    timeout: str | float = "5 minutes",
    grace: str | float = "10s",
    progress: bool | Callable[[str, float | None], None] | None = None,
) -> Any:
    """Run functions concurrently, each on its own worker, until all have ended.

    Each role gets a worker: idle workers first, spread over hosts. The data is placed
    on the workers of ``target_role``. Each role gets a free port and the addresses of
    all roles. Then all functions are called with a context at the same time. If one
    fails or its worker is lost, all others are asked to stop.

    Parameters
    ----------
    client
        A connected client; an asynchronous one returns an awaitable.
    roles
        By name of the role ``(number, function)``, or a number alone if the framework
        has the function: ``{"ps": 1, "worker": (2, train)}``.
    data
        Training data: a Dask Array, DataFrame or Series, a tuple of row-aligned
        collections such as ``(X, y)``, or a result of ``prepare``.
        :func:`clustertune.prepare` places it, so partitions in memory move and stay.
    framework
        ``"torch"`` or ``"tensorflow"`` sets the environment of each role for that
        framework. None sets nothing.
    target_role
        The role that has the data. When all its members have ended, the other roles
        are asked to stop.
    batch_size
        Rows per batch of ``ctx.batches``. The default is one partition.
    timeout
        Seconds, or a duration: first for placing the data, then for all roles to begin.
    grace
        Seconds, or a duration, in which roles must end after an error, an interruption
        or the end of the ``with`` block.
    progress
        Progress of placing the data, as for :func:`clustertune.prepare`.

    Returns
    -------
    Roles
        The running roles: ``.scores``, ``.stop()``, ``.result()``, ``.logs``,
        ``.spec``, ``.workers``. As a context manager, it stops all roles at the end.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or value, or a function does not pickle.
    NoWorkersError
        There are fewer workers than roles, or workers lack the framework.
    RoleError
        A role did not begin in time, or was lost before. The result raises later
        errors.
    AlignmentError, CapacityError, ...
        The data cannot be placed, as for :func:`clustertune.prepare`.
    ConnectionLostError, VersionMismatchError
        The cluster is gone or cannot run code of this client.

    Notes
    -----
    A function receives ``ctx`` with ``role``, ``rank``, ``size``, ``spec``, ``target``,
    ``threads`` and ``steps``. ``batches(epochs=1, batch_size=None)`` yields rows with
    their labels. ``report(score)`` and ``log(text)`` send to the client. Call
    ``should_stop()`` often; ``wait(seconds)`` waits for it.

    Examples
    --------
    >>> with run_roles(client, {"worker": (2, train)}, data=(X, y)) as roles:
    ...     for score in roles.scores:
    ...         if score.value > 0.95:
    ...             roles.stop()
    ...     models = roles.result()["worker"]                   # doctest: +SKIP
    """
    check_client(client)
    _refuse_roles(roles)
    chosen = frameworks.choose(framework, roles)
    sizes = _sizes(roles, chosen)
    request = _Request(
        client=client,
        framework=chosen,
        sizes=sizes,
        code=_code(roles, chosen),
        servers=frozenset(name for name, value in roles.items() if _is_count(value)),
        data=_collections(client, data),
        target=_target(target_role, sizes, data is not None),
        batch_size=arguments.count("batch_size", batch_size),
        timeout=arguments.duration("timeout", timeout),
        grace=arguments.duration("grace", grace),
        progress=progress,
    )
    return client.sync(_run, request)


# --- arguments ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Checked arguments."""

    client: Client
    framework: Framework
    sizes: Mapping[str, int]  # members by role
    code: Mapping[str, bytes]  # pickled functions by role
    servers: frozenset[str]  # roles with a function of the framework
    data: tuple[Any, ...]  # collections
    target: str
    batch_size: int | None
    timeout: float  # seconds
    grace: float  # seconds
    progress: Any


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse_roles(roles: object) -> None:
    if not isinstance(roles, Mapping) or not roles:
        raise TypeError(f"roles must be a mapping, {EXAMPLE}; it was {roles!r:.200}")


def _sizes(roles: Mapping[Any, Any], framework: Framework) -> dict[str, int]:
    found = {}
    for name, value in roles.items():
        if not isinstance(name, str) or not name.isprintable() or not name:
            raise TypeError(f"roles: a name must be a text, {EXAMPLE}; one is {name!r}")
        pair = value if isinstance(value, tuple) else (value, None)
        if len(pair) != 2 or not _is_count(pair[0]) or pair[0] < 1:
            raise ValueError(
                f"roles[{name!r}]={value!r:.200} must be (number, function) with a "
                f"number of at least 1, {EXAMPLE}"
            )
        number, function = pair
        if isinstance(value, tuple) and not callable(function):
            raise TypeError(
                f"roles[{name!r}] must have a function of ctx; it has "
                f"{type(function).__name__}"
            )
        if not isinstance(value, tuple) and framework.server is None:
            known = "None" if framework.name is None else f'"{framework.name}"'
            raise ValueError(
                f"roles[{name!r}]={value} has no function, and framework={known} has "
                f"none for it. Pass one: {{{name!r}: ({value}, function)}}"
            )
        found[name] = int(number)
    return found


def _code(roles: Mapping[str, Any], framework: Framework) -> dict[str, bytes]:
    found = {}
    for name, value in roles.items():
        if _is_count(value):
            assert framework.server is not None
            found[name] = ship.pickled(framework.server)
            continue
        try:
            found[name] = cloudpickle.dumps(value[1])
        # a class of the user may raise any error while it is pickled
        except Exception as error:
            raise TypeError(
                f"the function of roles[{name!r}] cannot be sent to workers ({error}). "
                "Remove objects of this process, such as locks, open files and clients"
            ) from error
    return found


def _collections(client: Client, data: Any) -> tuple[Any, ...]:
    if data is None:
        return ()
    several = isinstance(data, tuple | Prepared)
    found = tuple(data) if several else (data,)
    if not found:
        raise ValueError("data is empty; leave it out, or pass data=(X, y)")
    check_client(client, inputs.of_rows(found))
    return found


def _target(name: Any, sizes: Mapping[str, int], with_data: bool) -> str:
    if with_data and name not in sizes:
        raise ValueError(
            f"target_role={name!r} must be a role, because it has the data; the roles "
            f"are {', '.join(map(repr, sizes))}. Pass one of them: target_role="
            f"{next(iter(sizes))!r}"
        )
    return str(name)


# --- which worker takes which role ----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A worker that may take a role."""

    address: str
    id: str | int
    host: str
    process: str  # its identity
    status: str = "running"
    answers: bool = True  # and can run code of this client
    tasks: int = 0  # running and waiting
    held: int = 0  # bytes of the data
    missing: tuple[str, ...] = ()  # modules of the framework
    taken: str | None = None  # role of another call that uses the environment


def assign(
    sizes: Mapping[str, int],
    candidates: Sequence[Candidate],
    *,
    first: str | None,
    own_process: bool,
) -> dict[str, list[Candidate]]:
    """Return by role its workers, by rank.

    The role ``first`` gets the data, so it chooses first and prefers holders of the
    data. Idle workers come first. The members of a role are spread over hosts, then
    all roles are. Equal workers are chosen in the given order.
    """
    fit = [c for c in candidates if c.status == "running" and c.answers]
    able = [c for c in fit if not c.missing and not (own_process and c.taken)]
    if own_process:
        able = _one_per_process(able)
    if len(able) < sum(sizes.values()):
        reasons = "; ".join(_reasons(candidates, fit, able, own_process=own_process))
        requested = ", ".join(f"{role}: {n}" for role, n in sizes.items())
        raise NoWorkersError(
            f"the roles need {plural(sum(sizes.values()), 'worker')} ({requested}), "
            f"one each, and {len(able)} of {len(candidates)} can take one"
            f"{reasons and ': '}{reasons}. Use fewer roles, or start workers: "
            "clustertune.scale(client, n_workers)"
        )
    chosen: dict[str, list[Candidate]] = {role: [] for role in sizes}
    hosts = Counter[str]()
    for role in sorted(sizes, key=lambda name: name != first):
        of_role = Counter[str]()
        for _ in range(sizes[role]):
            best = min(
                able,
                key=lambda c: (
                    c.tasks > 0,
                    of_role[c.host],
                    hosts[c.host],
                    -c.held if role == first else c.held,
                    c.tasks,
                ),
            )
            able.remove(best)
            hosts[best.host] += 1
            of_role[best.host] += 1
            chosen[role].append(best)
    return chosen


def _one_per_process(candidates: Sequence[Candidate]) -> list[Candidate]:
    found: dict[tuple[str, str], Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: c.tasks):
        found.setdefault((candidate.host, candidate.process), candidate)
    return [c for c in candidates if c in found.values()]


def _reasons(
    candidates: Sequence[Candidate],
    fit: Sequence[Candidate],
    able: Sequence[Candidate],
    *,
    own_process: bool,
) -> Iterator[str]:
    """Yield why workers cannot take a role."""

    def names(some: Sequence[Candidate]) -> str:
        return workers_text([c.id for c in some])

    other = [c for c in candidates if c.status != "running"]
    if other:
        statuses = names_text(sorted({c.status for c in other}))
        yield f"{names(other)} not running ({statuses})"
    silent = [c for c in candidates if c.status == "running" and not c.answers]
    if silent:
        yield f"no answer from {names(silent)}"
    missing = [c for c in fit if c.missing]
    if missing:
        modules = names_text(sorted({m for c in missing for m in c.missing}))
        yield f"{modules} cannot be imported on {names(missing)}"
    taken = [c for c in fit if own_process and c.taken]
    if taken:
        yield f"another call's role is on {names(taken)}"
    left = [c for c in fit if not c.missing and not (own_process and c.taken)]
    if len(left) > len(able):
        yield (
            f"{names([c for c in left if c not in able])} in one process with others, "
            "where roles of a framework would share its environment"
        )


async def _assigned(request: _Request) -> dict[str, list[Candidate]]:
    client, framework = request.client, request.framework
    entries = (await monitor.identify(client))["workers"]
    approved = await monitor.approve(client, entries)
    held = await _held(client, request.data)
    answers = await ship.on_workers(
        client,
        remote_roles.describe_worker,
        [a for a in entries if a in approved and entries[a]["status"] == "running"],
        timeout=ANSWER_TIMEOUT,
        modules=list(framework.modules),
    )
    return assign(
        request.sizes,
        [_candidate(a, entries[a], answers.get(a), held.get(a, 0)) for a in entries],
        first=request.target,
        own_process=framework.own_process,
    )


def _candidate(address: str, entry: Any, answer: Any, held: int) -> Candidate:
    facts: Any = {
        "address": address,
        "id": monitor.worker_id(address, entry),
        "host": str(entry["host"]),
        "status": str(entry["status"]),
        "held": held,
    }
    if not isinstance(answer, dict):
        return Candidate(**facts, process=address, answers=False)
    return Candidate(
        **facts,
        process=answer["process"],
        tasks=answer["tasks"],
        missing=tuple(answer["missing"]),
        taken=answer["role"],
    )


async def _held(client: Client, collections: Sequence[Any]) -> dict[str, int]:
    """Return by address the bytes of the data on the worker."""
    futures = [f for x in collections for f in inputs.partitions(x)[1] or ()]
    keys = [f.key for f in futures]
    scheduler: Any = client.scheduler
    holders: Mapping[Key, Any] = await scheduler.who_has(keys=keys) if keys else {}
    sizes = await scheduler.nbytes(keys=keys, summary=False) if keys else {}
    found: dict[str, int] = {}
    for key, workers in holders.items():
        for worker in workers:
            found[worker] = found.get(worker, 0) + sizes.get(key, 0)
    return found


# --- execution ------------------------------------------------------------------------


async def _run(request: _Request) -> Roles:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(hold(request.client, label="run_roles"))
        assigned = await _assigned(request)
        targets = [c.address for c in assigned.get(request.target, [])]
        placed = await _place(request, targets)
        name = uuid4().hex  # of the endpoints
        states = [
            RoleState(role=role, rank=rank, worker=c.address, id=c.id)
            for role, members in assigned.items()
            for rank, c in enumerate(members)
        ]
        try:
            await _register(request, name, states)
            _submit(request, name, states, placed)
        except BaseException:  # an interruption too
            await asyncio.shield(_unregister(request.client, name, states))
            raise
        lifecycle = Lifecycle(
            target=request.target,
            servers=request.servers,
            timeout=request.timeout,
            grace=request.grace,
        )
        stack.callback(placed.release)
        found = Roles(request.client, name, states, lifecycle, stack.pop_all())
    await found.begun()
    return found


@dataclass
class _PlacedData:
    """The data on the workers of a role."""

    collections: tuple[Any, ...] = ()  # keep the data in memory
    partitions: Mapping[str, list[tuple[Key, ...]]] | None = None  # by address
    rows: Sequence[Sequence[int]] = ()  # by rank, of each partition

    def release(self) -> None:
        self.collections = ()


async def _place(request: _Request, workers: list[str]) -> _PlacedData:
    """Place the data on these workers, in the order of their ranks."""
    if not request.data:
        return _PlacedData()
    placing: Any = prepare(
        request.client,
        *request.data,
        workers=workers,
        estimator=request.framework.workload,
        timeout=request.timeout,
        progress=request.progress,
    )
    prepared: Prepared = await placing
    collections = tuple(prepared)
    columns = [inputs.partitions(x)[0] for x in collections]
    scheduler: Any = request.client.scheduler
    keys = [key for column in columns for key in column]
    holders = await scheduler.who_has(keys=keys)
    partitions: dict[str, list[tuple[Key, ...]]] = {w: [] for w in workers}
    rows: dict[str, list[int]] = {w: [] for w in workers}
    counts = prepared.after.rows.tolist()
    for count, partition in zip(counts, zip(*columns, strict=True), strict=True):
        common = set(workers).intersection(*(holders.get(k, ()) for k in partition))
        home = next((w for w in workers if w in common), None)
        if home is None:
            raise IncompleteError(
                f"partition {printable(str(partition[0]), longest=100)} was lost or "
                "moved before the roles began. Call run_roles again"
            )
        partitions[home].append(partition)
        rows[home].append(count)
    _refuse_empty(request, rows)
    return _PlacedData(collections, partitions, list(rows.values()))


def _refuse_empty(request: _Request, rows: Mapping[str, list[int]]) -> None:
    """Refuse a batch size that leaves a rank without batches if ranks run in step."""
    fewest = min(sum(counts) for counts in rows.values())
    if request.framework.synchronous and fewest < (request.batch_size or 1):
        raise ValueError(
            f"batch_size={request.batch_size}, but one of the "
            f"{len(rows)} {request.target} roles has {fewest:,} rows, so it has no "
            "batch. Pass a smaller batch_size, fewer of these roles, or more data"
        )


async def _register(request: _Request, name: str, states: Sequence[RoleState]) -> None:
    """Register an endpoint with a port for each role."""
    answers = await ship.on_workers(
        request.client,
        remote_roles.register,
        [s.worker for s in states],
        timeout=ANSWER_TIMEOUT,
        name=name,
        expiry=EXPIRY,
    )
    for state in states:
        answer = answers[state.worker]
        if isinstance(answer, BaseException):
            raise NoWorkersError(
                f"{state}: the worker could not register the role "
                f"({printable(repr(answer), longest=300)}). Call run_roles again"
            ) from answer
        state.address = printable(answer, longest=300)


async def _unregister(client: Client, name: str, states: Sequence[RoleState]) -> None:
    workers, remove = [s.worker for s in states], remote_roles.unregister
    await ship.on_workers(client, remove, workers, timeout=ANSWER_TIMEOUT, name=name)


def _submit(
    request: _Request, name: str, states: Sequence[RoleState], placed: _PlacedData
) -> None:
    """Submit a task for each role, restricted to its worker."""
    spec = by_role(states, lambda s: s.address)
    task = ship.Tasks(remote_roles.run_role)
    around = ship.pickled(request.framework.around)
    graph = graphs.Graph()
    for state in states:
        settings = _settings(request, name, state, spec, placed)
        settings |= {"code": request.code[state.role], "around": around}
        key = f"role-{state.role}-{state.rank}-{name}"
        # pickled, because Dask would replace keys of partitions with their data
        graph.tasks[key] = task(key, name, key, pickle.dumps(settings))
        graph.where[key] = state.worker
        graph.priority[key] = PRIORITY
    graph.partitions["roles"] = list(graph.tasks)
    futures = graphs.submit(request.client, graph)
    for state, future in zip(states, futures.values(), strict=True):
        state.future = future


def _settings(
    request: _Request,
    name: str,
    state: RoleState,
    spec: Mapping[str, list[str]],
    placed: _PlacedData,
) -> dict[str, Any]:
    """Return the settings of a role for ``run_role``, except for its code."""
    framework, role, rank = request.framework, state.role, state.rank
    environment = framework.environment(spec, role, rank)
    if framework.own_process:
        mark = f"{role} {rank} of roles {name[:8]}"
        environment = {**environment, remote_roles.VARIABLE: mark}
    has_data = role == request.target
    return {
        "role": role,
        "rank": rank,
        "size": request.sizes[role],
        "spec": list(spec.items()),
        "target": framework.target(spec, role, rank),
        "environment": environment,
        "batch_size": request.batch_size,
        "synchronous": framework.synchronous,
        "partitions": (placed.partitions or {}).get(state.worker) if has_data else None,
        "rows": placed.rows if has_data else (),
    }
