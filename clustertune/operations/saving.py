"""``save`` and ``load``: collections in memory, as files, and as they were again.

Below PATH there is one folder for each save, in it one for each collection with a file
for each piece (Parquet for frames, Zarr for arrays), and next to it a manifest. The
manifest is written last: without it there is no save. Workers write their pieces and
read them again. Before that, all processes are checked to see the same storage;
afterwards, all files are checked to be there. No file contains the options of a
storage, which may be secrets. They travel in tasks, so the scheduler holds them as long
as these tasks.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import Any
from uuid import uuid4
from zlib import crc32

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask._task_spec import TaskRef
from dask.array.utils import meta_from_array
from dask.dataframe.dask_expr import from_graph
from distributed import Client

from clustertune.actions.cluster.live import LiveCluster
from clustertune.collections import graphs, inputs
from clustertune.collections.inputs import Inputs
from clustertune.core import arguments
from clustertune.core.model import Goal, Notify
from clustertune.core.progress import Progress
from clustertune.core.wording import bytes_text, plural, printable, seconds_text
from clustertune.errors import (
    RefusedError,
    SaveError,
    TimedOutError,
    VersionMismatchError,
)
from clustertune.integrations import libraries
from clustertune.monitor import connection, monitor
from clustertune.operations import entrance, manifests
from clustertune.operations.manifests import MANIFEST, SCHEMA_VERSION, Target
from clustertune.remote import ship
from clustertune.remote.worker import pieces

NEEDED = {"array": "numcodecs", "dataframe": "pyarrow", "series": "pyarrow"}
SEEN = 30.0  # seconds in which what somebody has written is seen by others
ANSWER = 60.0  # seconds in which a worker writes a small file
POLL = 0.1  # seconds between two looks

Remaining = Callable[[], float]

logger = logging.getLogger("clustertune")


# --- the public calls -----------------------------------------------------------------


def save(
    client: Client,
    path: Any,
    *collections: Any,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "30 minutes",
) -> None:
    """Write collections that are in memory to a folder, and see that they are there.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    path
        A folder that this process and all workers see: of a shared file system, or a
        URL that fsspec knows.
    *collections
        Persisted Dask Arrays (written as Zarr), DataFrames and Series (as Parquet).
    storage_options
        What fsspec needs for that URL. It is sent to the workers in tasks, which the
        scheduler holds as long as the data that :func:`load` returns; no file, report
        or log has it.
    overwrite
        Whether a save of clustertune that is there may be replaced. It goes when the
        new one is complete.
    progress, timeout
        As for :func:`clustertune.prepare`.

    Raises
    ------
    RefusedError
        Something is not in memory or cannot be kept as it is, the folder is not empty,
        or not everybody sees it.
    SaveError
        Something could not be written, or is not there afterwards.

    Examples
    --------
    >>> clustertune.save(client, "/shared/save", X, y)          # doctest: +SKIP
    """
    place = manifests.place("path", path, storage_options)
    again = arguments.flag("overwrite", overwrite)
    given = gather(collections)
    seconds = arguments.duration("timeout", timeout)

    async def work(notify: Notify, remaining: Remaining) -> None:
        entrance.check_client(client, given)
        goal = Goal(workload=libraries.choose(None))
        cluster = LiveCluster(client, given, goal, remaining)
        await cluster.open(None)
        async with cluster.lease("save", notify):
            await cluster.look(notify)
            await write(cluster, place, overwrite=again, notify=notify)

    # of an asynchronous client it is to be awaited
    done: None = client.sync(_within, work, "save", seconds, progress)
    return done


def load(
    client: Client,
    path: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | Notify | None = None,
    timeout: str | float = "30 minutes",
) -> tuple[Any, ...]:
    """Load what :func:`save` has written: the same values, pieces, types and names.

    The collections are persisted. Where their pieces lie is for Dask to say;
    :func:`clustertune.prepare` places them. A worker that is lost reads its pieces
    again, so leave the files where they are as long as you use the data.

    Parameters
    ----------
    client, storage_options, progress, timeout
        As for :func:`clustertune.save`.
    path
        The folder that was given to it.

    Returns
    -------
    tuple
        The collections in the order in which they were given.

    Raises
    ------
    SaveError
        There is no complete save, or it is not as it was written.

    Examples
    --------
    >>> X, y = clustertune.load(client, "/shared/save")         # doctest: +SKIP
    """
    place = manifests.place("path", path, storage_options)
    seconds = arguments.duration("timeout", timeout)

    async def work(notify: Notify, remaining: Remaining) -> tuple[Any, ...]:
        entrance.check_client(client)
        return await read(client, place, notify, remaining)

    found: tuple[Any, ...] = client.sync(_within, work, "load", seconds, progress)
    return found


def gather(collections: Sequence[Any]) -> Inputs:
    """Check collections of which nothing but their order is known.

    Raises
    ------
    TypeError, ValueError
        There are none, or they are none of Dask's.
    """
    if not collections:
        raise TypeError("nothing is given that could be saved")
    return inputs.of_rows(collections)


async def _within(
    work: Callable[[Notify, Remaining], Any],
    name: str,
    timeout: float,
    wanted: bool | Notify | None,
) -> Any:
    progress, start = Progress(wanted), monotonic()
    try:
        return await asyncio.wait_for(
            work(progress.notify, lambda: start + timeout - monotonic()), timeout
        )
    except asyncio.TimeoutError as error:
        raise TimedOutError(
            f"{name} was not done within {seconds_text(timeout)}; what is in memory "
            "is as it was; give a longer timeout"
        ) from error
    finally:
        progress.finish([])


# --- before anything is written -------------------------------------------------------


def refuse(given: Inputs, loaded: Mapping[str, Any]) -> None:
    """See that all of it is in memory and can be kept.

    Raises
    ------
    RefusedError
        As the case may be; the text says what to do.
    """
    for x in given:
        kind = _kind(x.collection)
        package = NEEDED[kind]
        if importlib.util.find_spec(package) is None:
            raise RefusedError(
                f"{x.label} cannot be saved without {package}: pip install {package}, "
                "here and on the workers"
            )
        if x.label not in loaded:
            raise RefusedError(
                f"{x.label} is not loaded, so there is nothing to save: persist it "
                "first, or leave it out and load it again on the new cluster"
            )
        try:
            _refuse_types(x.collection, kind)
        # what pyarrow raises for types that it does not know is of several kinds
        except (TypeError, ValueError, NotImplementedError) as error:
            raise RefusedError(
                f"{x.label} cannot be saved: {printable(str(error), longest=500)}"
            ) from error


def _refuse_types(collection: Any, kind: str) -> None:
    if kind == "array":
        meta, dtype = meta_from_array(collection), collection.dtype
        if type(meta) is not np.ndarray or dtype.kind not in pieces.KINDS:
            raise TypeError(
                f"its pieces are {type(meta).__name__} of {dtype}; what is kept are "
                "NumPy arrays of numbers, dates and text of fixed length: convert it "
                "with astype"
            )
        return
    pieces.refuse_lossy(collection._meta)  # noqa: SLF001 (its name is a property)
    if collection.known_divisions:
        pieces.refuse_lossy(_divisions(collection))


def _divisions(collection: Any) -> pd.DataFrame:
    return pd.DataFrame({"divisions": list(collection.divisions)})


def _kind(collection: Any) -> str:
    if isinstance(collection, da.Array):
        return "array"
    return "dataframe" if isinstance(collection, dd.DataFrame) else "series"


async def _refuse_unshared(
    client: Client, place: Target, folder: str, given: Inputs
) -> None:
    """See that the client sees at once what each worker writes.

    Raises
    ------
    RefusedError
        Some worker has written what the client does not see, or could not write.
    VersionMismatchError
        A worker has not said its versions, so no code may go there.
    """
    workers = list((await monitor.identify(client))["workers"])
    approved = monitor.known(client).addresses
    mute = [w for w in workers if w not in approved]
    if mute:
        raise VersionMismatchError(
            f"{plural(len(mute), 'worker')} ({printable(mute[0])}) did not say their "
            "versions, so they cannot be asked to write; see `clustertune doctor`"
        )
    packages = sorted({NEEDED[_kind(x.collection)] for x in given})
    where: dict[str, Any] = {
        "url": place.url,
        "options": dict(place.options),
        "path": folder,
    }
    try:
        answers = await ship.on_workers(
            client,
            pieces.leave_mark,
            workers,
            timeout=ANSWER,
            packages=packages,
            **where,
        )
        for worker, answer in answers.items():
            _refuse_unable(place, worker, answer)
        marks = {answers[worker]["name"]: worker for worker in workers}
        unseen = await _storage(partial(_unseen, place, marks), place)
    finally:
        await ship.on_workers(
            client, pieces.remove_mark, workers, timeout=ANSWER, **where
        )
    if unseen:
        raise RefusedError(
            f"this process does not see what {plural(len(unseen), 'worker')} "
            f"({printable(unseen[0])}) wrote to {place.path}: give a folder that all "
            "machines share, or a URL like s3://bucket/save"
        )


def _refuse_unable(place: Target, worker: str, answer: Any) -> None:
    who = f"worker {printable(worker)}"
    if isinstance(answer, BaseException):
        raise RefusedError(f"{who} did not answer: {printable(repr(answer))}")
    if answer["missing"]:
        names = " and ".join(answer["missing"])
        raise RefusedError(f"{who} has no {names}: pip install {names} there")
    if answer["failed"]:
        why = printable(answer["failed"], longest=300)
        raise RefusedError(f"{who} cannot write to {place.path}: {why}")


def _unseen(place: Target, marks: Mapping[str, str]) -> list[str]:
    """Workers whose marks are not seen in time; a network's file system takes some."""
    end, unseen = monotonic() + SEEN, list(marks)
    while unseen and monotonic() < end:
        files, root = place.files()
        unseen = [name for name in unseen if not files.exists(f"{root}/{name}")]
        if unseen:
            sleep(POLL)
    return [marks[name] for name in unseen]


