"""More, or fewer, threads than the CPUs that a host's workers may use.

XGBoost and LightGBM start as many threads as their worker has. With more threads than
CPUs they wait for each other at every step; with fewer, CPUs stay idle. Threads and
CPUs are summed over the workers of a host. A CPU is usable if affinity allows it and no
cgroup quota, of the worker's cgroup or one around it, forbids it; Dask itself looks at
the innermost cgroup only, and at each worker by itself. A part of a CPU is rounded to
what suits the threads: 3 or 4 are right for a quota of 3.5 (Dask rounds up).

Idle CPUs are a warning where the host seems to be there for the workers, and
information on the scheduler's own host: client and scheduler need some there, and one
small worker is often meant. Set ``shared`` if other jobs use the hosts, too, like
Kubernetes pods with CPU requests but no limits.

Remedy: in all as many threads as the host has CPUs: other ones for each worker,
``clustertune.resize(client, nthreads=...)``, or fewer or more workers,
``clustertune.scale(client, n)``; or start the cluster so, as in ``dask worker
--nworkers 1 --nthreads 4`` for 4 CPUs; or give the container or job other CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from clustertune.core.model import Finding, Severity, Unknown, View
from clustertune.core.wording import names_text, plural, workers_text
from clustertune.planner.machines import (
    HostCpus,
    by_host,
    host_cpus,
    unknown_findings,
    with_scheduler,
)


def find(view: View, *, slack: float = 0.1, shared: bool = False) -> Iterator[Finding]:
    """Find hosts where the threads of the workers are not as many as the CPUs.

    Parameters
    ----------
    view
        What is seen.
    slack
        Fraction of the CPUs by which the threads may differ.
    shared
        Whether other jobs than the workers' are meant to use the hosts' CPUs.
    """
    over: list[HostCpus] = []
    idle: dict[Severity, list[HostCpus]] = {}
    for host, workers in by_host(view.now.workers).items():
        cpus = host_cpus(workers)
        if isinstance(cpus, Unknown):
            continue
        if cpus.tightest.load > 1 + slack:
            over.append(cpus)
        elif math.floor(cpus.usable) - cpus.busy > slack * cpus.usable:
            others = shared or with_scheduler(host, view.now)
            severity = Severity.info if others else Severity.warning
            idle.setdefault(severity, []).append(cpus)
    if over:
        yield _over(over)
    for severity, hosts in idle.items():
        yield _idle(hosts, severity)
    yield from unknown_findings("usable CPUs", [(w, w.facts) for w in view.now.workers])


def _over(hosts: Sequence[HostCpus]) -> Finding:
    worst = max((h.tightest for h in hosts), key=lambda limit: limit.load)
    return Finding(
        severity=Severity.warning,
        message=f"more threads than usable CPUs on {_where(hosts)}: "
        f"{plural(worst.threads, 'thread')} of "
        f"{workers_text(sorted((w.id for w in worst.workers), key=str))} share "
        f"{plural(worst.cpus, 'CPU')}",
        subject=_ids(hosts),
        evidence={"hosts": len(hosts), "threads": worst.threads, "cpus": worst.cpus},
    )


def _idle(hosts: Sequence[HostCpus], severity: Severity) -> Finding:
    usable, busy = sum(h.usable for h in hosts), sum(h.busy for h in hosts)
    return Finding(
        severity=severity,
        message=f"fewer threads than usable CPUs on {_where(hosts)}: a fit that takes "
        f"all threads of the workers keeps {busy:g} of {plural(usable, 'CPU')} busy",
        subject=_ids(hosts),
        evidence={"hosts": len(hosts), "busy": busy, "cpus": usable},
    )


def _where(hosts: Sequence[HostCpus]) -> str:
    names = names_text([h.workers[0].host for h in hosts])
    return f"host{'' if len(hosts) == 1 else 's'} {names}"


def _ids(hosts: Sequence[HostCpus]) -> tuple[str | int, ...]:
    # in one order: the same finding is not another one as workers come back
    return tuple(sorted((w.id for h in hosts for w in h.workers), key=str))
