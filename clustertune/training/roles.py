"""``run_roles``: run functions concurrently on chosen workers.

The call checks its arguments, assigns roles to workers, places the data on some of
them, registers an endpoint on each worker and submits a task for each role.
``running_roles`` manages the roles from then on.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from distributed import Client

from clustertune.collections import graphs, inputs
from clustertune.core import arguments
from clustertune.core.wording import names_text, plural, printable, workers_text
from clustertune.errors import IncompleteError, NoWorkersError
from clustertune.monitor import monitor
from clustertune.monitor.connection import sync
from clustertune.operations.call import check_client
from clustertune.operations.hold import hold
from clustertune.operations.prepare import prepare
from clustertune.operations.prepared import Prepared
from clustertune.remote import ship
from clustertune.training import frameworks, remote_roles
from clustertune.training.frameworks import Framework
from clustertune.training.reduction_plan import pickled
from clustertune.training.running_roles import Lifecycle, Roles, RoleState, by_role

ANSWER_TIMEOUT = 10.0  # seconds in which a worker answers
EXPIRY = 60.0  # seconds for which an endpoint without a task waits for this client
EXAMPLE = 'like {"worker": (2, train), "scorer": (1, score)}'
SHARED_PROCESS = (
    "in one process with others, where roles of a framework would share its environment"
)
PRIORITY = 1000  # so that a role does not wait for queued tasks


def run_roles(
    client: Client,
    roles: Mapping[str, Any],
    *,
    data: Any = None,
    framework: str | None = None,
    target_role: str | None = None,
    batch_size: int | None = None,
    states: Mapping[str, Sequence[bytes | None]] | None = None,
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
        By name of the role ``(number, function)``:
        ``{"worker": (2, train), "scorer": (1, score)}``.
    data
        Training data: a Dask Array, DataFrame or Series, a tuple of row-aligned
        collections such as ``(X, y)``, or a result of ``prepare``.
        :func:`clustertune.prepare` places it, so partitions in memory move and stay.
    framework
        ``"torch"`` or ``"tensorflow"`` sets the environment of each role for that
        framework. None sets nothing.
    target_role
        The role that has the data. When all its members have ended, the other roles
        are asked to stop. The default is a single role, else ``"worker"``.
    batch_size
        Rows per batch of ``ctx.batches``. The default is one partition.
    timeout
        Seconds, or a duration: first for placing the data, then for all roles to begin.
    states
        States that the ranks of an earlier call have saved, ``roles.states``. Each rank
        gets its own, ``ctx.state``.
    grace
        Seconds, or a duration, in which roles must end after an error, an interruption
        or the end of the ``with`` block.
    progress
        Progress of placing the data, as for :func:`clustertune.prepare`.

    Returns
    -------
    Roles
        The running roles: ``.scores``, ``.stop()``, ``.result()``, ``.states``,
        ``.spec``, ``.workers``. As a context manager, it stops all roles at the end.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or value, or a function does not pickle.
    NoWorkersError
        There are fewer workers than roles, or workers lack the framework.
    FunctionError
        A role did not begin in time, or was lost before. The result raises later
        errors.
    AlignmentError, CapacityError, ...
        The data cannot be placed, as for :func:`clustertune.prepare`.
    ConnectionLostError, VersionMismatchError
        The cluster is gone or cannot run code of this client.

    Notes
    -----
    A function receives ``ctx`` with ``role``, ``rank``, ``size``, ``spec``,
    ``threads`` and ``steps``. ``batches(epochs=1)`` yields rows with their labels.
    ``report(score)`` sends to the client. Call ``should_stop()`` often;
    ``wait(seconds)`` waits for it. ``save(state)`` keeps a state for the next attempt,
    which finds it in ``state``.

    Examples
    --------
    >>> with run_roles(client, {"worker": (2, train)}, data=(X, y)) as roles:
    ...     for score in roles.scores:
    ...         if score.value > 0.95:
    ...             roles.stop()
    ...     models = roles.result()["worker"]                   # doctest: +SKIP
    """
    check_client(client)
    if not isinstance(roles, Mapping) or not roles:
        raise TypeError(f"roles must be a mapping, {EXAMPLE}; it was {roles!r:.200}")
    chosen = frameworks.choose(framework, roles)
    members = {name: _members(name, value) for name, value in roles.items()}
    if target_role is None:
        target_role = next(iter(members)) if len(members) == 1 else "worker"
    if target_role not in members:
        raise ValueError(
            f"target_role={target_role!r} must be a role, because it has the data and "
            f"its end stops the others; the roles are "
            f"{', '.join(map(repr, members))}. Pass one of them: "
            f"target_role={next(iter(members))!r}"
        )
    lifecycle = Lifecycle(
        target=target_role,
        timeout=arguments.duration("timeout", timeout),
        grace=arguments.duration("grace", grace),
    )
    request = _Request(
        client=client,
        framework=chosen,
        members=members,
        data=_collections(client, data),
        batch_size=arguments.count("batch_size", batch_size),
        states=_states(states, members),
        lifecycle=lifecycle,
        progress=progress,
    )
    return sync(client, _run, request)


