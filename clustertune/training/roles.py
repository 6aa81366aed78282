"""``run_roles``: run functions concurrently on chosen workers.

The call checks its arguments, assigns roles to workers, places the data on some of
them, registers an endpoint on each worker and submits a task for each role.
``running_roles`` manages the roles from then on.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from distributed import Client

from clustertune.collections import graphs, inputs
from clustertune.core import arguments
from clustertune.core.model import Key
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
from clustertune.training.running_roles import Roles, RoleState, by_role

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
    batch_size: int | None = None,
    states: Mapping[str, Sequence[bytes | None]] | None = None,
    timeout: str | float = "5 minutes",
    grace: str | float = "10s",
) -> Any:
    """Run functions concurrently, each on its own worker, until all have ended.

    Each role gets a worker: idle workers first, spread over hosts. The data is placed
    on the workers of the target role: the only one, or the one named ``"worker"``. Each
    role gets a free port and the addresses of all roles. Then all functions are called
    with a context at the same time. If one fails or its worker is lost, or all members
    of the target role have ended, all others are asked to stop.

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
    codes = {name: _code(name, value) for name, value in roles.items()}
    sizes = {name: number for name, (number, _) in roles.items()}
    if len(roles) > 1 and "worker" not in roles:
        raise ValueError(
            'one of several roles must be named "worker", because it has the data and '
            f"its end stops the others; the roles are {', '.join(map(repr, roles))}"
        )
    _refuse_other_states(states, sizes)
    request = _Request(
        client=client,
        framework=chosen,
        sizes=sizes,
        codes=codes,
        target="worker" if len(roles) > 1 else next(iter(roles)),
        data=_collections(client, data),
        batch_size=arguments.count("batch_size", batch_size),
        states=states,
        timeout=arguments.duration("timeout", timeout),
        grace=arguments.duration("grace", grace),
    )
    return sync(client, _run, request)


# --- arguments ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Request:
    client: Client
    framework: Framework
    sizes: Mapping[str, int]  # number of members by role
    codes: Mapping[str, bytes]  # pickled functions by role
    target: str  # role that has the data
    data: tuple[Any, ...]  # collections
    batch_size: int | None
    states: Mapping[str, Sequence[bytes | None]] | None  # of an earlier attempt
    timeout: float
    grace: float


def _code(name: Any, value: Any) -> bytes:
    """Check a role, ``(number, function)``, and return its pickled function."""
    is_name = isinstance(name, str) and name.isprintable() and name
    number, function = value if isinstance(value, tuple) and len(value) == 2 else (0, 0)
    is_number = isinstance(number, int) and not isinstance(number, bool) and number > 0
    if not is_name or not is_number or not callable(function):
        raise ValueError(
            f"roles[{name!r:.200}]={value!r:.200} must have a text as name and "
            f"(number, function) with a number of at least 1, {EXAMPLE}"
        )
    return pickled(f"the function of roles[{name!r}]", function)


def _refuse_other_states(states: Any, sizes: Mapping[str, int]) -> None:
    """Refuse states that are not those of an earlier call with the same roles."""
    given = states.items() if isinstance(states, Mapping) else ()
    found = {r: len(x) for r, x in given if isinstance(x, list | tuple)}
    if states is not None and found != sizes:
        ranks = ", ".join(f"{role}: {n}" for role, n in sizes.items())
        raise ValueError(
            f"states must be roles.states of an earlier call with the same roles "
            f"({ranks}), with one state for each rank"
        )


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
            reason = "in one process with others, and a framework needs its own"
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
        request.sizes,
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
            RoleState(
                role=role,
                rank=rank,
                worker=c.address,
                id=c.id,
                saved=request.states[role][rank] if request.states else None,
            )
            for role, members in assigned.items()
            for rank, c in enumerate(members)
        ]
        if request.data:
            await _place(request, states, stack)
        name = uuid4().hex  # of the endpoints
        await _register(request, name, states)
        _submit(request, name, states)
        found = Roles(
            request.client,
            name,
            states,
            stack.pop_all(),
            target=request.target,
            timeout=request.timeout,
            grace=request.grace,
        )
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
        timeout=request.timeout,
    )
    prepared: Prepared = await placing
    collections = list(prepared)
    stack.callback(collections.clear)
    columns = [graphs.partitions(x)[0] for x in collections]
    scheduler: Any = request.client.scheduler
    keys = [key for column in columns for key in column]
    holders = await scheduler.who_has(keys=keys)
    counts = prepared.after.rows.tolist()
    partitions: dict[RoleState, list[tuple[Key, ...]]] = {m: [] for m in members}
    rows: dict[RoleState, list[int]] = {m: [] for m in members}  # by partition
    for count, partition in zip(counts, zip(*columns, strict=True), strict=True):
        held_by = [holders.get(key, ()) for key in partition]
        home = next((m for m in members if all(m.worker in h for h in held_by)), None)
        if home is None:
            raise IncompleteError(
                f"partition {printable(str(partition[0]), longest=100)} was lost or "
                "moved before the roles began. Call run_roles again"
            )
        partitions[home].append(partition)
        rows[home].append(count)
    size = request.batch_size
    steps = min(
        sum(n > 0 for n in counts) if size is None else sum(counts) // size
        for counts in rows.values()
    )
    # ranks that run in step wait for a rank without a batch
    if request.framework.synchronous and not steps:
        raise ValueError(
            f"batch_size={size}, but one of the {len(members)} {request.target} roles "
            f"has {min(map(sum, rows.values())):,} rows, so it has no batch. Pass a "
            "smaller batch_size, fewer of these roles, or more data"
        )
    for member in members:
        member.partitions, member.steps = partitions[member], steps


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
    return {
        "role": role,
        "rank": rank,
        "size": request.sizes[role],
        "spec": list(spec.items()),
        "code": request.codes[role],
        "around": ship.pickled(framework.around),
        "environment": environment,
        "batch_size": request.batch_size,
        "synchronous": framework.synchronous,
        "partitions": state.partitions,
        "steps": state.steps,
        "state": state.saved,
    }
