"""What is done to workers by name, and to data that nobody needs any more.

``restart``, ``resize``, ``scale``, ``trim``, ``release``.

Each looks, plans, refuses before anything is touched, acts step by step through the
port, looks again, and reports what was seen, done and left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from distributed import Client, futures_of

from clustertune.actions import adapt as adapting
from clustertune.actions import drop as dropping
from clustertune.actions import release as releasing
from clustertune.actions import restart as restarting
from clustertune.actions import retire as retiring
from clustertune.actions import scale as scaling
from clustertune.actions import trim as trimming
from clustertune.actions.cluster.live import Asked
from clustertune.collections import inputs
from clustertune.core import arguments
from clustertune.core.model import Key, Notify, Size, Step, View
from clustertune.core.report import Report
from clustertune.core.wording import names_text
from clustertune.errors import ScaleError
from clustertune.integrations import managers
from clustertune.operations.procedure import Procedure, Steps, carry_out


def restart(
    client: Client,
    *collections: Any,
    workers: Sequence[str | int] | None = None,
    max_unavailable: float | str = 1,
    if_needed: bool = False,
    drop_data: bool = False,
    include_other_clients: bool = False,
    wait: str | float = "1 minute",
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "30 minutes",
) -> Report:
    """Restart workers one after the other, without losing what they hold.

    Each worker in turn gets no new tasks, ends those that it has, hands its keys to the
    others, is started again by its nanny, and gets its keys back. The scheduler carries
    that out: if this process ends, the worker whose turn it is is finished with.

    With ``drop_data`` all are restarted at once and everything in memory is lost: that
    is what ``client.restart()`` does, but what is lost is listed first.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    *collections
        Row-aligned collections whose pieces are to stay together meanwhile. What any
        client holds is kept, whether it is named here or not.
    workers
        Names or addresses; all by default.
    max_unavailable
        How many workers may be away at the same time: a number, or a part of all, as
        ``0.25`` or ``"25%"`` (rounded down, but one at least). What these hold has to
        fit the others.
    if_needed
        First trim the workers, then restart only workers that are still above a
        threshold at which they spill or pause, or will be after the next run.
    drop_data
        Restart all workers at once, and lose what they hold. Not with collections,
        ``workers`` or ``if_needed``.
    include_other_clients
        Whether ``drop_data`` may destroy what other clients want kept or what is
        published; both are listed in the text of the error otherwise.
    wait
        Seconds, or a duration, that the tasks of each worker are waited for.
    dry_run
        Change nothing; the report says what would be done and what it would cost.
    progress
        As for :func:`clustertune.prepare`.
    timeout
        Seconds, or a duration, for everything together.

    Returns
    -------
    Report
        ``steps`` say for each worker how many keys were moved away and back, and how
        many were lost by the scheduler's own count: there is one copy of what is moved,
        so where another worker ends meanwhile, what it has taken is lost unless it can
        be computed again. Status ``left``: not all was done, or keys were lost.
        ``memory`` has a row for each worker: its process before, after a trim and after
        the restart, keys and seconds.

    Raises
    ------
    RefusedError
        A worker cannot be restarted without loss (no nanny, actors, no room on the
        others), or others would lose data; nothing was touched.
    ConnectionLostError, LeaseHeldError, NoWorkersError, VersionMismatchError
        The cluster cannot do what was asked; the text says why and what to do.
    TimedOutError
        The time was over; nothing is lost.

    Examples
    --------
    >>> print(clustertune.restart(client, workers=[3]))         # doctest: +SKIP
    """
    seconds = arguments.duration("wait", wait)
    most = arguments.part("max_unavailable", max_unavailable)
    others = arguments.flag("include_other_clients", include_other_clients)
    dropped = arguments.flag("drop_data", drop_data)
    by_need = arguments.flag("if_needed", if_needed)
    if dropped and (collections or workers is not None or by_need):
        raise TypeError(
            "drop_data=True restarts all workers and keeps nothing: give neither "
            "collections, workers nor if_needed with it"
        )
    if others and not dropped:
        raise TypeError(
            "include_other_clients=True is for drop_data=True: without that nobody "
            "loses anything"
        )

    def steps(view: View, ids: Collection[str | int]) -> Iterator[Step]:
        if dropped:
            yield from dropping.steps(view, wait=seconds, include_other_clients=others)
        elif by_need:
            yield from trimming.steps(view, ids)
        else:
            yield from restarting.steps(view, ids, wait=seconds, most=most)

    procedure = Procedure(
        client=client,
        name="restart",
        given=inputs.of_rows(collections),
        workers=arguments.names("workers", workers),
        steps=steps,
        then=partial(restarting.steps_by_need, wait=seconds, most=most)
        if by_need
        else None,
        timeout=arguments.duration("timeout", timeout),
        dry_run=arguments.flag("dry_run", dry_run),
        progress=progress,
        asked=Asked(burdens=True, least=True, holdings=dropped, by_task=False),
    )
    report: Report = client.sync(carry_out, procedure)
    return report


def resize(
    client: Client,
    *collections: Any,
    nthreads: int | None = None,
    memory_limit: str | int | None = None,
    env: Mapping[str, str] | None = None,
    allow_any_env: bool = False,
    workers: Sequence[str | int] | None = None,
    max_unavailable: float | str = 1,
    wait: str | float = "1 minute",
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "30 minutes",
) -> Report:
    """Give running workers other threads, memory or variables, without losing data.

    The workers are restarted one after the other as :func:`clustertune.restart` does.
    Each worker's nanny gets the new size once its worker is empty, and uses it for
    every later start. A worker that does not run with it keeps its former size. Workers
    that have the size already are left alone.

    Parameters
    ----------
    client, *collections, workers, max_unavailable, wait, dry_run, progress, timeout
        As for :func:`clustertune.restart`. With ``env`` it is one worker at a time:
        nannies in the same process would mix their variables up.
    nthreads
        Threads of each worker.
    memory_limit
        Bytes, or text such as ``"4 GiB"``, for each worker.
    env
        Environment variables, set before the worker's process starts:
        ``{"OMP_NUM_THREADS": "2"}``. Allowed are those of thread pools and allocators
        (``clustertune.core.environment.TUNING``).
    allow_any_env
        Whether ``env`` may have any other variable, too. Some make a worker run
        commands or load code: set this only for variables that you wrote yourself.
        Reports show the names of such variables, not their values.

    Returns
    -------
    Report
        As of :func:`clustertune.restart`.

    Raises
    ------
    TypeError
        Nothing is to be changed.
    RefusedError
        As for :func:`clustertune.restart`; or a worker's process and data do not fit
        a lower limit. Nothing was touched.
    ConnectionLostError, LeaseHeldError, NoWorkersError, VersionMismatchError, \
