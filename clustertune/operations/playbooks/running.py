"""Carry out playbooks, step by step.

A step runs checks, or calls a public operation if its condition is met. So a step can
do no more than a user, and all guards apply. The result has the outcome of each step.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from distributed import Client

from clustertune.actions.cluster.live import ids_of
from clustertune.collections import inputs
from clustertune.core import arguments
from clustertune.core.model import Finding, Goal, Notify, Severity, Snapshot, View
from clustertune.core.progress import Progress
from clustertune.core.report import Report, acted, is_refused
from clustertune.core.wording import plural, printable, seconds_text
from clustertune.errors import (
    REFUSALS,
    ClustertuneError,
    ConnectionLostError,
    RefusedError,
)
from clustertune.integrations import libraries
from clustertune.monitor import monitor
from clustertune.monitor.connection import sync
from clustertune.operations import release, workers
from clustertune.operations.call import assigned, check_client, permitted_phases
from clustertune.operations.check import CheckRequest, diagnose
from clustertune.operations.playbooks import reading
from clustertune.operations.playbooks.reading import (
    GIVEN,
    NAMED,
    ON_DATA,
    Limits,
    Playbook,
    Step,
)
from clustertune.operations.playbooks.results import (
    BAD,
    PlaybookResult,
    StepResult,
    planned_of,
)
from clustertune.operations.prepare import prepare
from clustertune.operations.prepared import Prepared
from clustertune.planner.machines import shared_hosts

logger = logging.getLogger("clustertune")

READ_TIMEOUT = 60.0  # seconds for reading the state of the cluster
INTERVAL = 2.0  # seconds between two looks at a condition that must last
#: public calls by action, besides ``prepare`` and ``release_data``
CALLS: Mapping[str, Any] = {
    "merge": workers.merge_workers,
    "resize": workers.resize_workers,
    "restart": workers.restart_workers,
    "scale": workers.scale,
    "trim": workers.trim_memory,
}

_LOST = "the cluster is lost"
_ENDS = {"failed": "failed", "refused": "was refused", "left": "was done in part"}
_UNDONE = ("skipped", "partly", "failed", "refused")  # statuses of steps of an action

Id = str | int


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
    data = {
        "X": X,
        "y": y,
        "sample_weight": sample_weight,
        "qid": qid,
        "base_margin": base_margin,
        "init_score": init_score,
        "eval_set": eval_set,
    }
    check_client(client, inputs.gather(**data, optional=True))
    run = PlaybookRun(
        client=client,
        playbook=reading.read(playbook),
        data=data,
        estimator=estimator,
        dry_run=arguments.flag("dry_run", dry_run),
        progress=progress,
    )
    return sync(client, run.run)


def refuse_without_data(playbook: Playbook) -> None:
    """Raise a ValueError for a playbook that needs data."""
    needed = [s.do for s in playbook.steps if s.do in ON_DATA or s.options.get("keep")]
    if needed:
        raise ValueError(
            f"{printable(playbook.name)} is to {', '.join(dict.fromkeys(needed))}, and "
            "no data is given: call clustertune.run_playbook(client, "
            f'"{printable(playbook.name)}", X, y) in Python'
        )


@dataclass(kw_only=True)
class PlaybookRun:
    """A playbook in progress.

    Its methods run in the client's event loop. There, public calls return awaitables.
    """

    client: Client
    playbook: Playbook
    #: arguments of ``prepare``; each ``prepare`` replaces the collections
    data: dict[str, Any] = field(default_factory=lambda: {"X": None})
    estimator: object = None
    dry_run: bool = False
    progress: bool | Notify | None = None
    _prepared: Prepared | None = None
    _unplannable: bool = False  # a dry run planned a step that changes the data

    def __post_init__(self) -> None:
        self._profile = libraries.choose(self.estimator)
        if not self._has_data:
            refuse_without_data(self.playbook)
        self._shown = Progress(self.progress)

    @property
    def _has_data(self) -> bool:
        return self.data.get("X") is not None

    async def run(self) -> PlaybookResult:
        """Carry out all steps."""
        start = monotonic()
        results: list[StepResult] = []
        stopped = ""
        for i, step in enumerate(self.playbook.steps):
            if stopped:
                results.append(_result(step, "not begun", reason=stopped))
                continue
            logger.info("%s: %s", printable(self.playbook.name), step)
            begun = monotonic()
            result = replace(await self._step(step), seconds=monotonic() - begun)
            results.append(result)
            # a lost cluster ends every run; other failures end no dry run
            stops = self.playbook.on_failure == "stop" and not self.dry_run
            if result.status in BAD and (stops or result.reason.startswith(_LOST)):
                stopped = f"steps[{i}] {_ENDS[result.status]}"
            elif result.status in ("done", "left") and step.do:
                await self._settle(i)
        self._shown.finish([])
        return PlaybookResult(
            playbook=self.playbook.name,
            seconds=monotonic() - start,
            steps=tuple(results),
            dry_run=self.dry_run,
            prepared=self._prepared,
            **self.data,
        )

    async def _settle(self, i: int) -> None:
        seconds = self.playbook.limits.settle
        if i + 1 < len(self.playbook.steps) and seconds:
            self._shown.notify(f"letting the cluster settle, {seconds_text(seconds)}")
            await asyncio.sleep(seconds)

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
        names = {n for word in step.check for n in reading.matching_checks(word)}
        found = tuple(f for f in await self._findings() if f.check in names)
        return _result(step, "checked", checks=tuple(sorted(names)), found=found)

    async def _do(self, step: Step) -> StepResult:
        needs_data = step.do in ON_DATA or step.do == "release"
        if needs_data and not self._has_data:
            if step.do == "release" and not step.options.get("keep"):
                return _result(step, "skipped", reason="there is no data to release")
            reason = "an earlier step released the data"
            return _result(step, "refused", reason=reason)
        if step.do in ON_DATA and self._unplannable:
            reason = "this can be planned once the steps before it are done"
            return _result(step, "planned", reason=reason)
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

    # --- conditions -------------------------------------------------------------------

    async def _findings(self) -> tuple[Finding, ...]:
        request = CheckRequest(
            client=self.client,
            given=inputs.gather(**self.data, optional=True),
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
        names = subjects(step, found)
        if not names:
            unknown = [f.message for f in found if f.severity is Severity.unknown]
            level = f"{step.when} is below {step.at_least}"
            return names, f"unknown: {unknown[0]}" if unknown else level, found
        if step.holds and self.dry_run:
            return names, f"if it holds for {seconds_text(step.holds)}", found
        start = monotonic()
        while names and (left := start + step.holds - monotonic()) > 0:
            done = 1 - left / step.holds
            self._shown.notify(f"waiting whether {step.when} lasts", done)
            await asyncio.sleep(min(INTERVAL, left))
            names &= subjects(step, await self._findings())
        lasted = f"not for {seconds_text(step.holds)}"
        return names, f"{step.when} was {step.at_least}, but {lasted}", found

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
                refuse_fewer(limits, snapshot, ids)
            options["max_unavailable"] = max_unavailable(limits, snapshot, ids)
        options |= {"dry_run": self.dry_run, "progress": self.progress}
        if step.do in ON_DATA:
            return await self._prepare(step.do, options)
        if step.do == "release":
            return await self._release(options)
        report: Report = await CALLS[step.do](self.client, **options)
        return report

    async def _prepare(self, phase: str, options: dict[str, Any]) -> Report:
        if phase == "load":
            options["persist"] = True
        with assigned(permitted_phases, frozenset((phase,))):
            call: Any = prepare
            done: Prepared = await call(
                self.client, **self.data, estimator=self.estimator, **options
            )
        if not self.dry_run:
            self._prepared = done
            self.data = {name: getattr(done, name) for name in self.data}
        return done.report

    async def _release(self, options: dict[str, Any]) -> Report:
        given = inputs.gather(**self.data)
        collections = [x.collection for x in given]
        keeps = options.pop("keep", None) == GIVEN
        if keeps:
            call: Any = release.release_data(self.client, keep=collections, **options)
        else:
            call = release.release_data(self.client, *collections, **options)
        report: Report = await call
        if not keeps and not self.dry_run:
            self.data, self._prepared = dict.fromkeys(self.data), None
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


# --- decisions (pure) -----------------------------------------------------------------


def subjects(step: Step, found: Iterable[Finding]) -> frozenset[Id | None]:
    """Subjects of the condition; None is the cluster. Empty: it is not met."""
    own = [f for f in found if f.check == step.when and f.severity >= step.at_least]
    return frozenset(x for f in own for x in f.subject or (None,))


def max_unavailable(limits: Limits, snapshot: Snapshot, ids: Collection[Id]) -> int:
    """How many of these workers may be away at the same time.

    Raise RefusedError if one of them away leaves fewer than ``minimum_workers``.
    """
    wanted = limits.disrupted_workers
    if not isinstance(wanted, int):
        wanted = math.floor(wanted * len(snapshot.workers))
    running = [w for w in snapshot.workers if w.running]
    if not any(w.id in ids for w in running):
        return max(1, wanted)  # all running workers stay
    spare = len(running) - limits.minimum_workers
    if spare < 1:
        raise RefusedError(
            f"limits.minimum_workers={limits.minimum_workers} and "
            f"{plural(len(running), 'worker')} run: none may be away; nothing was "
            "touched"
        )
    return min(max(1, wanted), spare)


def refuse_fewer(limits: Limits, snapshot: Snapshot, ids: Collection[Id]) -> None:
    """Refuse a merge of these workers if too few would remain."""
    retired = sum(len(group) - 1 for group in shared_hosts(snapshot, ids))
    left = sum(w.is_counted for w in snapshot.workers) - retired
    if retired and left < limits.minimum_workers:
        raise RefusedError(
            f"limits.minimum_workers={limits.minimum_workers}, and "
            f"{plural(left, 'worker')} would remain; nothing was touched"
        )


def status_of(report: Report, *, in_part: bool) -> str:
    """The status of a step, from the report of its action.

    ``in_part``: whether the action skips refused steps and does the others.
    """
    if report.status == "planned":  # a dry run
        if is_refused(report, in_part=in_part):
            return "refused"
        return "planned" if planned_of(report) else "fine"
    return report.status if report.status in ("done", "fine", "left") else "failed"


def failure_of(report: Report) -> str:
    """Why an action did not do all of its steps."""
    undone = [s for s in report.steps if s.status in _UNDONE]
    texts = [f"{s.summary}: {s.reason}" for s in undone if s.reason]
    return report.error or "; ".join(texts[:3])
