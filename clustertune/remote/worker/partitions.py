"""Saves a partition as a file and loads it: a frame as Parquet, an array as Zarr.

Runs as a task on a worker that holds the partition. Each file is read again at once and
compared with the partition, so a lossy format raises an error when the data is saved.
NumPy, pandas, pyarrow and numcodecs are those of the worker. Others may have changed
the files, so nothing in them is unpickled or run.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any
from zlib import crc32

logger = logging.getLogger("distributed.worker")

TYPES = b"clustertune.types"  # metadata of a file: a frame without rows
#: metadata: the storage of texts by number of column, as JSON
TEXTS = b"clustertune.texts"
MOST = 2**28  # bytes in one file of an array; compressors take less than 2 GiB
OLDEST = "14.0.1"  # pyarrow that does not unpickle types of columns
LEVEL = 1  # of compression
KINDS = "biufcmMSU"  # of NumPy's types that are saved: none of them holds objects
Options = Mapping[str, Any]

# --- tasks ----------------------------------------------------------------------------


def save_frame(url: str, options: Options, path: str, partition: Any) -> dict[str, Any]:
    """Write a DataFrame or Series as one Parquet file, and read it again."""
    files, root = _files(url, options)
    data = encode(partition)
    file = f"{root}/{path}"
    files.makedirs(file.rpartition("/")[0], exist_ok=True)
    files.pipe_file(file, data)
    if files.cat_file(file) != data:
        raise ValueError(f"{path} is not what was written; the storage is broken")
    _refuse_other(partition, decode(data, series=partition.ndim == 1))
    return {"shape": [len(partition)], "crc32": crc32(data), "bytes": len(data)}


def load_frame(
    url: str, options: Options, path: str, crc: int, shape: list[int], series: bool
) -> Any:
    """Read a file of :func:`save_frame`."""
    files, root = _files(url, options)
    data = files.cat_file(f"{root}/{path}")
    if crc32(data) != crc:
        raise ValueError(f"{path} is not as it was saved: its checksum is another")
    partition = decode(data, series=series)
    if [len(partition)] != shape:
        raise ValueError(f"{path} has {len(partition)} rows, but {shape[0]} were saved")
    return partition


def save_array(url: str, options: Options, path: str, partition: Any) -> dict[str, Any]:
    """Write a NumPy array as one Zarr array, and read it again."""
    import numpy as np
    from numcodecs.zstd import Zstd

    if type(partition) is not np.ndarray or partition.dtype.kind not in KINDS:
        dtype = getattr(partition, "dtype", None)
        raise TypeError(
            f"a partition is a {type(partition).__name__} of {dtype}; only NumPy "
            "arrays of numbers, dates and text of fixed length can be saved; convert "
            "it with astype"
        )
    files, root = _files(url, options)
    folder = f"{root}/{path}"
    files.makedirs(folder, exist_ok=True)
    n = max(1, partition.shape[0])
    saved: dict[str, Any] = {
        "shape": list(partition.shape),
        "dtype": partition.dtype.str,
        "rows": max(1, min(n, MOST * n // max(1, partition.nbytes))),
    }
    written = {".zarray": json.dumps(_metadata(saved)).encode()}
    files.pipe_file(f"{folder}/.zarray", written[".zarray"])
    saved |= {"bytes": len(written[".zarray"]), "crc32": []}
    for name, start, stop in _chunks(saved):
        chunk = partition[start:stop]
        if len(chunk) < saved["rows"]:  # Zarr's chunks all have the same shape
            chunk = np.zeros((saved["rows"], *partition.shape[1:]), partition.dtype)
            chunk[: stop - start] = partition[start:stop]
        data = bytes(Zstd(LEVEL).encode(_bytes(chunk)))
        files.pipe_file(f"{folder}/{name}", data)
        saved["bytes"] += len(data)
        saved["crc32"].append(crc32(data))
    again = load_array(url, options, path, saved)
    if not np.array_equal(_bytes(again), _bytes(partition)):
        raise ValueError(f"{path} is not what was written; the storage is broken")
    return saved


def load_array(url: str, options: Options, path: str, saved: Mapping[str, Any]) -> Any:
    """Read files of :func:`save_array`, which ``saved`` in the manifest describes.

    Zarr itself would decode with any codec that the files name, and some of these
    unpickle. So only the one encoding that is written here is read: the files' own
    description must match the manifest, and each file its checksum, before any byte is
    decoded.
    """
    import numpy as np
    from numcodecs.zstd import Zstd

    files, root = _files(url, options)
    folder = f"{root}/{path}"
    if json.loads(files.cat_file(f"{folder}/.zarray")) != _metadata(saved):
        raise ValueError(
            f"{path}/.zarray is not as it was saved: it does not match the manifest"
        )
    partition = np.zeros(saved["shape"], saved["dtype"])
    for (name, start, stop), crc in zip(_chunks(saved), saved["crc32"], strict=True):
        data = files.cat_file(f"{folder}/{name}")
        if crc32(data) != crc:
            raise ValueError(
                f"{path}/{name} is not as it was saved: its checksum is another"
            )
        chunk = np.zeros((saved["rows"], *partition.shape[1:]), partition.dtype)
        # the decoder never writes beyond its size
        Zstd().decode(data, out=_bytes(chunk))
        partition[start:stop] = chunk[: stop - start]
    return partition


async def leave_mark(
    dask_worker: Any, url: str, options: Options, path: str, packages: list[str]
) -> dict[str, Any]:
    """Write a small file, by which the client finds workers that share the storage.

    A thread writes it, because storage may be slow. Errors are returned: Dask would log
    a raised one with the arguments, and options may contain secrets.
    """

    def write() -> None:
        files, root = _files(url, options)
        files.makedirs(f"{root}/{path}", exist_ok=True)
        files.pipe_file(f"{root}/{path}/{dask_worker.id}", b"clustertune")

    missing = [name for name in packages if find_spec(name) is None]
    failed = ""
    try:
        if not missing:
            await asyncio.to_thread(write)
    # each storage has its own errors
    except Exception as error:  # noqa: BLE001
        failed = repr(error)
    name = f"{path}/{dask_worker.id}"
    return {"name": name, "missing": missing, "failed": failed}


async def remove_mark(dask_worker: Any, url: str, options: Options, path: str) -> None:
    """Remove the small file, also on storage that only this worker has."""

    def remove() -> None:
        files, root = _files(url, options)
        files.invalidate_cache()
        if files.exists(name := f"{root}/{path}/{dask_worker.id}"):
            files.rm_file(name)

    try:
        await asyncio.to_thread(remove)
    # Dask would log the arguments, as above
    except Exception as error:  # noqa: BLE001
        logger.warning("clustertune could not remove %s: %r", path, error)


def _files(url: str, options: Options) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    found: tuple[Any, str] = url_to_fs(url, **options)
    return found


# --- arrays ---------------------------------------------------------------------------


def _metadata(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``.zarray`` for an array, in Zarr's second format."""
    _, *others = saved["shape"]
    return {
        "zarr_format": 2,
        "shape": saved["shape"],
        "chunks": [saved["rows"], *(max(1, n) for n in others)],
        "dtype": saved["dtype"],
        "compressor": {"id": "zstd", "level": LEVEL},
        "filters": None,
        "fill_value": None,
        "order": "C",
    }


