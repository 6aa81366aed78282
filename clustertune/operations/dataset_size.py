"""Estimate the size of data in memory before it is loaded.

The size follows from rows, columns and number type, or from the footers of Parquet
files. A footer has the number of rows, the types of columns, and their encoded bytes.
Only numbers have a fixed width in memory. For other columns, the estimate is a lower
bound, and a note states this.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any

import fsspec
import numpy as np

from clustertune.core import arguments
from clustertune.core.wording import bytes_text, names_text, plural

OLDEST_PYARROW = "14.0.1"  # it does not unpickle types of columns
EXTENSIONS = (".parquet", ".parq", ".pq")  # files that Dask reads in a folder
MAX_FOOTERS = 50  # of more files, a sample is read
POINTER_SIZE = 8  # bytes of an offset, or of a reference to an object
MOST = 10**18  # rows, or columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The size of all data for a fit: X, y, weights."""

    rows: int
    columns: int
    nbytes: int  # in memory
    itemsize: int | None  # bytes of the widest number in a row; None: no numbers
    joined_bytes: int  # of all numbers in one array of the widest type
    notes: tuple[str, ...]  # the data, and how its size was estimated
    at_least: bool = False  # whether the bytes are a lower bound


def dense(rows: object, columns: object, dtype: object) -> Dataset:
    """Return the size of an array of one number type."""
    n_rows = arguments.count("rows", rows, MOST)
    n_columns = arguments.count("columns", columns, MOST)
    if n_rows is None or n_columns is None:
        raise ValueError(
            f"rows={rows!r} and columns={columns!r} go together: give both, or parquet="
        )
    name = arguments.number_type("dtype", dtype) or "float64"
    width = np.dtype(name).itemsize
    nbytes = n_rows * n_columns * width
    if nbytes >= 2**63:
        raise ValueError(
            f"rows={rows!r} and columns={columns!r} are {nbytes:.1e} bytes, more than "
            "any cluster has; give the number of rows and the number of columns"
        )
    default = "" if dtype is not None else ", the default type"
    note = f"{plural(n_rows, 'row')} of {plural(n_columns, 'column')} of {name}"
    return Dataset(
        rows=n_rows,
        columns=n_columns,
        nbytes=nbytes,
        itemsize=width,
        joined_bytes=nbytes,
        notes=(note + default,),
    )


def _refuse_old_pyarrow() -> None:
    """Refuse a pyarrow that unpickles types of columns when it opens a file.

    Raises
    ------
    ValueError
        The installed release does so.
    """
    import pyarrow as pa
    from packaging.version import Version

    if Version(pa.__version__) < Version(OLDEST_PYARROW):
        raise ValueError(
            f"pyarrow {pa.__version__} unpickles content of files (CVE-2023-47248), "
            f"so nothing was read: pip install 'pyarrow>={OLDEST_PYARROW}'"
        )


def parquet(path: object, dtype: object = None) -> Dataset:
    """Return the size of the data in Parquet files, by their footers.

    ``path`` is a file, a folder (also with folders like ``year=2024``), a pattern, or a
    URL for fsspec. ``dtype`` is the type of all numbers after loading; None keeps the
    types in the files.
    """
    name = arguments.number_type("dtype", dtype)
    where = f"parquet={path!r}"
    if find_spec("pyarrow") is None:
        raise ValueError(
            f"{where} needs pyarrow to read the footers: install it, or give rows and "
            "columns instead"
        )
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ValueError(f"{where} must be the path or URL of a file or folder")
    try:
        fs, root = fsspec.core.url_to_fs(os.fspath(path))
        sizes = _file_sizes(fs, root)
    # ImportError: the file system needs another package
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(f"{where} cannot be read: {error}") from error
    if not sizes:
        raise ValueError(
            f"{where} has no Parquet file: give a file, a folder with files that end "
            f"in {', '.join(EXTENSIONS)}, or a pattern"
        )
    read = _sample(sorted(sizes))
    footers = [_read_footer(fs, file, name, where) for file in read]
    scale = sum(sizes.values()) / max(1, sum(sizes[f] for f in read))
    found = _sum(footers, _folder_columns(root, sizes), scale)
    if not found.rows:
        raise ValueError(f"{where} has no rows, in {plural(len(sizes), 'file')}")
    return Dataset(
        rows=found.rows,
        columns=found.columns,
        nbytes=found.nbytes,
        itemsize=found.widest or None,
        joined_bytes=found.rows * found.numbers * found.widest,
        notes=tuple(_notes(found, sizes, len(read), name)),
        at_least=bool(found.varied),
    )


def _notes(
    found: _Footer, sizes: Mapping[str, int], n_read: int, dtype: str | None
) -> Iterator[str]:
    files, disk = plural(len(sizes), "file"), bytes_text(sum(sizes.values()))
    numbers = f", with numbers as {dtype}" if dtype else ""
    yield (
        f"{plural(found.rows, 'row')} of {plural(found.columns, 'column')} in {files} "
        f"of {disk}{numbers}"
    )
    if n_read < len(sizes):
        yield (
            f"estimated: {n_read} of {files} were read, and scaled to all files by "
            "bytes on disk"
        )
    if found.varied:
        has = "has" if len(found.varied) == 1 else "have"
        yield (
            f"at least: {names_text(found.varied)} {has} no fixed width, and repeated "
            "text is larger in memory than in files; load a part of the data and "
            "measure it; most libraries train on numbers only, so drop or encode such "
            "columns"
        )


