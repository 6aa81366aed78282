"""Carry out playbooks, step by step.

A step runs checks, or calls a public operation if its condition is met. So a step can
do no more than a user, and all guards apply. The result has the outcome of each step.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from time import monotonic
from typing import Any

from distributed import Client

from clustertune.collections import inputs
from clustertune.core import arguments, sections, tables
from clustertune.core.model import Finding, Notify, Severity
from clustertune.core.progress import Progress
from clustertune.core.report import Report
from clustertune.core.tables import Section, Table
from clustertune.core.wording import plural, printable, seconds_text
from clustertune.errors import REFUSALS, ClustertuneError, RefusedError
from clustertune.integrations import libraries
from clustertune.monitor.connection import sync
from clustertune.operations.call import check_client
from clustertune.operations.check import check
from clustertune.operations.playbooks import reading
from clustertune.operations.playbooks.reading import CALLS, NAMED, Playbook, Step
from clustertune.operations.prepared import Prepared

SCHEMA_VERSION = 1
INTERVAL = 2.0  # seconds between two looks at a condition that must last
#: statuses of steps that did not reach their goal
BAD = frozenset(("failed", "left", "refused"))

Id = str | int


def run_playbook(
    client: Client,
    playbook: str | Path,
    X: Any = None,
    y: Any = None,
    *,
    estimator: object = None,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    **companions: Any,
) -> Any:
    """Carry out a playbook: run checks, and act on their findings.

    Parameters
    ----------
    client, progress
        As for :func:`clustertune.prepare`.
    playbook
        The name of a playbook (``"before-training"``), or the path of a file.
    X, y
        The data of the fit, on which the actions ``prepare`` and ``release`` act.
    estimator
        The model, as for :func:`clustertune.prepare`.
    dry_run
        Change nothing; check each condition once, and plan each step.
    **companions
        ``sample_weight``, ``qid``, ``group``, ``base_margin``, ``init_score`` and
        ``eval_set``, as for :func:`clustertune.prepare`.

    Returns
    -------
    PlaybookResult
        Findings and report of each step, also of failed ones, the final collections
        as ``.X`` and ``.y``, and the last result of ``prepare`` as ``.prepared``.

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
    data = {"X": X, "y": y, **companions}
    given = inputs.gather(**data, optional=True)
    check_client(client, given)
    inputs.refuse_groups(given, libraries.choose(estimator))
    read = reading.read(playbook)
    if X is None:
        refuse_without_data(read, playbook)
    run = PlaybookRun(
        client=client,
        playbook=read,
        data=data,
        estimator=estimator,
        dry_run=arguments.flag("dry_run", dry_run),
        progress=progress,
    )
    return sync(client, run.run)


def refuse_without_data(playbook: Playbook, which: str | Path) -> None:
    """Raise a ValueError for a playbook that needs data; ``which`` finds it."""
    if any(step.do == "prepare" for step in playbook.steps):
        raise ValueError(
            f"{printable(playbook.name)} is to prepare, and no data is given: call "
            f'clustertune.run_playbook(client, "{printable(str(which))}", X, y) in '
            "Python"
        )


