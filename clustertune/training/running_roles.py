"""The roles of one call while they run: scores, states, results, and how they end.

One coroutine listens to each role, and one looks for lost workers. One coroutine,
:meth:`Roles._manage`, starts all roles together and ends all of them after any failure.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from distributed import Client

from clustertune.core import arguments
from clustertune.core.model import Key
from clustertune.core.wording import printable, seconds_text, workers_text
from clustertune.errors import ConnectionLostError, FunctionError, TimedOutError
from clustertune.monitor import connection, monitor
from clustertune.monitor.connection import ClientContext, sync
from clustertune.remote.ending import end_tasks, within
from clustertune.training import remote_roles
from clustertune.training.remote_roles import ENDED, FAILED, READY, REGISTERED, RUNNING

LISTEN_TIMEOUT = 10.0  # seconds after which the worker of a silent role answers
WATCH_INTERVAL = 2.0  # seconds between two checks for lost workers
COLLECT_TIME = 0.02  # seconds in which frequent scores are collected
RETRY_INTERVAL = 0.2  # seconds before the next attempt to reach a worker
#: A failed role makes other roles fail, which may be noticed first. A worker that is
#: lost within these seconds after a failure counts as the cause.
LOSS_DELAY = 3.0

logger = logging.getLogger("clustertune")

T = TypeVar("T")


# --- roles as the client sees them ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of a role; ``lost`` means that its worker left the cluster."""

    at: float  # monotonic seconds
    text: str
    error: BaseException | None = None
    lost: bool = False


