"""Deep-learning frameworks that ``run_roles`` sets up: PyTorch and TensorFlow.

The context managers around a role's function run on workers. This module travels by
value, so they may import the framework, Dask and other travelling modules.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

Spec = Mapping[str, list[str]]  # by role a list of host:port, by rank

WORKER = "worker"  # TensorFlow's name of the role that trains
MEMBER = "_clustertune_member"  # attribute of tensorflow: address of a mirrored worker
POLL_INTERVAL = 0.2  # seconds between two attempts to connect to a server
CONNECT_TIMEOUT = 2.0  # seconds in which a running server accepts


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Requirements of a framework."""

    name: str | None
    modules: tuple[str, ...] = ()  # that workers must be able to import
    workload: str = "generic"  # for ``prepare``
    synchronous: bool = False  # ranks run in step and need equally many batches
    #: environment variables of a role, by spec, role and rank
    environment: Callable[[Spec, str, int], dict[str, str]] = lambda *_: {}
    #: address for a role's function, by spec, role and rank
    target: Callable[[Spec, str, int], str | None] = lambda *_: None
    around: Callable[[Any], Any] = nullcontext  # context manager around the function
    server: Callable[[Any], Any] | None = None  # function of roles without one
    own_process: bool = True  # each role needs its own process


def choose(name: object, roles: Collection[str] = ()) -> Framework:
    """Return the framework of a name for these roles; None means no framework.

    With a role ``ps`` TensorFlow has parameter servers: each role has a server at
    ``ctx.target``. Otherwise the role ``worker`` runs a
    ``MultiWorkerMirroredStrategy``.
    """
    if name is None:
        return NONE
    if name == "torch":
        return TORCH
    if name == "tensorflow" and "ps" in roles:
        return PARAMETER_SERVERS
    if name == "tensorflow" and WORKER in roles:
        return MIRRORED_WORKERS
    if name == "tensorflow":
        raise ValueError(
            f'roles: framework="tensorflow" needs a role {WORKER!r} that trains, and '
            'may have parameter servers, called "ps"; there are '
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


def _torch_target(spec: Spec, role: str, rank: int) -> str:  # noqa: ARG001
    """Return the address for ``init_method=``."""
    return f"tcp://{spec[role][0]}"


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


def _tf_config(cluster: Spec, role: str, rank: int) -> dict[str, str]:
    task = {"type": role, "index": rank}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def _server_environment(spec: Spec, role: str, rank: int) -> dict[str, str]:
    """Return the whole cluster. Calls to a lost server fail at once."""
    return {**_tf_config(spec, role, rank), "GRPC_FAIL_FAST": "true"}


def _mirrored_environment(spec: Spec, role: str, rank: int) -> dict[str, str]:
    """Return the cluster of the workers, without other roles."""
    if role != WORKER:
        return {}
    return _tf_config({WORKER: spec[WORKER]}, role, rank)


def _server_target(spec: Spec, role: str, rank: int) -> str:
    """Return the address of the role's own server, for sessions."""
    return f"grpc://{spec[role][rank]}"


@contextmanager
def tensorflow_server(context: Any) -> Iterator[None]:
    """Run a TensorFlow server at ``context.target`` in a cluster of all roles.

    The function runs after all servers have started, because a session that waits for
    a server cannot be interrupted. A server cannot be stopped: its variables, threads
    and port last as long as the process. Only its sockets are shut down here.
    (``Session.reset`` asks the servers of all roles and hangs if one of them is gone.)
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    server = v1.train.Server(
        tf.train.ClusterSpec(context.spec),
        job_name=context.role,
        task_index=context.rank,
        config=v1.ConfigProto(intra_op_parallelism_threads=context.threads),
    )
    try:
        _wait_for_servers(context)
        yield
    finally:
        _shut_down(int(server.target.rpartition(":")[2]))


def serve(context: Any) -> None:
    """Serve until the client stops this role."""
    context.wait()


def _wait_for_servers(context: Any) -> None:
    for role, addresses in context.spec.items():
        for rank, address in enumerate(addresses):
            while not _accepts(address):
                if context.wait(POLL_INTERVAL):
                    raise RuntimeError(
                        "this role was stopped before the TensorFlow server of "
                        f"{role} {rank} accepted connections ({address})"
                    )


def _accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        found = socket.create_connection(
            (host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT
        )
    except OSError:
        return False
    found.close()
    return True


def _shut_down(port: int) -> None:
    """Shut down all sockets of this process at a port."""
    import psutil

    process: Any = psutil.Process()
    # psutil 5 has the former name
    listed = getattr(process, "net_connections", None) or process.connections
    for connection in listed("tcp"):
        if connection.laddr and connection.laddr.port == port:
            # a duplicate descriptor of the same socket; the server keeps its own
            found = socket.socket(fileno=os.dup(connection.fd))
            with found, suppress(OSError):  # the peer has closed the connection
                found.shutdown(socket.SHUT_RDWR)


@contextmanager
def mirrored_worker(context: Any) -> Iterator[None]:
    """Let members of a ``MultiWorkerMirroredStrategy`` fail together.

    A member waits very long for a missing member in a collective call. If the function
    fails, or a process is gone, this aborts the collective calls of all members.
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
            "that up only once in a process. Restart the worker: "
            "clustertune.restart_workers(client, workers=...)"
        )
    if context.size > 1:
        context.agree = _any_worker_stops
    ended = threading.Event()
    others = [address for address in context.spec[WORKER] if address != own]
    arguments = others, ended, context.aborted
    watcher = threading.Thread(target=_watch_members, args=arguments, daemon=True)
    watcher.start()
    try:
        yield
    except BaseException:
        if others:
            _abort_collectives("one of the workers has failed")
        raise
    finally:
        ended.set()
        watcher.join()


def _watch_members(
    addresses: Iterable[str], ended: threading.Event, aborted: threading.Event
) -> None:
    """Abort collective calls when another member failed or its process is gone.

    A member that failed keeps its server, so the calls of other members would wait.
    """
    seen: set[str] = set()
    while not ended.wait(1):
        if aborted.is_set():
            _abort_collectives("another role has failed")
            return
        accepting = {address for address in addresses if _accepts(address)}
        if seen - accepting:
            _abort_collectives("the process of one of the workers is gone")
            return
        seen |= accepting


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

NONE = Framework(name=None, own_process=False)

TORCH = Framework(
    name="torch",
    modules=("torch",),
    workload="torch_ddp",
    synchronous=True,
    environment=_torch_environment,
    target=_torch_target,
    around=process_group,
)

PARAMETER_SERVERS = Framework(
    name="tensorflow",
    modules=("tensorflow",),
    workload="tf_ps",
    environment=_server_environment,
    target=_server_target,
    around=tensorflow_server,
    server=serve,
)

MIRRORED_WORKERS = Framework(
    name="tensorflow",
    modules=("tensorflow",),
    workload="tf_mirrored",
    synchronous=True,
    environment=_mirrored_environment,
    around=mirrored_worker,
)
