"""Cluster managers: how the cluster object of each scales, and what it refuses.

:func:`find` returns the :class:`Adapter` of a cluster object, by the object's class.
All methods of adapters are called in the client's event loop. A method that is no
coroutine uses only the state of the object. The others may ask the manager, and call
methods that block through :func:`off_loop`. No manager's library is imported before the
user has imported it.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from clustertune.core.model import Unknown, WorkerSize, WorkerSnapshot
from clustertune.errors import NoWorkersError
from clustertune.remote.ending import within

Bounds = tuple[int, float]

#: for Kubernetes, which needs a number as the upper bound of adaptive scaling
MAX_WORKERS = 2**31 - 1
ANSWER_TIMEOUT = 5  # seconds for a request to Kubernetes in each snapshot
MAX_NAMES = 10_000  # of new workers that are compared with a retired one
SIZE = ("nthreads", "memory_limit")  # options of a worker

#: by cluster of jobs: retired workers of jobs in which other workers still run
_retired: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


class Adapter:
    """A cluster object of an unknown manager, or none; the base of all adapters."""

    def __init__(self, cluster: Any):
        self.cluster = cluster

    def obstacle(self, n_workers: int) -> str | None:
        """Return why this client cannot scale its cluster to so many workers."""
        if self.cluster is None:
            return (
                "this client has only the scheduler's address and no cluster object, "
                f"so it cannot scale; run cluster.scale({n_workers}) where the cluster "
                "was made, and wait for the workers"
            )
        return (
            f"clustertune has no adapter for {type(self.cluster).__name__}; run "
            f"cluster.scale({n_workers}) and wait for the workers"
        )

    async def scale(self, n_workers: int, there: int) -> None:
        """Request workers without waiting; the scheduler has ``there`` workers.

        It is called only if there is no :meth:`obstacle`.
        """
        raise NotImplementedError

    async def correct_state(self, missing: int) -> None:
        """Start up to ``missing`` planned workers again that have ended."""

    async def bounds(self) -> Bounds | Unknown | None:
        """Return the bounds of adaptive scaling; None: it is off."""
        return None

    async def adapt(self, minimum: int, maximum: float) -> None:
        """Set the bounds of adaptive scaling; raise NoWorkersError if it is off.

        It is called only if :meth:`bounds` returned a pair.
        """
        raise NotImplementedError

    async def retired(self, id: str | int) -> None:
        """Prevent the manager from starting a retired worker again."""

    def resized(self, id: str | int, size: WorkerSize) -> None:
        """Start this worker with the size that its nanny has, if it starts again."""

    def resize_obstacle(
        self, size: WorkerSize, workers: Sequence[WorkerSnapshot]
    ) -> str | None:
        """Return why workers cannot have this size; None: they can, or unknown."""
        return None

    def restart_obstacle(self) -> str | None:
        """Return why nannies must not restart workers; None: they may, or unknown."""
        return None

    def merge_obstacle(self) -> str | None:
        """Return why one worker cannot replace several; see ``Snapshot.can_merge``."""
        return None


async def off_loop(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a synchronous or asynchronous method in a thread.

    A synchronous method waits for the event loop of its object. In that event loop, it
    would wait forever.
    """
    return await _answer(await asyncio.to_thread(method, *args, **kwargs))


async def _answer(answer: Any) -> Any:
    """Await the answer of a method if the cluster object is asynchronous."""
    return await answer if inspect.isawaitable(answer) else answer


class _OneSize(Adapter):
    """A manager whose new workers have the size that the cluster was made with."""

    def merge_obstacle(self) -> str | None:
        return (
            f"{type(self.cluster).__name__} starts workers again in the size that it "
            "was made with; make the cluster with one worker per host, {nthreads} "
            "threads and {memory_limit} each"
        )

    async def starts_by_itself(self, n_workers: int) -> bool:
        """Return whether adaptive scaling starts this many workers by itself.

        It is for managers whose ``scale`` ends adaptive scaling. Raise NoWorkersError
        if adaptive scaling is on, or may be on, and its minimum is smaller.
        """
        bounds = await self.bounds()
        if bounds is None:
            return False
        if isinstance(bounds, Unknown):
            raise NoWorkersError(f"n_workers={n_workers}: {bounds.reason}")
        least, most = bounds
        if least < n_workers:
            raise NoWorkersError(
                f"the cluster is adaptive ({least} to {most:g} workers), and scaling "
                f"by hand would end that; run cluster.adapt(minimum={n_workers}, "
                f"maximum={max(n_workers, most):g}) instead"
            )
        return True


