"""Clusters whose workers are jobs of a batch system: dask_jobqueue's.

A job starts one or several workers and ends when the last of them has ended. So workers
come and are paid for by the job: asked for three where jobs have two, there will be
four, and a job is cancelled only when none of its workers is left. Only the batch
system knows when a job begins; what is seen here is whether its workers have come.

A resize changes what later jobs ask for: cores, memory and the lines that the job
script begins with. Directives that the user has written (``job_extra_directives``,
``job_mem``) stay as they are.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from clustertune.core.model import Size
from clustertune.core.wording import plural
from clustertune.integrations.managers import is_instance, settled
from clustertune.integrations.managers.spec_cluster import adapt as adapt
from clustertune.integrations.managers.spec_cluster import bounds as bounds
from clustertune.integrations.managers.spec_cluster import expecting as expecting
from clustertune.integrations.managers.spec_cluster import obstacle as obstacle

# Workers of jobs that others of the same job still run: they do not come again.
_gone: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def matches(cluster: Any) -> bool:
    """Whether it is a cluster of this kind."""
    return is_instance(cluster, "dask_jobqueue", "JobQueueCluster")


async def scale(cluster: Any, n_workers: int, there: int) -> None:
    """Ask for the jobs that are missing; others are on their way."""
    names = _workers(cluster)
    coming = sum(len(mine - cluster.observed) for mine in names.values())
    missing = n_workers - there - coming
    if missing > 0:
        jobs = -(-missing // _per_job(cluster))
        await settled(cluster.scale(jobs=len(names) + jobs))


async def state(cluster: Any) -> str:
    """Which jobs have workers, as far as the cluster object knows."""
    jobs = _workers(cluster).values()
    running = sum(bool(mine & cluster.observed) for mine in jobs)
    return (
        f"{type(cluster).__name__} ({cluster.status.name}) has asked for "
        f"{plural(len(jobs), 'job')} of {plural(_per_job(cluster), 'worker')}: "
        f"{running} running, {len(jobs) - running} pending or ended (none of their "
        "workers is there); ask the batch system why"
    )


def resized(cluster: Any, id: str | int, size: Size) -> None:
    """Later jobs are like the worker that was resized, times the workers of a job."""
    # one dict for all jobs, for job_script() and for scale(cores=...)
    options, each = cluster._job_kwargs, _per_job(cluster)
    options["processes"] = each  # a default would follow the cores
    if size.nthreads is not None:
        options["cores"] = size.nthreads * each
    if size.memory_limit is not None:
        options["memory"] = f"{size.memory_limit * each} B"
    if size.env:
        lines = cluster._dummy_job._job_script_prologue
        told = [f"export {k}={shlex.quote(v)}" for k, v in size.env.items()]
        kept = [line for line in lines if line not in told]
        options["job_script_prologue"] = kept + told


async def retired(cluster: Any, id: str | int) -> None:
    """Cancel a job when the last worker of it is gone; the others work on."""
    job = next((j for j, mine in _workers(cluster).items() if id in mine), None)
    if job is None:
        return
    _gone.setdefault(cluster, set()).add(str(id))
    left = _workers(cluster)[job]
    if not left:
        del cluster.worker_spec[job]
        await settled(cluster.scale(jobs=len(cluster.worker_spec)))


def _per_job(cluster: Any) -> int:
    """Workers of a job: what was asked for, else what dask_jobqueue makes of cores."""
    return int(cluster._dummy_job.worker_processes)


def _workers(cluster: Any) -> Mapping[str, set[str]]:
    """The names of the workers of each job, without those that are gone for good.

    ``cluster.plan`` has one name for a job whose ``processes`` were not given.
    """
    each, gone = _per_job(cluster), _gone.get(cluster, set())
    return {
        job: ({f"{job}-{i}" for i in range(each)} if each > 1 else {job}) - gone
        for job in cluster.worker_spec
    }