async def check(cluster: LiveCluster, place: Target, *, overwrite: bool) -> None:
    """See that what a cluster was given can be saved there, without writing anything.

    Raises
    ------
    RefusedError, SaveError
        As the case may be.
    """
    loaded = await cluster.futures()
    await asyncio.to_thread(refuse, cluster.given, loaded)
    await _storage(
        partial(manifests.refuse_occupied, place, overwrite=overwrite), place
    )


# --- writing --------------------------------------------------------------------------


async def write(
    cluster: LiveCluster, place: Target, *, overwrite: bool, notify: Notify
) -> int:
    """Save what a cluster was given, after a look; bytes written.

    Raises
    ------
    RefusedError, SaveError, VersionMismatchError
        As :func:`save`; there is no save then, or still the one that was there.
    """
    await check(cluster, place, overwrite=overwrite)
    # no other save has this folder, so two at the same time never mix their files
    folder = f"clustertune-{uuid4().hex[:8]}"
    try:
        saved = await _written(cluster, place, folder, notify)
    except BaseException:
        await _removed(place, folder)
        raise
    given = cluster.given
    order = [x.label for x in given]
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "folder": folder,
        # what was given twice was saved once
        "order": [order.index(given.same[label]) for label in given.training],
        "collections": saved,
    }
    await _storage(partial(_switch, place, manifest, overwrite=overwrite), place)
    return sum(piece["bytes"] for entry in saved for piece in entry["pieces"])


