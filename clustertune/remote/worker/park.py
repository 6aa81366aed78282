"""A parking worker: keeps the keys of a worker while that worker is restarted.

It runs in the process and on the event loop of that worker's nanny, which survives the
restart. It gets no tasks, because it never reports to the scheduler that it runs. It
takes over spilled keys as links to their files, without reading them. It keeps other
keys as the received bytes, and writes them to disk if they exceed its share of the free
memory. It cannot unpickle them: its process lacks the worker's environment, modules and
GPU. With a ``LocalCluster`` that process is the user's own, so the parking worker
avoids or undoes all effects on it: preloads, plugins, lifetime, threads, import paths.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from inspect import isawaitable
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import msgpack  # type: ignore[import-untyped]
import psutil
from distributed import Worker
from distributed.core import Status
from distributed.protocol.compression import decompress
from distributed.protocol.serialize import Serialize, Serialized
from distributed.protocol.utils import unpack_frames
from distributed.spill import SpillBuffer, SpilledSize

from clustertune.remote.worker import probe, process
from clustertune.remote.worker.probe import available_memory, disk

logger = logging.getLogger("distributed.clustertune")

EMPTY_TIMEOUT = 120.0  # seconds after which an empty parking worker closes by itself
MEMORY_SHARE = 0.5  # of the host's free memory
DISK_SHARE = 0.9  # of the disk's free bytes
IN_MEMORY = ("tmpfs", "ramfs")  # file systems that are no disks
SEND_SHARE = 0.25  # of the memory below the nanny's limit, which sending may use


async def act(dask_worker: Any, what: str, **arguments: Any) -> bytes:
    """Do one step of a restart, on a worker or its nanny.

    All steps are one function, so that the client sends their code once. The answer is
    plain data, so that the scheduler need not unpickle it.
    """
    if what == "replace":
        arguments["free"] = room(dask_worker)["memory"]
    found = STEPS[what](dask_worker, **arguments)
    answer: bytes = msgpack.packb(await found if isawaitable(found) else found)
    return answer


def read(result: Serialize | Serialized) -> Any:
    """Read the answer of :func:`act`, as the scheduler gets it."""
    if isinstance(result, Serialize):  # of a worker in the scheduler's process
        raw = result.data
    else:
        frames = result.frames
        if "compression" in result.header:
            frames = decompress(result.header, frames)
        raw = b"".join(frames)
    return msgpack.loads(raw, use_list=False, strict_map_key=False) if raw else None


def room(dask_worker: Any) -> dict[str, int]:
    """Bytes of memory and of disk that a parking worker of this nanny may fill."""
    kind, free = disk(dask_worker.local_directory)
    return {
        "memory": int(MEMORY_SHARE * available_memory()),
        "disk": 0 if kind in IN_MEMORY else int(DISK_SHARE * free),
    }


def prospects(dask_worker: Any) -> dict[str, Any]:
    """Return what a nanny may fill, and whether it can run two processes."""
    return room(dask_worker) | process.second_process(dask_worker)


# --- files ----------------------------------------------------------------------------


def spilled(dask_worker: Any) -> list[Any]:
    """Key, path, size in memory and size on disk of each spilled key of a worker.

    None are known if the worker does not keep its data in Dask's own buffer.
    """
    data: Any = dask_worker.data
    if isinstance(data, BytesBuffer):
        return [(k, str(f.path), *f.size) for k, f in data.linked.items()]
    if type(data) is not SpillBuffer:
        return []
    slow: Any = data._slow_uncached
    return [
        (key, str(Path(slow.d.directory, name)), *slow.weight_by_key[key])
        for key, name in slow.d.filenames.items()
        if key in slow.weight_by_key
    ]


def adopt(dask_worker: Any, files: Sequence[Any]) -> list[Any]:
    """Take over spilled keys of another worker on this host, as links to their files.

    A file may be gone, or on another file system; the keys that were taken over are
    returned. Nothing is read, and a link stays when the other worker deletes its file.
    """
    data, taken = dask_worker.data, []
    kind = type(data)
    if kind is SpillBuffer:
        data.__class__ = _Adopting
    elif kind is not BytesBuffer:
        return []
    try:
        for key, path, *size in files:
            if key in dask_worker.state.tasks:
                continue  # the key is here or arrives
            try:
                file = File(path, SpilledSize(*size))
                data.take(key, file)
            # a key that is not taken over is sent like other keys
            except Exception as error:  # noqa: BLE001
                logger.debug("clustertune: %s is not taken over: %r", key, error)
                continue
            dask_worker.update_data({key: file})
            taken.append(key)
    finally:
        data.__class__ = kind
    return taken


class File:
    """A spilled value in a file, as Dask wrote it."""

    # without weak references, because Dask would cache the values
    __slots__ = ("path", "size")

    def __init__(self, path: str, size: SpilledSize):
        self.path = Path(path)
        self.size = size

    def __sizeof__(self) -> int:
        return self.size.memory

    def link(self, folder: str) -> None:
        """Make a link to the file, and use the link from then on."""
        path = Path(folder, f"link-{uuid4().hex}")
        path.hardlink_to(self.path)
        self.path = path

    def read(self) -> tuple[dict[str, Any], list[Any]]:
        """Header and frames of the value."""
        frames: list[Any] = unpack_frames(self.path.read_bytes())
        header = msgpack.loads(frames[0], raw=False, use_list=False)
        values = decompress(header, frames[1:])
        header.pop("compression", None)  # they are plain now
        return header, values


class _Nothing(bytes):
    """Empty bytes that count as ``nbytes``."""

    nbytes: int


class _Adopting(SpillBuffer):
    """Dask's buffer while it takes over files."""

    def take(self, key: Any, file: File) -> None:
        """Have Dask write an empty file with all its entries, and replace that file."""
        slow: Any = self._slow_uncached
        file.link(slow.d.directory)
        nothing = _Nothing()
        nothing.nbytes = file.size.disk
        dump, slow.dump = slow.dump, lambda _: [nothing]
        try:
            self.slow[key] = file
            file.path.replace(Path(slow.d.directory, slow.d.filenames[key]))
        finally:
            slow.dump = dump
            file.path.unlink(missing_ok=True)

    def __setitem__(self, key: Any, value: Any) -> None:
        assert key in self.slow  # it has been taken over


