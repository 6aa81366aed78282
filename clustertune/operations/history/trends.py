"""What past runs tell of the next ones (pure).

Whether memory leaks, how many workers would do, how long a fit would take on others,
what differs between two runs, and whether the last ones were worse than those before.
What too few runs can tell is :class:`~clustertune.core.model.Unknown`, with the reason.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

import numpy as np

from clustertune.core import growth
from clustertune.core.snapshots import Unknown
from clustertune.core.wording import (
    bytes_text,
    names_text,
    plural,
    printable,
    seconds_text,
    times_text,
    workers_text,
)
from clustertune.operations.history.record import Record

Records = Sequence[Record]

# --- leaks ----------------------------------------------------------------------------

LEAST = 0.01  # of its memory limit that a worker has to lose with a run
SOME = 2**24  # bytes, where no limit is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Memory that a worker does not give back."""

    worker: str | int
    runs: int  # that were seen
    step: float  # bytes a run
    left: float | None  # runs until its limit is full; None: it has none

    def __str__(self) -> str:
        text = (
            f"{workers_text([self.worker])} keeps {bytes_text(self.step)} more after "
            f"each run (of {self.runs})"
        )
        if self.left is not None:
            text += (
                f"; its limit is full after about {plural(round(self.left), 'more')}"
            )
        return f"{text}. Remedy: clustertune.restart(client) between two runs"


def leaks(records: Records) -> tuple[Leak, ...] | Unknown:
    """Workers of the last cluster whose idle memory grows from run to run.

    Taken from what the scheduler has seen after runs, if that was collected; else from
    what workers had when held blocks began.
    """
    longest = 0
    for kind, ways in (("run", growth.ENDS), ("fit", ("",))):
        # only runs that ended alike are compared
        groups = [_of_last_cluster(records, kind, way) for way in ways]
        longest = max(longest, *map(len, groups))
        if longest >= growth.ENOUGH:
            found = (tuple(_leaks(group)) for group in groups)
            return next(filter(None, found), ())
    return Unknown(
        f"too few runs: {longest} of the same cluster, {growth.ENOUGH} are needed"
    )


def _of_last_cluster(records: Records, kind: str, way: str) -> list[Record]:
    seen = [r for r in records if r.kind == kind and r.memory]
    seen = [r for r in seen if r.ended_by in (way, "")]
    return sorted(
        (r for r in seen if r.cluster == seen[-1].cluster), key=lambda r: r.began
    )


def _leaks(runs: Records) -> Iterator[Leak]:
    left: dict[str | int, list[growth.Left]] = defaultdict(list)
    limits: dict[str | int, int | None] = {}
    for n, run in enumerate(runs):
        for m in run.memory:
            if m.idle is not None:
                left[m.worker].append(growth.Left(n, m.idle, m.managed or 0))
                limits[m.worker] = m.limit
    for worker, seen in left.items():
        limit = limits[worker]
        step = growth.step(seen[-growth.LAST :], LEAST * limit if limit else SOME)
        if step is not None:
            full = max(0.0, (limit - seen[-1].unmanaged) / step) if limit else None
            yield Leak(worker=worker, runs=len(seen), step=step, left=full)


# --- how many workers would do --------------------------------------------------------

FRACTION = 0.7  # of a worker's limit that a fit may fill, as for prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How full the workers were, and how many would do."""

    peak: float  # fraction of its limit that the fullest worker had
    workers: int
    enough: int | None  # workers; None: none of this size are

    def __str__(self) -> str:
        text = (
            f"peaked at {self.peak:.0%} of memory on {plural(self.workers, 'worker')}"
        )
        if self.enough is None:
            return f"{text}; workers of this size are too small: give them more memory"
        if self.enough == self.workers:
            return f"{text}, which are as many as it needs"
        less = self.enough < self.workers
        verb = "would do" if less else f"would stay below {FRACTION:.0%}"
        return f"{text}; {plural(self.enough, 'worker')} {verb}"