TimedOutError
        As for :func:`clustertune.restart`.

    Examples
    --------
    >>> clustertune.resize(client, X, y, nthreads=4)            # doctest: +SKIP
    """
    size = Size(
        nthreads=arguments.count("nthreads", nthreads),
        memory_limit=arguments.nbytes("memory_limit", memory_limit),
        env=arguments.variables(
            "env", env, any_name=arguments.flag("allow_any_env", allow_any_env)
        ),
    )
    if size == Size():
        raise TypeError("nothing is to be changed: give nthreads, memory_limit or env")
    seconds = arguments.duration("wait", wait)
    most = arguments.part("max_unavailable", max_unavailable)
    if size.env:
        most = 1
    procedure = Procedure(
        client=client,
        name="resize",
        given=inputs.of_rows(collections),
        workers=arguments.names("workers", workers),
        steps=lambda view, ids: restarting.steps(
            view, ids, wait=seconds, size=size, most=most
        ),
        timeout=arguments.duration("timeout", timeout),
        dry_run=arguments.flag("dry_run", dry_run),
        progress=progress,
        asked=Asked(burdens=True, least=True, limit=size.memory_limit, by_task=False),
    )
    report: Report = client.sync(carry_out, procedure)
    return report


def scale(
    client: Client,
    n_workers: int,
    *collections: Any,
    wait: str | float = "1 minute",
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "10 minutes",
) -> Report:
    """Bring a cluster to so many workers, without losing data.

    More are asked of the client's cluster object, and waited for. Of those that are too
    many the ones that alone hold least go, one after the other: each ends its tasks and
    hands its keys to those that stay, and is closed then. A cluster that scales by
    itself is told to keep that many; the report says how to put its bounds back.

    Parameters
    ----------
    client, *collections, wait, dry_run, progress, timeout
        As for :func:`clustertune.restart`.
    n_workers
        How many there are to be, at least one.

    Returns
    -------
    Report
        As of :func:`clustertune.restart`. New workers hold no data, and what was moved
        lies where there was room: :func:`clustertune.prepare` places it evenly.

    Raises
    ------
    ScaleError
        The cluster cannot have more, or they did not come in time.
    RefusedError
        A worker holds actors, or more than those that stay have room for; nothing was
        touched.
    ConnectionLostError, LeaseHeldError, VersionMismatchError, TimedOutError
        As for :func:`clustertune.restart`.

    Examples
    --------
    >>> clustertune.scale(client, 8)                            # doctest: +SKIP
    >>> X, y = clustertune.prepare(client, X, y)                # doctest: +SKIP
    """
    wanted = arguments.number("n_workers", n_workers)
    seconds = arguments.duration("wait", wait)

    def steps(view: View, _ids: Collection[str | int]) -> Iterator[Step]:
        yield from adapting.exactly(view, wanted)
        there = sum(w.stays for w in view.now.workers)
        if there < wanted:
            reason = managers.obstacle(client.cluster, wanted)
            if reason is not None:
                raise ScaleError(f"n_workers={wanted}: {reason}")
            yield scaling.step(there, wanted)
        else:
            yield from retiring.steps(view, wanted, wait=seconds)

    procedure = Procedure(
        client=client,
        name="scale",
        given=inputs.of_rows(collections),
        steps=steps,
        timeout=arguments.duration("timeout", timeout),
        dry_run=arguments.flag("dry_run", dry_run),
        progress=progress,
        asked=Asked(burdens=True),
        needs=(),
    )
    report: Report = client.sync(carry_out, procedure)
    return report


def trim(
    client: Client,
    *,
    workers: Sequence[str | int] | None = None,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "1 minute",
) -> Report:
    """Have workers give memory back that their processes do not need.

    Python's garbage is collected and the C library's free memory returned to the host,
    on all workers at once. Nothing is at risk.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    workers
        Names or addresses; all by default.
    dry_run
        Change nothing.
    progress
        As for :func:`clustertune.prepare`.
    timeout
        Seconds, or a duration, for everything together.

    Returns
    -------
    Report
        Its step says for each worker the memory of its process before and after.

    Raises
    ------
    ConnectionLostError, LeaseHeldError, NoWorkersError, VersionMismatchError, \
