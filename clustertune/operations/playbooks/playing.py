"""``run``: carry out a playbook, step by step.

A step that only checks looks; one that does something looks first whether its condition
holds, and for how long, and then calls the operation of that name. So nothing is done
here that a user could not call, and nothing is guarded less. Whatever becomes of a step
is said; the next one sees the cluster as it is then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from distributed import Client

from clustertune import actions, checks
from clustertune.actions.cluster.live import LookOptions, ids_of
from clustertune.collections import inputs
from clustertune.collections.inputs import COMPANIONS
from clustertune.core import arguments, model
from clustertune.core.model import (
    Finding,
    Goal,
    Notify,
    Profile,
    Severity,
    Snapshot,
    View,
)
from clustertune.core.progress import Progress
from clustertune.core.report import Report, acted
from clustertune.core.wording import plural, printable, seconds_text
from clustertune.errors import (
    REFUSALS,
    ClustertuneError,
    ConnectionLostError,
    RefusedError,
    TimedOutError,
)
from clustertune.integrations import libraries
from clustertune.monitor import monitor
from clustertune.operations import release, workers
from clustertune.operations.call import check_client
from clustertune.operations.check import Question, diagnose
from clustertune.operations.playbooks import shelf
from clustertune.operations.playbooks.material import Collections, DataSets, Material
from clustertune.operations.playbooks.playbook import (
    GIVEN,
    NAMED,
    ON_DATA,
    Limits,
    Playbook,
    Step,
    checks_named,
)
from clustertune.operations.playbooks.played import BAD, Played, PlayedStep
from clustertune.operations.procedure import Procedure, carry_out
from clustertune.operations.watch import Monitor

logger = logging.getLogger("clustertune")

LOOK = 60.0  # seconds in which the cluster must have been looked at
EVERY = 5.0  # seconds between two diagnoses, where a look does not show a condition
TIMEOUT = 1800.0  # seconds for an action of another package, where no step says

Id = str | int


# --- the public call ------------------------------------------------------------------


def run(
    client: Client,
    playbook: str | Path,
    X: Any = None,
    y: Any = None,
    *,
    sample_weight: Any = None,
    qid: Any = None,
    base_margin: Any = None,
    init_score: Any = None,
    eval_set: Any = None,
    estimator: object = None,
    workload: str | None = None,
    settings: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
) -> Any:
    """Carry out a playbook: checks, and what is to be done where they find something.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    playbook
        The name of one of yours or of ours (``"before-training"``), or the path of a
        file.
    X, y, sample_weight, qid, base_margin, init_score, eval_set
        The data of the fit, as for :func:`clustertune.prepare`; what ``persist``,
        ``rechunk`` and ``rebalance`` act on, and ``release`` lets go of.
    estimator, workload
        What will train, as for :func:`clustertune.prepare`.
    settings
        Values in place of those in the file, by key: ``{"n_workers": 2}``, or where
        several steps have that key ``{"steps[2].with.timeout": "5m"}``.
    dry_run
        Change nothing: conditions are looked at once, and each step says what it would
        do to the cluster as it is now.
    progress
        As for :func:`clustertune.prepare`.

    Returns
    -------
    Played
        Printable. It has the collections as they are then, as ``.X``, ``.y`` and so on
        (None once a step has let them go), and says of each step what was found and
        done. What fails is in it, and is not raised.

    Raises
    ------
    PlaybookError
        The file is no playbook; the text says what is wrong, by line.
    TypeError, ValueError
        There is no such playbook; or it needs data, and none was given.
    ConnectionLostError
        The client is not connected; nothing was begun.

    Examples
    --------
    >>> played = clustertune.run(client, "before-training", X, y)  # doctest: +SKIP
    >>> model.fit(played.X, played.y)                              # doctest: +SKIP
    """
    companions = {
        "sample_weight": sample_weight,
        "qid": qid,
        "base_margin": base_margin,
        "init_score": init_score,
    }
    material = None
    if X is not None:
        material = Collections(
            client=client, X=X, y=y, companions=companions, eval_set=eval_set
        )
        check_client(client, material.gather())
    elif any(x is not None for x in (y, eval_set, *companions.values())):
        raise TypeError("X is None but other data is given; give X too")
    values = {key: str(value) for key, value in (settings or {}).items()}
    read = shelf.read(playbook, values)
    playing = playing_of(client, read, material, estimator, workload, dry_run, progress)
    return client.sync(playing.play)


def run_on_datasets(
    client: Client,
    playbook: Playbook,
    *names: str,
    workload: str | None = None,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
) -> Any:
    """Do what :func:`run` does with published data sets: X, y, and others.

    Names point to what is new then, as after ``clustertune prepare``; ``release``
    unpublishes them. The playbook is one that was read, so that what is carried out is
    what a dry run has shown, whatever becomes of the file.
    """
    arguments.distinct("data sets", names)
    material = DataSets(client=client, names=names) if names else None
    playing = playing_of(client, playbook, material, None, workload, dry_run, progress)
    return client.sync(playing.play)


def playing_of(
    client: Client,
    playbook: Playbook,
    material: Material | None,
    estimator: object,
    workload: str | None,
    dry_run: bool,
    progress: bool | Notify | None,
) -> Playing:
    """A call of ``run``, its arguments checked."""
    check_client(client)
    profile = libraries.choose(workload, estimator)
    refuse_without_data(playbook, material)
    checks.configured()  # refuses settings that are wrong
    return Playing(
        client=client,
        playbook=playbook,
        material=material,
        profile=profile,
        estimator=estimator,
        workload=workload,
        dry_run=arguments.flag("dry_run", dry_run),
        progress=progress,
    )


# --- what decides (pure) --------------------------------------------------------------


def refuse_without_data(read: Playbook, material: object) -> None:
    """See that there is data where a step needs it.

    Raises
    ------
    ValueError
        There is none.
    """
    needed = [s.do for s in read.steps if s.do in ON_DATA or s.options.get("keep")]
    if needed and material is None:
        raise ValueError(
            f"{printable(read.name)} is to {', '.join(dict.fromkeys(needed))}, and no "
            "data is given: give X and y, or --dataset NAME"
        )


def named(
    found: Iterable[Finding], check: str, at_least: Severity
) -> frozenset[Id | None]:
    """What a condition names; None stands for the cluster itself. Empty: it fails."""
    bad = [f for f in found if f.check == check and f.severity >= at_least]
    return frozenset(x for f in bad for x in f.subject or (None,))


def unknown(found: Iterable[Finding], check: str) -> str:
    """Why it is not known whether a condition holds; "": it is known."""
    return next(
        (
            f.message
            for f in found
            if f.check == check and f.severity is Severity.unknown
        ),
        "",
    )


def at_once(limits: Limits, snapshot: Snapshot, ids: Collection[Id]) -> int:
    """How many of these workers may be away at the same time.

    Raises
    ------
    RefusedError
        With one of them away fewer would run than must.
    """
    every = snapshot.workers
    wanted = limits.disrupted_workers
    part = wanted if isinstance(wanted, int) else math.floor(wanted * len(every))
    most = max(1, part)
    running = [w for w in every if w.running]
    if not any(w.id in ids for w in running):
        return most  # those that run go on running
    spare = len(running) - limits.minimum_workers
    if spare < 1:
        raise RefusedError(
            f"limits.minimum_workers={limits.minimum_workers} and "
            f"{plural(len(running), 'worker')} run: none may be away; nothing was "
            "touched"
        )
    return min(most, spare)


def refuse_beyond(
    limits: Limits, snapshot: Snapshot, steps: Collection[model.Step]
) -> None:
    """See that steps of an action of another package keep to the limits.

    Raises
    ------
    RefusedError
        They would take more workers away than may be away, or leave too few.
    """
    restarts = [s.args for s in steps if isinstance(s.args, model.Restart)]
    drops = [s.args for s in steps if isinstance(s.args, model.Drop)]
    # those that are closed for good are away together, however slowly they go
    closed = sum(restart.retire for restart in restarts)
    together = [1 + len(restart.beside) for restart in restarts]
    away = max([closed, *together, *(len(drop.workers) for drop in drops)])
    ids = {restart.id for restart in restarts}
    ids |= {id for drop in drops for id in drop.workers.values()}
    most = at_once(limits, snapshot, ids)
    if away > most:
        raise RefusedError(
            f"{plural(away, 'worker')} would be away at the same time, and the limits "
            f"of the playbook allow {most}; nothing was touched"
        )


# --- doing it -------------------------------------------------------------------------


@dataclass(kw_only=True)
class Playing:
    """A playbook that is being carried out."""

    client: Client
    playbook: Playbook
    material: Material | None
    profile: Profile
    estimator: object
    workload: str | None
    dry_run: bool
    progress: bool | Notify | None
    _told: Progress = field(init=False)
    _awaited: bool = False  # a dry run has planned what has to be done for more

    def __post_init__(self) -> None:
        self._told = Progress(self.progress)

    async def play(self) -> Played:
        """All steps, in the client's event loop.

        Raises
        ------
        ValueError, ClustertuneError
            The data is not there, or is none; nothing was begun.
        """
        start, done = monotonic(), list[PlayedStep]()
        if self.material is not None:
            await self.material.inputs()
        stopped = ""
        for i, step in enumerate(self.playbook.steps):
            if stopped:
                one = _played(step, "not begun", reason=stopped)
            else:
                logger.info("%s: %s", printable(self.playbook.name), step)
                begun = monotonic()
                one = replace(await self._step(step), seconds=monotonic() - begun)
                if one.status in BAD and self._stops(one):
                    stopped = f"steps[{i}] {_ENDS[one.status]}"
                elif one.status in ("done", "left") and step.do:
                    await self._settle(i)
            done.append(one)
        self._told.finish([])
        return Played(
            playbook=self.playbook.name,
            seconds=monotonic() - start,
            steps=tuple(done),
            dry_run=self.dry_run,
            **self._data(),
        )

    def _stops(self, step: PlayedStep) -> bool:
        # a dry run goes on, to say all; without a cluster nothing goes on
        lost = step.reason.startswith(_LOST)
        return lost or (self.playbook.on_failure == "stop" and not self.dry_run)

    async def _settle(self, i: int) -> None:
        """Let the cluster come to rest before it is looked at again."""
        seconds = self.playbook.limits.settle
        if i + 1 < len(self.playbook.steps) and seconds:
            self._told.notify(f"letting the cluster settle, {seconds_text(seconds)}")
            await asyncio.sleep(seconds)

    def _data(self) -> dict[str, Any]:
        material = self.material
        if not isinstance(material, Collections):
            return {}
        named = {name: material.companions.get(name) for name in COMPANIONS}
        return named | {
            "X": material.X,
            "y": material.y,
            "eval_set": material.eval_set,
            "prepared": material.prepared,
        }

    # --- one step ---------------------------------------------------------------------

    async def _step(self, step: Step) -> PlayedStep:
        try:
            return await (self._check(step) if step.check else self._do(step))
        except ConnectionLostError as error:
            return _played(step, "failed", reason=f"{_LOST}: {error}")
        except ClustertuneError as error:
            status = "refused" if isinstance(error, REFUSALS) else "failed"
            if acted(error.report):
                status = "failed"  # something was done before
            return _played(step, status, reason=str(error), report=error.report)

    async def _check(self, step: Step) -> PlayedStep:
        names = {n for word in step.check for n in checks_named(word)}
        found = tuple(f for f in await self._found() if f.check in names)
        return _played(step, "looked", checks=tuple(sorted(names)), found=found)

    async def _do(self, step: Step) -> PlayedStep:
        if step.do == "release" and self.material is None and not step.options:
            return _played(step, "skipped", reason="there is no data to let go")
        if self.material is None and (step.do in ON_DATA or "keep" in step.options):
            return _played(step, "refused", reason="a step before has let the data go")
        if step.do in ON_DATA and self._awaited:
            reason = "what there is to do is known when the data is as planned before"
            return _played(step, "planned", reason=reason)
        condition = _Condition()
        if step.when:
            condition = await self._condition(step)
            if not condition.named:
                return _played(
                    step, "skipped", reason=condition.reason, found=condition.found
                )
        try:
            report = await self._act(step, condition.named)
        # a worker, or a prefix, that is not there
        except (TypeError, ValueError) as error:
            if isinstance(error, ClustertuneError):
                raise
            return _played(step, "failed", reason=str(error), found=condition.found)
        status = _status(report)
        self._awaited |= status == "planned" and step.do in ON_DATA
        reason = condition.reason if status == "planned" else ""
        return _played(
            step,
            status,
            reason=_reason(report, status)
            or (reason and f"{reason}: {_would(report)}"),
            found=condition.found,
            report=report,
        )

    # --- conditions -------------------------------------------------------------------

    async def _found(self) -> tuple[Finding, ...]:
        given = inputs.NOTHING
        if self.material is not None:
            try:
                given = await self.material.inputs()
            except ValueError as error:  # unpublished meanwhile
                raise RefusedError(str(error)) from error
        question = Question(
            client=self.client,
            given=given,
            goal=Goal(workload=self.profile),
            workers=None,
            timeout=LOOK,
        )
        return (await diagnose(question)).found

    async def _condition(self, step: Step) -> _Condition:
        """What the condition names; of one that must last, what it always named."""
        found = await self._found()
        about = tuple(f for f in found if f.check == step.when)
        names = named(about, step.when, step.at_least)
        if not names:
            why = unknown(about, step.when)
            level = f"{step.when} is below {step.at_least} now"
            return _Condition(reason=f"unknown: {why}" if why else level, found=about)
        if not step.holds:
            return _Condition(named=names, found=about)
        if self.dry_run:
            reason = f"if it holds for {seconds_text(step.holds)}"
            return _Condition(named=names, found=about, reason=reason)
        start = monotonic()
        async with aclosing(self._looks(step)) as looks:
            async for now in looks:
                names &= named(now, step.when, step.at_least)
                passed = monotonic() - start
                if not names:
                    reason = (
                        f"{step.when} was {step.at_least}, but not for "
                        f"{seconds_text(step.holds)}"
                    )
                    return _Condition(reason=reason, found=about)
                if passed >= step.holds:
                    break
                self._told.notify(
                    f"waiting whether {step.when} lasts", passed / step.holds
                )
        return _Condition(named=names, found=about)

    async def _looks(self, step: Step) -> AsyncGenerator[tuple[Finding, ...], None]:
        """What is found, again and again: by looks, if these show the condition.

        Raises
        ------
        ClustertuneError
            The cluster can be looked at no more.
        """
        watching = Monitor(
            self.client, estimator=self.estimator, workload=self.workload
        )
        async with watching:
            found = checks.run(watching.view, checks.configured())
            shown = bool(named(found, step.when, step.at_least))
            snapshots = aiter(watching)
            while shown:
                try:
                    await asyncio.wait_for(anext(snapshots), LOOK)
                except StopAsyncIteration:
                    raise ConnectionLostError("the client was closed") from None
                except asyncio.TimeoutError:
                    raise TimedOutError(
                        "the cluster could not be looked at within "
                        f"{seconds_text(LOOK)}; see what keeps its scheduler"
                    ) from None
                yield checks.run(watching.view, checks.configured())
        while True:
            await asyncio.sleep(min(EVERY, step.holds))
            yield await self._found()

    # --- actions ----------------------------------------------------------------------

    async def _act(self, step: Step, names: frozenset[Id | None]) -> Report:
        options: dict[str, Any] = dict(step.options)
        if options.get("workers") == NAMED:
            options["workers"] = await self._workers(step, names)
        if step.do in ("restart", "resize"):
            snapshot = await self._snapshot()
            view = View(snapshots=(snapshot,), goal=Goal(workload=self.profile))
            ids = ids_of(options.get("workers"), view)
            options["max_unavailable"] = at_once(self.playbook.limits, snapshot, ids)
        options |= {"dry_run": self.dry_run, "progress": self.progress}
        if step.do in actions.others():
            return await self._other(step.do, await self._found(), **options)
        return await self._operation(step.do, options)

    def _operation(self, do: str, options: dict[str, Any]) -> Awaitable[Report]:
        """The call, to be awaited, as the client is in its event loop here."""
        if do in ON_DATA:
            assert self.material is not None
            if do == "persist":
                options["persist"] = True
            which = {"estimator": self.estimator, "workload": self.workload}
            given = {k: v for k, v in which.items() if v is not None}
            return self.material.prepare(only=(do,), **given, **options)
        if do == "release":
            return self._release(options)
        function: Callable[..., Any] = getattr(workers, do)
        called: Awaitable[Report] = function(self.client, **options)
        return called

    async def _other(
        self,
        do: str,
        found: tuple[Finding, ...],
        *,
        dry_run: bool,
        progress: bool | Notify | None,
        timeout: float = TIMEOUT,
    ) -> Report:
        """An action of another package: what it proposes, under guards and limits.

        Raises
        ------
        ClustertuneError
            It failed, as any code of others may; or as of every operation.
        """

        def steps(view: View, _ids: Collection[Id]) -> Iterator[model.Step]:
            proposed = tuple(actions.others()[do].propose(found, view))
            refuse_beyond(self.playbook.limits, view.now, proposed)
            yield from proposed

        procedure = Procedure(
            client=self.client,
            name=do,
            steps=steps,
            timeout=timeout,
            dry_run=dry_run,
            progress=progress,
            look=LookOptions(held_data=True),
        )
        try:
            return await carry_out(procedure)
        except ClustertuneError:
            raise
        except Exception as error:
            text = printable(repr(error), longest=200)
            raise ClustertuneError(f"the action {do} failed: {text}") from error

    async def _release(self, options: dict[str, Any]) -> Report:
        prefixes, keep = options.pop("prefixes", ()), options.pop("keep", None)
        if not prefixes and keep is None:
            assert self.material is not None
            report = await self.material.let_go(**options)
            if not self.dry_run:
                self.material = None
            return report
        if keep == GIVEN:
            assert self.material is not None
            given = await self.material.inputs()
            options["keep"] = [x.collection for x in given]
        releasing: Any = release.release
        done: Report = await releasing(self.client, *prefixes, **options)
        return done

    async def _workers(self, step: Step, names: frozenset[Id | None]) -> list[Id]:
        """Workers that a condition names, as far as they are there.

        Raises
        ------
        RefusedError
            It names none: nothing is done then, rather than something to all.
        """
        there = {w.id for w in (await self._snapshot()).workers}
        found = [id for id in names if id is not None and id in there]
        if not found:
            raise RefusedError(
                f"{step.when} names no worker that is there now; nothing was touched"
            )
        return sorted(found, key=str)

    async def _snapshot(self) -> Snapshot:
        await monitor.open_door(self.client, await monitor.identify(self.client))
        snapshot, _ = await monitor.look(self.client, [])
        return snapshot


_LOST = "the cluster is lost"
_ENDS = {"failed": "failed", "refused": "was refused", "left": "was done in part"}


@dataclass(frozen=True, kw_only=True)
class _Condition:
    """What a condition names; without any, why the step is skipped."""

    named: frozenset[Id | None] = frozenset()
    reason: str = ""
    found: tuple[Finding, ...] = ()


def _played(step: Step, status: str, **what: Any) -> PlayedStep:
    return PlayedStep(step=str(step), line=step.line, status=status, **what)


def _status(report: Report) -> str:
    """Of a step, from the report of what it did."""
    there = {s.status for s in report.steps}
    if report.status == "planned":  # a dry run
        if "planned" in there:
            return "planned"
        return "refused" if "refused" in there else "fine"
    return report.status if report.status in ("done", "fine", "left") else "failed"


UNDONE = ("skipped", "partly", "failed", "refused")


def _reason(report: Report, status: str) -> str:
    """Why it is no better."""
    if status not in BAD:
        return ""
    bad = [s for s in report.steps if s.status in UNDONE]
    texts = [f"{s.summary}: {s.reason}" for s in bad if s.reason]
    return report.error or "; ".join(texts[:3])


def _would(report: Report) -> str:
    return "; then ".join(s.summary for s in report.steps if s.status == "planned")