# --- cluster objects that start workers themselves ------------------------------------


class _Local(_OneSize):
    """A cluster object that scales adaptively in the process of the user."""

    def obstacle(self, n_workers: int) -> str | None:
        if self.cluster.status.name != "running":
            return f"the cluster object is {self.cluster.status.name}; make a new one"
        if not self.cluster._supports_scaling:
            address = self.cluster.scheduler_address
            return (
                f"this {type(self.cluster).__name__} was made with a fixed list of "
                f"workers; start more with `dask worker {address}`, and wait for them"
            )
        return None

    async def bounds(self) -> Bounds | None:
        adaptive = self._running_adaptive()
        return None if adaptive is None else (adaptive.minimum, adaptive.maximum)

    async def adapt(self, minimum: int, maximum: float) -> None:
        """Set the bounds in place: a new ``Adaptive`` would lose its other settings."""
        adaptive = self._running_adaptive()
        if adaptive is None:
            kind = type(self.cluster).__name__
            raise NoWorkersError(f"this {kind} does not scale by itself")
        adaptive.minimum, adaptive.maximum = minimum, maximum

    def _running_adaptive(self) -> Any:
        """Return the running ``Adaptive``; the cluster keeps a stopped one."""
        found = getattr(self.cluster, "_adaptive", None)
        return None if getattr(found, "periodic_callback", None) is None else found


class SpecCluster(_Local):
    """Clusters of distributed with a specification: LocalCluster, SSHCluster, ..."""

    async def scale(self, n_workers: int, there: int) -> None:
        """Request the missing workers; earlier requests are starting.

        ``there`` includes workers that the cluster object did not start, but the
        object's ``scale`` does not count them.
        """
        coming = len(self.cluster.plan - self.cluster.observed)
        missing = n_workers - there - coming
        if missing > 0:
            await _answer(self.cluster.scale(len(self.cluster.worker_spec) + missing))

    async def correct_state(self, missing: int) -> None:
        """Start and close workers as planned; Dask does so only in ``scale``."""
        coming = len(self.cluster.plan - self.cluster.observed)
        _drop_ended(self.cluster, coming - missing)
        await _answer(self.cluster.scale(len(self.cluster.worker_spec)))

    def resized(self, id: str | int, size: WorkerSize) -> None:
        """Start this worker with this size, and new workers once all have it."""
        specs = self.cluster.worker_spec
        if "options" not in specs.get(id, {}):
            return
        # a new dict, because workers may share one
        specs[id] = _resized_spec(specs[id], size)
        if all(_resized_spec(spec, size) == spec for spec in specs.values()):
            self.cluster.new_spec = _resized_spec(self.cluster.new_spec, size)

    def merge_obstacle(self) -> str | None:
        """Return that planned workers are missing, which may return."""
        kind = type(self.cluster).__name__
        planned = len(self.cluster.plan - _ended(self.cluster))
        observed = len(self.cluster.observed)
        if observed < planned:
            return (
                f"only {observed} of {planned} workers of the {kind} run; the others "
                "may return with their threads, so wait for them, and call this again"
            )
        return None

    async def retired(self, id: str | int) -> None:
        """Remove the worker, or the next ``scale`` would start it again."""
        if self.cluster.worker_spec.pop(id, None) is not None:
            self._skip_name(id)
            self._use_common_size()
            await self.correct_state(0)

    def _use_common_size(self) -> None:
        """Give new workers the size of the remaining ones, if all have the same."""
        specs, new = self.cluster.worker_spec.values(), self.cluster.new_spec
        given = [spec.get("options") or {} for spec in specs]
        sizes = [{name: own[name] for name in SIZE if name in own} for own in given]
        if new and sizes and all(size == sizes[0] for size in sizes):
            options = {**(new.get("options") or {}), **sizes[0]}
            self.cluster.new_spec = {**new, "options": options}

    def _skip_name(self, id: str | int) -> None:
        """Make the names of new workers differ from this one.

        A worker keeps its name while it closes, which can take seconds. The cluster
        object skips a new worker with the same name, and does not try again.
        """
        for number in range(self.cluster._i, self.cluster._i + MAX_NAMES):
            if self.cluster._new_worker_name(number) == id:
                self.cluster._i = number + 1
                return