@dataclass(kw_only=True)
class PlaybookRun:
    """A playbook in progress.

    Its methods run in the client's event loop. There, public calls return awaitables.
    """

    client: Client
    playbook: Playbook
    #: arguments of ``prepare``; each ``prepare`` replaces the collections
    data: dict[str, Any]
    estimator: object = None
    dry_run: bool = False
    progress: bool | Notify | None = None
    prepared: Prepared | None = None
    there: set[Id] = field(default_factory=set)  # ids of workers at the last check

    async def run(self) -> PlaybookResult:
        """Carry out all steps."""
        start, stopped = monotonic(), False
        results: list[StepResult] = []
        shown = Progress(self.progress)
        stops = self.playbook.on_failure == "stop" and not self.dry_run
        try:
            for step in self.playbook.steps:
                if stopped:
                    results.append(StepResult(step=str(step), status="not begun"))
                    continue
                if results and results[-1].status in ("done", "left"):
                    shown.notify("letting the cluster settle", None)
                    await asyncio.sleep(self.playbook.settle)
                results.append(await self._step(step, shown))
                stopped = stops and results[-1].status in BAD
        finally:
            shown.finish([])
        return PlaybookResult(
            playbook=self.playbook.name,
            seconds=monotonic() - start,
            steps=tuple(results),
            dry_run=self.dry_run,
            X=self.data.get("X"),
            y=self.data.get("y"),
            prepared=self.prepared,
        )

    async def _step(self, step: Step, shown: Progress) -> StepResult:
        """Carry out a step; an error is its result."""
        result = partial(StepResult, step=str(step))
        try:
            if step.check:
                return result(status="checked", report=await self._check(step.check))
            if step.do == "release" and self.data.get("X") is None:
                return result(status="skipped", reason="no data is given")
            names, condition = await self._condition(step, shown.notify)
            if step.when and not names:
                return result(status="skipped", reason=condition)
            shown.finish([])  # the action has its own line
            report = await self._act(step, names)
        except ClustertuneError as error:
            acted = error.report is not None and error.report.changed
            refused = isinstance(error, REFUSALS) and not acted
            status = "refused" if refused else "failed"
            return result(status=status, reason=str(error), report=error.report)
        except (TypeError, ValueError) as error:  # such as an unknown worker
            return result(status="failed", reason=str(error))
        status = status_of(report, step.do)
        reason = failure_of(report) if status in BAD else condition
        return result(status=status, reason=reason, report=report)

    async def _check(self, names: Collection[str] = ("all",)) -> Report:
        """Return the report of a check, with the findings of the named checks."""
        checking: Any = check(self.client, **self.data, estimator=self.estimator)
        report: Report = await checking
        self.there = {w.worker for w in report.workers}
        if "all" in names:  # also findings of no check, such as data that is not loaded
            return report
        return replace(report, found=tuple(f for f in report.found if f.check in names))

    async def _condition(
        self, step: Step, notify: Notify
    ) -> tuple[frozenset[Id | None], str]:
        """Evaluate a condition, if there is one: its subjects, and a text.

        Without subjects, the step is skipped, and the text is the reason. ``holds``
        keeps the subjects that the condition always names.
        """
        if not step.when:
            return frozenset(), ""
        found = (await self._check([step.when])).found
        names = subjects(step, found)
        if not names:
            unknown = [f.message for f in found if f.severity is Severity.unknown]
            below = f"{step.when} is below {step.at_least}"
            return names, f"unknown: {unknown[0]}" if unknown else below
        if step.holds and self.dry_run:
            return names, f"if it holds for {seconds_text(step.holds)}"
        start = monotonic()
        while names and (left := start + step.holds - monotonic()) > 0:
            notify(f"waiting whether {step.when} lasts", 1 - left / step.holds)
            await asyncio.sleep(min(INTERVAL, left))
            names &= subjects(step, (await self._check()).found)
        lasted = f"not for {seconds_text(step.holds)}"
        return names, "" if names else f"{step.when} was {step.at_least}, but {lasted}"

    async def _act(self, step: Step, names: frozenset[Id | None]) -> Report:
        """Make the public call of a step."""
        call, options = CALLS[step.do], dict(step.options)
        if options.get("workers") == NAMED:
            options["workers"] = sorted(names & self.there, key=str)
            if not options["workers"]:  # an empty list would mean all workers
                raise RefusedError(f"{step.when} names no worker of the cluster")
        if "max_unavailable" in signature(call).parameters:
            options["max_unavailable"] = self.playbook.disrupted_workers
        options |= {"dry_run": self.dry_run, "progress": self.progress}
        if step.do == "prepare":
            data = {**self.data, "estimator": self.estimator}
            prepared: Prepared = await call(self.client, **data, **options)
            if not self.dry_run:
                self.prepared = prepared
                self.data = {name: getattr(prepared, name) for name in self.data}
            return prepared.report
        given = inputs.gather(**self.data) if step.do == "release" else ()
        report: Report = await call(
            self.client, *(x.collection for x in given), **options
        )
        if given and not self.dry_run:
            self.data, self.prepared = dict.fromkeys(self.data), None
        return report


