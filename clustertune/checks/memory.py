"""Checks of the memory of workers, also in the fit, and of disks for spilling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from clustertune.core.model import (
    Finding,
    Run,
    Severity,
    Thresholds,
    Unknown,
    View,
    WorkerFacts,
    WorkerSnapshot,
    info,
    unknown,
    warning,
)
from clustertune.core.rules import ENDS, ENOUGH, alike
from clustertune.core.wording import (
    are,
    bytes_text,
    names_text,
    plural,
    verb,
    workers_text,
)
from clustertune.planner import forecast, remedies
from clustertune.planner.forecast import Need
from clustertune.planner.machines import (
    by_host,
    details_of,
    host_memory,
    unknown_findings,
    without_parking,
)
from clustertune.planner.memory import Leak, Level, leak, levels, limit

#: bytes of a process without data: Python, Dask, NumPy, pandas, pyarrow and a library
USUAL = 300 * 2**20
FULL = 2**30, 0.1  # bytes, and fraction of a worker's limit: less is a full disk
ROUNDED = 0.02  # of a host's memory: limits in round numbers may exceed it by this
SOON = 10  # runs until a threshold, up to which a leak is a warning
CRITICAL_THRESHOLDS = frozenset(("terminate", "pause"))
#: in the order in which they act as memory rises
THRESHOLDS = ("target", "spill", "pause", "terminate")
#: what a worker does at a threshold
ACTS = {"spill": "spill", "pause": "pause", "terminate": "be killed by its nanny"}


# --- thresholds -----------------------------------------------------------------------


def memory_pressure(view: View, *, close_fraction: float = 0.1) -> Iterator[Finding]:
    """Find workers whose memory is at a threshold at which Dask acts, or close to one.

    By default a worker writes keys to disk at ``target`` (0.60 of its limit, of managed
    memory) and at ``spill`` (0.70, of process memory). It starts no more tasks at
    ``pause`` (0.80), and its nanny kills it at ``terminate`` (0.95). During a fit the
    training task holds the data, so spilling frees no memory.

    Remedy: Delete collections that you do not need (``del``), or run
    ``clustertune.release_data(client, keep=[X, y])``. For unmanaged memory run
    ``clustertune.trim_memory(client)``. Otherwise add workers or raise their limit.

    Parameters
    ----------
    close_fraction
        Fraction of the memory limit below a threshold that counts as close.
    """
    reached: dict[str, list[Level]] = {}
    close: dict[str, list[Level]] = {}
    spilled: list[WorkerSnapshot] = []
    for worker in without_parking(view.now):
        at = [level for level in levels(worker) if level.headroom <= 0]
        below = [level for level in levels(worker) if level.headroom <= close_fraction]
        if at:
            reached.setdefault(at[0].name, []).append(at[0])
        elif worker.spilled:
            spilled.append(worker)
        elif below:
            nearest = min(below, key=lambda level: level.headroom)
            close.setdefault(nearest.name, []).append(nearest)
    for name, found in reached.items():
        critical = name in CRITICAL_THRESHOLDS
        severity = Severity.critical if critical else Severity.warning
        yield _at_threshold(severity, "at or over", found, view)
    if spilled:
        yield _on_disk(spilled, view)
    for found in close.values():
        yield _at_threshold(Severity.info, "close to", found, view)
    yield from _unknown_thresholds(view)


def _at_threshold(
    severity: Severity, place: str, found: Sequence[Level], view: View
) -> Finding:
    worst = min(found, key=lambda level: level.headroom)
    ids = tuple(level.worker.id for level in found)
    which = "" if len(ids) == 1 else f"; {workers_text([worst.worker.id])} is fullest"
    fix = remedies.free_memory(view, [level.worker for level in found])
    return Finding(
        severity=severity,
        message=f"{workers_text(ids)} {are(ids)} {place} the {worst.name} "
        f"threshold{which}: {worst}",
        subject=ids,
        evidence={
            "threshold": worst.name,
            f"{worst.measure}_bytes": worst.used,
            "limit_bytes": worst.worker.memory_limit,
        },
        **fix._asdict(),
        fixed_by="restart" if view.goal.may_restart(ids) else "",
    )


def _on_disk(workers: Sequence[WorkerSnapshot], view: View) -> Finding:
    ids, spilled = tuple(w.id for w in workers), sum(w.spilled for w in workers)
    fix = remedies.free_memory(view, workers)
    return warning(
        message=f"{workers_text(ids)} {verb(ids, 'has')} {bytes_text(spilled)} of "
        "keys on disk; tasks that use these keys read them back into memory first",
        subject=ids,
        evidence={"spilled_bytes": spilled},
        **fix._asdict(),
    )


def _unknown_thresholds(view: View) -> Iterator[Finding]:
    limited = [(w, w.facts) for w in view.now.workers if w.memory_limit]
    known = [(w, f) for w, f in limited if isinstance(f, WorkerFacts)]
    terminate = [(w, f.thresholds.terminate) for w, f in known]
    yield from unknown_findings("memory thresholds", limited)
    yield from unknown_findings("terminate threshold", terminate)


def memory_settings(view: View) -> Iterator[Finding]:
    """Find memory limits and thresholds that cannot protect a worker or its host.

    With ``spill`` above ``pause`` a worker pauses before it has written a key, and
    stays paused. Without a limit, or with all thresholds off, nothing acts before the
    host runs out of memory. Each worker sees only its own limit. If the limits of a
    host's workers exceed its memory, the kernel may kill a process before any worker
    has reached a threshold. Dask reads the limit of the innermost cgroup only.

    Remedy: Leave ``distributed.worker.memory`` at Dask's 0.60, 0.70, 0.80 and 0.95. Set
    it where the workers are started: the client's configuration does not reach running
    workers. For limits run ``clustertune.resize_workers(client, memory_limit="8 GiB")``
    with at most the host's memory divided by its number of workers. Or start the
    workers of a host with one command and ``--memory-limit auto``.
    """
    wrong: dict[str, list[str | int]] = {}
    there = without_parking(view.now)
    for worker in there:
        thresholds = worker.thresholds
        if worker.memory_limit and not isinstance(thresholds, Unknown):
            for text in _disorder(thresholds):
                wrong.setdefault(text, []).append(worker.id)
    for text, ids in wrong.items():
        yield warning(
            message=f"memory thresholds of {workers_text(ids)}: {text}",
            subject=tuple(ids),
            evidence={"workers": len(ids)},
            remedy="Remove the settings of `distributed.worker.memory` where the "
            "workers are started. Dask's defaults are 0.60, 0.70, 0.80 and 0.95.",
        )
    if free := [w for w in there if not w.memory_limit]:
        yield _no_limit(view, free)
    for host, workers in by_host(there).items():
        memory = host_memory(workers)
        limits = sum(w.memory_limit for w in workers)
        if isinstance(memory, Unknown) or limits <= (1 + ROUNDED) * memory:
            continue
        share = memory / len(workers)
        larger = [w for w in workers if w.memory_limit > share]
        fix = remedies.resize(view, larger, memory_limit=share)
        yield warning(
            message=f"limits of {plural(len(workers), 'worker')} on host "
            f"{names_text([host])} add up to {bytes_text(limits)}, but they can use "
            f"only {bytes_text(memory)} together, so the kernel may kill one of them",
            subject=tuple(w.id for w in workers),
            evidence={"limits_bytes": limits, "memory_bytes": memory},
            **fix._asdict(),
        )


def _no_limit(view: View, workers: Sequence[WorkerSnapshot]) -> Finding:
    share = remedies.host_share(workers, without_parking(view.now))
    fix = remedies.Fix("Start these workers with `--memory-limit auto`.")
    if not isinstance(share, Unknown) and share > 0:
        fix = remedies.resize(view, workers, memory_limit=share)
    return info(
        message=f"{plural(len(workers), 'worker has', 'workers have')} no memory "
        "limit, so they neither spill nor pause before the host runs out of memory",
        subject=tuple(w.id for w in workers),
        **fix._asdict(),
    )


def _disorder(thresholds: Thresholds) -> Iterator[str]:
    """Neighbours in the wrong order, among the thresholds that are on and known."""
    values = {name: getattr(thresholds, name) for name in THRESHOLDS}
    if not any(values.values()):
        yield "all are off, so the worker grows until the host runs out of memory"
    on = [(name, x) for name, x in values.items() if isinstance(x, float | int)]
    for (low, a), (high, b) in pairwise(on):
        if a > b:
            yield f"{low} ({a:.0%}) is above {high} ({b:.0%}), which acts first"


# --- unmanaged memory -----------------------------------------------------------------


def unmanaged_memory(view: View, *, max_fraction: float = 0.3) -> Iterator[Finding]:
    """Find idle workers whose process holds much memory that Dask does not manage.

    Tasks and native libraries leave caches, fragmented heaps and leaks. Dask cannot
    move or spill this memory, and a fit cannot use it. About 0.3 GiB are normal. The
    check skips workers with tasks, which may need their memory.

    Remedy: Run ``clustertune.trim_memory(client)``. If the memory stays, run
    ``clustertune.restart_workers(client)``, which loses no data.

    Parameters
    ----------
    max_fraction
        Fraction of its limit that a worker may hold beyond the normal amount.
    """
    found = [w for w in without_parking(view.now) if _beyond_usual(w) > max_fraction]
    if not found:
        return
    worst = max(found, key=_beyond_usual)
    used, limit = worst.unmanaged, worst.memory_limit
    ids = tuple(w.id for w in found)
    most = f"{workers_text([worst.id])} has " if len(ids) > 1 else ""
    fix = remedies.trim(view, found)
    yield warning(
        message=f"{workers_text(ids)} {are(ids)} idle, but {verb(ids, 'holds')} much "
        f"memory that Dask does not manage: {most}{bytes_text(used)} of the limit of "
        f"{bytes_text(limit)}, which a fit cannot use",
        subject=ids,
        evidence={"unmanaged_bytes": used, "limit_bytes": limit},
        **fix._asdict(),
        fixed_by="restart" if view.goal.may_restart(ids) else "",
    )


def _beyond_usual(worker: WorkerSnapshot) -> float:
    """Unmanaged memory beyond the usual, over the limit; 0 if it may be in use."""
    busy = worker.processing or worker.executing
    # the client's process may need its memory
    if busy or not worker.memory_limit or worker.address.startswith("inproc://"):
        return 0.0
    return max(0, worker.unmanaged - USUAL) / worker.memory_limit


# --- growth ---------------------------------------------------------------------------


def memory_growth(view: View) -> Iterator[Finding]:
    """Find workers whose memory grows from run to run.

    A run ends with a ``clustertune.hold``, with the training tasks of XGBoost or
    LightGBM, or after 5 s without tasks. The scheduler plugin notes the least unmanaged
    memory of each worker after each run. If that grows with nearly every run, something
    leaks or fragments the heap. The check needs three runs that ended alike, and
    ignores memory that arrives with data, and less than 1 % of the memory limit by run.
    Before three runs, the finding is ``unknown``.
    It predicts the run in which the worker reaches each threshold, and warns if the
    first of them is at most 10 runs away.

    Remedy: Run ``clustertune.restart_workers(client)`` between two runs, before a
    worker reaches its first threshold. The data on the workers is kept.
    """
    if view.runs is None:
        return
    groups = [[view.runs[i] for i in g] for g in alike([r.ended_by for r in view.runs])]
    if not groups:
        yield _too_few_runs(view.runs)
        return
    growing = [g for w in view.now.workers if (g := leak(w, groups))]
    if not growing:
        return
    worst = min(growing, key=lambda g: (g.first, -g.step))
    workers = [g.worker for g in growing]
    ids = tuple(w.id for w in workers)
    fix = remedies.restart(view, workers, when=_when(worst.first))
    reached = {f"runs_until_{name}": n for name, n in worst.reached.items()}
    yield Finding(
        severity=Severity.warning if worst.first <= SOON else Severity.info,
        message=f"unmanaged memory of {workers_text(ids)} grows from run to run: "
        f"{workers_text([worst.worker.id])} keeps {bytes_text(worst.step)} more after "
        f"each of the last {worst.seen} runs. {_forecast(worst)}",
        subject=ids,
        evidence={"bytes_per_run": round(worst.step), "runs": worst.seen} | reached,
        **fix._asdict(),
        fixed_by="restart" if view.goal.may_restart(ids) else "",
    )


def _too_few_runs(runs: Sequence[Run]) -> Finding:
    most = max(sum(run.ended_by == way for run in runs) for way in ENDS)
    seen = "no run was seen yet" if not most else f"{plural(most, 'run')} seen so far"
    fix = remedies.sentence(
        "Run ",
        remedies.Fix("clustertune.check(client)", "clustertune check"),
        f" again after {plural(ENOUGH - most, 'more fit')} on these workers.",
    )
    return unknown(
        message=f"whether memory grows from run to run is unknown: {seen}, "
        f"{ENOUGH} are needed",
        **fix._asdict(),
    )


def _forecast(growth: Leak) -> str:
    worker = growth.worker
    limits = {level.name: level.fraction for level in levels(worker)}
    texts = [
        f"{ACTS[name]} (at {bytes_text(limits[name] * worker.memory_limit)}) "
        + ("in the next run" if n <= 1 else f"in run {n} from now")
        for name, n in growth.reached.items()
    ]
    return f"It will {names_text(texts)}"


def _when(first: int) -> str:
    if first <= 1:
        return " before the next run"
    return f" between two runs, after at most {plural(first - 1, 'more run')}"


# --- disks ----------------------------------------------------------------------------


def spill_space(view: View) -> Iterator[Finding]:
    """Find workers that cannot spill, since the disk of their local directory is full.

    Tasks then fail with ``OSError: No space left on device``. The check reports less
    free space than 1 GiB and 10 % of the worker's memory limit.

    Remedy: Free space on that disk, or start the workers with ``--local-directory`` on
    another one (``temporary-directory`` in Dask's configuration).
    """
    full = [
        (w, d)
        for w, d in details_of(view)
        if _may_spill(w) and d.disk_free < min(FULL[0], FULL[1] * w.memory_limit)
    ]
    if full:
        least = min(d.disk_free for _, d in full)
        ids = tuple(w.id for w, _ in full)
        yield warning(
            message=f"only {bytes_text(least)} are free on the disk to which "
            f"{workers_text(ids)} {verb(ids, 'spills')}",
            subject=ids,
            evidence={"free_bytes": least},
            remedy="Free space on the disk of their local directory, or start the "
            "workers with `--local-directory` on another disk.",
        )


def _may_spill(worker: WorkerSnapshot) -> bool:
    thresholds = worker.thresholds
    on = [getattr(thresholds, name, None) for name in ("target", "spill")]
    return bool(worker.memory_limit) and any(on)


# --- the coming fit -------------------------------------------------------------------


def fit_memory(view: View) -> Iterator[Finding]:
    """Find workers without the memory that the fit needs besides the data.

    A fit makes copies of the data that Dask neither counts nor can spill. A worker
    without this memory spills, pauses (XGBoost then hangs) or is killed, which shows as
    ``Invalid worker address`` or ``Socket recv error``. The check multiplies each
    worker's share of the data as the workload's profile says, adds the other memory of
    its process, and compares this with 0.7 (``clustertune.prepare.memory_fraction``) of
    its limit. For XGBoost's ``hist`` and LightGBM it adds up histograms, bins and
    sketches by the model's depth, leaves and bins. It stops ``prepare`` only with
    ``on_low_memory="raise"``.

    Remedy: Do one of the things that the finding names: use more workers
    (``n_workers=8``), or a higher memory limit. The fit needs less memory after ``X =
    X.astype("float32")``, and after ``clustertune.release_data`` for other keys.
    """
    workers = view.eligible_workers
    if not view.layouts or not workers:
        return
    needs = forecast.needs(view)
    if isinstance(needs, Unknown):
        yield unknown(
            message=f"whether the fit has enough memory is {needs}",
            remedy=f"Run `{remedies.load(view)}`, which loads the data and checks "
            "again.",
            fixed_by="load" if view.loads_data else "",
        )
        return
    if short := forecast.short(needs):
        yield _lacks_memory(view, short)
    elif uncertain := [need for need in needs if need.may_lack]:
        yield _uncertain(uncertain)
    yield from unknown_findings("usable memory", [(w, limit(w, view)) for w in workers])


def _uncertain(needs: Sequence[Need]) -> Finding:
    worst = max(needs, key=lambda need: need.most)
    return unknown(
        message="whether the fit has enough memory is unknown: the fit takes between "
        f"{bytes_text(worst.total)} and {bytes_text(worst.most)} on "
        f"{workers_text([worst.worker.id])}, as trees may have fewer nodes than the "
        "model allows, and free memory may stay in the process",
        remedy="Use a smaller max_depth, num_leaves or max_bin, or larger workers.",
        subject=tuple(need.worker.id for need in needs),
    )


def _lacks_memory(view: View, short: Sequence[Need]) -> Finding:
    worst = max(short, key=lambda need: need.lacking)
    ids = tuple(need.worker.id for need in short)
    enough = forecast.workers_needed(view)
    only = "" if enough else "; more workers are not enough, as other memory fills them"
    less = " or ".join(f"`{line}`" for line in forecast.savings(view))
    return Finding(
        severity=Severity.critical
        if view.goal.raise_on_low_memory
        else Severity.warning,
        message=f"the fit needs about {bytes_text(worst.total)} on "
        f"{workers_text([worst.worker.id])}, {bytes_text(worst.lacking)} more than "
        f"{view.goal.memory_fraction:.0%} of its memory; {len(short):,} of "
        f"{plural(len(view.eligible_workers), 'worker')} {verb(ids, 'has')} too little "
        f"memory and may spill, pause or be killed{only}",
        subject=ids,
        evidence={
            "needed_bytes": round(worst.total),
            "missing_bytes": round(worst.lacking),
            "needed_workers": enough if isinstance(enough, int) else None,
            "needed_limit_bytes": forecast.needed_limit(view),
        },
        remedy=f"Do one of these: {'; '.join(forecast.ways(view))}"
        + (f". {less} also makes the need smaller" if less else ""),
    )