@dataclass(eq=False, kw_only=True)
class RoleState:
    """State of one role member on the client."""

    role: str
    rank: int
    worker: str  # address
    id: str | int  # of the worker
    address: str = ""  # host:port
    partitions: list[tuple[Key, ...]] | None = None  # of its data
    steps: int | None = None  # batches per epoch that every rank has
    future: Any = None  # of its task
    stage: str = REGISTERED
    seen: int = 0  # version of the latest news
    result: Any = None
    saved: bytes | None = None  # pickled, the last state
    over: bool = False  # its task has ended, or it cannot be reached
    failure: Failure | None = None

    def __str__(self) -> str:
        role = printable(self.role, longest=60)
        return f"{role} {self.rank} on {workers_text([self.id])}"

    @property
    def lost(self) -> bool:
        return self.failure is not None and self.failure.lost

    def fail(
        self, text: str, error: BaseException | None = None, *, lost: bool = False
    ) -> None:
        """Record a failure; the first one is kept."""
        self.failure = self.failure or Failure(monotonic(), text, error, lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A score that a role reported."""

    role: str
    rank: int
    value: Any  # argument of ``ctx.report``


def by_role(
    states: Sequence[RoleState], value: Callable[[RoleState], T]
) -> dict[str, list[T]]:
    """Return by role a value of each member, by rank."""
    found: dict[str, list[T]] = {}
    for state in states:
        found.setdefault(state.role, []).append(value(state))
    return found


def failure_cause(states: Sequence[RoleState], grace: float) -> Exception | None:
    """Return the error of the roles with its first cause; None if all ended well."""
    failed = [(s, s.failure) for s in states if s.failure is not None]
    failed.sort(key=lambda pair: pair[1].at - LOSS_DELAY * pair[1].lost)
    if failed and isinstance(failed[0][1].error, ConnectionLostError):
        return failed[0][1].error  # not a failure of a role
    stuck = [s for s in states if not s.over and s.stage in (READY, RUNNING)]
    if not failed and not stuck:
        return None
    texts = [failure.text for _, failure in failed[:1]]
    if failed and failed[0][1].lost:
        texts.append(
            "a worker leaves if it exceeds its memory, is killed or retired (see the "
            "logs of worker and nanny). Roles are not started again; call run_roles "
            "again, with states=roles.states if they save their state"
        )
    texts += [f"after that, {failure.text}" for _, failure in failed[1:3]]
    texts += [_stuck_text(stuck, grace)] * bool(stuck)
    error = FunctionError("; ".join(texts))
    first = failed[0][0] if failed else stuck[0]
    error.role, error.rank, error.worker = first.role, first.rank, first.worker
    error.__cause__ = failed[0][1].error if failed else None
    return error


def _stuck_text(stuck: Sequence[RoleState], grace: float) -> str:
    return (
        f"{', '.join(map(str, stuck))} did not stop within {seconds_text(grace)}, "
        "because the function did not call ctx.should_stop(). It runs until it returns "
        "and takes a thread of its worker; "
        "clustertune.restart_workers(client, "
        f"workers={[s.id for s in stuck]!r}) ends it"
    )


class Scores:
    """Scores in the order of arrival. Iteration waits for the next one.

    Each iteration begins with the first score and ends with the roles. An asynchronous
    client uses ``async for``.
    """

    def __init__(self, client: Client, score: Callable[[int], Any]):
        self._client = client
        self._score = score

    def __iter__(self) -> Iterator[Score]:
        if self._client.asynchronous:
            raise TypeError("the client is asynchronous; use: async for score in ...")
        number = 0
        while (score := sync(self._client, self._score, number)) is not None:
            yield score
            number += 1

    async def __aiter__(self) -> AsyncIterator[Score]:
        number = 0
        while (score := await self._score(number)) is not None:
            yield score
            number += 1


class Roles(ClientContext):
    """Roles that run on workers; see :func:`run_roles`.

    As a context manager, it stops all roles at the end of the block and waits for them.

    Attributes
    ----------
    spec : dict
        By role a list of ``host:port``, by rank.
    workers : dict
        By role the addresses of its workers, by rank.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        states: Sequence[RoleState],
        resources: AsyncExitStack,
        *,
        target: str,
        timeout: float,
        grace: float,
    ):
        super().__init__(client)
        self._name = name  # of the endpoints on the workers
        self._states = states
        self._target = target  # role whose end stops the other roles
        self._timeout = timeout  # seconds in which all roles must be ready
        self._grace = grace  # seconds in which stopped roles must end
        self._resources = resources  # released when all roles have ended
        self.spec = by_role(states, lambda s: s.address)
        self.workers = by_role(states, lambda s: s.worker)
        self._scores: list[Score] = []
        self._begun = self._closing = self._ended = self._raised = False
        self._cause: Exception | None = None
        self._changed = asyncio.Event()  # replaced after each change
        self._tasks: list[asyncio.Future[None]] = []  # that manage the roles
        self._listeners: dict[RoleState, asyncio.Future[None]] = {}
        self._manager = asyncio.ensure_future(self._manage())

    @property
    def scores(self) -> Scores:
        """Iterator of reported scores; it ends with the roles.

        If a role fails, it raises the same error as :meth:`result`.
        """
        return Scores(self._client, self._score)

    @property
    def states(self) -> dict[str, list[bytes | None]]:
        """By role the last state that each rank has saved, pickled; None: none.

        Pass them to the next attempt: ``run_roles(..., states=roles.states)``.
        """
        return by_role(self._states, lambda s: s.saved)

    def stop(self) -> Any:
        """Ask all roles to stop: ``ctx.should_stop()`` returns True.

        It does not wait for them, unlike :meth:`result`. An asynchronous client returns
        an awaitable.
        """
        return sync(self._client, self._stop)

    def result(self, timeout: str | float | None = None) -> Any:
        """Wait until all roles have ended and return their results.

        An interruption stops all roles.

        Parameters
        ----------
        timeout
            Seconds, or a duration. After it the roles continue. None means no limit.

        Returns
        -------
        dict
            By role a list of its members' results, by rank. An asynchronous client
            returns an awaitable.

        Raises
        ------
        FunctionError
            A role failed, was lost with its worker, or does not stop. All other roles
            were stopped.
        TimedOutError
            The timeout has passed; the roles continue.
        ConnectionLostError
            The client was closed, or the scheduler is gone.
        """
        seconds = None if timeout is None else arguments.duration("timeout", timeout)
        return sync(self._client, self._result, seconds)

    def __repr__(self) -> str:
        stages = by_role(self._states, lambda s: "lost" if s.lost else s.stage)
        text = "; ".join(f"{printable(r)}: {', '.join(x)}" for r, x in stages.items())
        return f"<Roles: {text}>"

    async def _stop(self) -> None:
        if not self._ended:
            # a task, because a frozen worker does not answer
            self._start(self._command("stop"))

    # --- waiting ----------------------------------------------------------------------

    async def begun(self) -> None:
        """Wait until the functions are called; raise the error that prevents it."""
        await self._wait_until(lambda: self._begun or self._ended)
        if not self._begun:
            self._raise()

    async def _result(self, seconds: float | None) -> dict[str, list[Any]]:
        try:
            await self._wait_until(lambda: self._ended, seconds)
        except asyncio.TimeoutError as error:
            raise TimedOutError(
                f"timeout={seconds_text(seconds or 0)} has passed, and the roles "
                f"continue. Wait again, or call stop(): {self!r}"
            ) from error
        self._raise()
        return by_role(self._states, lambda s: s.result)

    async def _score(self, number: int) -> Score | None:
        await self._wait_until(lambda: number < len(self._scores) or self._ended)
        if number < len(self._scores):
            return self._scores[number]
        self._raise()
        return None

    async def _wait_until(
        self, condition: Callable[[], bool], seconds: float | None = None
    ) -> None:
        """Wait for a condition; an interruption ends the roles."""
        try:
            await within(self._holds(condition), seconds)
        except asyncio.CancelledError:
            self._close()
            raise

    async def _holds(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _raise(self) -> None:
        if self._cause is not None:
            self._raised = True
            raise self._cause

    def _close(self) -> None:
        self._closing = True
        self._notify()

    async def _begin(self) -> None:
        """Do nothing: the roles run before the block begins."""

    async def _end(self) -> None:
        self._close()
        await self._wait_until(lambda: self._ended)
        if self._error is None and not self._raised:
            self._raise()

    # --- from begin to end ------------------------------------------------------------

    async def _manage(self) -> None:
        """Start all roles together, and end all of them after any failure."""
        self._listeners = {s: self._start(self._listen(s)) for s in self._states}
        self._start(self._watch_workers())
        try:
            await self._leave_stage(REGISTERED)
            if not self._is_ending():
                self._start(self._command("start"))
                await self._leave_stage(READY)
                self._begun = True  # even if a role has failed since
                self._notify()
                await self._wait_for_end()
        finally:
            await self._finish()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        return task

    def _is_ending(self) -> bool:
        return self._closing or any(s.failure for s in self._states)

    def _all_over(self) -> bool:
        return all(s.over for s in self._states)

    def _at(self, stage: str) -> list[RoleState]:
        return [s for s in self._states if s.stage == stage]

    async def _leave_stage(self, stage: str) -> None:
        """Wait until no role is at a stage; roles that are late have failed."""
        left = self._holds(lambda: not self._at(stage) or self._is_ending())
        try:
            await within(left, self._timeout)
        except asyncio.TimeoutError:
            limit = seconds_text(self._timeout)
            for state in self._at(stage):
                state.fail(
                    f"{state} did not begin within {limit}: other tasks occupy its "
                    "worker, or the worker is paused or frozen. See the dashboard, or "
                    "pass a longer timeout"
                )

    async def _wait_for_end(self) -> None:
        """Wait until all roles have ended or must end."""
        leading = [s for s in self._states if s.role == self._target]
        await self._holds(lambda: self._is_ending() or all(s.over for s in leading))
        if not self._is_ending() and not self._all_over():
            self._start(self._command("stop"))
        await self._holds(lambda: self._is_ending() or self._all_over())

    async def _finish(self) -> None:
        for state in self._at(REGISTERED):  # releasing their futures ends their tasks
            self._listeners[state].cancel()
        # a role may wait for a failed one in native code, where a stop has no effect
        command = "abort" if any(s.failure for s in self._states) else "stop"
        # a separate task, because a frozen worker does not answer
        self._start(self._command(command))
        with suppress(asyncio.TimeoutError):  # the error names the running roles
            await within(self._holds(self._all_over), self._grace)
        self._cause = failure_cause(self._states, self._grace)
        await end_tasks(*self._tasks)
        with suppress(asyncio.TimeoutError):  # endpoints expire without a command
            await within(self._command("forget"), self._grace)
        for state in self._states:
            state.future.release()
        try:
            await self._resources.aclose()
        # any error is raised to the caller, after the first cause
        except Exception as error:  # noqa: BLE001
            if self._cause is not None:
                logger.warning("ending the hold of the roles failed: %r", error)
            self._cause = self._cause or error
        finally:
            self._ended = True
            self._notify()

    # --- news of roles ----------------------------------------------------------------

    async def _listen(self, state: RoleState) -> None:
        """Follow a role until its task has ended."""
        try:
            while state.stage not in (ENDED, FAILED):
                await self._wait_for_news(state)
            # the task ends later than the stage, after its context managers
            failed = state.stage == FAILED
            fetching: Any = self._client.gather(
                [state.future], errors="skip" if failed else "raise"
            )
            state.result = next(iter(await fetching), None)
        # after any error the role cannot be followed
        except Exception as error:  # noqa: BLE001
            kind = type(error).__name__
            text = f"{state} returned no readable result: {kind}: {error}"
            state.fail(printable(text, longest=1000), error)
        finally:
            state.over = True
            self._notify()

    async def _wait_for_news(self, state: RoleState) -> None:
        reached, answer = await self._ask(
            state, "listen", seen=state.seen, timeout=LISTEN_TIMEOUT
        )
        if not reached:
            await asyncio.sleep(RETRY_INTERVAL)
            await self._find_lost_workers()
        elif answer is None:  # distributed's answer if there is no such handler
            self._mark_lost(state)
            raise RuntimeError("its worker has no such role")
        else:
            self._read_news(state, answer)
            self._notify()
            await asyncio.sleep(COLLECT_TIME if answer["lines"] else 0)

    def _read_news(self, state: RoleState, answer: dict[str, Any]) -> None:
        for kind, data in answer["lines"]:
            if kind == "state":
                state.saved = bytes(data)
            else:
                value = pickle.loads(data)  # noqa: S301 (made by the user's function)
                score = Score(role=state.role, rank=state.rank, value=value)
                self._scores.append(score)
        if answer["error"] is not None:
            error, location = pickle.loads(answer["error"])  # noqa: S301
            text = printable(str(error) or repr(error), longest=1000)
            location = printable(location, longest=300)
            text = f"{state} failed: {type(error).__name__}: {text} ({location})"
            state.fail(text, error)
        state.seen, state.stage = answer["version"], answer["stage"]

    async def _watch_workers(self) -> None:
        """Look for lost workers, because requests to a lost host fail late."""
        try:
            while True:
                await self._find_lost_workers()
                await asyncio.sleep(WATCH_INTERVAL)
        except ConnectionLostError:
            return  # the listeners raise it

    async def _find_lost_workers(self) -> None:
        workers = (await monitor.identify(self._client))["workers"]
        for state, listener in self._listeners.items():
            if not state.over and state.worker not in workers:
                self._mark_lost(state)
                listener.cancel()

    def _mark_lost(self, state: RoleState) -> None:
        state.fail(
            f"{state} is lost: the worker ({printable(state.worker)}) has left the "
            "cluster or was restarted",
            lost=True,
        )

    # --- commands for roles -----------------------------------------------------------

    async def _command(self, command: str) -> None:
        """Send start, stop, abort or forget to all roles that can be reached."""
        reachable = [
            s for s in self._states if not (s.lost if command == "forget" else s.over)
        ]
        requests = [self._ask(s, command) for s in reachable]
        await asyncio.gather(*requests, return_exceptions=True)

    async def _ask(
        self, state: RoleState, command: str, **arguments: Any
    ) -> tuple[bool, Any]:
        """Return whether the worker was reached, and the answer of its endpoint."""
        scheduler: Any = self._client.scheduler
        handler = remote_roles.handler_name(self._name)
        try:
            connection.refuse_closed(self._client)
            answers = await scheduler.broadcast(
                msg={"op": handler, "command": command, **arguments},
                workers=[state.worker],
                on_error="ignore",
            )
        except OSError as error:
            connection.refuse_closed(self._client)
            raise ConnectionLostError(connection.not_answering(error)) from error
        return state.worker in answers, answers.get(state.worker)