# --- the result -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one step.

    Attributes
    ----------
    step
        The step in words.
    status
        ``checked`` (a check), ``done``, ``fine`` (nothing to do), ``planned`` (a dry
        run), ``skipped`` (the condition is not met, or unknown), ``refused`` (nothing
        was changed), ``left`` (done in part), ``failed``, or ``not begun`` (an earlier
        step failed).
    reason
        Why it has this status; may be empty.
    report
        The report of the check or of the action.
    """

    step: str
    status: str
    reason: str = ""
    report: Report | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookResult:
    """The result of a playbook.

    Attributes
    ----------
    playbook, seconds, dry_run
        Name of the playbook; duration; whether the call changed nothing.
    steps : tuple of StepResult
        In order.
    X, y
        The given collections in their final form; None after ``release``.
    prepared : Prepared or None
        The last result of ``prepare``, if a step called it. It has the companions,
        ``fit_kwargs`` and ``verify()``.
    """

    playbook: str
    seconds: float
    steps: tuple[StepResult, ...]
    dry_run: bool = False
    X: Any = field(default=None, repr=False, compare=False)
    y: Any = field(default=None, repr=False, compare=False)
    prepared: Prepared | None = field(default=None, repr=False, compare=False)

    @property
    def status(self) -> str:
        """``failed``, ``refused``, ``left``, ``planned``, ``done`` or ``fine``."""
        statuses = {step.status for step in self.steps}
        order = ("failed", "refused", "left", "planned", "done")
        return next((status for status in order if status in statuses), "fine")

    @property
    def found(self) -> tuple[Finding, ...]:
        """The findings of the last step with ``check``."""
        checked = [s.report for s in self.steps if s.status == "checked"]
        return checked[-1].found if checked and checked[-1] else ()

    def exit_status(self) -> int:
        """Return an exit code: 0, 1 (critical), 4 (refused), or 5 (failed, partly)."""
        statuses = {step.status for step in self.steps}
        if bad := statuses & BAD:
            return 4 if bad == {"refused"} and "done" not in statuses else 5
        found = any(f.severity is Severity.critical for f in self.found)
        return int(found and "planned" not in statuses)  # a planned step may fix it

    def __str__(self) -> str:
        return tables.to_text(self._sections())

    @property
    def details(self) -> str:
        """The result as text, with the details of the report of each step."""
        parts = self._sections()
        for i, step in enumerate(self.steps):
            if step.report:
                parts.append(Section(f"steps[{i}], {step.step}"))
                parts += sections.sections(step.report, details=True)
        return tables.to_text(parts)

    def __repr__(self) -> str:
        return f"<PlaybookResult: {self._headline()}>"

    def _repr_html_(self) -> str:
        return tables.to_html(self._sections())

    def to_json(self) -> str:
        """Return all but the collections as JSON, with ``schema_version``."""
        steps = [
            {name: getattr(s, name) for name in ("step", "status", "reason")}
            | {"report": s.report and json.loads(s.report.to_json())}
            for s in self.steps
        ]
        names = ("playbook", "status", "dry_run", "seconds")
        plain = {name: getattr(self, name) for name in names}
        return json.dumps({"schema_version": SCHEMA_VERSION, **plain, "steps": steps})

    def _headline(self) -> str:
        steps = plural(len(self.steps), "step")
        return f"{self.playbook}: {self.status}; {steps}, {seconds_text(self.seconds)}"

    def _sections(self) -> list[Section]:
        rows = tuple(
            (f"[{i}]", s.status, s.step, _result_text(s))
            for i, s in enumerate(self.steps)
        )
        table = Table(("", "status", "step", "result"), rows)
        parts = [Section(self._headline(), (table,))]
        if found := [f for f in self.found if f.severity is not Severity.info]:
            parts.append(sections.of_findings("Found by the last check", found))
        return parts


def _result_text(step: StepResult) -> str:
    if step.status in BAD or step.report is None:
        return step.reason
    return ": ".join(filter(None, [step.reason, sections.verdict(step.report)[1]]))


# --- decisions (pure) -----------------------------------------------------------------


def subjects(step: Step, found: Iterable[Finding]) -> frozenset[Id | None]:
    """Subjects of the condition; None is the cluster. Empty: it is not met."""
    own = [f for f in found if f.check == step.when and f.severity >= step.at_least]
    return frozenset(x for f in own for x in f.subject or (None,))


def status_of(report: Report, action: str) -> str:
    """The status of a step, from the report of its action."""
    if report.status != "planned":
        return report.status
    states = {step.status for step in report.steps}
    # prepare skips refused steps and does the others; other calls then do none
    if "refused" in states and (action != "prepare" or "planned" not in states):
        return "refused"
    return "planned" if "planned" in states else "fine"


def failure_of(report: Report) -> str:
    """Why an action did not do all of its steps, or lost keys."""
    undone = ("skipped", "partly", "failed", "refused")
    texts = [f"{s.summary}: {s.reason}" for s in report.steps if s.status in undone]
    return "; ".join(texts[:3]) or sections.verdict(report)[1]
