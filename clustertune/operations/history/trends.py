"""Trends over past runs: leaks, sufficient workers and regressions (pure).

With too few runs, the result is ``Unknown`` with the reason.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from clustertune import checks
from clustertune.core import rules
from clustertune.core.findings import Severity
from clustertune.core.snapshots import Unknown
from clustertune.core.wording import (
    bytes_text,
    plural,
    seconds_text,
    workers_text,
)
from clustertune.operations.history.store import Record

Records = Sequence[Record]


# --- leaks ----------------------------------------------------------------------------

MIN_GROWTH = 0.01  # of the memory limit, per run
MIN_GROWTH_BYTES = 2**24  # per run, if the limit is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Memory that a worker does not free after runs."""

    worker: str | int
    runs: int  # number of compared runs
    step: float  # bytes per run
    left: float | None  # runs until the limit is full; None: there is no limit

    def __str__(self) -> str:
        text = (
            f"{workers_text([self.worker])} keeps {bytes_text(self.step)} more after "
            f"each run (of {self.runs})"
        )
        if self.left is not None:
            text += f"; about {plural(round(self.left), 'more run')} fill its limit"
        return f"{text}. Remedy: clustertune.restart_workers(client) between two runs"

    @property
    def severity(self) -> Severity:
        """Critical if the next run fills the limit, a warning if one of the next does.

        The number of runs is the setting of the check ``memory_growth``.
        """
        if self.left is None:
            return Severity.info
        if self.left <= 1:
            return Severity.critical
        near = self.left <= checks.setting("memory_growth", "warning_runs")
        return Severity.warning if near else Severity.info


def leaks(records: Records) -> tuple[Leak, ...] | Unknown:
    """Find workers of the last cluster whose idle memory grows from run to run.

    Use the runs that the scheduler plugin has seen, or else the memory of workers at
    the beginning of held blocks.
    """
    longest = 0
    for kind, ends in (("run", rules.ENDS), ("fit", ("",))):
        # only runs that ended in the same way are compared
        groups = [_of_last_cluster(records, kind, end) for end in ends]
        longest = max(longest, *map(len, groups))
        if longest >= rules.ENOUGH:
            found = (tuple(_leaks(group)) for group in groups)
            return next(filter(None, found), ())
    return Unknown(
        f"too few runs: {longest} of the same cluster, {rules.ENOUGH} are needed"
    )


def _of_last_cluster(records: Records, kind: str, end: str) -> list[Record]:
    seen = [r for r in records if r.kind == kind and r.memory]
    seen = [r for r in seen if r.ended_by in (end, "")]
    return sorted(
        (r for r in seen if r.cluster == seen[-1].cluster), key=lambda r: r.began
    )


def _leaks(runs: Records) -> Iterator[Leak]:
    left: dict[str | int, list[rules.MemoryAfterRun]] = defaultdict(list)
    limits: dict[str | int, int | None] = {}
    for n, run in enumerate(runs):
        for m in run.memory:
            if m.idle is not None:
                left[m.worker].append(rules.MemoryAfterRun(n, m.idle, m.managed or 0))
                limits[m.worker] = m.limit
    for worker, seen in left.items():
        limit = limits[worker]
        least = MIN_GROWTH * limit if limit else MIN_GROWTH_BYTES
        step = rules.step(seen[-rules.LAST :], least)
        if step is not None:
            full = max(0.0, (limit - seen[-1].unmanaged) / step) if limit else None
            yield Leak(worker=worker, runs=len(seen), step=step, left=full)


# --- fewest sufficient workers --------------------------------------------------------

MAX_FILL = 0.7  # of a worker's limit that a fit may fill, as for prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Memory use of the workers in one run, and how many workers would suffice."""

    peak: float  # of the fullest worker, as a fraction of its limit
    workers: int
    enough: int | None  # workers; None: no number of such workers suffices

    def __str__(self) -> str:
        text = (
            f"peaked at {self.peak:.0%} of memory on {plural(self.workers, 'worker')}"
        )
        if self.enough is None:
            return f"{text}; workers of this size are too small: give them more memory"
        if self.enough == self.workers:
            return f"{text}, as many as needed"
        less = self.enough < self.workers
        verb = "would be enough" if less else f"would stay below {MAX_FILL:.0%}"
        return f"{text}; {plural(self.enough, 'worker')} {verb}"


