"""Deep-learning frameworks that ``run_roles`` sets up: PyTorch and TensorFlow.

The context managers around a role's function run on workers. This module travels by
value, so they may import the framework, Dask and other travelling modules.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

Spec = Mapping[str, list[str]]  # by role a list of host:port, by rank

WORKER = "worker"  # TensorFlow's name of the role that trains
MEMBER = "_clustertune_member"  # attribute of tensorflow: address of a mirrored worker
POLL_INTERVAL = 1.0  # seconds between two checks whether another role has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Requirements of a framework."""

    modules: tuple[str, ...] = ()  # that workers must be able to import
    workload: str = "generic"  # for ``prepare``
    synchronous: bool = False  # ranks run in step and need equally many batches
    #: environment variables of a role, by spec, role and rank
    environment: Callable[[Spec, str, int], dict[str, str]] = lambda *_: {}
    around: Callable[[Any], Any] = nullcontext  # context manager around the function
    own_process: bool = True  # each role needs its own process


def choose(name: object, roles: Collection[str] = ()) -> Framework:
    """Return the framework of a name for these roles; None means no framework."""
    if name is None:
        return NONE
    if name == "torch":
        return TORCH
    if name == "tensorflow" and WORKER in roles:
        return MIRRORED_WORKERS
    if name == "tensorflow":
        raise ValueError(
            'roles: framework="tensorflow" sets up a MultiWorkerMirroredStrategy, '
            f"which needs a role {WORKER!r} that trains; there are "
            f"{', '.join(map(repr, roles))}"
        )
    raise ValueError(
        f'framework={name!r} must be one of "tensorflow", "torch", or None'
    )


# --- PyTorch --------------------------------------------------------------------------


def _torch_environment(spec: Spec, role: str, rank: int) -> dict[str, str]:
    """Return the variables that ``init_process_group`` reads; a role is a group."""
    host, _, port = spec[role][0].rpartition(":")
    return {
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(spec[role])),
    }


@contextmanager
def process_group(context: Any) -> Iterator[None]:
    """Give PyTorch all threads of the worker, and end the process group.

    Other ranks wait for this one in collective calls. If this rank fails, its closed
    connections make their calls fail as well.
    """
    import torch
    from torch import distributed

    threads = torch.get_num_threads()
    torch.set_num_threads(context.threads)
    context.agree = _any_rank_stops
    try:
        yield
        if distributed.is_initialized():
            # a rank that ends before the others sometimes hangs
            distributed.barrier()
    finally:
        torch.set_num_threads(threads)
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _any_rank_stops(stop: bool) -> bool:
    """Return whether any rank should stop, so that all stop in the same step."""
    import torch
    from torch import distributed

    if not distributed.is_initialized():
        return stop
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    request = torch.tensor([int(stop)], device=device)
    distributed.all_reduce(request, op=distributed.ReduceOp.MAX)
    return bool(request.item())


# --- TensorFlow -----------------------------------------------------------------------


def _mirrored_environment(spec: Spec, role: str, rank: int) -> dict[str, str]:
    """Return the cluster of the workers, without other roles."""
    if role != WORKER:
        return {}
    task = {"type": role, "index": rank}
    return {"TF_CONFIG": json.dumps({"cluster": {WORKER: spec[WORKER]}, "task": task})}


@contextmanager
def mirrored_worker(context: Any) -> Iterator[None]:
    """Let members of a ``MultiWorkerMirroredStrategy`` fail together.

    A member waits very long for a missing member in a collective call. If the function
    fails, or a worker is lost, this aborts the collective calls of all members.
    """
    if context.role != WORKER:
        yield
        return
    import tensorflow as tf

    own = context.spec[WORKER][context.rank]
    before = vars(tf).setdefault(MEMBER, own)
    if before != own:
        raise RuntimeError(
            f"this process has been a mirrored worker ({before}), and TensorFlow sets "
            "that up only once in a process. Restart the workers: "
            "clustertune.restart_workers(client)"
        )
    if context.size > 1:
        context.agree = _any_worker_stops
    ended = threading.Event()
    watcher = threading.Thread(
        target=_watch_other_roles, args=(context, ended), daemon=True
    )
    watcher.start()
    try:
        yield
    except BaseException:
        if context.size > 1:
            _abort_collectives("one of the workers has failed")
        raise
    finally:
        ended.set()
        watcher.join()


def _watch_other_roles(context: Any, ended: threading.Event) -> None:
    """Abort collective calls when another role failed, or its worker is lost.

    A member that failed keeps its server, so the calls of other members would wait.
    """
    while not ended.wait(POLL_INTERVAL):
        if context.aborted.is_set():
            _abort_collectives("another role has failed")
            return


def _abort_collectives(reason: str) -> None:
    import tensorflow as tf
    from tensorflow.python.eager import context

    if context.context_safe() is not None:
        context.context().abort_collective_ops(tf.errors.UNAVAILABLE, reason)


def _any_worker_stops(stop: bool) -> bool:
    """Return whether any worker should stop, so that all stop in the same step."""
    import tensorflow as tf

    if not tf.distribute.has_strategy():
        raise RuntimeError(
            "mirrored workers answer ctx.should_stop() by a collective call, which "
            "needs the strategy. Call it inside `with strategy.scope():`"
        )
    strategy: Any = tf.distribute.get_strategy()
    total = strategy.run(_sum_requests, args=(tf.constant(float(stop)),))
    return bool(strategy.experimental_local_results(total)[0] > 0)


def _sum_requests(request: Any) -> Any:
    import tensorflow as tf

    replica: Any = tf.distribute.get_replica_context()
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, request)


# --- all frameworks -------------------------------------------------------------------

NONE = Framework(own_process=False)

TORCH = Framework(
    modules=("torch",),
    workload="torch_ddp",
    synchronous=True,
    environment=_torch_environment,
    around=process_group,
)

MIRRORED_WORKERS = Framework(
    modules=("tensorflow",),
    workload="tf_mirrored",
    synchronous=True,
    environment=_mirrored_environment,
    around=mirrored_worker,
)
