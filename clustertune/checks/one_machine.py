"""Data that one machine could train on, without a cluster.

Where the data and its copies fit the memory of one host, one process there needs no
Dask: alone XGBoost took 0.76 of the time that it took on a cluster with the same two
CPUs, on which the data lay evenly (``benchmarks/fit_after_scale.py``). Whoever has a
larger cluster still gains from it, once its threads outweigh that difference: the time
alone is estimated as (threads of the cluster / CPUs of the host) * 0.76 of the
cluster's, where threads that have no CPU to themselves do not count. This speaks only
if the estimate says that one process would not be slower. Memory is estimated as in
``fit_memory``, with ``memory_fraction`` of the host's. It is a hint about other ways,
not a condition of this cluster, so it is left out where sizes, CPUs or memory are
unknown.

Remedy: load the data into one process (``X.compute()``, or pandas) and call the
library's own ``fit`` there; stay with the cluster if the data is to grow, or already
lies on it for other work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from clustertune.core.model import Finding, Severity, Unknown, View
from clustertune.core.wording import bytes_text, names_text
from clustertune.planner.forecast import demand
from clustertune.planner.machines import by_host, host_cpus, host_memory


class _Host(NamedTuple):
    cpus: float  # usable by its workers
    memory: int  # bytes
    name: str


def find(view: View, *, alone: float = 0.76) -> Iterator[Finding]:
    """Find that one process on the best host would likely be no slower.

    Parameters
    ----------
    view
        What is seen.
    alone
        Time of one process over the time of a cluster with as many CPUs.
    """
    wanted = demand(view)
    threads = sum(_busy(view))
    if not view.layouts or not threads or isinstance(wanted, Unknown):
        return
    needed = sum(wanted) + view.goal.workload.base_bytes
    fitting = [
        h for h in _hosts(view) if needed <= view.goal.memory_fraction * h.memory
    ]
    best = max(fitting, default=None)
    if best is None or (time := threads / best.cpus * alone) > 1:
        return
    yield Finding(
        severity=Severity.info,
        message=f"The data and its copies fit one machine: about {bytes_text(needed)} "
        f"of {bytes_text(best.memory)} on {names_text([best.name])}; one process "
        f"without Dask on its {best.cpus:g} CPUs would take about {time:.0%} of the "
        "time of this cluster",
        evidence={"needed_bytes": round(needed), "memory": best.memory, "time": time},
    )


def _busy(view: View) -> Iterator[float]:
    """By host, the threads that can run at once."""
    for workers in by_host(view.eligible_workers).values():
        threads, cpus = sum(w.nthreads for w in workers), host_cpus(workers)
        yield threads if isinstance(cpus, Unknown) else min(threads, cpus.usable)


def _hosts(view: View) -> Iterator[_Host]:
    """Hosts of workers that may train, where their CPUs and memory are known."""
    for name, workers in by_host(view.eligible_workers).items():
        cpus, memory = host_cpus(workers), host_memory(workers)
        if not isinstance(cpus, Unknown) and not isinstance(memory, Unknown):
            yield _Host(cpus.usable, memory, name)
