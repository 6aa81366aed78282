"""Clusters whose workers are jobs of a batch system (dask_jobqueue).

A job starts one or several workers and ends with the last of them. So a request for
three workers starts four if a job has two. A job is cancelled only when none of its
workers remains. Only the batch system knows when a job begins.

New jobs have the size that the cluster was made with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

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
