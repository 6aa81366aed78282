"""Functions that run side by side on chosen workers, for hours: ``run_roles``.

Workers are chosen (``staffing``), the data is placed on some of them, each is asked for
a port, and a task is started on each; ``running`` has what is done from then on.
"""

from __future__ import annotations

import asyncio
import pickle
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
from clustertune.core.wording import printable
from clustertune.errors import IncompleteError, NoWorkersError
from clustertune.monitor import monitor
from clustertune.operations.call import check_client
from clustertune.operations.hold import hold
from clustertune.operations.prepare import prepare
from clustertune.operations.prepared import Prepared
from clustertune.remote import roles as remote
from clustertune.remote import ship
from clustertune.training import frameworks, staffing
from clustertune.training.actors import Actor, Rules, by_role
from clustertune.training.frameworks import Framework
from clustertune.training.running import Roles
from clustertune.training.staffing import Candidate

PATIENCE = 10.0  # seconds in which a worker answers
LINGER = 60.0  # seconds for which a worker that is ready waits for this client
EXAMPLE = 'like {"worker": (2, train), "scorer": (1, score)}'
URGENT = 1000  # priority: a role does not wait for tasks that have not begun


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
    """Run functions side by side, one on each of some workers, until all have ended.

    Workers are chosen (idle ones first, spread over hosts), one for each role; the
    data is placed on those of ``target_role``; a port is found on each, and all are
    told of all; then every function is called with a context, at the same time. When
    one of them fails or is lost, all others are told to stop.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous; with the latter the call is
        awaited.
    roles
        By name of the role ``(how many, function)``, or a number alone where the
        framework has the function: ``{"ps": 1, "worker": (2, train)}``.
    data
        What is trained on: a Dask Array, DataFrame or Series, a tuple of row-aligned
        ones such as ``(X, y)``, or what ``prepare`` returned. It is placed by
        :func:`clustertune.prepare`, so pieces in memory move to where they are needed,
        and stay there.
    framework
        ``"torch"`` or ``"tensorflow"``: sets the environment of each role as that
        needs it. None: nothing is set.
    target_role
        The role that has the data. When all that have it have ended, the other roles
        are told to stop.
    batch_size
        Rows in a batch of ``ctx.batches``; by default each piece is one.
    timeout
        Seconds, or a duration, in which the data must be placed, and then in which all
        roles must begin.
    grace
        Seconds, or a duration, in which roles must have ended that were told to stop
        because of an error, an interruption, or the end of the ``with`` block.
    progress
        Of placing the data, as :func:`clustertune.prepare` has it.

    Returns
    -------
    Roles
        What runs: ``.scores``, ``.stop()``, ``.result()``, ``.logs``, ``.spec``,
        ``.workers``; a context manager, which stops all roles at its end.

    Raises
    ------
    TypeError, ValueError
        An argument is not what it should be, or a function cannot be sent.
    NoWorkersError
        There are fewer workers than roles, or the framework is not installed there.
    RoleError
        A role did not begin in time, or was lost before it began. What happens after
        that is raised by what is returned.
    AlignmentError, CapacityError, ...
        The data cannot be placed: as :func:`clustertune.prepare`.
    ConnectionLostError, VersionMismatchError
        There is no cluster, or none to which code may be sent.

    Notes
    -----
    A function is given ``ctx``: ``role``, ``rank``, ``size``, ``spec``, ``target``,
    ``threads``, ``steps``; ``batches(epochs=1, batch_size=None)`` yields rows with
    their labels; ``report(score)`` and ``log(text)`` go to the client;
    ``should_stop()`` is to be asked often, and ``wait(seconds)`` waits for it.

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
    request = _Request(
        client=client,
        framework=chosen,
        sizes=(sizes := _sizes(roles, chosen)),
        code=_code(roles, chosen),
        bare=frozenset(name for name, value in roles.items() if _is_count(value)),
        data=_collections(client, data),
        target=_target(target_role, sizes, data is not None),
        batch_size=arguments.count("batch_size", batch_size),
        timeout=arguments.duration("timeout", timeout),
        grace=arguments.duration("grace", grace),
        progress=progress,
    )
    return client.sync(_run, request)


# --- what was asked for ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Arguments that have been checked."""

    client: Client
    framework: Framework
    sizes: Mapping[str, int]  # how many have each role
    code: Mapping[str, bytes]  # functions by role, pickled
    bare: frozenset[str]  # roles whose function is the framework's
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
                f"roles[{name!r}]={value!r:.200} must be (how many, function), with at "
                f"least 1, {EXAMPLE}"
            )
        number, function = pair
        if isinstance(value, tuple) and not callable(function):
            raise TypeError(
                f"roles[{name!r}] must have a function, which is given ctx; it has "
                f"{type(function).__name__}"
            )
        if not isinstance(value, tuple) and framework.bare is None:
            known = "None" if framework.name is None else f'"{framework.name}"'
            raise ValueError(
                f"roles[{name!r}]={value} has no function, and framework={known} has "
                f"none for it; give one: {{{name!r}: ({value}, function)}}"
            )
        found[name] = int(number)
    return found


