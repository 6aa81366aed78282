"""Roles that run: what their client hears of them, and how they end.

One coroutine listens to each role, one looks whether workers are lost, and one
(:meth:`Roles._perform`) sees to it that all begin together and that all end, whichever
way the first of them does.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from time import monotonic
from typing import Any

from distributed import Client

from clustertune.core import arguments
from clustertune.core.wording import printable, seconds_text
from clustertune.errors import ConnectionLostError, TimedOutError
from clustertune.monitor import monitor
from clustertune.operations.blocks import Block
from clustertune.remote import roles as remote
from clustertune.training.actors import (
    Actor,
    Rules,
    Trouble,
    by_role,
    cause,
    is_gone,
    is_lost,
)
from clustertune.training.scores import Line, Score, Scores

LISTEN = 10.0  # seconds after which a role that says nothing is asked again
WATCH = 2.0  # seconds between two looks whether workers are lost
REST = 0.02  # seconds before a role is asked again that reports scores
AGAIN = 0.2  # seconds before a worker is asked again that could not be reached

logger = logging.getLogger("clustertune")

Tasks = list[asyncio.Future[None]]


class Roles(Block):
    """Roles that run on workers of a cluster; see :func:`run_roles`.

    A context manager: leaving the block tells all roles to stop, and waits for that.

    Attributes
    ----------
    spec : dict
        Of every role a list of ``host:port``, by rank.
    workers : dict
        Of every role the addresses of its workers, by rank.
    """

    def __init__(
        self,
        client: Client,
        actors: Sequence[Actor],
        rules: Rules,
        around: AsyncExitStack,
    ):
        self._client = client
        self._actors = actors
        self._rules = rules
        self._around = around  # what is needed until all have ended
        self.spec = by_role(actors, lambda a: a.place)
        self.workers = by_role(actors, lambda a: a.worker)
        self._scores: list[Score] = []
        self._lines: list[Line] = []
        self._begun = self._closing = self._ended = self._raised = False
        self._cause: Exception | None = None
        self._changed = asyncio.Event()  # a new one each time
        self._following: dict[Actor, asyncio.Future[None]] = {}
        self._performing = asyncio.ensure_future(self._perform())

    @property
    def client(self) -> Client:
        return self._client

    @property
    def scores(self) -> Scores:
        """What roles report: an iterator that ends when all roles have.

        Where one of them fails it raises what :meth:`result` does.
        """
        return Scores(self._client, self._score)

    @property
    def logs(self) -> tuple[Line, ...]:
        """What roles have logged so far."""
        return tuple(self._lines)

    def stop(self) -> Any:
        """Tell all roles to stop: ``ctx.should_stop()`` is true from now on.

        Does not wait for them; :meth:`result` does. An asynchronous client is given an
        awaitable.
        """
        return self._client.sync(self._stop)

    def result(self, timeout: str | float | None = None) -> Any:
        """Wait until all roles have ended; what they returned.

        Interrupted, it tells all of them to stop.

        Parameters
        ----------
        timeout
            Seconds, or a duration, after which the roles go on. None: no limit.

        Returns
        -------
        dict
            Of every role a list of what its members returned, by rank. An asynchronous
            client is given an awaitable.

        Raises
        ------
        RoleError
            A role failed, was lost with its worker, or does not stop; all others have
            been stopped.
        TimedOutError
            The time is over; the roles go on.
        ConnectionLostError
            The client was closed, or the scheduler is gone.
        """
        seconds = None if timeout is None else arguments.duration("timeout", timeout)
        return self._client.sync(self._result, seconds)

    def __repr__(self) -> str:
        of_role = by_role(self._actors, lambda a: "lost" if is_lost(a) else a.stage)
        said = (f"{printable(r)}: {', '.join(s)}" for r, s in of_role.items())
        return f"<Roles: {'; '.join(said)}>"

    async def _stop(self) -> None:
        if not self._ended:
            await self._tell("stop", self._served() or self._actors)

    # --- waiting ----------------------------------------------------------------------

    async def begun(self) -> None:
        """Wait until the functions are called; raises what hinders that."""
        await self._until(lambda: self._begun or self._ended)
        if not self._begun:
            self._raise()

    async def _result(self, seconds: float | None) -> dict[str, list[Any]]:
        try:
            await self._until(lambda: self._ended, seconds)
        except asyncio.TimeoutError as error:
            raise TimedOutError(
                f"timeout={seconds_text(seconds or 0)} is over, and the roles go on; "
                f"wait again, or end them by stop(): {self!r}"
            ) from error
        self._raise()
        return by_role(self._actors, lambda a: a.result)

    async def _score(self, number: int) -> Score | None:
        """One score by its number; None: all roles have ended, and there is none."""
        await self._until(lambda: number < len(self._scores) or self._ended)
        if number < len(self._scores):
            return self._scores[number]
        self._raise()
        return None

    async def _until(
        self, true: Callable[[], bool], seconds: float | None = None
    ) -> None:
        """Wait; whoever is interrupted while waiting wants the roles to end."""
        try:
            await asyncio.wait_for(self._holds(true), seconds)
        except asyncio.CancelledError:
            self._close()
            raise

    async def _holds(self, true: Callable[[], bool]) -> None:
        while not true():
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
        """They have begun already."""

    async def _end(self) -> None:
        self._close()
        await self._until(lambda: self._ended)
        if self._error is None and not self._raised:
            self._raise()

    # --- from the beginning to the end ------------------------------------------------

    async def _perform(self) -> None:
        """Have all begin together, and all end, whatever happens."""
        tasks: Tasks = [asyncio.ensure_future(self._follow(a)) for a in self._actors]
        self._following = dict(zip(self._actors, tasks, strict=True))
        tasks.append(asyncio.ensure_future(self._watch()))
        try:
            await self._leave("hired")
            if not self._ending():
                tasks.append(asyncio.ensure_future(self._tell("go")))
                await self._leave(remote.HERE)
                self._begun = True  # even if one of them has failed since
                self._notify()
                await self._play(tasks)
        finally:
            await self._dissolve(tasks)

    def _ending(self) -> bool:
        """Whether all are to end, for whatever reason."""
        return self._closing or any(a.trouble for a in self._actors)

    def _all_over(self) -> bool:
        return all(a.over for a in self._actors)

    def _at(self, stage: str) -> list[Actor]:
        return [a for a in self._actors if a.stage == stage]

    async def _leave(self, stage: str) -> None:
        """Wait until none is at a stage of the beginning; who is late is the trouble.

        When all tasks are there they are told to go, and not before.
        """
        wait = self._rules.timeout
        left = self._holds(lambda: not self._at(stage) or self._ending())
        try:
            await asyncio.wait_for(left, wait)
        except asyncio.TimeoutError:
            for actor in self._at(stage):
                actor.trouble = Trouble(
                    monotonic(),
                    f"{actor} did not begin within {seconds_text(wait)}: other tasks "
                    "have the threads of that worker, or it is paused or frozen; see "
                    "the dashboard, or give a longer timeout",
                )

    async def _play(self, tasks: Tasks) -> None:
        """Wait until all have ended, or have to."""
        leading = [a for a in self._actors if a.role == self._rules.target] or [
            a for a in self._actors if a.role not in self._rules.bare
        ]
        leading = leading or list(self._actors)  # servers alone: until they are told
        await self._holds(lambda: self._ending() or all(a.over for a in leading))
        if not self._ending() and not self._all_over():
            tasks.append(asyncio.ensure_future(self._tell_to_stop(None)))
        await self._holds(lambda: self._ending() or self._all_over())

    async def _dissolve(self, tasks: Tasks) -> None:
        """End all that has not ended, and leave nothing behind."""
        grace = self._rules.grace
        for actor in self._at("hired"):  # whose tasks go when their futures do
            self._following[actor].cancel()
        # in a task of its own: a worker that is frozen does not answer
        tasks.append(asyncio.ensure_future(self._tell_to_stop(grace / 2)))
        with suppress(asyncio.TimeoutError):  # those are named in the error
            await asyncio.wait_for(self._holds(self._all_over), grace)
        self._cause = cause(self._actors, grace)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(asyncio.TimeoutError):  # what has ended is gone a little later
            await asyncio.wait_for(self._tell("forget"), grace)
        for actor in self._actors:
            actor.future.release()
        try:
            await self._around.aclose()
        # whoever waits is told of it, or of what came first
        except Exception as error:  # noqa: BLE001
            if self._cause is not None:
                logger.warning("what the roles needed could not be ended: %r", error)
            self._cause = self._cause or error
        finally:
            self._ended = True
            self._notify()

    async def _follow(self, actor: Actor) -> None:
        """Hear of a role, until its task has ended."""
        try:
            while actor.stage not in (remote.ENDED, remote.FAILED):
                await self._listen(actor)
            # the task ends after it has said so: what surrounds the function is ended
            failed = actor.stage == remote.FAILED
            fetching: Any = self._client.gather(
                [actor.future], errors="skip" if failed else "raise"
            )
            actor.result = next(iter(await fetching), None)
            await self._ask(actor, {"say": "forget"})
            actor.forgotten = True
        # whatever is the matter, the role cannot be heard any more
        except Exception as error:  # noqa: BLE001
            said = f"{actor} is not heard of any more: {type(error).__name__}: {error}"
            actor.trouble = actor.trouble or Trouble(
                monotonic(), printable(said, longest=1000), error
            )
        finally:
            actor.over = True
            self._notify()

    async def _listen(self, actor: Actor) -> None:
        """Ask a role for news, which takes until there are some."""
        message = {"say": "listen", "seen": actor.seen, "patience": LISTEN}
        reached, answer = await self._ask(actor, message)
        if not reached:
            await asyncio.sleep(AGAIN)
            await self._look()
        elif answer is None:  # what distributed answers where there is no such handler
            self._lose(actor)
            raise RuntimeError("its worker knows nothing of it")
        else:
            self._hear(actor, answer)
            self._notify()
            # what is reported fast is fetched together
            await asyncio.sleep(REST if answer["lines"] else 0)

    def _hear(self, actor: Actor, answer: dict[str, Any]) -> None:
        for kind, when, value in answer["lines"]:
            about: Any = {"role": actor.role, "rank": actor.rank, "time": when}
            found = pickle.loads(value)  # noqa: S301 (what the user's code has made)
            if kind == "score":
                self._scores.append(Score(value=found, **about))
            else:
                text = printable(found, longest=10_000)
                self._lines.append(Line(text=text, **about))
        if answer["failure"] is not None:
            failure = pickle.loads(answer["failure"])  # noqa: S301
            text = printable(str(failure) or repr(failure), longest=1000)
            where = printable(answer["where"], longest=300)
            text = f"{actor} failed: {type(failure).__name__}: {text} ({where})"
            actor.trouble = Trouble(monotonic(), text, failure)
        if answer["dropped"] > actor.dropped:
            logger.warning(
                "%s reports faster than this client listens: %s scores or lines of log "
                "were dropped so far; report less often",
                actor,
                answer["dropped"],
            )
        actor.seen, actor.stage = answer["version"], answer["stage"]
        actor.dropped = answer["dropped"]

    async def _watch(self) -> None:
        """Look now and then: of a host that is gone, no question fails soon."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(WATCH)
        except ConnectionLostError:
            return  # whoever asks a role finds that, too

    async def _look(self) -> None:
        """See whether workers are lost."""
        there = (await monitor.identify(self._client))["workers"]
        for actor, task in self._following.items():
            if not actor.over and actor.worker not in there:
                self._lose(actor)
                task.cancel()

    def _lose(self, actor: Actor) -> None:
        actor.trouble = actor.trouble or Trouble(
            monotonic(),
            f"{actor} is lost: the worker ({printable(actor.worker)}) has left the "
            "cluster, or was started again",
            lost=True,
        )

    def _served(self) -> list[Actor]:
        """Those whose function is the user's, and may need the framework's servers."""
        return [a for a in self._actors if a.role not in self._rules.bare]

    async def _tell_to_stop(self, patience: float | None) -> None:
        """Tell the framework's servers when those who need them have ended."""
        served = self._served()
        # who waits for one that has failed, in native code, hears of no wish
        what = "break" if any(a.trouble for a in self._actors) else "stop"
        await self._tell(what, served)
        ended = self._holds(lambda: all(a.over for a in served))
        with suppress(asyncio.TimeoutError):  # who does not end is not waited for
            await asyncio.wait_for(ended, patience)
        await self._tell(what)

    async def _tell(self, what: str, actors: Sequence[Actor] | None = None) -> None:
        """Tell roles, by default all, to go, to stop, or that they are forgotten."""
        there = [
            actor
            for actor in (self._actors if actors is None else actors)
            if not (is_gone(actor) if what == "forget" else actor.over)
        ]
        asking = [self._ask(actor, {"say": what}) for actor in there]
        await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, actor: Actor, message: Any) -> tuple[bool, Any]:
        """Whether the worker could be reached, and what its role answers."""
        scheduler: Any = self._client.scheduler
        try:
            self._refuse_closed()
            answers = await scheduler.broadcast(
                msg={"op": remote.handler_name(actor.part), **message},
                workers=[actor.worker],
                on_error="ignore",
            )
        except OSError as error:
            self._refuse_closed()
            raise ConnectionLostError(
                f"the scheduler does not answer: {error}"
            ) from error
        return actor.worker in answers, answers.get(actor.worker)

    def _refuse_closed(self) -> None:
        if self._client.status != "running" or self._client.scheduler is None:
            raise ConnectionLostError(
                f"the client is {self._client.status}: its roles end with it"
            )