# --- arguments ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Members:
    number: int
    code: bytes  # pickled function


@dataclass(frozen=True, kw_only=True)
class _Request:
    client: Client
    framework: Framework
    members: Mapping[str, _Members]  # by role
    data: tuple[Any, ...]  # collections
    batch_size: int | None
    states: Mapping[str, Sequence[bytes | None]]  # of an earlier attempt, by rank
    lifecycle: Lifecycle
    progress: Any

    @property
    def target(self) -> str:
        return self.lifecycle.target


def _members(name: Any, value: Any) -> _Members:
    """Check a role, ``(number, function)``."""
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise TypeError(f"roles: a name must be a text, {EXAMPLE}; one is {name!r}")
    is_pair = isinstance(value, tuple) and len(value) == 2
    number, function = value if is_pair else (None, None)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(
            f"roles[{name!r}]={value!r:.200} must be (number, function) with a number "
            f"of at least 1, {EXAMPLE}"
        )
    if not callable(function):
        raise TypeError(
            f"roles[{name!r}] must have a function of ctx; it has "
            f"{type(function).__name__}"
        )
    return _Members(number, pickled(f"the function of roles[{name!r}]", function))


def _states(states: Any, members: Mapping[str, _Members]) -> Mapping[str, Any]:
    """Check the states of an earlier attempt."""
    if states is not None and not isinstance(states, Mapping):
        raise TypeError(
            "states must be roles.states of an earlier call, a mapping; it is a "
            f"{type(states).__name__}"
        )
    for role, saved in (states or {}).items():
        number = members[role].number if role in members else 0
        known = isinstance(saved, list | tuple) and all(
            x is None or isinstance(x, bytes) for x in saved
        )
        if not known or len(saved) != number:
            ranks = ", ".join(f"{name}: {m.number}" for name, m in members.items())
            raise ValueError(
                f"states[{role!r}] must have bytes or None for each rank ({ranks}). "
                "Pass roles.states of an earlier call with the same roles"
            )
    return states or {}


def _collections(client: Client, data: Any) -> tuple[Any, ...]:
    if data is None:
        return ()
    several = isinstance(data, tuple | Prepared)
    found = tuple(data) if several else (data,)
    if not found:
        raise ValueError("data is empty; leave it out, or pass data=(X, y)")
    check_client(client, inputs.of_rows(found))
    return found


# --- which worker takes which role ----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A worker that may take a role."""

    address: str
    id: str | int
    host: str
    process: str  # its identity
    tasks: int = 0  # running and waiting
    held: int = 0  # bytes of the data
    refusal: str | None = None  # why it cannot take a role


def assign(
    sizes: Mapping[str, int],
    candidates: Sequence[Candidate],
    *,
    first: str | None,
    own_process: bool,
) -> dict[str, list[Candidate]]:
    """Return by role its workers, by rank.

    The role ``first`` gets the data, so it chooses first and prefers holders of the
    data. Idle workers come first. All roles are spread over hosts. Equal workers are
    chosen in the given order.
    """
    able = _able(sizes, candidates, own_process=own_process)
    chosen: dict[str, list[Candidate]] = {role: [] for role in sizes}
    hosts = Counter[str]()
    for role in sorted(sizes, key=lambda name: name != first):
        for _ in range(sizes[role]):
            best = min(
                able,
                key=lambda c: (
                    c.tasks > 0,
                    hosts[c.host],
                    -c.held if role == first else c.held,
                    c.tasks,
                ),
            )
            able.remove(best)
            hosts[best.host] += 1
            chosen[role].append(best)
    return chosen


def _able(
    sizes: Mapping[str, int], candidates: Sequence[Candidate], *, own_process: bool
) -> list[Candidate]:
    """Return the workers that can take a role; refuse too few."""
    able: list[Candidate] = []
    refused: dict[str, list[str | int]] = {}  # ids by reason
    processes: set[tuple[str, str]] = set()
    for one in sorted(candidates, key=lambda c: c.tasks):
        reason = one.refusal
        if reason is None and own_process and (one.host, one.process) in processes:
            reason = SHARED_PROCESS
        if reason is None:
            able.append(one)
            processes.add((one.host, one.process))
        else:
            refused.setdefault(reason, []).append(one.id)
    n_roles = sum(sizes.values())
    if len(able) < n_roles:
        reasons = "".join(f"; {workers_text(i)}: {why}" for why, i in refused.items())
        requested = ", ".join(f"{role}: {n}" for role, n in sizes.items())
        raise NoWorkersError(
            f"the roles need {plural(n_roles, 'worker')} ({requested}), one each, and "
            f"{len(able)} of {len(candidates)} can take one{reasons}. Use fewer roles, "
            "or start workers: clustertune.scale(client, n_workers)"
        )
    return able