def usage(run: Record) -> Usage | Unknown:
    """Compute the fewest sufficient workers from the memory of one run.

    Every worker needs the memory that it had before the run; workers share the rest.
    Libraries that are imported in the run count as shared. So the memory of fewer
    workers may be overestimated.
    """
    known = [m for m in run.memory if m.peak and m.limit]
    if not known or run.peak is None:
        return Unknown("no memory was measured in this run, or workers have no limit")
    idle = max(m.idle or 0 for m in known)
    limit = min(m.limit or 0 for m in known)
    shared = max(0, *((m.peak or 0) - (m.idle or 0) for m in known)) * len(known)
    room = MAX_FILL * limit - idle
    enough = max(1, math.ceil(shared / room)) if room > 0 else None
    return Usage(peak=run.peak, workers=len(known), enough=enough)


# --- regressions ----------------------------------------------------------------------

N_LATEST, N_BEFORE = 3, 10  # runs
ROW_TOLERANCE = 0.1  # by which the rows of compared runs may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A value of a run that should not grow."""

    name: str
    of: Callable[[Record], float | None]
    unit: float  # smaller growth is ignored
    text: Callable[[float], str]


MEASURES = (
    Measure(name="time", of=lambda r: r.seconds, unit=1.0, text=seconds_text),
    Measure(name="peak memory", of=lambda r: r.peak, unit=0.05, text="{:.0%}".format),
    Measure(name="spill", of=lambda r: r.spilled, unit=2.0**26, text=bytes_text),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """One measure of the last runs, compared with the runs before them."""

    measure: str
    before: float  # mean
    now: float  # mean
    line: float  # largest value that may be chance
    text: str

    @property
    def worse(self) -> bool:
        return self.now > self.line

    @property
    def severity(self) -> Severity:
        return Severity.warning if self.worse else Severity.unknown

    def __str__(self) -> str:
        return self.text


def comparable(records: Records) -> list[Record]:
    """Return the successful fits with the library and columns of the last one."""
    fits = [r for r in records if r.kind == "fit" and r.status == "done"]

    def like(run: Record) -> tuple[object, ...]:
        return run.job, run.workload, run.columns, run.rows is None

    return [run for run in fits if like(run) == like(fits[-1])]


def regressions(records: Records) -> tuple[Regression, ...] | Unknown:
    """Compare the last 3 fits with the 10 before, on as many workers and rows.

    A measure is worse if its mean exceeds the earlier mean by more than three standard
    deviations and by more than one unit.
    """
    fits = comparable(records)
    alike = [r for r in fits if _are_alike(r, fits[-1])]
    if len(alike) < N_LATEST + N_BEFORE:
        return Unknown(
            f"too few runs: {len(alike)} fits on as many threads and rows as the last, "
            f"{N_LATEST + N_BEFORE} are needed"
        )
    before, now = alike[-N_LATEST - N_BEFORE : -N_LATEST], alike[-N_LATEST:]
    return tuple(filter(None, (_regression(m, before, now) for m in MEASURES)))


def _are_alike(run: Record, last: Record) -> bool:
    rows, due = run.rows or 0, last.rows or 0
    return (
        run.threads == last.threads
        and run.workers == last.workers
        and abs(rows - due) <= ROW_TOLERANCE * due
    )


def _regression(measure: Measure, before: Records, now: Records) -> Regression | None:
    old = [x for r in before if (x := measure.of(r)) is not None]
    new = [x for r in now if (x := measure.of(r)) is not None]
    if len(old) < len(before) or len(new) < len(now):
        return None
    was, is_now = fmean(old), fmean(new)
    line = was + max(3 * stdev(old), measure.unit)
    show = measure.text
    verdict = "worse" if is_now > line else "no worse"
    return Regression(
        measure=measure.name,
        before=was,
        now=is_now,
        line=line,
        text=f"{measure.name} of the last {N_LATEST} fits is {verdict}: {show(is_now)} "
        f"on average, {show(was)} in the {N_BEFORE} before; up to {show(line)} may be "
        "chance",
    )