TimedOutError
        As for :func:`clustertune.restart`.

    Examples
    --------
    >>> print(clustertune.trim(client))                         # doctest: +SKIP
    """
    procedure = Procedure(
        client=client,
        name="trim",
        workers=arguments.names("workers", workers),
        steps=trimming.steps,
        timeout=arguments.duration("timeout", timeout),
        dry_run=arguments.flag("dry_run", dry_run),
        progress=progress,
    )
    report: Report = client.sync(carry_out, procedure)
    return report


def release(
    client: Client,
    *prefixes: str,
    keep: Any = (),
    include_other_clients: bool = False,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "1 minute",
) -> Report:
    """Let go of data in memory that is not needed any more.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    *prefixes
        Of keys, as a dry run lists them: ``"random_sample"``. None: all that this
        client wants kept and nobody else, but for what is in ``keep``.
    keep
        Collections or futures, or a list of them, whose keys stay.
    include_other_clients
        Whether keys go that other clients want kept, or that are published. Their
        futures are cancelled, and their published names removed.
    dry_run
        Change nothing; the report lists what would go.
    progress
        As for :func:`clustertune.prepare`.
    timeout
        Seconds, or a duration, for everything together.

    Returns
    -------
    Report
        Its steps say for each prefix how many keys, and bytes, were let go. Futures
        and collections that hold them are cancelled, and say so when they are used.

    Raises
    ------
    TypeError
        Neither prefixes nor ``keep`` are given: everything would go.
    ValueError
        There are no keys with such a prefix; the text says which there are.
    RefusedError
        Only others want what has the prefix; nothing was touched.
    ConnectionLostError, LeaseHeldError, VersionMismatchError, TimedOutError
        As for :func:`clustertune.restart`.

    Examples
    --------
    >>> print(clustertune.release(client, dry_run=True))        # doctest: +SKIP
    >>> clustertune.release(client, keep=[X, y])                # doctest: +SKIP
    """
    wanted = arguments.texts("prefixes", prefixes)
    kept = tuple(f.key for f in futures_of(keep))
    others = arguments.flag("include_other_clients", include_other_clients)
    dry = arguments.flag("dry_run", dry_run)
    if not wanted and not kept and not dry:
        raise TypeError(
            "release() would let go of all data of this client: say which by prefix "
            "(a dry run lists them), or what to keep: keep=[X, y]"
        )
    if not wanted and others:
        raise TypeError(
            "include_other_clients=True is for data that is named: give prefixes, as a "
            "dry run lists them"
        )

    def steps(view: View, _ids: Collection[str | int]) -> Iterator[Step]:
        holdings = view.now.holdings or ()
        there = sorted({h.prefix for h in holdings if h.keys and h.prefix})
        unknown = [p for p in wanted if p not in there]
        if unknown:
            raise ValueError(_unknown_prefixes(unknown, there))
        yield from releasing.steps(view, wanted, kept, include_other_clients=others)

    procedure = _release(
        client, steps, kept, arguments.duration("timeout", timeout), dry, progress
    )
    report: Report = client.sync(carry_out, procedure)
    return report


def _unknown_prefixes(unknown: Sequence[str], there: Sequence[str]) -> str:
    which = f"no data in memory has the prefix {names_text(unknown)}"
    if not there:
        return f"prefixes: {which}, since no data is in memory. Nothing was released"
    return (
        f"prefixes: {which}, so nothing was released. Prefixes in memory: "
        f"{names_text(there, most=20)}"
    )


def let_go(
    client: Client,
    *collections: Any,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "1 minute",
) -> Report:
    """Release these collections, unless anything else holds their keys.

    Keys stay that another client wants, or another future of this process. Parameters,
    what is returned and what is raised are as of :func:`release`.
    """
    own = Counter(f.key for f in {id(f): f for f in futures_of(collections)}.values())
    counts = dict(client.refcount)
    kept = tuple(key for key in client.futures if counts.get(key, 0) != own[key])

    def steps(view: View, _ids: Collection[str | int]) -> Iterator[Step]:
        yield from releasing.steps(view, (), kept)

    seconds = arguments.duration("timeout", timeout)
    procedure = _release(client, steps, kept, seconds, dry_run, progress)
    report: Report = client.sync(carry_out, procedure)
    return report


def _release(
    client: Client,
    steps: Steps,
    kept: tuple[Key, ...],
    seconds: float,
    dry_run: bool,
    progress: bool | Notify | None,
) -> Procedure:
    return Procedure(
        client=client,
        name="release",
        steps=steps,
        timeout=seconds,
        dry_run=dry_run,
        progress=progress,
        asked=Asked(holdings=True, kept=kept),
        needs=(),
    )
