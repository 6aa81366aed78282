"""What surrounds a role of TensorFlow on its worker: servers, and how they end.

A server of TensorFlow cannot be stopped: it, its variables, its threads and the number
of its port last as long as the process. Its sockets are shut here, so that nobody
reaches it. (``Session.reset`` would let go of its variables, but asks the servers of
all roles, whatever its filters, and hangs when one of them is gone.)
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

WORKER = "worker"  # the role of those that a strategy knows, which train
MEMBER = "_clustertune_member"  # of TensorFlow in this process: where it was a member
LOOK = 0.2  # seconds between two tries to reach a server
PATIENCE = 2.0  # seconds in which a server that is there accepts


@contextmanager
def with_server(context: Any) -> Iterator[None]:
    """A server of TensorFlow at ``context.target``, in a cluster of all roles.

    The function is not called before all servers are there: a session that waits for
    one of them cannot be interrupted.
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
        _await(context)
        yield
    finally:
        _shut(int(server.target.rpartition(":")[2]))


def serve(context: Any) -> None:
    """Be a server until those that need it have ended."""
    context.wait()


def _await(context: Any) -> None:
    for role, places in context.spec.items():
        for rank, place in enumerate(places):
            while not _reached(place):
                if context.wait(LOOK):
                    raise RuntimeError(
                        "told to stop before the TensorFlow server of "
                        f"{role} {rank} was there ({place})"
                    )


def _reached(place: str) -> bool:
    host, _, port = place.rpartition(":")
    address = host.strip("[]"), int(port)
    try:
        socket.create_connection(address, timeout=PATIENCE).close()
    except OSError:
        return False
    return True


def _shut(port: int) -> None:
    """Have nobody reach this process at that port any more."""
    import psutil

    for connection in psutil.Process().net_connections("tcp"):
        if connection.laddr and connection.laddr.port == port:
            # another descriptor of the same socket: the server keeps its own
            found = socket.socket(fileno=os.dup(connection.fd))
            with found, suppress(OSError):  # the other side has closed it
                found.shutdown(socket.SHUT_RDWR)


@contextmanager
def mirrored(context: Any) -> Iterator[None]:
    """Have the members of a ``MultiWorkerMirroredStrategy`` end with each other.

    A member that waits for another one in a collective call waits for very long. When
    the function fails here, or a process is gone, these calls fail, here and there.
    """
    if context.role != WORKER:
        yield
        return
    import tensorflow as tf

    place = context.spec[WORKER][context.rank]
    before = vars(tf).setdefault(MEMBER, place)
    if before != place:
        raise RuntimeError(
            f"this process was a mirrored worker before ({before}), and TensorFlow "
            "begins that only once in a process; start it anew: "
            "clustertune.restart(client, workers=...)"
        )
    if context.size > 1:
        context.agree = agree
    ended = threading.Event()
    others = [p for p in context.spec[WORKER] if p != place]
    asked = others, ended, context.broken
    watching = threading.Thread(target=_watch, args=asked, daemon=True)
    watching.start()
    try:
        yield
    except BaseException:
        if others:
            _abort("one of the workers has failed")
        raise
    finally:
        ended.set()
        watching.join()


def _watch(
    places: Iterable[str], ended: threading.Event, broken: threading.Event
) -> None:
    """End collective calls when another member has failed, or its process is gone.

    A member that has failed goes on serving: nobody's calls would end by that.
    """
    seen: set[str] = set()
    while not ended.wait(1):
        if broken.is_set():
            _abort("another role has failed")
            return
        reached = {place for place in places if _reached(place)}
        if seen - reached:
            _abort("the process of one of the workers is gone")
            return
        seen |= reached


def _abort(why: str) -> None:
    import tensorflow as tf
    from tensorflow.python.eager import context

    if context.context_safe() is not None:
        context.context().abort_collective_ops(tf.errors.UNAVAILABLE, why)


def agree(stop: bool) -> bool:
    """Whether one of the workers is to stop: then all do, in the same step."""
    import tensorflow as tf

    if not tf.distribute.has_strategy():
        raise RuntimeError(
            "mirrored workers agree on ctx.should_stop() by a collective call: ask it "
            "in a block `with strategy.scope():`"
        )
    strategy: Any = tf.distribute.get_strategy()
    total = strategy.run(_total, args=(tf.constant(float(stop)),))
    return bool(strategy.experimental_local_results(total)[0] > 0)


def _total(wish: Any) -> Any:
    import tensorflow as tf

    replica: Any = tf.distribute.get_replica_context()
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, wish)
