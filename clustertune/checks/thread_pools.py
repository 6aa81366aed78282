"""Threads of native libraries in workers, times running tasks, against CPUs.

BLAS and OpenMP keep pools of threads of their own. Dask's nanny sets
``OMP_NUM_THREADS`` and the like to 1 when it starts a worker, so that as many tasks as
a worker has threads can run side by side; where somebody has set them otherwise, or a
worker has no nanny, tasks times pool can be far more than the CPUs. The environment can
lie: a library reads it once. So threadpoolctl looks at the pools that are there, if it
is installed on the workers.

XGBoost and LightGBM take as many threads as their worker has, whatever is set;
scikit-learn and PyTorch keep to their pools, so with a pool of 1 such a task has one
thread however many its worker has. With ``estimator=`` that is said for what trains.

Remedy: start workers by a nanny and leave ``distributed.nanny.pre-spawn-environ`` as it
is, or have threads of a worker times pool make the CPUs: ``clustertune.resize(client,
env={"OMP_NUM_THREADS": "2"})``; in code ``with threadpoolctl.threadpool_limits(1)``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Details, Finding, Severity, Unknown, View
from clustertune.core.wording import names_text, plural, printable, workers_text
from clustertune.planner.machines import by_host, details_of, host_cpus


def find(view: View, *, most: float = 2.0) -> Iterator[Finding]:
    """Find hosts where tasks times pools exceed the CPUs.

    Parameters
    ----------
    view
        What is seen.
    most
        Threads per CPU up to which nothing is said.
    """
    known = {w.address: d for w, d in details_of(view)}
    for host, workers in by_host(view.now.workers).items():
        cpus = host_cpus(workers)
        if isinstance(cpus, Unknown) or any(w.address not in known for w in workers):
            continue
        pools = [_largest(known[w.address]) for w in workers]
        threads = sum(w.nthreads * n for w, n in zip(workers, pools, strict=True))
        if threads > most * cpus.usable:
            # in one process with the client the pools are the client's own
            inside = any(w.address.startswith("inproc://") for w in workers)
            own = view.goal.workload.threads == "worker"
            yield Finding(
                severity=Severity.info if inside or own else Severity.warning,
                message=f"on host {names_text([host])} tasks could run "
                f"{plural(threads, 'native thread')} at once ("
                f"{plural(sum(w.nthreads for w in workers), 'task')} with pools of up "
                f"to {max(pools)}) on {plural(cpus.usable, 'CPU')}"
                + (f"; {view.goal.workload.title} takes no notice of them" * own),
                subject=tuple(w.id for w in workers),
                evidence={"threads": threads, "cpus": cpus.usable, "pool": max(pools)},
            )
    yield from _not_used(view)
    yield from _not_seen(view)


def _not_used(view: View) -> Iterator[Finding]:
    """Threads that a fit leaves idle: it is one task, in a pool that is smaller."""
    idle = [
        (w, _largest(d))
        for w, d in details_of(view)
        if d.pools and view.eligible(w) and _largest(d) < w.nthreads
    ]
    if view.goal.workload.threads == "pools" and idle:
        worker, pool = max(idle, key=lambda x: x[0].nthreads - x[1])
        yield Finding(
            severity=Severity.info,
            message=f"{view.goal.workload.title} trains in one task a worker, in its "
            f"native pool: on {workers_text([w.id for w, _ in idle])} that is smaller "
            f"than the worker ({pool} of {plural(worker.nthreads, 'thread')})",
            subject=tuple(w.id for w, _ in idle),
            evidence={"pool": pool, "threads": worker.nthreads},
            remedy="in the code that trains `torch.set_num_threads(n)` or `with "
            "threadpoolctl.threadpool_limits(n)`, or one thread a worker",
        )


def _largest(details: Details) -> int:
    return max((p.threads for p in details.pools or ()), default=1)


def _not_seen(view: View) -> Iterator[Finding]:
    """Where threadpoolctl is lacking, what the environment says is all there is."""
    blind = [(w, d) for w, d in details_of(view) if d.pools is None]
    if blind:
        said = sorted({f"{k}={v}" for _, d in blind for k, v in d.variables.items()})
        text = printable(", ".join(said), longest=200) or "nothing"
        yield Finding(
            severity=Severity.unknown,
            message=f"thread pools of {workers_text([w.id for w, _ in blind])} are "
            f"unknown: threadpoolctl is not installed there; the environment says "
            f"{text}",
            subject=tuple(w.id for w, _ in blind),
        )
