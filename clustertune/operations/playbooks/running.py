"""Carry out playbooks, step by step.

A step runs checks, or calls a public operation if its condition is met. So a step can
do no more than a user, and all guards apply. The result names the outcome of each step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from distributed import Client

from clustertune import actions, checks
from clustertune.actions.cluster.live import LookOptions, ids_of
from clustertune.collections import inputs
from clustertune.core import arguments, model
from clustertune.core.model import Finding, Goal, Notify, Snapshot, View
from clustertune.core.progress import Progress
from clustertune.core.report import Report, acted
from clustertune.core.wording import printable, seconds_text
from clustertune.errors import (
    REFUSALS,
    ClustertuneError,
    ConnectionLostError,
    RefusedError,
    TimedOutError,
)
from clustertune.integrations import libraries
from clustertune.monitor import monitor
from clustertune.monitor.connection import sync
from clustertune.operations import release, workers
from clustertune.operations.call import assigned, check_client, permitted_phases
from clustertune.operations.check import CheckRequest, diagnose
from clustertune.operations.playbooks import library
from clustertune.operations.playbooks.playbook import (
    BAD,
    GIVEN,
    NAMED,
    Id,
    Playbook,
    PlaybookResult,
    Step,
    StepResult,
    failure_of,
    planned_of,
    status_of,
)
from clustertune.operations.playbooks.schema import ON_DATA, matching_checks
from clustertune.operations.prepare import prepare
from clustertune.operations.prepared import Prepared
from clustertune.operations.procedure import operate
from clustertune.operations.watch import Monitor

logger = logging.getLogger("clustertune")

READ_TIMEOUT = 60.0  # seconds for reading the state of the cluster
INTERVAL = 5.0  # seconds between two diagnoses, for conditions that need one
TIMEOUT = 1800.0  # seconds for an action of another package without a timeout

#: the calls of steps that need no data
CALLS: Mapping[str, Any] = {
    "merge": workers.merge_workers,
    "release": release.release_data,
    "resize": workers.resize_workers,
    "restart": workers.restart_workers,
    "scale": workers.scale,
    "trim": workers.trim_memory,
}
_LOST = "the cluster is lost"
_ENDS = {"failed": "failed", "refused": "was refused", "left": "was done in part"}


# --- public calls ---------------------------------------------------------------------


def run_playbook(
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
    settings: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
) -> Any:
    """Carry out a playbook: run checks, and act on their findings.

    Parameters
    ----------
    client, progress
        As for :func:`clustertune.prepare`.
    playbook
        The name of a playbook (``"before-training"``), or the path of a file.
    X, y, sample_weight, qid, base_margin, init_score, eval_set
        The data of the fit, as for :func:`clustertune.prepare`. The actions
        ``load``, ``rechunk``, ``rebalance`` and ``release`` act on it.
    estimator
        The model, as for :func:`clustertune.prepare`.
    settings
        Values that replace those of the file, by key: ``{"n_workers": 2}``. If several
        steps have the key, give its path: ``{"steps[2].with.timeout": "5m"}``.
    dry_run
        Change nothing; check each condition once, and plan each step.

    Returns
    -------
    PlaybookResult
        Findings and report of each step, also of failed ones, and the final collections
        as ``.X``, ``.y`` and so on (None after ``release``).

    Raises
    ------
    PlaybookError
        The file is no valid playbook; the message has a line for each mistake.
    TypeError, ValueError
        There is no such playbook, or it needs data.
    ConnectionLostError
        The client is not connected; nothing was begun.

    Examples
    --------
    >>> result = clustertune.run_playbook(                         # doctest: +SKIP
    ...     client, "before-training", X, y)
    >>> model.fit(result.X, result.y)                              # doctest: +SKIP
    """
    given = {
        "X": X,
        "y": y,
        "sample_weight": sample_weight,
        "qid": qid,
        "base_margin": base_margin,
        "init_score": init_score,
        "eval_set": eval_set,
    }
    check_client(client, inputs.gather(**given, optional=True))
    job = PlaybookRun(
        client=client,
        playbook=library.read(playbook, settings),
        data=None if X is None else GivenData(client=client, given=given),
        estimator=estimator,
        dry_run=dry_run,
        progress=progress,
    )
    return sync(client, job.run)


def run_playbook_read(client: Client, playbook: Playbook, **options: Any) -> Any:
    """Carry out a playbook that was read before, without data.

    ``options`` are ``estimator``, ``dry_run`` and ``progress``.
    """
    return sync(client, PlaybookRun(client=client, playbook=playbook, **options).run)


def refuse_without_data(playbook: Playbook, data: object) -> None:
    """Raise a ValueError for a playbook that needs data if none is given."""
    needed = [s.do for s in playbook.steps if s.do in ON_DATA or s.options.get("keep")]
    if needed and data is None:
        raise ValueError(
            f"{printable(playbook.name)} is to {', '.join(dict.fromkeys(needed))}, and "
            "no data is given: give X and y to clustertune.run_playbook"
        )


# --- data -----------------------------------------------------------------------------


@dataclass(kw_only=True)
class GivenData:
    """Collections of the caller; each call of ``prepare`` replaces them.

    Its asynchronous methods run in the client's event loop. There, functions of
    clustertune return awaitables.
    """

    client: Client
    given: dict[str, Any]  # arguments of ``prepare``
    prepared: Prepared | None = None

    async def inputs(self) -> inputs.Inputs:
        return inputs.gather(**self.given)

    async def prepare(self, **options: Any) -> Report:
        preparing: Any = prepare
        done: Prepared = await preparing(self.client, **self.given, **options)
        if not options.get("dry_run"):
            self.prepared = done
            self.given = {name: getattr(done, name) for name in self.given}
        return done.report

    async def release(self, **options: Any) -> Report:
        every = [x.collection for x in await self.inputs()]
        releasing: Any = release.release_data
        report: Report = await releasing(self.client, *every, **options)
        return report

    def final(self) -> dict[str, Any]:
        return self.given | {"prepared": self.prepared}


# --- the run --------------------------------------------------------------------------


@dataclass(kw_only=True)
class PlaybookRun:
    """A playbook in progress. The constructor checks its arguments."""

    client: Client
    playbook: Playbook
    data: GivenData | None = None
    estimator: object = None
    dry_run: bool = False
    progress: bool | Notify | None = None
    _unplannable: bool = False  # a dry run planned a step that changes the data

    def __post_init__(self) -> None:
        check_client(self.client)
        self._profile = libraries.choose(self.estimator)
        refuse_without_data(self.playbook, self.data)
        arguments.flag("dry_run", self.dry_run)
        self._shown = Progress(self.progress)

    async def run(self) -> PlaybookResult:
        """Carry out all steps, in the client's event loop; bad data raises an error."""
        start = monotonic()
        results: list[StepResult] = []
        if self.data is not None:
            await self.data.inputs()
        stopped = ""
        for i, step in enumerate(self.playbook.steps):
            if stopped:
                results.append(_result(step, "not begun", reason=stopped))
                continue
            logger.info("%s: %s", printable(self.playbook.name), step)
            begun = monotonic()
            result = replace(await self._step(step), seconds=monotonic() - begun)
            results.append(result)
            if result.status in BAD and self._stops(result):
                stopped = f"steps[{i}] {_ENDS[result.status]}"
            elif result.status in ("done", "left") and step.do:
                await self._settle(i)
        self._shown.finish([])
        return PlaybookResult(
            playbook=self.playbook.name,
            seconds=monotonic() - start,
            steps=tuple(results),
            dry_run=self.dry_run,
            **({} if self.data is None else self.data.final()),
        )

    def _stops(self, result: StepResult) -> bool:
        """A lost cluster ends every run; other failures end no dry run."""
        lost = result.reason.startswith(_LOST)
        return lost or (self.playbook.on_failure == "stop" and not self.dry_run)

    async def _settle(self, i: int) -> None:
        seconds = self.playbook.limits.settle
        if i + 1 < len(self.playbook.steps) and seconds:
            self._shown.notify(f"letting the cluster settle, {seconds_text(seconds)}")
            await asyncio.sleep(seconds)

    # --- one step ---------------------------------------------------------------------

    async def _step(self, step: Step) -> StepResult:
        try:
            return await (self._check(step) if step.check else self._do(step))
        except ConnectionLostError as error:
            return _result(step, "failed", reason=f"{_LOST}: {error}")
        except ClustertuneError as error:
            refused = isinstance(error, REFUSALS) and not acted(error.report)
            status = "refused" if refused else "failed"
            return _result(step, status, reason=str(error), report=error.report)

    async def _check(self, step: Step) -> StepResult:
        names = {n for word in step.check for n in matching_checks(word)}
        found = tuple(f for f in await self._findings() if f.check in names)
        return _result(step, "checked", checks=tuple(sorted(names)), found=found)

    async def _do(self, step: Step) -> StepResult:
        if (early := self._without_data(step)) is not None:
            return early
        named, condition, found = await self._condition(step)
        if not named:
            return _result(step, "skipped", reason=condition, found=found)
        try:
            report = await self._act(step, named)
        except ClustertuneError:
            raise
        except (TypeError, ValueError) as error:  # an unknown worker
            return _result(step, "failed", reason=str(error), found=found)
        status = status_of(report, in_part=step.do in ON_DATA)
        self._unplannable |= status == "planned" and step.do in ON_DATA
        reason = failure_of(report) if status in BAD else ""
        if status == "planned" and condition:
            reason = f"{condition}: {planned_of(report)}"
        return _result(step, status, reason=reason, found=found, report=report)

    def _without_data(self, step: Step) -> StepResult | None:
        """The result of a step whose data is missing, or is planned only."""
        if step.do == "release" and self.data is None and not step.options:
            return _result(step, "skipped", reason="there is no data to release")
        if self.data is None and (step.do in ON_DATA or "keep" in step.options):
            return _result(step, "refused", reason="an earlier step released the data")
        if step.do in ON_DATA and self._unplannable:
            reason = "this can be planned once the steps before it are done"
            return _result(step, "planned", reason=reason)
        return None

    # --- conditions -------------------------------------------------------------------

    async def _findings(self) -> tuple[Finding, ...]:
        given = inputs.NOTHING
        if self.data is not None:
            given = await self.data.inputs()
        request = CheckRequest(
            client=self.client,
            given=given,
            goal=Goal(workload=self._profile),
            workers=None,
            timeout=READ_TIMEOUT,
        )
        return (await diagnose(request)).found

    async def _condition(
        self, step: Step
    ) -> tuple[frozenset[Id | None], str, tuple[Finding, ...]]:
        """Evaluate a condition: its subjects, a reason, and its findings.

        Without subjects, the step is skipped for this reason. ``holds`` keeps the
        subjects that the condition always names.
        """
        if not step.when:
            return frozenset((None,)), "", ()
        found = tuple(f for f in await self._findings() if f.check == step.when)
        names = step.subjects(found)
        if not names:
            why = step.unknown(found)
            level = f"{step.when} is below {step.at_least}"
            return names, f"unknown: {why}" if why else level, found
        reason = ""
        if step.holds and self.dry_run:
            reason = f"if it holds for {seconds_text(step.holds)}"
        elif step.holds:
            names = await self._lasting(step, names)
            if not names:
                lasted = f"not for {seconds_text(step.holds)}"
                reason = f"{step.when} was {step.at_least}, but {lasted}"
        return names, reason, found

    async def _lasting(
        self, step: Step, names: frozenset[Id | None]
    ) -> frozenset[Id | None]:
        """The subjects that the condition names for all of ``holds``."""
        start = monotonic()
        async with aclosing(self._observations(step)) as observations:
            async for found in observations:
                names &= step.subjects(found)
                passed = monotonic() - start
                if not names or passed >= step.holds:
                    break
                self._shown.notify(
                    f"waiting whether {step.when} lasts", passed / step.holds
                )
        return names

    async def _observations(
        self, step: Step
    ) -> AsyncGenerator[tuple[Finding, ...], None]:
        """Findings over time: from snapshots, or from diagnoses if those are needed."""
        async with Monitor(self.client, estimator=self.estimator) as watching:
            found = checks.run(watching.view, checks.configured())
            visible = bool(step.subjects(found))
            snapshots = aiter(watching)
            while visible:
                try:
                    await asyncio.wait_for(anext(snapshots), READ_TIMEOUT)
                except StopAsyncIteration:
                    raise ConnectionLostError("the client was closed") from None
                except asyncio.TimeoutError:
                    raise TimedOutError(
                        "the cluster could not be read within "
                        f"{seconds_text(READ_TIMEOUT)}; see what blocks its scheduler"
                    ) from None
                yield checks.run(watching.view, checks.configured())
        while True:
            await asyncio.sleep(min(INTERVAL, step.holds))
            yield await self._findings()

    # --- actions ----------------------------------------------------------------------

    async def _act(self, step: Step, names: frozenset[Id | None]) -> Report:
        options: dict[str, Any] = dict(step.options)
        if options.get("workers") == NAMED:
            options["workers"] = await self._workers(step, names)
        if step.do in ("restart", "resize", "merge"):
            snapshot = await self._snapshot()
            view = View(snapshots=(snapshot,), goal=Goal(workload=self._profile))
            ids = ids_of(options.get("workers"), view)
            limits = self.playbook.limits
            if step.do == "merge":
                limits.refuse_fewer(snapshot, ids)
            options["max_unavailable"] = limits.max_unavailable(snapshot, ids)
        if step.do in actions.others():
            return await self._plugin(step.do, **options)
        if step.do in ON_DATA:
            return await self._prepare(step.do, options)
        if step.do == "release":
            return await self._release(options)
        return await self._call(step.do, **options)

    async def _call(self, verb: str, **options: Any) -> Report:
        report: Report = await CALLS[verb](self.client, **options, **self._how)
        return report

    @property
    def _how(self) -> dict[str, Any]:
        return {"dry_run": self.dry_run, "progress": self.progress}

    async def _prepare(self, phase: str, options: dict[str, Any]) -> Report:
        assert self.data is not None
        if phase == "load":
            options["persist"] = True
        options["estimator"] = self.estimator
        with assigned(permitted_phases, frozenset((phase,))):
            return await self.data.prepare(**options, **self._how)

    async def _release(self, options: dict[str, Any]) -> Report:
        keep = options.pop("keep", None)
        if keep is None:
            assert self.data is not None
            report = await self.data.release(**options, **self._how)
            if not self.dry_run:
                self.data = None
            return report
        if keep == GIVEN:
            assert self.data is not None
            given = await self.data.inputs()
            options["keep"] = [x.collection for x in given]
        return await self._call("release", **options)

    async def _plugin(self, do: str, timeout: float = TIMEOUT) -> Report:
        """Carry out an action of another package, within the guards and the limits."""
        found = await self._findings()

        def steps(view: View, *_: object) -> Iterator[model.Step]:
            proposed = tuple(actions.others()[do].propose(found, view))
            self.playbook.limits.refuse_beyond(view.now, proposed)
            yield from proposed

        operating: Any = operate
        try:
            report: Report = await operating(
                self.client,
                do,
                steps,
                timeout=timeout,
                look=LookOptions(held_data=True),
                **self._how,
            )
        except ClustertuneError:
            raise
        except Exception as error:
            text = printable(repr(error), longest=200)
            raise ClustertuneError(f"the action {do} failed: {text}") from error
        return report

    async def _workers(self, step: Step, names: frozenset[Id | None]) -> list[Id]:
        """The named workers of the cluster. An empty list would mean all workers."""
        known = {w.id for w in (await self._snapshot()).workers}
        found = [id for id in names if id is not None and id in known]
        if not found:
            raise RefusedError(
                f"{step.when} names no worker of the cluster; nothing was touched"
            )
        return sorted(found, key=str)

    async def _snapshot(self) -> Snapshot:
        await monitor.install_plugin(self.client, await monitor.identify(self.client))
        snapshot, _ = await monitor.look(self.client, [])
        return snapshot


def _result(step: Step, status: str, **fields: Any) -> StepResult:
    return StepResult(step=str(step), line=step.line, status=status, **fields)