def _code(roles: Mapping[str, Any], framework: Framework) -> dict[str, bytes]:
    found = {}
    for name, value in roles.items():
        if _is_count(value):
            assert framework.bare is not None
            found[name] = ship.pickled(framework.bare)
            continue
        try:
            found[name] = cloudpickle.dumps(value[1])
        # whatever a class of somebody's does when it is pickled
        except Exception as error:
            raise TypeError(
                f"the function of roles[{name!r}] cannot be sent to workers ({error}); "
                "leave out what belongs to this process, such as locks, open files "
                "and clients"
            ) from error
    return found


def _collections(client: Client, data: Any) -> tuple[Any, ...]:
    if data is None:
        return ()
    prepared = isinstance(data, tuple | Prepared)
    found = tuple(data) if prepared else (data,)
    if not found:
        raise ValueError("data is empty; leave it out, or give data=(X, y)")
    check_client(client, inputs.of_rows(found))
    return found


def _target(name: Any, sizes: Mapping[str, int], with_data: bool) -> str:
    if with_data and name not in sizes:
        raise ValueError(
            f"target_role={name!r} has the data, and is none of the roles "
            f"{', '.join(map(repr, sizes))}; name one of them: target_role="
            f"{next(iter(sizes))!r}"
        )
    return str(name)


# --- and done -------------------------------------------------------------------------


async def _run(request: _Request) -> Roles:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(hold(request.client, label="run_roles"))
        cast = await _cast(request)
        share = await _share(request, [c.address for c in cast.get(request.target, [])])
        actors = list(_actors(cast))
        try:
            await _hire_all(request, actors)
            _submit(request, actors, share)
        except BaseException:  # also an interruption
            await asyncio.shield(_dismiss(request.client, actors))
            raise
        rules = Rules(
            target=request.target,
            bare=request.bare,
            timeout=request.timeout,
            grace=request.grace,
        )
        stack.callback(share.clear)  # the data may go when all have ended
        found = Roles(request.client, actors, rules, stack.pop_all())
    await found.begun()
    return found


async def _cast(request: _Request) -> dict[str, list[Candidate]]:
    """By role the workers that are chosen."""
    client, framework = request.client, request.framework
    entries = (await monitor.identify(client))["workers"]
    approved = await monitor.approve(client, entries)
    held = await _held(client, request.data)
    answers = await ship.on_workers(
        client,
        remote.interview,
        [a for a in entries if a in approved and entries[a]["status"] == "running"],
        timeout=PATIENCE,
        modules=list(framework.modules),
    )
    found = staffing.assign(
        request.sizes,
        [_candidate(a, entries[a], answers.get(a), held.get(a, 0)) for a in entries],
        first=request.target,
        alone=framework.alone,
    )
    if isinstance(found, str):
        raise NoWorkersError(found)
    return found


def _candidate(address: str, entry: Any, answer: Any, held: int) -> Candidate:
    about: Any = {
        "address": address,
        "id": monitor.worker_id(address, entry),
        "host": str(entry["host"]),
        "status": str(entry["status"]),
        "held": held,
    }
    if not isinstance(answer, dict):
        return Candidate(**about, process=address, answers=False)
    return Candidate(
        **about,
        process=answer["process"],
        busy=answer["busy"],
        lacks=tuple(answer["lacks"]),
        taken=answer["role"],
    )


async def _held(client: Client, collections: Sequence[Any]) -> dict[str, int]:
    """By address, bytes of the data that lie there."""
    futures = [f for x in collections for f in inputs.pieces(x)[1] or ()]
    keys = [f.key for f in futures]
    scheduler: Any = client.scheduler
    holders: Mapping[Key, Any] = await scheduler.who_has(keys=keys) if keys else {}
    sizes = await scheduler.nbytes(keys=keys, summary=False) if keys else {}
    found: dict[str, int] = {}
    for key, workers in holders.items():
        for worker in workers:
            found[worker] = found.get(worker, 0) + sizes.get(key, 0)
    return found


@dataclass
class _Share:
    """The data as it lies on the workers of a role."""

    collections: tuple[Any, ...] = ()  # which keep it in memory
    pieces: Mapping[str, list[tuple[Key, ...]]] | None = None  # by address
    rows: Sequence[Sequence[int]] = ()  # by rank, of each piece

    def clear(self) -> None:
        self.collections = ()