def sizing(run: Record) -> Sizing | Unknown:
    """From the memory of one run, the fewest workers that would have been enough.

    What a process had before the fit is there on every worker; the rest is shared out.
    Since libraries that load meanwhile count as shared, fewer workers are predicted to
    need rather more than they will.
    """
    known = [m for m in run.memory if m.peak and m.limit]
    if not known or run.peak is None:
        return Unknown("no memory was seen in this run, or workers have no limit")
    idle = max(m.idle or 0 for m in known)
    limit = min(m.limit or 0 for m in known)
    shared = max(0, *((m.peak or 0) - (m.idle or 0) for m in known)) * len(known)
    room = FRACTION * limit - idle
    enough = max(1, math.ceil(shared / room)) if room > 0 else None
    return Sizing(peak=run.peak, workers=len(known), enough=enough)


# --- what if --------------------------------------------------------------------------

SHORTEST = 1e-3  # seconds that anything worth the name of a fit takes
LEAST_CPUS = 0.01  # that a cgroup's quota can be
KINDS = 3  # of clusters that must have been seen: as many as the model has parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Runs on clusters of one kind, and what is predicted for it from all others."""

    workers: int
    seconds: float  # median
    runs: int
    predicted: float | None = None  # without these runs

    @property
    def error(self) -> float | None:
        """Of the prediction, as a fraction of what was measured."""
        return None if self.predicted is None else self.predicted / self.seconds - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How long a fit is predicted to take."""

    workers: int
    seconds: float
    outside: bool  # of the numbers of workers that were seen


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A fit's time by number of workers, as a model of a job's own runs has it.

    Attributes
    ----------
    known
        What was measured, and how far off the model is there if it does not know it.
    work, communication, fixed
        Seconds on one CPU, for each worker beyond the first, and in any case.
    single_host
        CPUs of the one host on which all workers were; None: there were several, or
        only one worker.
    """

    job: str
    rows: int | None
    known: tuple[Known, ...]
    work: float
    communication: float
    fixed: float
    predictions: tuple[Prediction, ...]
    single_host: float | None = None

    @property
    def error(self) -> float:
        """Mean of the errors at known points, whatever their signs; a fraction."""
        return fmean(abs(k.error) for k in self.known if k.error is not None)

    @property
    def worst(self) -> float:
        """The largest of them."""
        return max(abs(k.error) for k in self.known if k.error is not None)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"error at known points, each left out in turn: {self.error:.0%} on "
            f"average, {self.worst:.0%} at most"
        )
        for k in self.known:
            assert k.predicted is not None
            yield (
                f"  {plural(k.workers, 'worker')}: {seconds_text(k.seconds)} measured "
                f"({plural(k.runs, 'run')}), {seconds_text(k.predicted)} predicted"
            )
        of = "" if self.rows is None else f" of {plural(self.rows, 'row')}"
        yield f"a fit{of} of job {printable(self.job)} is predicted to take"
        for p in self.predictions:
            hint = " (beyond what was seen)" if p.outside else ""
            yield f"  {plural(p.workers, 'worker')}: {seconds_text(p.seconds)}{hint}"
        yield (
            f"of it {seconds_text(self.work)} are work that CPUs share, "
            f"{seconds_text(self.communication)} come with each worker beyond the "
            f"first, {seconds_text(self.fixed)} always"
        )
        if self.single_host is not None:
            yield (
                f"all workers shared one host of {plural(self.single_host, 'CPU')}, as "
                "these would: on several hosts it may take less"
            )


@dataclass(frozen=True, slots=True)
class _Kind:
    """Clusters that are alike to the model."""

    workers: int
    cpus: float  # that a fit keeps busy
    size: float  # rows, as a part of those of the last run

    @property
    def row(self) -> tuple[float, float, float]:
        return self.size / self.cpus, self.workers - 1.0, 1.0


Times = dict[_Kind, list[float]]