async def _written(
    cluster: LiveCluster, place: Target, folder: str, notify: Notify
) -> list[dict[str, Any]]:
    """Have workers write all pieces to a new folder; what the manifest says of them.

    Raises
    ------
    RefusedError, SaveError, VersionMismatchError
        As :func:`write`.
    """
    client, given = cluster.client, cluster.given
    loaded = await cluster.futures()
    await _refuse_unshared(client, place, folder, given)
    graph = graphs.Graph()
    for number, x in enumerate(given):
        function, names = _writer(x.collection)
        save, where = ship.Tasks(function), (place.url, dict(place.options))
        name, below = f"save-{uuid4().hex}", f"{folder}/{number}"
        graph.pieces[x.label] = [(name, i) for i in range(len(names))]
        for key, file, future in zip(
            graph.pieces[x.label], names, loaded[x.label], strict=True
        ):
            path = f"{below}/{file}"
            graph.tasks[key] = save(key, *where, path, TaskRef(future.key))
    futures = await _submitted(client, graph, "saving", notify)
    found = await client.gather(list(futures.values()), asynchronous=True)
    answers = dict(zip(futures, found, strict=True))
    saved = [
        _entry(f"{folder}/{i}", x, [answers[key] for key in graph.pieces[x.label]])
        for i, x in enumerate(given)
    ]
    notify("checking all files", None)
    await _storage(partial(_complete, place, saved, given), place)
    return saved