async def _assigned(request: _Request) -> dict[str, list[Candidate]]:
    client, framework = request.client, request.framework
    entries, running = await monitor.running_workers(client)
    futures = [f for x in request.data for f in graphs.partitions(x)[1] or ()]
    (held,) = await monitor.held_bytes(client, [[f.key for f in futures]])
    answers = await ship.on_workers(
        client,
        remote_roles.describe_worker,
        running,
        timeout=ANSWER_TIMEOUT,
        modules=list(framework.modules),
    )
    return assign(
        {role: m.number for role, m in request.members.items()},
        [candidate(a, entries[a], answers.get(a), held.get(a, 0)) for a in entries],
        first=request.target,
        own_process=framework.own_process,
    )


def candidate(address: str, entry: Any, answer: Any, held: int) -> Candidate:
    """Combine the scheduler's entry of a worker and its answer, which may be an error.

    The answer is that of ``remote_roles.describe_worker``.
    """
    facts: Any = answer if isinstance(answer, dict) else {"process": address}
    refusal = None
    if entry["status"] != "running":
        refusal = f"not running ({printable(str(entry['status']))})"
    elif facts is not answer:
        refusal = "no answer"
    elif facts["missing"]:
        refusal = f"cannot import {names_text(facts['missing'])}"
    return Candidate(
        address=address,
        id=monitor.worker_id(address, entry),
        host=str(entry["host"]),
        process=facts["process"],
        tasks=facts.get("tasks", 0),
        held=held,
        refusal=refusal,
    )


# --- execution ------------------------------------------------------------------------


async def _run(request: _Request) -> Roles:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(hold(request.client, label="run_roles"))
        assigned = await _assigned(request)
        states = [
            RoleState(role=role, rank=rank, worker=c.address, id=c.id)
            for role, members in assigned.items()
            for rank, c in enumerate(members)
        ]
        if request.data:
            await _place(request, states, stack)
        name = uuid4().hex  # of the endpoints
        await _register(request, name, states)
        _submit(request, name, states)
        found = Roles(request.client, name, states, request.lifecycle, stack.pop_all())
    await found.begun()
    return found


async def _place(
    request: _Request, states: Sequence[RoleState], stack: AsyncExitStack
) -> None:
    """Place the data on the workers of the target role, until the stack ends."""
    members = [s for s in states if s.role == request.target]
    placing: Any = prepare(
        request.client,
        *request.data,
        workers=[m.worker for m in members],
        estimator=request.framework.workload,
        timeout=request.lifecycle.timeout,
        progress=request.progress,
    )
    prepared: Prepared = await placing
    collections = list(prepared)
    stack.callback(collections.clear)
    columns = [graphs.partitions(x)[0] for x in collections]
    scheduler: Any = request.client.scheduler
    keys = [key for column in columns for key in column]
    holders = await scheduler.who_has(keys=keys)
    counts = prepared.after.rows.tolist()
    for count, partition in zip(counts, zip(*columns, strict=True), strict=True):
        held_by = [holders.get(key, ()) for key in partition]
        home = next((m for m in members if all(m.worker in h for h in held_by)), None)
        if home is None:
            raise IncompleteError(
                f"partition {printable(str(partition[0]), longest=100)} was lost or "
                "moved before the roles began. Call run_roles again"
            )
        home.partitions.append(partition)
        home.rows.append(count)
    fewest = min(sum(m.rows) for m in members)
    # ranks that run in step wait for a rank without a batch
    if request.framework.synchronous and fewest < (request.batch_size or 1):
        raise ValueError(
            f"batch_size={request.batch_size}, but one of the "
            f"{len(members)} {request.target} roles has {fewest:,} rows, so it has no "
            "batch. Pass a smaller batch_size, fewer of these roles, or more data"
        )


async def _register(request: _Request, name: str, states: Sequence[RoleState]) -> None:
    """Register an endpoint with a port for each role; without a task it expires."""
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


def _submit(request: _Request, name: str, states: Sequence[RoleState]) -> None:
    """Submit a task for each role, restricted to its worker."""
    task = ship.Tasks(remote_roles.run_role)
    graph = graphs.Graph()
    for state in states:
        settings = _settings(request, name, state, states)
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
    request: _Request, name: str, state: RoleState, states: Sequence[RoleState]
) -> dict[str, Any]:
    """Return the settings of a role for ``run_role``."""
    framework, role, rank = request.framework, state.role, state.rank
    spec = by_role(states, lambda s: s.address)
    environment = framework.environment(spec, role, rank)
    if framework.own_process:
        mark = f"{role} {rank} of roles {name[:8]}"
        environment = {**environment, remote_roles.VARIABLE: mark}
    has_data = bool(request.data) and role == request.target
    return {
        "role": role,
        "rank": rank,
        "size": request.members[role].number,
        "spec": list(spec.items()),
        "code": request.members[role].code,
        "around": ship.pickled(framework.around),
        "environment": environment,
        "batch_size": request.batch_size,
        "synchronous": framework.synchronous,
        "partitions": state.partitions if has_data else None,
        "rows": by_role(states, lambda s: s.rows)[role],
        "state": dict(enumerate(request.states.get(role, ()))).get(rank),
    }