# --- the parking worker ---------------------------------------------------------------


async def open_parking(
    dask_worker: Any, name: str, nbytes: int, timeout: float
) -> None:
    """Start a parking worker and wait until it has registered.

    It must register within ``timeout`` seconds. If it is empty after ``EMPTY_TIMEOUT``
    seconds, it closes, because the scheduler may have forgotten it.
    """
    nanny, free = dask_worker, room(dask_worker)
    if nbytes > free["memory"] + free["disk"]:
        raise RuntimeError(
            f"{nbytes:,} bytes must be parked, and {free['memory']:,} of memory and "
            f"{free['disk']:,} of disk are free there"
        )
    given = nanny.worker_kwargs
    worker = Parking(
        nanny.scheduler_addr,
        name=name,
        nthreads=1,
        executor="offload",  # an existing one: closing it would start a thread
        local_directory=nanny.local_directory,
        security=nanny.security,
        protocol=given.get("protocol"),
        interface=given.get("interface"),
        host=given.get("host"),
        # the process may be the user's, so the buffer has a limit instead
        memory_limit=0,
        data=(_buffer, {"target": free["memory"]}),
        resources={},
        lifetime=0,
        # an empty list would mean the preloads of the configuration
        preload=["distributed"],
        preload_argv=[[]],
        death_timeout=timeout,
        empty_timeout=timeout + EMPTY_TIMEOUT,
    )
    worker.executors["actor"] = worker.executors["offload"]
    if worker.local_directory in sys.path:
        sys.path.remove(worker.local_directory)
    logging.getLogger("distributed.worker").removeHandler(worker._deque_handler)
    # small messages, so that the worker stays below the nanny's limit
    most = int(SEND_SHARE * _room_below_limit(nanny))
    limit = worker.state.transfer_message_bytes_limit
    worker.state.transfer_message_bytes_limit = max(1, min(most, limit))
    await worker
    worker.end = monotonic() + EMPTY_TIMEOUT