def _chunks(saved: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Names of the files of an array, and the first and last row of each."""
    n, *others = saved["shape"]
    if 0 in others:
        return []
    rest = ".0" * len(others)
    starts = range(0, n, saved["rows"])
    return [
        (f"{i}{rest}", start, min(n, start + saved["rows"]))
        for i, start in enumerate(starts)
    ]


def _bytes(array: Any) -> Any:
    """The values as they are in memory, so that -0.0 differs from 0.0."""
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


# --- frames ---------------------------------------------------------------------------


def encode(frame: Any) -> bytes:
    """A DataFrame or Series as the bytes of a Parquet file.

    Parquet alone forgets some types of columns (categories of numbers, seconds of
    dates). They are added as an empty batch in Arrow's own format. Arrow in turn stores
    texts as pandas does by default, which before pandas 3 differs from Dask.
    """
    import pyarrow as pa
    from pyarrow import parquet

    _refuse_kind(frame)
    whole = frame.to_frame() if frame.ndim == 1 else frame
    mixed = {type(c) for c in whole.columns}
    if len(mixed) > 1 or not whole.columns.is_unique:
        raise ValueError(
            "columns have names of several types, or the same name twice, which "
            "Parquet does not keep; rename them"
        )
    table = pa.Table.from_pandas(whole)
    sink = pa.BufferOutputStream()
    empty = pa.RecordBatch.from_pandas(whole.iloc[:0])
    with pa.ipc.new_stream(sink, empty.schema) as stream:
        stream.write_batch(empty)
    metadata = {**table.schema.metadata, TYPES: sink.getvalue().to_pybytes()}
    metadata[TEXTS] = json.dumps(_texts(whole)).encode()
    if frame.ndim == 1 and frame.name is None:
        metadata[b"clustertune.unnamed"] = b"1"
    out = pa.BufferOutputStream()
    parquet.write_table(table.replace_schema_metadata(metadata), out)
    data: bytes = out.getvalue().to_pybytes()
    return data


def decode(data: bytes, *, series: bool) -> Any:
    """The frame, or the Series, that :func:`encode` has encoded."""
    import pyarrow as pa
    from pyarrow import parquet

    refuse_old_pyarrow()
    table = parquet.read_table(pa.BufferReader(data))
    metadata = table.schema.metadata
    frame = table.to_pandas()
    types = pa.ipc.open_stream(metadata[TYPES]).read_all().to_pandas()
    for number, (name, dtype) in enumerate(types.dtypes.items()):
        if frame.dtypes.iloc[number] != dtype:
            frame[name] = _as(frame.iloc[:, number], dtype)
    for number, storage in json.loads(metadata.get(TEXTS, b"{}")).items():
        column = frame.iloc[:, int(number)]
        if column.dtype.storage != storage:
            frame[column.name] = column.astype(f"string[{storage}]")
    if frame.index.dtype != types.index.dtype:
        frame.index = frame.index.astype(types.index.dtype)
    if not series:
        return frame
    column = frame.iloc[:, 0]
    return column.rename(None) if b"clustertune.unnamed" in metadata else column


def refuse_old_pyarrow() -> None:
    """Refuse a pyarrow that unpickles types of columns when it opens a file.

    Raises
    ------
    ValueError
        The installed release does so.
    """
    import pyarrow as pa
    from packaging.version import Version

    if Version(pa.__version__) < Version(OLDEST):
        raise ValueError(
            f"pyarrow {pa.__version__} unpickles content of files (CVE-2023-47248), "
            f"so nothing was read: pip install 'pyarrow>={OLDEST}'"
        )


def _texts(frame: Any) -> dict[int, str]:
    """The storage of text columns whose missing values are pandas.NA."""
    import pandas as pd

    return {
        number: str(dtype.storage)
        for number, dtype in enumerate(frame.dtypes)
        if isinstance(dtype, pd.StringDtype) and dtype.na_value is pd.NA
    }


def _as(column: Any, dtype: Any) -> Any:
    # a missing text among objects is None
    if dtype.kind == "O" and str(dtype) == "object":
        return column.astype(object).where(column.notna(), None)
    return column.astype(dtype)


def refuse_lossy(frame: Any) -> None:
    """Check that a frame survives encoding and decoding.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        The part that does not survive.
    """
    _refuse_other(frame, decode(encode(frame), series=frame.ndim == 1))


def _refuse_kind(frame: Any) -> None:
    import pandas as pd

    if type(frame) not in (pd.DataFrame, pd.Series):
        raise TypeError(
            f"a partition is a {type(frame).__module__}.{type(frame).__name__}; only "
            "DataFrames and Series of pandas can be saved"
        )


def _nested(column: Any) -> Any:
    """Mark objects that are arrays: pandas before 3 takes lists for equal to them."""
    import numpy as np

    if column.dtype != object:
        return column.iloc[:0]
    return column.map(lambda value: isinstance(value, np.ndarray))


def _refuse_other(partition: Any, again: Any) -> None:
    """Raise an error that names the differences of a decoded frame."""
    ours, theirs = (x.to_frame() if x.ndim == 1 else x for x in (partition, again))
    names = [
        name
        for number, name in enumerate(ours.columns)
        if ours.dtypes.iloc[number] != theirs.dtypes.iloc[number]
        or not ours.iloc[:, number].equals(theirs.iloc[:, number])
        or not _nested(ours.iloc[:, number]).equals(_nested(theirs.iloc[:, number]))
    ]
    if names:
        shown = ", ".join(f"{n!r} ({ours.dtypes[n]})" for n in names[:3])
        raise ValueError(
            f"Parquet does not keep the values of {len(names)} columns: {shown}; "
            'convert them, texts for example with .astype("string[pyarrow]")'
        )
    same = (
        ours.columns.equals(theirs.columns)
        and ours.columns.dtype == theirs.columns.dtype
        and ours.columns.names == theirs.columns.names
        and type(ours.index) is type(theirs.index)
        and ours.index.dtype == theirs.index.dtype
        and ours.index.equals(theirs.index)
        and ours.index.names == theirs.index.names
        and partition.ndim == again.ndim
    )
    if not same or (partition.ndim == 1 and partition.name != again.name):
        raise ValueError(
            f"Parquet does not keep the index (now {ours.index.dtype}), or the names "
            "of columns; reset_index() and rename(columns=...) make others"
        )
