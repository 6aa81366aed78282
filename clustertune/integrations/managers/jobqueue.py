"""Clusters whose workers are jobs of a batch system (dask_jobqueue).

A job starts one or several workers and ends with the last of them. So a request for
three workers starts four if a job has two. A job is cancelled only when none of its
workers remains. Only the batch system knows when a job begins.

A resize changes the cores, memory and first lines of the script of later jobs. It keeps
the directives of the user (``job_extra_directives``, ``job_mem``).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from clustertune.core.model import WorkerSize
from clustertune.core.wording import plural
from clustertune.integrations.managers.adapter import await_if_needed
from clustertune.integrations.managers.spec_cluster import adapt as adapt
from clustertune.integrations.managers.spec_cluster import bounds as bounds
from clustertune.integrations.managers.spec_cluster import obstacle as obstacle

# Retired workers of jobs in which other workers still run.
_retired: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


async def scale(cluster: Any, n_workers: int, there: int) -> None:
    """Request the missing jobs; workers of other jobs are starting."""
    names = _workers(cluster)
    coming = sum(len(mine - cluster.observed) for mine in names.values())
    missing = n_workers - there - coming
    if missing > 0:
        jobs = -(-missing // _per_job(cluster))
        await await_if_needed(cluster.scale(jobs=len(names) + jobs))


async def state(cluster: Any) -> str:
    """Describe the jobs of the cluster object."""
    jobs = _workers(cluster).values()
    running = sum(bool(mine & cluster.observed) for mine in jobs)
    return (
        f"{type(cluster).__name__} ({cluster.status.name}) has requested "
        f"{plural(len(jobs), 'job')} of {plural(_per_job(cluster), 'worker')}: "
        f"{running} running, {len(jobs) - running} pending or ended without workers; "
        "ask the batch system for the reason"
    )


def resized(cluster: Any, id: str | int, size: WorkerSize) -> None:
    """Give later jobs the size of this worker, times the workers of a job."""
    # all jobs, job_script() and scale(cores=...) share this dict
    options, each = cluster._job_kwargs, _per_job(cluster)
    options["processes"] = each  # the default depends on the cores
    if size.nthreads is not None:
        options["cores"] = size.nthreads * each
    if size.memory_limit is not None:
        options["memory"] = f"{size.memory_limit * each} B"
    if size.env:
        lines = cluster._dummy_job._job_script_prologue
        exports = [f"export {k}={shlex.quote(v)}" for k, v in size.env.items()]
        kept = [line for line in lines if line not in exports]
        options["job_script_prologue"] = kept + exports


def merge_obstacle(cluster: Any) -> str:
    """Return that jobs start several workers again."""
    kind = type(cluster).__name__
    return (
        "the batch system starts jobs with the number of workers that the cluster was "
        f"made with; run `{kind}(cores={{nthreads}}, processes=1, "
        'memory="{memory_limit}")`'
    )


async def retired(cluster: Any, id: str | int) -> None:
    """Cancel the job if this was its last worker."""
    job = next((j for j, mine in _workers(cluster).items() if id in mine), None)
    if job is None:
        return
    _retired.setdefault(cluster, set()).add(str(id))
    left = _workers(cluster)[job]
    if not left:
        del cluster.worker_spec[job]
        await await_if_needed(cluster.scale(jobs=len(cluster.worker_spec)))


def _per_job(cluster: Any) -> int:
    """Return the workers of a job, as requested or as dask_jobqueue derives them."""
    return int(cluster._dummy_job.worker_processes)


def _workers(cluster: Any) -> Mapping[str, set[str]]:
    """Return the names of the workers of each job, without retired ones.

    ``cluster.plan`` has one name for a job without ``processes``.
    """
    each, gone = _per_job(cluster), _retired.get(cluster, set())
    return {
        job: ({f"{job}-{i}" for i in range(each)} if each > 1 else {job}) - gone
        for job in cluster.worker_spec
    }