async def _removed(place: Target, folder: str) -> None:
    """Remove the folder of a save that failed; the failure itself is raised."""

    def remove() -> None:
        files, root = place.files()
        if files.exists(f"{root}/{folder}"):
            files.rm(f"{root}/{folder}", recursive=True)

    try:
        await asyncio.wait_for(asyncio.to_thread(remove), ANSWER)
    # storages raise errors of their own
    except Exception as error:  # noqa: BLE001
        why = printable(repr(error), longest=300)
        logger.warning(
            "%s/%s of a save that failed could not be removed (%s); remove it by hand",
            place.path,
            folder,
            why,
        )


def _writer(collection: Any) -> tuple[Callable[..., Any], list[str]]:
    """The function for a piece, and names for all, in the order of keys."""
    if isinstance(collection, da.Array):
        blocks = np.ndindex(*collection.numblocks)
        return pieces.save_array, [".".join(map(str, block)) for block in blocks]
    n = collection.npartitions
    return pieces.save_frame, [f"{i}.parquet" for i in range(n)]


def _entry(
    folder: str, x: inputs.Given, saved: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What the manifest says of a collection."""
    collection, kind = x.collection, _kind(x.collection)
    entry: dict[str, Any] = {"label": x.label, "kind": kind, "folder": folder}
    if kind == "array":
        shapes = [piece["shape"] for piece in saved]
        chunks = _chunks(x.label, collection.numblocks, shapes)
        entry |= {"dtype": collection.dtype.str, "chunks": chunks}
    else:
        frame = collection.to_frame() if kind == "series" else collection
        entry |= {
            "columns": [str(name) for name in frame.columns],
            "dtypes": [str(dtype) for dtype in frame.dtypes],
            "divisions": bool(collection.known_divisions),
        }
    return entry | {"pieces": [dict(piece) for piece in saved]}


def _chunks(
    label: str, numblocks: tuple[int, ...], shapes: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Sizes along each axis; what a collection says of its pieces may be unknown.

    Raises
    ------
    SaveError
        The pieces do not form an array.
    """
    blocks = dict(zip(np.ndindex(*numblocks), shapes, strict=True))
    first = [0] * len(numblocks)
    chunks = [
        [
            blocks[tuple(i if a == axis else 0 for a in range(len(first)))][axis]
            for i in range(n)
        ]
        for axis, n in enumerate(numblocks)
    ]
    for block, shape in blocks.items():
        expected = [chunks[axis][i] for axis, i in enumerate(block)]
        if list(shape) != expected:
            raise SaveError(
                f"{label} is not an array: its piece {block} has the shape "
                f"{tuple(shape)}, beside others with {tuple(expected)}"
            )
    return chunks


def _complete(place: Target, saved: Sequence[dict[str, Any]], given: Inputs) -> None:
    """Check that every file is there, and write the small ones.

    Raises
    ------
    SaveError
        A file that a worker has written is not there.
    """
    files, root = place.files()
    for entry, x in zip(saved, given, strict=True):
        folder = f"{root}/{entry['folder']}"
        _refuse_missing(files, folder, entry, x.collection)
        if entry["kind"] == "array":
            continue
        small = {"meta": x.collection._meta}  # noqa: SLF001 (its name is a property)
        if entry["divisions"]:
            small["divisions"] = _divisions(x.collection)
        entry["crc32"] = {}
        for name, frame in small.items():
            data = pieces.encode(frame)
            files.pipe_file(f"{folder}/{name}.parquet", data)
            entry["crc32"][name] = crc32(data)


def _switch(place: Target, manifest: Mapping[str, Any], *, overwrite: bool) -> None:
    """Make the manifest name the new save, then remove the save that it replaces.

    Another save may be written to the same path at the same time. Each has its own
    folder, and the manifest is replaced in one step, so it always names a complete
    save. Only the folder that the replaced manifest named is removed: any other one may
    belong to a save that is still being written.

    Raises
    ------
    RefusedError
        Another save was completed meanwhile, and may not be replaced.
    SaveError
        Another save replaced this one.
    """
    files, root = place.files()
    new = manifest["folder"]
    old = manifests.current(files, root)
    if old is not None and not overwrite:
        files.rm(f"{root}/{new}", recursive=True)
        manifests.raise_for_save(place)
    files.pipe_file(f"{root}/{new}/{MANIFEST}", json.dumps(manifest).encode())
    files.mv(f"{root}/{new}/{MANIFEST}", f"{root}/{MANIFEST}")
    if manifests.current(files, root) != new:
        raise SaveError(
            f"{place.path}/{MANIFEST} names another save, which ended at the same "
            f"time. The files of this one are in {new}, where load does not look; save "
            "the data to another path"
        )
    if old is not None:
        with suppress(FileNotFoundError):  # another save removed it first
            files.rm(f"{root}/{old}", recursive=True)


def _refuse_missing(
    files: Any, folder: str, entry: Mapping[str, Any], collection: Any
) -> None:
    """The client must see the bytes that the workers say they have written."""
    _, names = _writer(collection)
    seen = dict.fromkeys(names, 0)
    for path, file in files.find(folder, detail=True).items():
        name = path[len(folder) :].strip("/").partition("/")[0]
        if name in seen:
            seen[name] += file["size"]
    for name, piece in zip(names, entry["pieces"], strict=True):
        if seen[name] != piece["bytes"]:
            raise SaveError(
                f"{entry['label']}: a worker wrote {bytes_text(piece['bytes'])} to "
                f"{folder}/{name}, but {bytes_text(seen[name])} are seen here; nothing "
                "was destroyed"
            )


async def _submitted(
    client: Client, graph: graphs.Graph, doing: str, notify: Notify
) -> dict[Any, Any]:
    """Futures of the pieces of a graph once all are there.

    Raises
    ------
    SaveError, ConnectionLostError
        As the case may be; the others are let go then.
    """
    futures = await asyncio.to_thread(graphs.submit, client, graph)
    try:
        while pending := [f for f in futures.values() if f.status != "finished"]:
            await _refuse_failed(client, graph, pending, doing)
            done = 1 - len(pending) / len(futures)
            notify(f"{doing} {plural(len(futures), 'piece')}", done)
            await asyncio.sleep(POLL / 2)
    except BaseException:
        for future in futures.values():
            future.release()  # a traceback would keep them
        raise
    return futures


async def _refuse_failed(
    client: Client, graph: graphs.Graph, pending: Sequence[Any], doing: str
) -> None:
    connection.refuse_closed(client)
    failed = next((f for f in pending if f.status in ("error", "cancelled")), None)
    if failed is None:
        return
    label = next(name for name, keys in graph.pieces.items() if failed.key in keys)
    if failed.status == "cancelled":
        raise SaveError(f"{doing} {label} failed: a piece was lost, or was cancelled")
    error = await failed.exception()
    raise SaveError(
        f"{doing} {label} failed: {printable(str(error), longest=500)}"
    ) from error


async def _storage(work: Callable[[], Any], place: Target) -> Any:
    """Look at files, in a thread.

    Raises
    ------
    SaveError
        The storage fails.
    """
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise SaveError(
            f"{place.path}: {printable(repr(error), longest=300)}"
        ) from error


# --- reading --------------------------------------------------------------------------


async def read(
    client: Client, place: Target, notify: Notify, remaining: Remaining
) -> tuple[Any, ...]:
    """Load what is saved there, onto the workers of this client.

    Raises
    ------
    SaveError, ConnectionLostError, VersionMismatchError
        As :func:`load`.
    """
    manifest = await _storage(partial(manifests.read, place), place)
    await monitor.open_door(client, await monitor.identify(client))
    await _refuse_workerless(client, remaining)
    graph = graphs.Graph()
    for entry in manifest["collections"]:
        _add_reads(graph, place, entry)
    futures = await _submitted(client, graph, "loading", notify)
    collections = [
        await _storage(partial(_collection, place, entry, graph, futures), place)
        for entry in manifest["collections"]
    ]
    return tuple(collections[i] for i in manifest["order"])


async def _refuse_workerless(client: Client, remaining: Remaining) -> None:
    """Wait for a worker: without one nothing would ever be read."""
    while not (await monitor.identify(client))["workers"]:
        if remaining() < 1:
            raise asyncio.TimeoutError
        await asyncio.sleep(POLL)


def _add_reads(graph: graphs.Graph, place: Target, entry: Mapping[str, Any]) -> None:
    name, folder, saved = f"load-{uuid4().hex}", entry["folder"], entry["pieces"]
    array, series = entry["kind"] == "array", entry["kind"] == "series"
    load = ship.Tasks(pieces.load_array if array else pieces.load_frame)
    counts = [len(sizes) for sizes in entry["chunks"]] if array else [len(saved)]
    blocks = list(np.ndindex(*counts))
    graph.pieces[folder] = [(name, *block) for block in blocks]
    for block, piece in zip(blocks, saved, strict=True):
        path = f"{folder}/{'.'.join(map(str, block))}" + ("" if array else ".parquet")
        key = (name, *block)
        how = (path, piece) if array else (path, piece["crc32"], piece["shape"], series)
        graph.tasks[key] = load(key, place.url, dict(place.options), *how)


def _collection(
    place: Target,
    entry: Mapping[str, Any],
    graph: graphs.Graph,
    futures: Mapping[Any, Any],
) -> Any:
    keys: list[Any] = graph.pieces[entry["folder"]]
    own = {key: futures[key] for key in keys}
    if entry["kind"] == "array":
        chunks = tuple(tuple(sizes) for sizes in entry["chunks"])
        meta = np.empty((0,) * len(chunks), dtype=np.dtype(entry["dtype"]))
        return da.Array(own, keys[0][0], chunks, meta=meta)
    files, root = place.files()
    folder = f"{root}/{entry['folder']}"
    series = entry["kind"] == "series"
    meta = pieces.decode(_unchanged(files, folder, entry, "meta"), series=series)
    divisions: Any = (None,) * (len(keys) + 1)
    if entry["divisions"]:
        data = _unchanged(files, folder, entry, "divisions")
        divisions = tuple(pieces.decode(data, series=False)["divisions"].tolist())
    return from_graph(own, meta, divisions, keys, "loaded")


def _unchanged(files: Any, folder: str, entry: Mapping[str, Any], name: str) -> bytes:
    """The bytes of a small file of a frame.

    Raises
    ------
    SaveError
        They are not the bytes that were saved.
    """
    data: bytes = files.cat_file(f"{folder}/{name}.parquet")
    if crc32(data) != entry["crc32"][name]:
        raise SaveError(
            f"{entry['folder']}/{name}.parquet is not as it was saved: its checksum is "
            "another"
        )
    return data