def _ended(cluster: Any) -> set[Any]:
    """Return the planned workers that have ended, and that Dask does not wait for.

    Dask forgets a worker ``lost-worker-timeout`` after it left the scheduler, but keeps
    its specification, so the next ``scale`` starts it again.
    """
    if cluster._lock.locked():  # it is starting or closing workers
        return set()
    return {*cluster.worker_spec}.difference(cluster.workers, cluster.observed)


def _drop_ended(cluster: Any, most: int) -> None:
    """Drop the specifications of workers that have ended, at most so many."""
    for name in list(_ended(cluster))[: max(0, most)]:
        del cluster.worker_spec[name]


def _resized_spec(spec: Mapping[str, Any], size: WorkerSize) -> dict[str, Any]:
    """Return a worker's specification with another size."""
    options = dict(spec.get("options") or {})
    if size.nthreads is not None:
        options["nthreads"] = size.nthreads
    if size.memory_limit is not None:
        options["memory_limit"] = size.memory_limit
    return {**spec, "options": options}


class JobQueue(_Local):
    """Clusters whose workers are jobs of a batch system (dask_jobqueue).

    A job starts one or several workers and ends with the last of them. So a request for
    three workers starts four if a job has two. A job is cancelled only when none of its
    workers remains. Only the batch system knows when a job begins.
    """

    async def scale(self, n_workers: int, there: int) -> None:
        """Request the missing jobs; workers of other jobs are starting."""
        missing = n_workers - there - self._coming()
        if missing > 0:
            jobs = len(self._workers()) - (-missing // self._per_job())
            await _answer(self.cluster.scale(jobs=jobs))

    def _coming(self) -> int:
        mine = self._workers().values()
        return sum(len(names - self.cluster.observed) for names in mine)

    async def correct_state(self, missing: int) -> None:
        """Submit ended jobs again. Dask sees the end only of jobs with one worker."""
        _drop_ended(self.cluster, self._coming() - missing)
        await _answer(self.cluster.scale(jobs=len(self.cluster.worker_spec)))

    async def retired(self, id: str | int) -> None:
        """Cancel the job if this was its last worker."""
        job = next((j for j, mine in self._workers().items() if id in mine), None)
        if job is None:
            return
        _retired.setdefault(self.cluster, set()).add(str(id))
        left = self._workers()[job]
        if not left:
            del self.cluster.worker_spec[job]
            await self.correct_state(0)

    def _per_job(self) -> int:
        """Return the workers of a job, as requested or as dask_jobqueue derives."""
        return int(self.cluster._dummy_job.worker_processes)

    def _workers(self) -> Mapping[str, set[str]]:
        """Return the names of the workers of each job, without retired ones.

        ``cluster.plan`` has one name for a job without ``processes``.
        """
        each, gone = self._per_job(), _retired.get(self.cluster, set())
        return {
            job: ({f"{job}-{i}" for i in range(each)} if each > 1 else {job}) - gone
            for job in self.cluster.worker_spec
        }


class Coiled(_Local):
    """Coiled's clusters: virtual machines in a cloud account.

    A call of ``scale`` ends adaptive scaling.
    """

    async def scale(self, n_workers: int, there: int) -> None:
        """Request this many; Coiled counts workers that are starting.

        Adaptive scaling starts its minimum by itself, and a request would end it.
        """
        if not await self.starts_by_itself(n_workers):
            await off_loop(self.cluster.scale, n_workers)

    async def retired(self, id: str | int) -> None:
        """Stop the machine of the worker."""
        down = self.cluster.scale_down
        await off_loop(self.cluster.sync, down, [str(id)], reason="clustertune")


# --- clusters that a server scales for all their clients ------------------------------


class _Served(_OneSize):
    """Clusters whose server keeps the number of workers, and hides the bounds."""

    async def scale(self, n_workers: int, there: int) -> None:
        """Request this many; the server counts workers that are starting."""
        await off_loop(self.cluster.scale, n_workers)

    async def retired(self, id: str | int) -> None:
        """Request the remaining number, or the server would replace the worker."""
        left = await off_loop(self._names) - {id}
        await off_loop(self.cluster.scale, len(left))

    def _names(self) -> set[str | int]:
        """Return the names of the scheduler's workers."""
        workers = self.cluster.scheduler_info.get("workers")
        if workers is None:  # a gateway object that has lost its scheduler
            raise NoWorkersError(
                f"this {type(self.cluster).__name__} does not know its workers, so the "
                "manager keeps their number; connect to the cluster again"
            )
        return {worker["name"] for worker in workers.values()}


class Gateway(_Served):
    """Clusters behind a Dask Gateway (dask_gateway).

    A client can set the bounds of adaptive scaling, but it cannot read them. A call of
    ``scale`` ends adaptive scaling.
    """

    def obstacle(self, n_workers: int) -> str | None:
        status = self.cluster.status
        if status != "running":
            return f"the cluster object is {status}; connect to the cluster again"
        return None

    def restart_obstacle(self) -> str:
        """Return that the gateway replaces a restarting worker under another name."""
        return (
            "a gateway ends a worker that its nanny restarts, and starts another; "
            "scale to one worker more, then back: leaving workers move their data to "
            "the others"
        )

    async def bounds(self) -> Unknown:
        return Unknown(
            "only the gateway's server knows; cluster.adapt(active=False) turns it off"
        )


class Saturn(_Served):
    """Clusters of Saturn Cloud (dask_saturn).

    The cluster object requests everything from Saturn's server, also its status, so its
    methods are not called in the event loop. A client cannot read whether the server
    scales the cluster by itself.
    """

    def obstacle(self, n_workers: int) -> str | None:
        """Return why it cannot have so many workers. The server may still refuse."""
        closed = not self.cluster.cluster_url
        return "the cluster was closed; make a new one" if closed else None

    async def bounds(self) -> Unknown:
        return Unknown("only Saturn's server knows the bounds")

    def resize_obstacle(
        self, size: WorkerSize, workers: Sequence[WorkerSnapshot]
    ) -> str | None:
        """Return that only a new cluster has more threads or memory."""
        threads, limit = size.nthreads or 0, size.memory_limit or 0
        if all(threads <= w.nthreads and limit <= w.memory_limit for w in workers):
            return None
        return (
            "Saturn Cloud gives no running worker more threads or memory; write the "
            "data with X.to_parquet(PATH) or X.to_zarr(PATH), because all data in "
            "memory will be lost, then run `cluster = cluster.reset(n_workers="
            f'{len(workers)}, worker_size="NAME", nthreads='
            f"{threads or workers[0].nthreads})` (names: dask_saturn.describe_sizes())"
        )


class Kubernetes(_OneSize):
    """Clusters of Dask's operator in Kubernetes (dask_kubernetes).

    The operator keeps the number of workers of a ``DaskWorkerGroup``. All clients share
    the autoscaler, the resource ``DaskAutoscaler``; scaling by hand would delete it. A
    worker is a deployment, which starts it again when its process ends.
    """

    def obstacle(self, n_workers: int) -> str | None:
        if self.cluster.status.name != "running":
            status = self.cluster.status.name
            return f"the cluster object is {status}; connect to it again"
        return None

    async def bounds(self) -> Bounds | Unknown | None:
        """Return the bounds in the autoscaler's resource, if there is one."""
        import httpx
        import kr8s

        try:
            # the limit also ends the thread, which would wait as long as the server
            limit = {"callback_timeout": ANSWER_TIMEOUT}
            asked = off_loop(self.cluster.sync, self._bounds, **limit)
            found: Bounds | None = await within(asked, ANSWER_TIMEOUT)
        except (
            httpx.HTTPError,
            kr8s.APITimeoutError,
            kr8s.ServerError,
            asyncio.TimeoutError,
        ) as error:
            return Unknown(f"Kubernetes did not answer ({error!r})")
        return found

    async def adapt(self, minimum: int, maximum: float) -> None:
        """Set the bounds in the autoscaler's resource."""
        if await self.bounds() is None:
            name = self.cluster.name
            raise NoWorkersError(f"the cluster {name} does not scale by itself")
        most = MAX_WORKERS if math.isinf(maximum) else int(maximum)
        await off_loop(self.cluster.adapt, minimum=minimum, maximum=most)

    async def scale(self, n_workers: int, there: int) -> None:
        """Add the missing workers to the group that the cluster was made with.

        The operator counts workers that are starting. Adaptive scaling starts its
        minimum by itself, and a request would end it.
        """
        if await self.starts_by_itself(n_workers):
            return
        replicas = await off_loop(self.cluster.sync, self._replicas)
        missing = n_workers - sum(replicas.values())
        if missing > 0:
            group = f"{self.cluster.name}-default"
            await off_loop(self.cluster.scale, replicas[group] + missing)

    async def retired(self, id: str | int) -> None:
        """Delete the deployment, then reduce the number.

        Otherwise another worker would close.
        """
        await off_loop(self.cluster.sync, self._remove, str(id))

    # The following methods run in the event loop of the cluster object.

    async def _bounds(self) -> Bounds | None:
        from dask_kubernetes.operator._objects import DaskAutoscaler

        # get(name) would wait for a missing resource
        name = {"metadata.name": self.cluster.name}
        space = self.cluster.namespace
        found = DaskAutoscaler.list(namespace=space, field_selector=name)
        async for autoscaler in found:
            return int(autoscaler.spec.minimum), int(autoscaler.spec.maximum)
        return None

    async def _replicas(self) -> Mapping[str, int]:
        from dask_kubernetes.operator._objects import DaskWorkerGroup

        name = self.cluster.name
        groups = DaskWorkerGroup.list(namespace=self.cluster.namespace)
        return {g.name: g.replicas async for g in groups if g.spec.cluster == name}

    async def _remove(self, worker: str) -> None:
        import kr8s
        from dask_kubernetes.operator._objects import DaskWorkerGroup
        from kr8s.asyncio.objects import Deployment

        space = self.cluster.namespace
        # another client may have deleted it and reduced the number
        with suppress(kr8s.NotFoundError):
            deployment = await Deployment.get(worker, namespace=space)
            group = deployment.labels["dask.org/workergroup-name"]
            await deployment.delete()
            workers = await DaskWorkerGroup.get(group, namespace=space)
            await workers.scale(workers.replicas - 1)


# --- all managers ---------------------------------------------------------------------

#: by module and name of the class of the cluster objects, the most general one last
ADAPTERS: Mapping[tuple[str, str], type[Adapter]] = {
    ("coiled", "Cluster"): Coiled,
    ("dask_gateway", "GatewayCluster"): Gateway,
    ("dask_jobqueue", "JobQueueCluster"): JobQueue,
    ("dask_kubernetes.operator", "KubeCluster"): Kubernetes,
    ("dask_saturn", "SaturnCluster"): Saturn,
    ("distributed", "SpecCluster"): SpecCluster,
}


def find(cluster: Any) -> Adapter:
    """Return the adapter for a cluster object."""
    for (module, kind), adapter in ADAPTERS.items():
        known = getattr(sys.modules.get(module), kind, None)
        if known is not None and isinstance(cluster, known):
            return adapter(cluster)
    return Adapter(cluster)