async def _share(request: _Request, workers: list[str]) -> _Share:
    """Place the data on these workers, in the order of their ranks."""
    if not request.data:
        return _Share()
    placing: Any = prepare(
        request.client,
        *request.data,
        workers=workers,
        workload=request.framework.workload,
        timeout=request.timeout,
        progress=request.progress,
    )
    prepared: Prepared = await placing
    collections = tuple(prepared)
    columns = [inputs.pieces(x)[0] for x in collections]
    scheduler: Any = request.client.scheduler
    keys = [key for column in columns for key in column]
    holders = await scheduler.who_has(keys=keys)
    pieces: dict[str, list[tuple[Key, ...]]] = {w: [] for w in workers}
    rows: dict[str, list[int]] = {w: [] for w in workers}
    counts = prepared.after.rows.tolist()
    for count, piece in zip(counts, zip(*columns, strict=True), strict=True):
        there = set(workers).intersection(*(holders.get(key, ()) for key in piece))
        home = next((w for w in workers if w in there), None)
        if home is None:
            raise IncompleteError(
                f"piece {printable(str(piece[0]), longest=100)} was lost or moved "
                "while the roles were to begin; run_roles again"
            )
        pieces[home].append(piece)
        rows[home].append(count)
    _refuse_empty(request, rows)
    return _Share(collections, pieces, list(rows.values()))


def _refuse_empty(request: _Request, rows: Mapping[str, list[int]]) -> None:
    """Refuse batches that are larger than what a rank has, where all work in step."""
    fewest = min(sum(counts) for counts in rows.values())
    if request.framework.equal and fewest < (request.batch_size or 1):
        raise ValueError(
            f"batch_size={request.batch_size}, but one of the "
            f"{len(rows)} {request.target} roles has {fewest:,} rows, which make no "
            "batch; give a smaller batch_size, fewer of these roles, or more data"
        )


def _actors(cast: Mapping[str, list[Candidate]]) -> Iterator[Actor]:
    for role, members in cast.items():
        for rank, candidate in enumerate(members):
            yield Actor(
                role=role,
                rank=rank,
                worker=candidate.address,
                id=candidate.id,
                part=uuid4().hex,
            )


async def _hire_all(request: _Request, actors: Sequence[Actor]) -> None:
    """Have each worker make ready for its role, and find a port."""
    answers = await asyncio.gather(*(_hire(request, actor) for actor in actors))
    for actor, answer in zip(actors, answers, strict=True):
        if isinstance(answer, BaseException):
            raise NoWorkersError(
                f"{actor}: the worker cannot be made ready "
                f"({printable(repr(answer), longest=300)}); run_roles again"
            ) from answer
        actor.place = printable(answer, longest=300)


async def _hire(request: _Request, actor: Actor) -> Any:
    answers = await ship.on_workers(
        request.client,
        remote.hire,
        [actor.worker],
        timeout=PATIENCE,
        name=actor.part,
        linger=LINGER,
    )
    return answers[actor.worker]


async def _dismiss(client: Client, actors: Sequence[Actor]) -> None:
    """Let go what was made ready, of roles that do not begin."""
    workers = [a.worker for a in actors]
    names = [a.part for a in actors]
    dismiss, patience = remote.dismiss, PATIENCE
    await ship.on_workers(client, dismiss, workers, timeout=patience, names=names)


def _submit(request: _Request, actors: Sequence[Actor], share: _Share) -> None:
    """Start a task for each role, on its worker and nowhere else."""
    spec, framework = by_role(actors, lambda a: a.place), request.framework
    around, call = ship.pickled(framework.around), ship.Tasks(remote.play)
    graph = graphs.Graph()
    for actor in actors:
        role, rank = actor.role, actor.rank
        environment = framework.environment(spec, role, rank)
        if framework.alone:
            mark = f"{role} {rank} of roles {actor.part[:8]}"
            environment = {**environment, remote.VARIABLE: mark}
        targeted = role == request.target
        pieces = (share.pieces or {}).get(actor.worker) if targeted else None
        script = {
            "role": role,
            "rank": rank,
            "size": request.sizes[role],
            "spec": list(spec.items()),
            "target": framework.target(spec, role, rank),
            "code": request.code[role],
            "around": around,
            "environment": environment,
            "batch_size": request.batch_size,
            "equal": framework.equal,
            "pieces": pieces,
            "rows": share.rows if targeted else (),
        }
        key = f"role-{role}-{rank}-{actor.part}"
        # pickled: the key of a piece among arguments would be taken for its result
        graph.tasks[key] = call(key, actor.part, key, pickle.dumps(script))
        graph.where[key] = actor.worker
        graph.priority[key] = URGENT
    graph.pieces["roles"] = list(graph.tasks)
    found = graphs.submit(request.client, graph)
    for actor, future in zip(actors, found.values(), strict=True):
        actor.future = future
