"""How large data will be in memory, before anybody has loaded it.

Either by its rows, columns and number type, or by the footers of its Parquet files.
Footers say how many rows there are and of which types, and how many bytes columns take
as they are encoded: numbers have a fixed width in memory, texts do not. What has no
fixed width is counted with the least that it can take, and said.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any

import fsspec
import numpy as np

from clustertune.core import arguments
from clustertune.core.wording import bytes_text, names_text, plural
from clustertune.remote.worker.pieces import refuse_old_pyarrow

EXTENSIONS = (".parquet", ".parq", ".pq")  # those that Dask reads in a folder
MOST_FOOTERS = 50  # that are read; of more files, a sample
POINTER = 8  # bytes: an offset, or a reference to an object


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Data that is not loaded yet, with all that goes into the fit: X, y, weights."""

    rows: int
    columns: int
    nbytes: int  # in memory
    itemsize: int | None  # bytes of the widest number in a row; None: no number
    joined_bytes: int  # of all numbers in one array, as wide as the widest
    notes: tuple[str, ...]  # what it is made of, and how that is known
    at_least: bool = False  # the bytes are the least that it can take


def dense(rows: object, columns: object, dtype: object) -> Dataset:
    """Data of so many rows and columns of one number type.

    Raises
    ------
    ValueError
        What was given is no such number, or no type of numbers.
    """
    found = [arguments.count(n, v) for n, v in (("rows", rows), ("columns", columns))]
    if None in found:
        raise ValueError(
            f"rows={rows!r} and columns={columns!r} go together: give both, or parquet="
        )
    n_rows, n_columns = (n for n in found if n is not None)
    name = arguments.number_type("dtype", dtype) or "float64"
    width = np.dtype(name).itemsize
    nbytes = n_rows * n_columns * width
    if nbytes >= 2**63:
        raise ValueError(
            f"rows={rows!r} and columns={columns!r} are {nbytes:.1e} bytes, more than "
            "any cluster has; give the number of rows and that of columns"
        )
    told = "" if dtype is not None else ", as no dtype is given"
    note = f"{plural(n_rows, 'row')} of {plural(n_columns, 'column')} of {name}{told}"
    return Dataset(
        rows=n_rows,
        columns=n_columns,
        nbytes=nbytes,
        itemsize=width,
        joined_bytes=nbytes,
        notes=(note,),
    )


