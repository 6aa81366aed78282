"""Carry out playbooks, step by step.

A step runs checks, or calls a public operation if its condition is met. So a step can
do no more than a user, and all guards apply. The result has the outcome of each step.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from inspect import signature
from pathlib import Path
from time import monotonic
from typing import Any

from distributed import Client

from clustertune.collections import inputs
from clustertune.core import arguments, sections, tables
from clustertune.core.model import Finding, Notify, Severity
from clustertune.core.progress import Progress
from clustertune.core.report import Report, is_refused, with_commands
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

logger = logging.getLogger("clustertune")

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
    check_client(client, inputs.gather(**data, optional=True))
    libraries.choose(estimator)
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
        start, stopped = monotonic(), ""
        results: list[StepResult] = []
        shown = Progress(self.progress)
        stops = self.playbook.on_failure == "stop" and not self.dry_run
        for i, step in enumerate(self.playbook.steps):
            result = StepResult(step=str(step), status="not begun", reason=stopped)
            if not stopped:
                if results and results[-1].status in ("done", "left"):
                    shown.notify("letting the cluster settle", None)
                    await asyncio.sleep(self.playbook.settle)
                logger.info("%s: %s", printable(self.playbook.name), step)
                begun = monotonic()
                outcome = await self._step(step, shown.notify)
                result = replace(result, **outcome, seconds=monotonic() - begun)
                if result.status in BAD and stops:
                    stopped = f"steps[{i}] ended as {result.status}"
            results.append(result)
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

    async def _step(self, step: Step, notify: Notify) -> dict[str, Any]:
        """Return status, reason and report of a step."""
        try:
            if step.check:
                report = await self._check()
                # some findings are of no check, such as data that is not loaded
                every = "all" in step.check
                found = tuple(f for f in report.found if every or f.check in step.check)
                report = replace(report, found=found)
                return {"status": "checked", "reason": "", "report": report}
            return await self._do(step, notify)
        except ClustertuneError as error:
            acted = error.report is not None and error.report.changed
            refused = isinstance(error, REFUSALS) and not acted
            status = "refused" if refused else "failed"
            return {"status": status, "reason": str(error), "report": error.report}
        except (TypeError, ValueError) as error:  # such as an unknown worker
            return {"status": "failed", "reason": str(error)}

    async def _check(self) -> Report:
        checking: Any = check(self.client, **self.data, estimator=self.estimator)
        report: Report = await checking
        self.there = {w.worker for w in report.workers}
        return report

    async def _do(self, step: Step, notify: Notify) -> dict[str, Any]:
        if step.do in ("prepare", "release") and self.data.get("X") is None:
            if step.do == "prepare":
                raise RefusedError("an earlier step released the data")
            return {"status": "skipped", "reason": "no data is given"}
        names: frozenset[Id | None] = frozenset()
        condition = ""
        if step.when:
            names, condition = await self._condition(step, notify)
            if not names:
                return {"status": "skipped", "reason": condition}
        report = await self._act(step, names)
        status = status_of(report, in_part=step.do == "prepare")
        reason = failure_of(report) if status in BAD else condition
        return {"status": status, "reason": reason, "report": report}

    async def _condition(
        self, step: Step, notify: Notify
    ) -> tuple[frozenset[Id | None], str]:
        """Evaluate a condition: its subjects, and a text.

        Without subjects, the step is skipped, and the text is the reason. ``holds``
        keeps the subjects that the condition always names.
        """
        found = (await self._check()).found
        names = subjects(step, found)
        if not names:
            own = [f for f in found if f.check == step.when]
            unknown = [f.message for f in own if f.severity is Severity.unknown]
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
        collections: list[Any] = []
        if step.do == "prepare":
            options |= {**self.data, "estimator": self.estimator}
        elif step.do == "release":
            collections = [x.collection for x in inputs.gather(**self.data)]
        options |= {"dry_run": self.dry_run, "progress": self.progress}
        done = await call(self.client, *collections, **options)
        if step.do == "prepare":
            if not self.dry_run:
                self.prepared = done
                self.data = {name: getattr(done, name) for name in self.data}
            done = done.report
        elif collections and not self.dry_run:
            self.data, self.prepared = {}, None
        report: Report = done
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
    seconds: float = 0.0
    report: Report | None = None

    @property
    def found(self) -> tuple[Finding, ...]:
        """The findings of a step with ``check``."""
        return self.report.found if self.report and self.status == "checked" else ()


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
        checked = [s.found for s in self.steps if s.status == "checked"]
        return checked[-1] if checked else ()

    def with_commands(self, cluster: str) -> PlaybookResult:
        """Return the result with command lines in its remedies."""
        steps = (
            replace(s, report=s.report and with_commands(s.report, cluster))
            for s in self.steps
        )
        return replace(self, steps=tuple(steps))

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
        reports = [
            f"steps[{i}], {printable(s.step)}\n\n{s.report.details}"
            for i, s in enumerate(self.steps)
            if s.report is not None
        ]
        return "\n\n".join([tables.to_text(self._sections()[:1]), *reports])

    def __repr__(self) -> str:
        return f"<PlaybookResult: {self._headline()}>"

    def _repr_html_(self) -> str:
        return tables.to_html(self._sections())

    def to_json(self) -> str:
        """Return all but the collections as JSON, with ``schema_version``."""
        steps = [
            asdict(replace(s, report=None))
            | {"report": s.report and json.loads(s.report.to_json())}
            for s in self.steps
        ]
        plain = {"schema_version": SCHEMA_VERSION, "playbook": self.playbook}
        plain |= {"status": self.status, "dry_run": self.dry_run}
        return json.dumps(plain | {"seconds": self.seconds, "steps": steps})

    def _headline(self) -> str:
        number = Counter(step.status for step in self.steps)
        shown = ", ".join(f"{n} {status}" for status, n in number.items())
        kind = "would be carried out as follows" if self.dry_run else self.status
        steps = plural(len(self.steps), "step")
        return (
            f"{self.playbook}: {kind}; {steps} ({shown}), {seconds_text(self.seconds)}"
        )

    def _sections(self) -> list[Section]:
        rows = tuple(
            (f"[{i}]", s.status, s.step, _result_text(s))
            for i, s in enumerate(self.steps)
        )
        found = [
            sections.of_findings(f"Found by steps[{i}], {s.step}", shown)
            for i, s in enumerate(self.steps)
            if (shown := [f for f in s.found if f.severity is not Severity.info])
        ]
        table = Table(("", "status", "step", "result"), rows)
        return [Section(self._headline(), (table,)), *found]


def _result_text(step: StepResult) -> str:
    if step.status in BAD or step.report is None:
        return step.reason
    return ": ".join(filter(None, [step.reason, sections.verdict(step.report)[1]]))


# --- decisions (pure) -----------------------------------------------------------------


def subjects(step: Step, found: Iterable[Finding]) -> frozenset[Id | None]:
    """Subjects of the condition; None is the cluster. Empty: it is not met."""
    own = [f for f in found if f.check == step.when and f.severity >= step.at_least]
    return frozenset(x for f in own for x in f.subject or (None,))


def status_of(report: Report, *, in_part: bool) -> str:
    """The status of a step, from the report of its action.

    ``in_part``: whether the action skips refused steps and does the others.
    """
    if report.status == "planned":  # a dry run
        if is_refused(report, in_part=in_part):
            return "refused"
        return "planned" if any(s.status == "planned" for s in report.steps) else "fine"
    return report.status if report.status in ("done", "fine", "left") else "failed"


def failure_of(report: Report) -> str:
    """Why an action did not do all of its steps."""
    undone = ("skipped", "partly", "failed", "refused")
    texts = [f"{s.summary}: {s.reason}" for s in report.steps if s.status in undone]
    return report.error or "; ".join(texts[:3])