# --- files ----------------------------------------------------------------------------


def _file_sizes(fs: Any, root: str) -> dict[str, int]:
    """Return the bytes on disk of all files that Dask would read, by path."""
    # a path that exists is no pattern, also if it has characters of patterns
    exact = fs.exists(root)
    matches = {root: fs.info(root)} if exact else fs.glob(root, detail=True)
    found: dict[str, int] = {}
    for name, info in matches.items():
        if info["type"] == "directory":
            found |= _sizes_below(fs, name)
        elif info["type"] == "file":
            found[name] = int(info["size"])
    return found


def _sizes_below(fs: Any, folder: str) -> dict[str, int]:
    """Return the files below a folder, without hidden and private ones."""
    return {
        name: int(info["size"])
        for name, info in fs.find(folder, detail=True).items()
        if name.endswith(EXTENSIONS)
        and not any(part.startswith(("_", ".")) for part in _relative(folder, name))
    }


def _relative(folder: str, name: str) -> tuple[str, ...]:
    return PurePosixPath(name[len(folder) :].lstrip("/")).parts


def _sample(files: Sequence[str]) -> list[str]:
    """Return at most MAX_FOOTERS files, evenly from the first to the last."""
    n = min(len(files), MAX_FOOTERS)
    return [files[i] for i in np.linspace(0, len(files) - 1, n).round().astype(int)]


def _folder_columns(root: str, files: Iterable[str]) -> list[int]:
    """Return the bytes of a value of each column in folder names (``year=2024``).

    Dask makes categorical columns of them, with one code for each row.
    """
    values: dict[str, set[str]] = {}
    for file in files:
        for part in _relative(root, file)[:-1]:
            key, sign, value = part.partition("=")
            if sign:
                values.setdefault(key, set()).add(value)
    return [np.min_scalar_type(-len(v) - 1).itemsize for v in values.values()]


# --- footers --------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Footer:
    """The content of one footer, or the sum of several."""

    rows: int
    columns: int
    nbytes: int = 0  # in memory
    numbers: int = 0  # columns of numbers
    widest: int = 0  # bytes of the widest number; 0: there are none
    varied: list[str] = field(default_factory=list)  # columns without a fixed width


def _read_footer(fs: Any, file: str, dtype: str | None, where: str) -> _Footer:
    from pyarrow import parquet as pq

    _refuse_old_pyarrow()
    width = np.dtype(dtype).itemsize if dtype else None
    try:
        with fs.open(file) as opened:
            return _footer(pq.read_metadata(opened), width)
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise ValueError(f"{where}: {file!r} cannot be read: {error}") from error


def _footer(metadata: Any, dtype_width: int | None) -> _Footer:
    fields = list(metadata.schema.to_arrow_schema())
    rows, leaf = metadata.num_rows, 0
    found = _Footer(rows=rows, columns=len(fields))
    for column in fields:
        leaves = range(leaf, leaf := leaf + _leaves(column.type))
        width, is_number = _width(column.type)
        if width is None:
            found.varied.append(column.name)
            chunks = _chunks(metadata, leaves)
            encoded = sum(c.total_uncompressed_size for c in chunks)
            found.nbytes += max(encoded, POINTER_SIZE * rows)
            continue
        if is_number:
            if dtype_width is not None:
                width = dtype_width
            # pandas converts narrow integers with missing values to float64
            elif width < POINTER_SIZE and _may_become_float(
                column.type, metadata, leaves
            ):
                width = POINTER_SIZE
            found.numbers += 1
            found.widest = max(found.widest, width)
        found.nbytes += rows * width
    return found


def _sum(footers: Sequence[_Footer], folders: Sequence[int], scale: float) -> _Footer:
    """Return the content of all files; these have 1/``scale`` of the bytes."""
    rows = round(sum(f.rows for f in footers) * scale)
    nbytes = round(sum(f.nbytes for f in footers) * scale) + rows * sum(folders)
    return _Footer(
        rows=rows,
        columns=max(f.columns for f in footers) + len(folders),
        nbytes=nbytes,
        numbers=max(f.numbers for f in footers),
        widest=max(f.widest for f in footers),
        varied=list(dict.fromkeys(name for f in footers for name in f.varied)),
    )


def _chunks(metadata: Any, leaves: Iterable[int]) -> Iterator[Any]:
    """Yield the metadata of some columns in all row groups."""
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        yield from (group.column(leaf) for leaf in leaves)


def _leaves(kind: Any) -> int:
    """Return how many columns of a Parquet file store a value of an Arrow type."""
    if not kind.num_fields:
        return 1
    return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields))


def _may_become_float(kind: Any, metadata: Any, leaves: Iterable[int]) -> bool:
    """Return whether integers have missing values, or the writer did not count them."""
    from pyarrow import types

    return not types.is_floating(kind) and any(
        c.statistics is None
        or not c.statistics.has_null_count
        or c.statistics.null_count > 0
        for c in _chunks(metadata, leaves)
    )


def _width(kind: Any) -> tuple[int | None, bool]:
    """Return the bytes of a value (None: not fixed), and whether it is a number."""
    from pyarrow import types

    if types.is_boolean(kind):
        return 1, True
    if types.is_integer(kind) or types.is_floating(kind):
        return int(kind.bit_width // 8), True
    if types.is_timestamp(kind) or types.is_duration(kind):
        return int(kind.bit_width // 8), False
    if types.is_dictionary(kind):  # codes; there are few categories
        return int(kind.index_type.bit_width // 8), False
    return None, False
