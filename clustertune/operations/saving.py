"""``save_data`` and ``load_data``: write collections to files and read them again.

Each save has its own folder below PATH, with one folder for each collection and one
file for each partition: Parquet for DataFrames, Zarr for Arrays. Workers write and read
these files. Before, a test checks that all processes see the same storage. Afterwards,
the client checks the files and writes the manifest. No file contains
``storage_options``, which may be secrets. The options are arguments of tasks, so the
scheduler has them as long as these tasks exist.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import dask.array as da
import msgspec
import numpy as np
from dask._task_spec import TaskRef
from dask.array.utils import meta_from_array
from dask.dataframe.dask_expr import from_graph
from distributed import Client

from clustertune.actions.cluster.live import LiveCluster
from clustertune.collections import graphs, inputs
from clustertune.collections.inputs import Inputs
from clustertune.core import arguments
from clustertune.core.model import Goal, Key, Notify
from clustertune.core.progress import Progress
from clustertune.core.wording import plural, printable, seconds_text
from clustertune.errors import (
    RefusedError,
    SaveError,
    TimedOutError,
    VersionMismatchError,
)
from clustertune.integrations import libraries
from clustertune.monitor import connection, monitor
from clustertune.monitor.connection import sync
from clustertune.operations import manifests
from clustertune.operations.call import check_client
from clustertune.operations.manifests import (
    Manifest,
    Saved,
    SavedArray,
    SavedFrame,
    SavedSeries,
    Target,
)
from clustertune.remote import ship
from clustertune.remote.worker import partitions

PACKAGES = {SavedArray: "numcodecs", SavedFrame: "pyarrow", SavedSeries: "pyarrow"}
VISIBILITY_TIMEOUT = 30.0  # seconds until other processes see a new file
ANSWER_TIMEOUT = 60.0  # seconds for a worker to write a small file
POLL = 0.1  # seconds between two checks

Remaining = Callable[[], float]

logger = logging.getLogger("clustertune")


# --- the public calls -----------------------------------------------------------------


def save_data(
    client: Client,
    path: Any,
    *collections: Any,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "30 minutes",
) -> None:
    """Write persisted collections to a folder and check the files.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    path
        A folder that this process and all workers see: on a shared file system, or a
        URL for fsspec.
    *collections
        Persisted Dask Arrays (written as Zarr), DataFrames and Series (as Parquet).
    storage_options
        Options of fsspec for that URL. Workers get them in tasks, which the scheduler
        keeps as long as the data that :func:`clustertune.load_data` returns. No file,
        report or log contains them.
    overwrite
        Whether an existing save may be replaced. It is removed after the new save is
        complete.
    progress, timeout
        As for :func:`clustertune.prepare`.

    Raises
    ------
    RefusedError
        A collection is not in memory or cannot be restored from files, the folder is
        not empty, or a worker does not see it.
    SaveError
        A file could not be written, or is missing afterwards.

    Examples
    --------
    >>> clustertune.save_data(client, "/shared/save", X, y)          # doctest: +SKIP
    """
    target = manifests.target("path", path, storage_options)
    arguments.flag("overwrite", overwrite)
    if not collections:
        raise TypeError("give at least one collection to save")
    given = inputs.of_rows(collections)
    seconds = arguments.duration("timeout", timeout)

    async def work(notify: Notify, remaining: Remaining) -> None:
        cluster = await open_cluster(client, given, remaining)
        async with cluster.lease("save", notify):
            await cluster.look(notify)
            await write(cluster, target, overwrite=overwrite, notify=notify)

    # an asynchronous client returns an awaitable
    done: None = sync(client, _run, work, "save_data", seconds, progress)
    return done


def load_data(
    client: Client,
    path: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | Notify | None = None,
    timeout: str | float = "30 minutes",
) -> tuple[Any, ...]:
    """Load saved collections with the same values, partitions, types and names.

    The collections are persisted. Dask chooses the workers;
    :func:`clustertune.prepare` places the partitions. If a worker is lost, Dask reads
    its partitions again. Keep the files as long as you use the data.

    Parameters
    ----------
    client, storage_options, progress, timeout
        As for :func:`clustertune.save_data`.
    path
        The path that was given to :func:`clustertune.save_data`.

    Returns
    -------
    tuple
        The collections in the order in which they were saved.

    Raises
    ------
    SaveError
        The path has no complete save, or a file has changed since.

    Examples
    --------
    >>> X, y = clustertune.load_data(client, "/shared/save")         # doctest: +SKIP
    """
    target = manifests.target("path", path, storage_options)
    seconds = arguments.duration("timeout", timeout)

    async def work(notify: Notify, remaining: Remaining) -> tuple[Any, ...]:
        check_client(client)
        return await read(client, target, notify, remaining)

    found: tuple[Any, ...] = sync(client, _run, work, "load_data", seconds, progress)
    return found


async def open_cluster(
    client: Client, given: Inputs, remaining: Remaining, **options: Any
) -> LiveCluster:
    """Check a client and collections, and open their cluster for a call."""
    check_client(client, given)
    goal = Goal(workload=libraries.choose(None))
    cluster = LiveCluster(client, given, goal, remaining)
    await cluster.open(None, **options)
    return cluster


async def _run(
    work: Callable[[Notify, Remaining], Any],
    name: str,
    timeout: float,
    progress: bool | Notify | None,
) -> Any:
    display, start = Progress(progress), monotonic()
    try:
        return await asyncio.wait_for(
            work(display.notify, lambda: start + timeout - monotonic()), timeout
        )
    except asyncio.TimeoutError as error:
        raise TimedOutError(
            f"{name} did not end within {seconds_text(timeout)}; the data in memory is "
            "unchanged; give a longer timeout"
        ) from error
    finally:
        display.finish([])


# --- checks before writing ------------------------------------------------------------


async def check(cluster: LiveCluster, target: Target, *, overwrite: bool) -> None:
    """Check that the collections of a cluster can be saved; write nothing."""
    loaded = await cluster.futures()
    await asyncio.to_thread(refuse, cluster.given, loaded)
    await _storage(manifests.refuse_occupied, target, overwrite=overwrite)


def refuse(given: Inputs, loaded: Mapping[str, Any]) -> None:
    """Check that all collections are in memory and can be restored from files."""
    for x in given:
        package = PACKAGES[manifests.kind_of(x.collection)]
        if importlib.util.find_spec(package) is None:
            raise RefusedError(
                f"{x.label} cannot be saved without {package}: pip install {package}, "
                "here and on the workers"
            )
        if x.label not in loaded:
            raise RefusedError(
                f"{x.label} is not in memory, so there is no data to save: persist it "
                "first, or leave it out and load it from its source later"
            )
        try:
            _refuse_types(x.collection)
        # pyarrow raises several kinds of errors for unknown types
        except (TypeError, ValueError, NotImplementedError) as error:
            raise RefusedError(
                f"{x.label} cannot be saved: {printable(str(error), longest=500)}"
            ) from error


def _refuse_types(collection: Any) -> None:
    if isinstance(collection, da.Array):
        meta, dtype = meta_from_array(collection), collection.dtype
        if type(meta) is not np.ndarray or dtype.kind not in partitions.KINDS:
            raise TypeError(
                f"its chunks are {type(meta).__name__} of {dtype}; only NumPy arrays "
                "of numbers, dates and text of fixed length can be saved: convert it "
                "with astype"
            )
        return
    for frame in manifests.small_frames(collection).values():
        partitions.refuse_lossy(frame)


async def _refuse_unshared(
    client: Client, target: Target, folder: str, given: Inputs
) -> None:
    """Raise unless the client sees the files that each worker writes."""
    workers = list((await monitor.identify(client))["workers"])
    approved = monitor.known(client).addresses
    unknown = [w for w in workers if w not in approved]
    if unknown:
        raise VersionMismatchError(
            f"{plural(len(unknown), 'worker')} ({printable(unknown[0])}) did not "
            "report their versions, so clustertune sends them no code; run "
            "`clustertune check`"
        )

    ask = partial(
        ship.on_workers,
        client,
        workers=workers,
        timeout=ANSWER_TIMEOUT,
        url=target.url,
        options=dict(target.options),
        path=folder,
    )
    packages = sorted({PACKAGES[manifests.kind_of(x.collection)] for x in given})
    try:
        answers = await ask(partitions.leave_mark, packages=packages)
        for worker, answer in answers.items():
            _refuse_unable(target, worker, answer)
        marks = {answers[worker]["name"]: worker for worker in workers}
        unseen = await _storage(_unseen, target, marks)
    finally:
        await ask(partitions.remove_mark)
    if unseen:
        raise RefusedError(
            f"this process does not see the files that {plural(len(unseen), 'worker')} "
            f"({printable(unseen[0])}) wrote to {target.path}: give a folder that all "
            "machines share, or a URL like s3://bucket/save"
        )


def _refuse_unable(target: Target, worker: str, answer: Any) -> None:
    name = f"worker {printable(worker)}"
    if isinstance(answer, BaseException):
        raise RefusedError(f"{name} did not answer: {printable(repr(answer))}")
    if answer["missing"]:
        missing = " and ".join(answer["missing"])
        raise RefusedError(f"{name} has no {missing}: pip install {missing} there")
    if answer["failed"]:
        why = printable(answer["failed"], longest=300)
        raise RefusedError(f"{name} cannot write to {target.path}: {why}")


def _unseen(target: Target, marks: Mapping[str, str]) -> list[str]:
    """Return the workers whose files do not appear in time.

    Network file systems may show a new file late.
    """
    end, unseen = monotonic() + VISIBILITY_TIMEOUT, list(marks)
    while unseen and monotonic() < end:
        files, root = target.files()
        unseen = [name for name in unseen if not files.exists(f"{root}/{name}")]
        if unseen:
            sleep(POLL)
    return [marks[name] for name in unseen]


# --- writing --------------------------------------------------------------------------


async def write(
    cluster: LiveCluster, target: Target, *, overwrite: bool, notify: Notify
) -> int:
    """Save the collections of a cluster; return the bytes written."""
    await check(cluster, target, overwrite=overwrite)
    # each save has its own folder, so two saves at a time do not mix their files
    folder = f"clustertune-{uuid4().hex[:8]}"
    try:
        saved = await _written(cluster, target, folder, notify)
    except BaseException:
        await _remove(target, folder)
        raise
    given = cluster.given
    numbers = {x.label: i for i, x in enumerate(given)}
    manifest = Manifest(
        schema_version=manifests.SCHEMA_VERSION,
        folder=folder,
        # a collection that was given twice is saved once
        order=[numbers[given.same[label]] for label in given.training],
        collections=saved,
    )
    await _storage(manifests.publish, target, manifest, overwrite=overwrite)
    return manifest.nbytes


async def _written(
    cluster: LiveCluster, target: Target, folder: str, notify: Notify
) -> list[Saved]:
    client, given = cluster.client, cluster.given
    loaded = await cluster.futures()
    await _refuse_unshared(client, target, folder, given)
    graph = graphs.Graph()
    for number, x in enumerate(given):
        is_array = isinstance(x.collection, da.Array)
        task = ship.Tasks(partitions.save_array if is_array else partitions.save_frame)
        options, name = dict(target.options), f"save-{uuid4().hex}"
        files = manifests.file_names(x.collection)
        keys: list[Key] = [(name, i) for i in range(len(files))]
        graph.partitions[x.label] = keys
        for key, file, future in zip(keys, files, loaded[x.label], strict=True):
            path, data = f"{folder}/{number}/{file}", TaskRef(future.key)
            graph.tasks[key] = task(key, target.url, options, path, data)
    futures = await _submitted(client, graph, "saving", notify)
    found = await client.gather(list(futures.values()), asynchronous=True)
    answers = dict(zip(futures, found, strict=True))
    notify("checking all files", None)
    saved = []
    for number, x in enumerate(given):
        written = [answers[key] for key in graph.partitions[x.label]]
        own = f"{folder}/{number}"
        saved.append(await _storage(manifests.complete, target, own, x, written))
    return saved


async def _remove(target: Target, folder: str) -> None:
    """Remove the folder of a failed save. An error is only logged."""

    def remove() -> None:
        files, root = target.files()
        if files.exists(f"{root}/{folder}"):
            files.rm(f"{root}/{folder}", recursive=True)

    try:
        await asyncio.wait_for(asyncio.to_thread(remove), ANSWER_TIMEOUT)
    # storages raise errors of any type
    except Exception as error:  # noqa: BLE001
        logger.warning(
            "%s/%s of a failed save could not be removed (%s); remove it by hand",
            target.path,
            folder,
            printable(repr(error), longest=300),
        )


async def _submitted(
    client: Client, graph: graphs.Graph, verb: str, notify: Notify
) -> dict[Any, Any]:
    """Compute a graph; return the futures when all are finished."""
    futures = await asyncio.to_thread(graphs.submit, client, graph)
    try:
        while pending := [f for f in futures.values() if f.status != "finished"]:
            await _refuse_failed(client, graph, pending, verb)
            done = 1 - len(pending) / len(futures)
            notify(f"{verb} {plural(len(futures), 'partition')}", done)
            await asyncio.sleep(POLL / 2)
    except BaseException:
        for future in futures.values():
            future.release()  # otherwise the traceback keeps them
        raise
    return futures


async def _refuse_failed(
    client: Client, graph: graphs.Graph, pending: Sequence[Any], verb: str
) -> None:
    connection.refuse_closed(client)
    failed = next((f for f in pending if f.status in ("error", "cancelled")), None)
    if failed is None:
        return
    label = next(name for name, keys in graph.partitions.items() if failed.key in keys)
    if failed.status == "cancelled":
        raise SaveError(
            f"{verb} {label} failed: a partition was lost or cancelled; load the data "
            "again"
        )
    error = await failed.exception()
    raise SaveError(
        f"{verb} {label} failed: {printable(str(error), longest=500)}"
    ) from error


async def _storage(
    work: Callable[..., Any], target: Target, *args: Any, **options: Any
) -> Any:
    """Call a function that uses the storage in a thread."""
    try:
        return await asyncio.to_thread(work, target, *args, **options)
    except OSError as error:
        raise SaveError(
            f"{target.path}: {printable(repr(error), longest=300)}"
        ) from error


# --- reading --------------------------------------------------------------------------


async def read(
    client: Client, target: Target, notify: Notify, remaining: Remaining
) -> tuple[Any, ...]:
    """Load a save onto the workers of a client."""
    manifest = await _storage(manifests.read, target)
    await monitor.install_plugin(client, await monitor.identify(client))
    await _wait_for_worker(client, remaining)
    graph = graphs.Graph()
    for saved in manifest.collections:
        _add_reads(graph, target, saved)
    futures = await _submitted(client, graph, "loading", notify)
    collections = []
    for saved in manifest.collections:
        loaded = {key: futures[key] for key in graph.partitions[saved.folder]}
        collections.append(await _storage(_collection, target, saved, loaded))
    return tuple(collections[i] for i in manifest.order)


async def _wait_for_worker(client: Client, remaining: Remaining) -> None:
    while not (await monitor.identify(client))["workers"]:
        if remaining() < 1:
            raise asyncio.TimeoutError
        await asyncio.sleep(POLL)


def _add_reads(graph: graphs.Graph, target: Target, saved: Saved) -> None:
    name, where = f"load-{uuid4().hex}", (target.url, dict(target.options))
    graph.partitions[saved.folder] = keys = []
    if isinstance(saved, SavedArray):
        load = ship.Tasks(partitions.load_array)
        blocks = np.ndindex(*map(len, saved.chunks))
        for block, partition in zip(blocks, saved.partitions, strict=True):
            keys.append(key := (name, *block))
            path = f"{saved.folder}/{'.'.join(map(str, block))}"
            graph.tasks[key] = load(key, *where, path, msgspec.to_builtins(partition))
        return
    load = ship.Tasks(partitions.load_frame)
    for i, part in enumerate(saved.partitions):
        keys.append(key := (name, i))
        path = f"{saved.folder}/{i}.parquet"
        how = (part.crc32, part.shape, isinstance(saved, SavedSeries))
        graph.tasks[key] = load(key, *where, path, *how)


def _collection(target: Target, saved: Saved, futures: Mapping[Any, Any]) -> Any:
    keys: list[Any] = list(futures)
    if isinstance(saved, SavedArray):
        chunks = tuple(tuple(sizes) for sizes in saved.chunks)
        meta = np.empty((0,) * len(chunks), dtype=np.dtype(saved.dtype))
        return da.Array(futures, keys[0][0], chunks, meta=meta)
    meta = manifests.read_small_frame(
        target, saved, "meta", series=isinstance(saved, SavedSeries)
    )
    divisions: Any = (None,) * (len(keys) + 1)
    if saved.divisions:
        small = manifests.read_small_frame(target, saved, "divisions", series=False)
        divisions = tuple(small["divisions"].tolist())
    return from_graph(futures, meta, divisions, keys, "loaded")