def parquet(path: object, dtype: object = None) -> Dataset:
    """The data of Parquet files, as their footers describe it.

    Parameters
    ----------
    path
        A file, a folder (of folders like ``year=2024``, too) or a pattern; also the URL
        of one that fsspec can read.
    dtype
        Type that all numbers get when they are loaded; None: that which they have.

    Raises
    ------
    ValueError
        There is nothing there, or what is there cannot be read.
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
        sizes = _listed(fs, root)
    # of a file system that is not installed, or that does not answer
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(f"{where} cannot be read: {error}") from error
    if not sizes:
        raise ValueError(
            f"{where} has no Parquet file: give a file, a folder with files that end "
            f"in {', '.join(EXTENSIONS)}, or a pattern that names some"
        )
    read = _sample(sorted(sizes))
    tallies = [_looked_into(fs, file, name, where) for file in read]
    scale = sum(sizes.values()) / max(1, sum(sizes[f] for f in read))
    found = _summed(tallies, _folder_columns(root, sizes), scale)
    if not found.rows:
        raise ValueError(f"{where} has no rows, in {plural(len(sizes), 'file')}")
    return _noted(found, sizes, len(read), name)


def _noted(
    found: _Tally, sizes: Mapping[str, int], n_read: int, name: str | None
) -> Dataset:
    files = plural(len(sizes), "file")
    disk = bytes_text(sum(sizes.values()))
    notes = [
        f"{plural(found.rows, 'row')} of {plural(found.columns, 'column')} in {files}"
        f" of {disk}" + (f", their numbers as {name}" if name else "")
    ]
    if n_read < len(sizes):
        notes.append(
            f"estimated: {n_read} of {files} were looked into, the others are taken to "
            "be like them, by their bytes on disk"
        )
    if found.varied:
        has = "has" if len(found.varied) == 1 else "have"
        notes.append(
            f"at least: {names_text(found.varied)} {has} no fixed width, and texts "
            "that repeat are larger in memory than in files: load a part and measure; "
            "most libraries train on numbers only, so drop or encode such columns"
        )
    return Dataset(
        rows=found.rows,
        columns=found.columns,
        nbytes=found.nbytes,
        itemsize=found.itemsize,
        joined_bytes=found.rows * found.numbers * (found.itemsize or 0),
        notes=tuple(notes),
        at_least=bool(found.varied),
    )


# --- files ----------------------------------------------------------------------------


def _listed(fs: Any, root: str) -> dict[str, int]:
    """Bytes on disk of every file that Dask would read there, by path."""
    if fs.isfile(root):
        return {root: int(fs.info(root)["size"])}
    if fs.isdir(root):
        return _inside(fs, root)
    found: dict[str, int] = {}
    for name, info in fs.glob(root, detail=True).items():
        found |= _inside(fs, name) if info["type"] == "directory" else {}
        found |= {name: int(info["size"])} if info["type"] == "file" else {}
    return found


def _inside(fs: Any, folder: str) -> dict[str, int]:
    """Files of a folder and those below it; hidden and private ones are no data."""
    return {
        name: int(info["size"])
        for name, info in fs.find(folder, detail=True).items()
        if name.endswith(EXTENSIONS)
        and not any(part.startswith(("_", ".")) for part in _below(folder, name))
    }


def _below(folder: str, name: str) -> tuple[str, ...]:
    """The parts of a path below a folder."""
    return PurePosixPath(name[len(folder) :].lstrip("/")).parts


def _sample(files: Sequence[str]) -> list[str]:
    """Some of the files, evenly from the first to the last."""
    n = min(len(files), MOST_FOOTERS)
    return [files[i] for i in np.linspace(0, len(files) - 1, n).round().astype(int)]


def _folder_columns(root: str, files: Iterable[str]) -> dict[str, int]:
    """Columns that folders like ``year=2024`` stand for: bytes of a value of each.

    Dask makes categories of them, with one code for each row.
    """
    values: dict[str, set[str]] = {}
    for file in files:
        for part in _below(root, file)[:-1]:
            key, sign, value = part.partition("=")
            if sign:
                values.setdefault(key, set()).add(value)
    return {k: np.min_scalar_type(-len(v) - 1).itemsize for k, v in values.items()}


# --- footers --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tally:
    """What one footer says, or several together."""

    rows: int
    columns: int
    nbytes: int  # in memory
    itemsize: int | None  # bytes of the widest number
    numbers: int  # how many columns have numbers
    varied: tuple[str, ...]  # columns without a fixed width


def _looked_into(fs: Any, file: str, dtype: str | None, where: str) -> _Tally:
    from pyarrow import parquet as pq

    refuse_old_pyarrow()
    width = np.dtype(dtype).itemsize if dtype else None
    try:
        with fs.open(file) as opened:
            return _tally(pq.read_metadata(opened), width)
    except (OSError, ValueError) as error:  # pyarrow's are such, too
        raise ValueError(f"{where}: {file!r} cannot be read: {error}") from error


def _tally(metadata: Any, width: int | None) -> _Tally:
    rows, nbytes, leaf = metadata.num_rows, 0, 0
    widths: list[int] = []
    varied: list[str] = []
    fields = list(metadata.schema.to_arrow_schema())
    for field in fields:
        leaves = range(leaf, leaf := leaf + _leaves(field.type))
        of_field = partial(_chunks, metadata, leaves)
        own = _width(field.type)
        if own is None:
            varied.append(field.name)
            encoded = sum(c.total_uncompressed_size for c in of_field())
            nbytes += max(encoded, POINTER * rows)
        elif not _is_number(field.type):
            nbytes += rows * own
        else:
            # pandas has no narrow integers that lack values: they become float64
            whole = own < POINTER and not _is_float(field.type)
            own = width or (POINTER if whole and _lacks_values(of_field()) else own)
            widths.append(own)
            nbytes += rows * own
    return _Tally(
        rows=rows,
        columns=len(fields),
        nbytes=nbytes,
        itemsize=max(widths, default=None),
        numbers=len(widths),
        varied=tuple(varied),
    )


def _summed(
    tallies: Sequence[_Tally], folders: Mapping[str, int], scale: float
) -> _Tally:
    """All files together, where these are a part of them: one in ``scale``."""
    rows = round(sum(t.rows for t in tallies) * scale)
    return _Tally(
        rows=rows,
        columns=max(t.columns for t in tallies) + len(folders),
        nbytes=round(sum(t.nbytes for t in tallies) * scale)
        + rows * sum(folders.values()),
        itemsize=max((t.itemsize for t in tallies if t.itemsize), default=None),
        numbers=max(t.numbers for t in tallies),
        varied=tuple(dict.fromkeys(name for t in tallies for name in t.varied)),
    )


def _chunks(metadata: Any, leaves: Iterable[int]) -> Iterator[Any]:
    """What the footer says of some columns, by row group."""
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        yield from (group.column(leaf) for leaf in leaves)


def _leaves(kind: Any) -> int:
    """Columns of a Parquet file that make one of this Arrow type."""
    if not kind.num_fields:
        return 1
    return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields))


def _lacks_values(chunks: Iterable[Any]) -> bool:
    """Whether values lack, or may: not every writer says."""
    return any(
        c.statistics is None
        or not c.statistics.has_null_count
        or c.statistics.null_count > 0
        for c in chunks
    )


def _is_float(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_floating(kind))


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(_is_float(kind) or types.is_integer(kind) or types.is_boolean(kind))


def _width(kind: Any) -> int | None:
    """Bytes of a value in pandas; None: not fixed, as of texts and Python objects."""
    from pyarrow import types

    if types.is_boolean(kind):
        return 1
    if _is_number(kind) or types.is_timestamp(kind) or types.is_duration(kind):
        return int(kind.bit_width // 8)
    if types.is_dictionary(kind):  # a code; categories are few
        return int(kind.index_type.bit_width // 8)
    return None