def what_if(records: Records, workers: Sequence[int]) -> WhatIf | Unknown:
    """Predict how long the job's fit takes on so many workers.

    Parameters
    ----------
    records
        Of one job, oldest first.
    workers
        Numbers of workers like those of the last run.

    Returns
    -------
    WhatIf or Unknown
        Unknown where fewer than three kinds of clusters were seen.
    """
    runs = comparable(records)
    if not runs:
        return Unknown("too few runs: no fit of this job was held yet")
    last = runs[-1]
    times: Times = defaultdict(list)
    for run in runs:
        times[_kind(run, last)].append(run.seconds)
    if len({(k.workers, k.cpus) for k in times}) < KINDS:
        counts = sorted({k.workers for k in times})
        return Unknown(
            f"too few runs: fits were held on {names_text(counts)} "
            f"{'worker' if counts == [1] else 'workers'}; {KINDS} different numbers of "
            "workers, or of their threads, are needed"
        )
    work, communication, fixed = parts = _fitted(times)
    shared = _shared_cpus(runs)
    seen = {k.workers for k in times}
    return WhatIf(
        job=last.job,
        rows=last.rows,
        known=tuple(_without_each(times)),
        work=work,
        communication=communication,
        fixed=fixed,
        single_host=shared,
        predictions=tuple(
            Prediction(
                workers=n,
                seconds=_predicted(parts, _asked(n, last, shared)),
                outside=not min(seen) <= n <= max(seen),
            )
            for n in workers
        ),
    )


def comparable(records: Records) -> list[Record]:
    """Fits that went well, with the library and columns of the last of them."""
    fits = [
        r
        for r in records
        if r.kind == "fit" and r.status == "done" and r.seconds > SHORTEST
        if min(r.workers or 0, r.threads or 0) > 0 and (r.host_cpus or 1) > LEAST_CPUS
    ]
    if not fits:
        return []
    last = fits[-1]

    def like(run: Record) -> tuple[object, ...]:
        return run.job, run.workload, run.columns, run.rows is None

    return [run for run in fits if like(run) == like(last)]


def _kind(run: Record, last: Record) -> _Kind:
    assert run.workers
    assert run.threads
    cpus = min(run.threads, run.host_cpus or math.inf)
    size = run.rows / last.rows if run.rows and last.rows else 1.0
    return _Kind(run.workers, cpus, size)


def _shared_cpus(runs: Records) -> float | None:
    """CPUs of the only host, if it is known to have several workers."""
    one = all(run.hosts == 1 and run.host_cpus for run in runs)
    several = any((run.workers or 0) > 1 for run in runs)
    return max(run.host_cpus or 0 for run in runs) if one and several else None


def _asked(workers: int, last: Record, shared: float | None) -> _Kind:
    """More workers bring as many CPUs each as those of the last run had."""
    assert last.workers
    assert last.threads
    if shared is not None:
        return _Kind(workers, min(workers * last.threads / last.workers, shared), 1.0)
    each = min(last.threads, last.host_cpus or math.inf) / last.workers
    return _Kind(workers, workers * each, 1.0)


def _without_each(times: Times) -> Iterator[Known]:
    """What the model says of every kind of cluster if it has not seen that one."""
    for kind in sorted(times, key=lambda k: (k.workers, k.cpus, k.size)):
        others = {k: v for k, v in times.items() if k != kind}
        yield Known(
            workers=kind.workers,
            seconds=median(times[kind]),
            runs=len(times[kind]),
            predicted=_predicted(_fitted(others), kind),
        )


def _predicted(parts: tuple[float, float, float], kind: _Kind) -> float:
    return sum(p * x for p, x in zip(parts, kind.row, strict=True))