def _room_below_limit(nanny: Any) -> float:
    """Bytes by which the worker's process may grow before the nanny kills it."""
    manager = nanny.memory_manager
    if not manager.memory_limit or not manager.memory_terminate_fraction:
        return 2.0**40
    try:
        nbytes = psutil.Process(nanny.process.process.pid).memory_info().rss
    except (AttributeError, psutil.Error):
        return 0.0
    line = manager.memory_terminate_fraction * manager.memory_limit
    return max(0.0, float(line - nbytes))


def _buffer(worker_local_directory: str, target: int) -> SpillBuffer:
    return BytesBuffer(str(Path(worker_local_directory, "storage")), target)


class BytesBuffer(SpillBuffer):
    """Keeps values as header and bytes, which Dask can measure and write to disk.

    ``linked`` has the keys that are links to the files of another worker.
    """

    def __init__(self, spill_directory: str, target: int):
        super().__init__(spill_directory, target)
        self.linked: dict[Any, File] = {}
        self._folder = spill_directory

    def take(self, key: Any, file: File) -> None:
        file.link(self._folder)
        self.linked[key] = file

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, File):
            return  # it has been taken over
        # copied, because Dask reads several keys into one buffer
        assert isinstance(value, Serialized)
        if problem := _sending_error(value.header, value.frames):
            raise TypeError(problem)
        frames = [bytes(frame) for frame in value.frames]
        super().__setitem__(key, (value.header, frames))

    def __getitem__(self, key: Any) -> Any:
        if key in self.linked:
            return self.linked[key].read()
        return super().__getitem__(key)

    def __delitem__(self, key: Any) -> None:
        if key in self.linked:
            self.linked.pop(key).path.unlink()
        else:
            super().__delitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self.linked or super().__contains__(key)

    def __iter__(self) -> Iterator[Any]:
        yield from list(self.linked)
        yield from super().__iter__()

    def __len__(self) -> int:
        return len(self.linked) + super().__len__()


def _sending_error(header: Any, frames: Sequence[Any]) -> str:
    """Return the error that Dask has sent instead of a value, or an empty text."""
    if header.get("serializer") == "error":
        return bytes(frames[0]).decode(errors="replace")
    parts = header.get("sub-headers", ())
    return next(filter(None, (_sending_error(part, frames) for part in parts)), "")


class Parking(Worker):
    """A worker that holds keys and does nothing else.

    It closes if it holds nothing after ``empty_timeout`` seconds.
    """

    def __init__(self, *args: Any, empty_timeout: float, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.rpc.deserialize = False
        self.end = monotonic() + empty_timeout

    def _send_worker_status_change(self, stimulus_id: str) -> None:
        """Never report that it runs, because it would get tasks at once."""
        if self.status is not Status.running:
            super()._send_worker_status_change(stimulus_id)

    async def get_data(
        self, comm: Any, keys: Any, who: Any = None, serializers: Any = None
    ) -> Any:
        """Send keys as they have arrived."""
        stored: Any = self.data
        data = {k: Serialized(*stored[k]) for k in keys if k in stored}
        await comm.write({"status": "OK", "data": data}, serializers=serializers)
        await comm.read(deserializers=serializers)  # the receiver's OK
        return Status.dont_reply

    async def plugin_add(self, *args: Any, **kwargs: Any) -> Any:
        """Reject plugins: their changes would stay in the nanny's process."""
        return {"status": "OK"}

    async def heartbeat(self) -> None:
        """Close if the scheduler has forgotten it."""
        if monotonic() > self.end and not self.data:
            self.loop.add_callback(self.close, reason="clustertune-parking-forgotten")
        await super().heartbeat()


STEPS: dict[str, Callable[..., Any]] = {
    "replace": process.replace,
    "detach": process.detach,
    "end": process.end,
    "open": open_parking,
    "spilled": spilled,
    "adopt": adopt,
    "unsendable": probe.unsendable,
}
