"""Checks of workers: their state, their settings and their software."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from clustertune.core.model import (
    Finding,
    Severity,
    Snapshot,
    Unknown,
    View,
    WorkerSnapshot,
    critical,
    info,
    unknown,
    warning,
)
from clustertune.core.wording import (
    are,
    bytes_text,
    code,
    names_text,
    plural,
    printable,
    seconds_text,
    verb,
    workers_text,
)
from clustertune.planner import machines, remedies
from clustertune.planner.forecast import wanted_workers
from clustertune.planner.machines import details_of
from clustertune.planner.memory import restart_reason

ANSWERS = 5.0  # seconds without a heartbeat, for a worker that did not answer
DEFAULT_TTL = 300.0  # seconds: Dask's default of distributed.scheduler.worker-ttl


# --- number and state -----------------------------------------------------------------


def missing_workers(view: View) -> Iterator[Finding]:
    """Find that fewer workers run than you asked for, or none at all.

    ``n_workers`` is the number of workers that a fit should have. Workers that are
    starting, paused or gone get no data, so they would not train.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y, n_workers=8)``, which scales
    the cluster and waits. If this client cannot scale it, start workers with the tool
    that started the cluster, for example ``dask worker tcp://scheduler:8786``.
    """
    wanted = wanted_workers(view)
    have = sum(w.running for w in view.now.workers)
    if have >= (wanted or 1):
        return
    obstacle = view.now.can_scale
    reason = f"; this client cannot scale it: {printable(obstacle)}" if obstacle else ""
    states = Counter(printable(w.status) for w in view.now.workers)
    shown = ", ".join(f"{n:,} {status}" for status, n in sorted(states.items()))
    what = f"no worker is running (workers: {shown or 'none'})"
    if wanted:
        what = f"{have:,} of {plural(wanted, 'requested worker')} running"
    yield Finding(
        severity=Severity.warning if have else Severity.critical,
        message=f"{what}{reason}",
        evidence={"running": have, "requested": wanted, "can_scale": not obstacle},
        remedy=_start(view, (wanted or 1) - have),
        fixed_by="scale" if wanted and not obstacle else "",
    )


def _start(view: View, missing: int) -> str:
    """Code that starts workers."""
    if not view.now.can_scale:
        n_workers = sum(w.is_counted for w in view.now.workers) + missing
        return remedies.run(remedies.scale(view, n_workers))
    line = machines.start_command(view.now, missing)
    return (
        f"Start {plural(missing, 'worker')} with the tool that started the cluster, "
        f"for example `{line}`{machines.times_to_run(line, missing)}."
    )


def paused_workers(view: View) -> Iterator[Finding]:
    """Find workers that take no new tasks: paused, or about to close.

    Dask pauses a worker whose process fills too much of its memory limit (0.80 by
    default). It starts no task and gets no data until its memory falls, and unmanaged
    memory does not fall without help (distributed#5999). A fit leaves out such workers
    without a warning, or hangs if a worker pauses meanwhile. A worker that is
    ``closing_gracefully`` moves its data to others and closes.

    Remedy: Delete collections that you do not need (``del``), then run
    ``clustertune.trim_memory(client)``. If the memory stays, run
    ``clustertune.restart_workers(client, workers=[...])``, which loses no data.
    """
    paused = _with_status(view.now, "paused")
    chosen = tuple(filter(view.goal.includes, paused))
    others = tuple(id for id in paused if id not in chosen)
    if chosen:
        yield _paused(view, chosen, Severity.critical, "a fit on them can hang")
    if others:
        yield _paused(view, others, Severity.info, "the fit will not run there")
    if closing := _with_status(view.now, "closing_gracefully"):
        yield warning(
            message=f"{workers_text(closing)} {are(closing)} about to close and will "
            "not train",
            subject=closing,
            remedy=_start(view, len(closing)),
        )


def _with_status(snapshot: Snapshot, status: str) -> tuple[str | int, ...]:
    return tuple(w.id for w in snapshot.workers if w.status == status and not w.parking)


def _paused(
    view: View, ids: tuple[str | int, ...], severity: Severity, effect: str
) -> Finding:
    workers = [w for w in view.now.workers if w.id in ids]
    worst = max(workers, key=lambda w: w.process / max(1, w.memory_limit))
    fix, goal = remedies.free_memory(view, workers), view.goal
    restarts = any(
        goal.may_restart([w.id]) and (goal.restart is True or restart_reason(w))
        for w in workers
    )
    return Finding(
        severity=severity,
        message=f"{workers_text(ids)} {are(ids)} paused: no task starts there "
        f"and no data is placed there; {effect}{_memory_text(worst, len(ids))}",
        subject=ids,
        evidence={"process_bytes": worst.process},
        **fix._asdict(),
        fixed_by="restart" if restarts else "",
    )


def _memory_text(worker: WorkerSnapshot, n_paused: int) -> str:
    """Describe the memory of the fullest of them."""
    if not worker.memory_limit:
        return ""
    which = "it" if n_paused == 1 else f"{workers_text([worker.id])}, the fullest,"
    share = worker.process / worker.memory_limit
    return (
        f"; {which} has {bytes_text(worker.process)} in memory, {share:.0%} of its "
        f"limit of {bytes_text(worker.memory_limit)}: {bytes_text(worker.managed)} of "
        f"keys and {bytes_text(worker.unmanaged)} unmanaged"
    )


def unresponsive_workers(view: View, *, max_seconds: float = 30.0) -> Iterator[Finding]:
    """Find workers whose heartbeat has not reached the scheduler for a while.

    After ``distributed.scheduler.worker-ttl`` (5 minutes) without a heartbeat the
    scheduler removes the worker with its data, and the fit fails or hangs
    (distributed#6324). Causes are native code that holds Python's global lock, a host
    that swaps, and a broken network.

    Remedy: Look at the worker's log and at the memory of its host. If native code holds
    the lock for minutes, raise ``distributed.scheduler.worker-ttl`` where the scheduler
    is started.

    Parameters
    ----------
    max_seconds
        Seconds without a heartbeat, above which the check reports a worker. 5 s are
        enough if it did not answer a request either, and more on a large cluster.
    """
    # Dask's heartbeat interval grows with the number of workers
    answers = max(ANSWERS, min(max_seconds, ANSWERS + len(view.now.workers) / 50))
    silent = [
        w
        for w in view.now.workers
        if w.heartbeat_age
        > (answers if isinstance(w.details, Unknown) else max_seconds)
    ]
    if not silent:
        return
    survey = view.now.survey
    ttl = DEFAULT_TTL if survey is None else survey.worker_ttl
    longest = max(silent, key=lambda w: w.heartbeat_age)
    ids = tuple(w.id for w in silent)
    busy = any(w.executing or w.processing for w in silent)
    which = "" if len(ids) == 1 else f" ({workers_text([longest.id])})"
    limit = "" if ttl is None else f"; after {seconds_text(ttl)} Dask removes it"
    critical = ttl is not None and longest.heartbeat_age > 0.5 * ttl
    remedy = f"Look at the memory of host {names_text([longest.host])}, and at the log "
    remedy += f"of the worker {printable(longest.address)}."
    if busy and ttl is not None:
        remedy += " If native code holds the lock, start the scheduler with "
        remedy += "`DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="
        remedy += f"'{4 * max(ttl, longest.heartbeat_age):.0f}s'`."
    yield Finding(
        severity=Severity.critical if critical else Severity.warning,
        message=f"{workers_text(ids)} sent no heartbeat{which} for "
        f"{seconds_text(longest.heartbeat_age)}{limit}"
        + ("; a task runs there and may hold Python's global lock" if busy else ""),
        subject=ids,
        evidence={"silent_seconds": longest.heartbeat_age, "worker_ttl_seconds": ttl},
        remedy=remedy,
    )


def unfinished_restarts(view: View) -> Iterator[Finding]:
    """Find parking workers, which keep keys while another worker restarts.

    A parking worker runs in the process of a nanny, and ends with it. One that stays
    belongs to a restart that failed, and only it has these keys.

    Remedy: If no restart is in progress, make sure that a worker runs. Then run
    ``clustertune.restart_workers(client)``, which first moves the keys back.
    """
    fix = remedies.sentence(
        "If no restart is in progress, run ",
        remedies.on_workers("restart_workers", ()),
        ", which first moves the keys to a running worker.",
    )
    for worker in view.now.workers:
        if worker.parking:
            yield warning(
                message=f"{workers_text([worker.id])} keeps "
                f"{bytes_text(worker.counted)} of keys for a worker that is "
                "restarting, or did not return from a restart",
                subject=(worker.id,),
                evidence={"bytes": worker.counted},
                **fix._asdict(),
            )


# --- workers that may go during a fit -------------------------------------------------


def adaptive_scaling(view: View) -> Iterator[Finding]:
    """Find a cluster with adaptive scaling, which also acts during a fit.

    Adaptive scaling counts tasks. A fit is one long task per worker, and between two
    fits there are no tasks. The cluster then closes workers that seem idle, which moves
    or loses their data, and later starts empty ones (distributed#5080).

    Remedy: Fit inside ``with clustertune.prepare(client, X, y) as (X, y):`` or ``with
    clustertune.hold(client):``. Both keep workers from being closed meanwhile.
    """
    bounds = view.now.adaptive
    if bounds is None:
        return
    if isinstance(bounds, Unknown):
        yield unknown(message=f"whether the cluster scales adaptively is {bounds}")
        return
    least, most = bounds
    n_workers = len(view.now.workers)
    if least == most:
        return
    above = "any number" if math.isinf(most) else f"{most:g}"
    yield info(
        message=f"the cluster scales adaptively between {least} and {above} workers; "
        f"during a fit it may close workers (it has {n_workers}), or add empty ones",
        evidence={"minimum": least, "workers": n_workers},
        remedy="Fit inside `with clustertune.hold(client):`.",
    )


def worker_lifetime(
    view: View, *, warning_seconds: float = 3600.0
) -> Iterator[Finding]:
    """Find workers whose lifetime ends.

    ``--lifetime`` closes a worker after a time, before a batch system kills it. The
    worker moves its keys to others, but does not wait for running tasks
    (distributed#3141), so a running fit fails or hangs.

    Remedy: Train soon after the workers have started, or start them with a longer
    ``--lifetime`` and a ``--lifetime-stagger``.

    Parameters
    ----------
    warning_seconds
        Seconds until the first worker closes, below which the finding is a warning.
    """
    ending = [(d.expires, w) for w, d in details_of(view) if d.expires is not None]
    if not ending:
        return
    first = max(0.0, min(at for at, _ in ending) - view.now.time)
    ids = tuple(w.id for _, w in ending)
    yield Finding(
        severity=Severity.warning if first < warning_seconds else Severity.info,
        message=f"{workers_text(ids)} will close at the end of the set lifetime, the "
        f"first in about {seconds_text(first)}; a fit that runs then fails",
        subject=ids,
        evidence={"seconds": first, "workers": len(ids)},
        remedy="Start new workers with a longer lifetime, for example `dask worker "
        f'{printable(view.now.scheduler)} --lifetime "12 hours" --lifetime-stagger '
        '"10 minutes"`.',
    )


# --- settings and software ------------------------------------------------------------


def no_nanny(view: View) -> Iterator[Finding]:
    """Find workers without a nanny.

    A nanny restarts a worker that dies, kills it before it fills the host's memory, and
    sets the thread pools of native libraries. clustertune restarts workers through it.

    Remedy: Start workers without ``--no-nanny``, and a ``LocalCluster`` with
    ``processes=True``. A batch system or Kubernetes may restart the workers instead.
    """
    found = [w for w in view.now.workers if w.nanny is None and not w.parking]
    if found:
        ids = tuple(w.id for w in found)
        inside = all(w.address.startswith("inproc://") for w in found)
        remedy = "Start the workers without `--no-nanny`, unless a batch system or "
        remedy += "Kubernetes restarts them."
        yield info(
            message=f"{workers_text(ids)} {verb(ids, 'has')} no nanny, which would "
            "restart a worker that dies, or kill it before the host runs out of memory",
            subject=ids,
            evidence={"workers": len(ids)},
            remedy="Start the cluster with `LocalCluster(processes=True)`."
            if inside
            else remedy,
        )


def software_versions(view: View) -> Iterator[Finding]:
    """Find different releases of Dask or training libraries, and missing packages.

    Client, scheduler and workers unpickle what the others pickle. With different
    releases this fails with errors that do not name the cause, or training uses other
    defaults. Dask does not compare the releases of training libraries.

    clustertune sends no code to a worker of another Python minor release, or of an
    unsuitable release of Dask or cloudpickle. Such a worker gets no training data, and
    is not restarted.

    Remedy: Use the same environment everywhere: one container image or one lock file.
    Install a missing package with
    ``client.register_plugin(distributed.PipInstall(["xgboost"]))``.
    """
    by_text: dict[str, list[WorkerSnapshot]] = {}
    for worker in view.now.workers:
        if worker.objection:
            by_text.setdefault(worker.objection, []).append(worker)
    for text, unlike in by_text.items():
        ids = tuple(w.id for w in unlike)
        addresses = tuple(w.address for w in unlike)
        yield warning(
            message=f"{workers_text(ids)} {verb(ids, 'gets')} no code, no training "
            f"data and no restart: {text}",
            subject=ids,
            evidence={"workers": len(ids)},
            remedy=f"Run `client.retire_workers({code(addresses)})`, and start such "
            "workers from the environment of the client.",
        )
    survey = view.now.survey
    if survey is None:
        return
    workers = [d.packages for _, d in details_of(view)]
    sides = dict(survey.packages)
    for name in sorted({n for p in [*sides.values(), *workers] for n in p}):
        found = {side: p[name] for side, p in sides.items() if name in p}
        there = Counter(p[name] for p in workers if name in p)
        if len({*found.values(), *there}) > 1:
            yield _differing_releases(name, found, there)
    needed = view.goal.workload.packages
    lacking = [w.id for w, d in details_of(view) if not d.packages.keys() & needed]
    if needed and lacking:
        yield _not_installed(needed, lacking, sides.get("client", {}))


def _not_installed(
    needed: Sequence[str], ids: Sequence[str | int], client: Mapping[str, str]
) -> Finding:
    """Report workers without the library; the remedy installs the client's release."""
    package = next((name for name in needed if name in client), needed[0])
    pinned = f"{package}=={client[package]}" if package in client else package
    plugin = f"distributed.PipInstall([{code(pinned)}])"
    return critical(
        message=f"{package} is not installed on {workers_text(ids)}, so the fit cannot "
        "run there",
        subject=tuple(ids),
        evidence={"package": package, "workers": len(ids)},
        remedy=f"Run `import distributed; client.register_plugin({plugin})`, or add "
        f"{package} to the environment or image of the workers.",
    )


def _differing_releases(
    name: str, found: Mapping[str, str], there: Mapping[str, int]
) -> Finding:
    texts = [f"{side} {printable(v, longest=40)}" for side, v in found.items()]
    shown = ((printable(v, longest=40), n) for v, n in there.items())
    texts += [f"{plural(n, 'worker')} {release}" for release, n in shown]
    client = found.get("client")
    release = f" {printable(client, longest=40)}" if client else ""
    return warning(
        message=f"releases of {name} differ ({', '.join(texts)}), so pickled objects "
        "may fail to load",
        subject=(name,),
        evidence={"package": name, "releases": len({*found.values(), *there})},
        remedy=f"Start client, scheduler and workers from one environment or image, "
        f"with {name}{release}.",
    )