def _fitted(times: Times) -> tuple[float, float, float]:
    """Seconds of work, communication and fixed cost, none of them below zero.

    Least squares of relative errors over the medians of each kind. There are three
    unknowns, so the non-negative solution is the best among those of all subsets; of
    equally good ones the one with fewest parts. Communication alone is none: one worker
    would take no time.
    """
    measured = np.array([median(v) for v in times.values()])
    rows = np.array([kind.row for kind in times]) / measured[:, None]
    best, least = np.zeros(3), float(len(measured))
    for some in ([0], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
        found = np.zeros(3)
        found[some] = np.linalg.lstsq(
            rows[:, some], np.ones(len(measured)), rcond=None
        )[0]
        error = float(np.sum((rows @ found - 1) ** 2))
        if (found >= 0).all() and error < least - 1e-9:
            best, least = found, error
    work, communication, fixed = (float(x) for x in best)
    return work, communication, fixed


# --- regressions ----------------------------------------------------------------------

LATEST, BEFORE = 3, 10  # runs
ALIKE = 0.1  # by which rows of runs that are compared may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Something of a run that should not grow."""

    name: str
    of: Callable[[Record], float | None]
    unit: float  # growth below this is nothing
    text: Callable[[float], str]


MEASURES = (
    Measure(name="time", of=lambda r: r.seconds, unit=1.0, text=seconds_text),
    Measure(name="peak memory", of=lambda r: r.peak, unit=0.05, text="{:.0%}".format),
    Measure(name="spill", of=lambda r: r.spilled, unit=2.0**26, text=bytes_text),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """The last runs beside those before them, in one measure."""

    measure: str
    before: float  # mean
    now: float  # mean
    line: float  # up to which it may be chance
    text: str

    @property
    def worse(self) -> bool:
        return self.now > self.line

    def __str__(self) -> str:
        return self.text


def regressions(records: Records) -> tuple[Regression, ...] | Unknown:
    """Compare the last 3 fits with the 10 before, of as many threads and rows.

    Worse is what exceeds their mean by more than three standard deviations, and by more
    than a unit.
    """
    fits = comparable(records)
    last = fits[-1] if fits else None
    alike = [r for r in fits if last is not None and _are_alike(r, last)]
    if len(alike) < LATEST + BEFORE:
        return Unknown(
            f"too few runs: {len(alike)} fits on as many threads and rows as the last, "
            f"{LATEST + BEFORE} are needed"
        )
    before, now = alike[-LATEST - BEFORE : -LATEST], alike[-LATEST:]
    return tuple(filter(None, (_regression(m, before, now) for m in MEASURES)))


def _are_alike(run: Record, last: Record) -> bool:
    rows, due = run.rows or 0, last.rows or 0
    return (
        run.threads == last.threads
        and run.workers == last.workers
        and abs(rows - due) <= ALIKE * due
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
        text=f"{measure.name} of the last {LATEST} fits is {verdict}: {show(is_now)} "
        f"on average, {show(was)} in the {BEFORE} before; up to {show(line)} may be "
        "chance",
    )


# --- two runs -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something of two runs, as text."""

    what: str
    first: str
    second: str
    ratio: str = ""  # of the second to the first


def compare(first: Record, second: Record) -> tuple[Difference, ...]:
    """What there is to say of two runs, side by side."""

    def count(n: float) -> str:
        return f"{n:,.0f}"

    numbers: tuple[
        tuple[str, Callable[[Record], float | None], Callable[[float], str]], ...
    ] = (
        ("took", lambda r: r.seconds, seconds_text),
        ("workers", lambda r: r.workers, count),
        ("threads", lambda r: r.threads, count),
        ("rows", lambda r: r.rows, count),
        ("columns", lambda r: r.columns, count),
        ("pieces", lambda r: r.pieces, count),
        ("bytes", lambda r: r.nbytes, bytes_text),
        ("peak of memory", lambda r: r.peak, "{:.0%}".format),
        ("peak predicted", lambda r: r.predicted_peak, bytes_text),
        ("spilled", lambda r: r.spilled, bytes_text),
        ("CPUs busy", lambda r: r.busy, "{:.2g}".format),
        ("steps predicted", lambda r: r.predicted_seconds, seconds_text),
        ("steps took", lambda r: r.actual_seconds, seconds_text),
        ("bytes predicted", lambda r: r.predicted_bytes, bytes_text),
        ("bytes moved", lambda r: r.actual_bytes, bytes_text),
    )
    texts: tuple[tuple[str, Callable[[Record], str]], ...] = (
        ("kind", lambda r: r.kind),
        ("job", lambda r: r.job),
        ("status", lambda r: r.status),
        ("workload", lambda r: r.workload),
        ("found", lambda r: ", ".join(f"{c} ({s})" for s, c in r.findings)),
        ("steps", lambda r: "; ".join(r.steps)),
        ("error", lambda r: r.error),
    )
    found = [
        Difference(what=what, first=printable(of(first)), second=printable(of(second)))
        for what, of in texts
        if of(first) or of(second)
    ]
    for what, number, show in numbers:
        a, b = number(first), number(second)
        if a is None and b is None:
            continue
        shown = ["unknown" if x is None else show(x) for x in (a, b)]
        ratio = times_text(b / a) if a and b is not None else ""
        found.append(
            Difference(what=what, first=shown[0], second=shown[1], ratio=ratio)
        )
    return tuple(found)
