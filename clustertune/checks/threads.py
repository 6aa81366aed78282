"""Checks of threads: those of workers, of native libraries and of event loops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from clustertune.core.model import (
    Finding,
    Scalar,
    Severity,
    Unknown,
    View,
    WorkerSnapshot,
    info,
    warning,
)
from clustertune.core.wording import (
    are,
    names_text,
    plural,
    seconds_text,
    workers_text,
)
from clustertune.planner import remedies
from clustertune.planner.machines import (
    CpuLimit,
    HostCpus,
    Workers,
    by_host,
    details_of,
    difference,
    host_cpus,
    merge_obstacle,
    shared_hosts,
    unknown_findings,
    with_scheduler,
    without_parking,
)
from clustertune.planner.remedies import Fix

MILD_LOAD = 2.0  # threads per CPU of workers with one thread
NATIVE_LOAD = 2.0  # native threads per CPU; all tasks seldom use their pools at once
POOL_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def thread_count(
    view: View, *, tolerance: float = 0.1, shared_hosts: bool = False
) -> Iterator[Finding]:
    """Find hosts whose workers have more, or fewer, threads than usable CPUs.

    XGBoost and LightGBM start as many threads as their worker has. With more threads
    than CPUs they wait for each other; with fewer, CPUs stay idle. The affinity and all
    cgroup quotas limit the usable CPUs. Idle CPUs are information on the scheduler's
    host, and with ``shared_hosts``, for example for Kubernetes pods without CPU limits.

    Remedy: Give a host's workers as many threads as it has CPUs, with
    ``clustertune.resize_workers(client, nthreads=4)`` or ``dask worker --nworkers 1
    --nthreads 4``. With more workers than CPUs, use fewer workers. The finding is then
    information if ``n_workers=`` or ``workers=`` asks for the workers, or if each has
    one thread and there are at most two for each CPU.

    Parameters
    ----------
    tolerance
        Fraction of the CPUs by which the threads may differ.
    shared_hosts
        Whether other jobs also use the CPUs of the hosts.
    """
    over: list[HostCpus] = []
    idle: dict[tuple[Severity, int], list[HostCpus]] = {}
    for workers in by_host(without_parking(view.now)).values():
        cpus = host_cpus(workers)
        if isinstance(cpus, Unknown):
            continue
        if cpus.tightest.load > 1 + tolerance:
            over.append(cpus)
        elif math.floor(cpus.usable) - cpus.busy > tolerance * cpus.usable:
            others = shared_hosts or with_scheduler(workers, view.now)
            severity = Severity.info if others else Severity.warning
            each = math.floor(cpus.usable) // len(workers)
            more = all(w.nthreads < each for w in workers)
            idle.setdefault((severity, each if more else 0), []).append(cpus)
    yield from _too_many_threads(over, view)
    for (severity, each), hosts in idle.items():
        yield _idle_cpus(view, hosts, severity, each)
    yield from unknown_findings("usable CPUs", [(w, w.facts) for w in view.now.workers])


def _too_many_threads(hosts: Sequence[HostCpus], view: View) -> Iterator[Finding]:
    """Report hosts, each with those for which the same call is the remedy."""
    groups: dict[int, list[HostCpus]] = {}
    for host in hosts:
        cpus = max(1, math.ceil(host.tightest.cpus))
        groups.setdefault(cpus // len(host.tightest.workers), []).append(host)
    for each, some in groups.items():
        worst = max((h.tightest for h in some), key=lambda limit: limit.load)
        ids = sorted((w.id for w in worst.workers), key=str)
        fix = remedies.resize(
            view, [w for h in some for w in h.tightest.workers], nthreads=max(1, each)
        )
        wished = view.goal.n_workers is not None or view.goal.workers is not None
        single = all(w.nthreads == 1 for h in some for w in h.tightest.workers)
        # such workers take turns, and their memory may be needed
        mild = wished or (single and worst.load <= MILD_LOAD)
        if not each:  # fewer CPUs than workers
            texts = (_fewer_workers(h.tightest, view) for h in some)
            fix = Fix("" if wished else " ".join(texts))
        yield (info if mild and not each else warning)(
            message=f"more threads than usable CPUs on {_hosts_text(some)}: "
            f"{plural(worst.threads, 'thread')} of {workers_text(ids)} share "
            f"{plural(worst.cpus, 'CPU')} and wait for each other",
            subject=_worker_ids(some),
            evidence={
                "hosts": len(some),
                "threads": worst.threads,
                "cpus": worst.cpus,
            },
            **fix._asdict(),
        )


def _fewer_workers(limit: CpuLimit, view: View) -> str:
    cpus = max(1, math.ceil(limit.cpus))
    surplus = len(limit.workers) - cpus
    # scale might remove workers of another host
    if len(view.now.workers_per_host) > 1:
        host = names_text([limit.workers[0].host])
        return f"Start at most {plural(cpus, 'worker')} on host {host}."
    return remedies.run(remedies.scale(view, len(view.now.workers) - surplus))


def _idle_cpus(
    view: View, hosts: Sequence[HostCpus], severity: Severity, each: int
) -> Finding:
    """Report hosts whose workers may have ``each`` threads; 0: their threads differ."""
    usable, busy = sum(h.usable for h in hosts), sum(h.busy for h in hosts)
    fix = Fix("")
    if each:
        fix = remedies.resize(
            view, [w for h in hosts for w in h.workers], nthreads=each
        )
    return Finding(
        severity=severity,
        message=f"fewer threads than usable CPUs on {_hosts_text(hosts)}: a fit on all "
        f"threads of the workers keeps {busy:g} of {plural(usable, 'CPU')} busy",
        subject=_worker_ids(hosts),
        evidence={"hosts": len(hosts), "busy_cpus": busy, "cpus": usable},
        **fix._asdict(),
    )


def _hosts_text(hosts: Sequence[HostCpus]) -> str:
    names = names_text([h.workers[0].host for h in hosts])
    return f"host{'' if len(hosts) == 1 else 's'} {names}"


def _worker_ids(hosts: Sequence[HostCpus]) -> tuple[str | int, ...]:
    # sorted, so that the finding stays the same when workers reconnect
    return tuple(sorted((w.id for h in hosts for w in h.workers), key=str))


def thread_pools(view: View) -> Iterator[Finding]:
    """Find hosts on which native threads of running tasks could exceed the CPUs.

    Dask's nanny sets ``OMP_NUM_THREADS`` and similar variables to 1, so that one task
    per worker thread can run. With other values, or without a nanny, tasks times pool
    size can far exceed the CPUs; the check reports more than twice their number. It
    reads the pools with threadpoolctl, and skips hosts with a worker that does not have
    it. XGBoost and LightGBM ignore the pools, so it is silent for them. scikit-learn
    and PyTorch use them: with a pool of 1 such a task runs on one thread.

    Remedy: Choose a pool size so that threads times pool size is the number of CPUs.
    Set ``OMP_NUM_THREADS``, ``OPENBLAS_NUM_THREADS`` and ``MKL_NUM_THREADS`` in the
    environment in which the workers start. It overrides
    ``distributed.nanny.pre-spawn-environ`` of Dask's configuration. Then start the
    workers again: a nanny reads both at its own start only. A task can also set its
    pools itself, for PyTorch with ``torch.set_num_threads``.
    """
    if view.goal.workload.threads == "worker":
        return
    pools = {
        w.address: max(d.thread_pools or (1,))
        for w, d in details_of(view)
        # workers in the client's process have the client's pools
        if d.thread_pools is not None and not w.address.startswith("inproc://")
    }
    for workers in by_host(without_parking(view.now)).values():
        if all(w.address in pools for w in workers):
            yield from _too_many_native(view, workers, pools)


def _too_many_native(
    view: View, workers: Workers, pools: Mapping[str, int]
) -> Iterator[Finding]:
    """Report a host on which tasks times pools exceed the CPUs."""
    cpus = host_cpus(workers)
    one_task = view.goal.workload.threads == "pools"
    tasks = [1 if one_task else w.nthreads for w in workers]
    sizes = [pools[w.address] for w in workers]
    threads = sum(n * size for n, size in zip(tasks, sizes, strict=True))
    # thread_count reports too many threads with pools of 1
    few = isinstance(cpus, Unknown) or threads <= NATIVE_LOAD * cpus.usable
    if isinstance(cpus, Unknown) or few or max(sizes) == 1:
        return
    size = max(1, int(cpus.usable / sum(tasks)))
    variables = " ".join(f"{name}={size}" for name in POOL_VARIABLES)
    yield warning(
        message=f"tasks on host {names_text([workers[0].host])} could run "
        f"{plural(threads, 'native thread')} at once ("
        f"{plural(sum(tasks), 'task')} with pools of up "
        f"to {max(sizes)}) on {plural(cpus.usable, 'CPU')}",
        subject=tuple(w.id for w in workers),
        evidence={"threads": threads, "cpus": cpus.usable, "pool_threads": max(sizes)},
        # a nanny reads both once, so a restart of its worker keeps the former values
        remedy=f"Set `{variables}` in the environment in which these workers start, "
        "which overrides `distributed.nanny.pre-spawn-environ` of Dask's "
        "configuration, and start the workers again.",
    )


def several_workers_per_host(view: View) -> Iterator[Finding]:
    """Find hosts with several workers, for a library that trains with threads.

    XGBoost, LightGBM and PyTorch use all threads of a worker in one training task. One
    worker per host needs memory for one process only, and its threads exchange no
    messages. The gain depends on the data, so measure it: it is larger with little data
    and with many workers per host.

    Remedy: Run ``clustertune.merge_workers(client)``, which loses no data. On a new
    cluster, start one worker per host, with ``dask worker --nworkers 1 --nthreads 16``.
    ``clustertune.recommend_size`` has the line for your hosts. ``clustertune.fit`` uses
    one worker per host for XGBoost, without a merge, if its memory suffices.
    """
    workload = view.goal.workload
    ids = [w.id for w in view.eligible_workers]
    # workers that differ, as with a GPU each, are separate on purpose
    hosts = [g for g in shared_hosts(view.now, ids) if _are_alike(g)]
    if not hosts or not workload.uses_worker_threads:
        return
    reason = merge_obstacle(hosts[0], view.now)
    if free := [g for g in hosts if merge_obstacle(g, view.now) is None]:
        hosts, reason = free, None
    most = max(hosts, key=len)
    cpus = host_cpus(most)
    named = [w.id for group in hosts for w in group]
    everyone = len(named) == sum(w.is_counted for w in view.now.workers)
    call = remedies.on_workers("merge_workers", () if everyone else named)
    fix = remedies.sentence("Run ", call)
    if reason is not None:
        fix = Fix(f"{reason[:1].upper()}{reason[1:]}.")
    threads, shared = sum(w.nthreads for w in most), ""
    evidence: dict[str, Scalar] = {"hosts": len(hosts)}
    evidence |= {"workers": len(most), "threads": threads}
    if not isinstance(cpus, Unknown):
        shared, evidence["cpus"] = f" on {plural(cpus.usable, 'CPU')}", cpus.usable
    yield info(
        message=f"{plural(len(most), 'worker')} on host "
        f"{names_text([most[0].host])} have {plural(threads, 'thread')}{shared}, and "
        f"{workload.title} can use all of them in one worker, with less memory",
        subject=tuple(named),
        evidence=evidence,
        **fix._asdict(),
    )


def _are_alike(workers: tuple[WorkerSnapshot, ...]) -> bool:
    sizes = {(w.nthreads, w.memory_limit) for w in workers}
    return len(sizes) == 1 and difference(workers) is None


def blocked_event_loops(view: View, *, max_seconds: float = 0.5) -> Iterator[Finding]:
    """Find workers, or a scheduler, whose event loop is blocked.

    Transfers, heartbeats and restarts wait for the event loop. Causes are a task that
    holds Python's global lock, a very large message, and a host with too few CPUs or
    too little memory.

    Remedy: Use fewer threads per worker for code that holds the global lock
    (``--nthreads 1 --nworkers 8``). If the scheduler is blocked, submit fewer and
    larger tasks. If the host is too small, give it more CPUs or memory.

    Parameters
    ----------
    max_seconds
        Seconds between two ticks above which the check reports an event loop.
    """
    blocked = [w for w in view.now.workers if w.loop_delay > max_seconds]
    if blocked:
        worst = max(blocked, key=lambda w: w.loop_delay)
        ids = tuple(w.id for w in blocked)
        fix = Fix("Look at the CPUs and the memory of the host.")
        if worst.executing and worst.nthreads > 1:
            several = [w for w in blocked if w.nthreads > 1]
            before = "If the tasks hold Python's global lock: "
            fix = remedies.resize(view, several, nthreads=1, before=before)
        yield warning(
            message=f"the event {'loop' if len(ids) == 1 else 'loops'} of "
            f"{workers_text(ids)} {are(ids)} blocked for up to "
            f"{seconds_text(worst.loop_delay)}, so transfers and heartbeats wait",
            subject=ids,
            evidence={"seconds": worst.loop_delay, "executing": worst.executing},
            **fix._asdict(),
        )
    survey = view.now.survey
    if survey is not None and survey.loop_delay > max_seconds:
        yield warning(
            message="the scheduler's event loop is blocked for up to "
            f"{seconds_text(survey.loop_delay)}, so all workers wait",
            subject=("scheduler",),
            evidence={"seconds": survey.loop_delay},
            remedy="Submit fewer and larger tasks, with larger partitions or with "
            "`client.map(..., batch_size=1000)`.",
        )
