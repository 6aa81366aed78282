"""Find the file that each partition of a lazy frame reads, for messages.

A file is named only if the expression proves it: a single reader, and after it only
operations that make each partition of the partition with the same number.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import dask.array as da
from dask.dataframe.dask_expr._expr import Blockwise, MapOverlap
from dask.dataframe.dask_expr.io.io import FromMap
from dask.dataframe.dask_expr.io.parquet import ReadParquetFSSpec, ReadParquetPyarrowFS
from fsspec.core import OpenFile

logger = logging.getLogger("clustertune")

Source = tuple[str, str]
"""A path, and the part of the file that is read if others read the rest."""


def of_partitions(collection: Any) -> tuple[str, ...]:
    """Return the source of each partition, in order; empty: not known.

    A partition with an unknown source has an empty text. The sources are not escaped.
    """
    if isinstance(collection, da.Array):
        return ()
    try:
        found = _sources(collection.expr)
    # readers of other packages, and other releases of Dask, may raise anything
    except Exception as error:  # noqa: BLE001
        logger.info("the files of partitions are not known: %r", error)
        return ()
    if len(found) != collection.npartitions:
        return ()
    number = Counter(path for path, _ in found)
    return tuple(
        f"{path}, {part}" if part and number[path] > 1 else path for path, part in found
    )


def _sources(expression: Any) -> list[Source]:
    nodes = list(expression.walk())
    if not all(
        isinstance(node, Blockwise)
        and not isinstance(node, MapOverlap)
        and node.npartitions == expression.npartitions
        for node in nodes
    ):
        return []
    readers = {node._name: node for node in nodes if not node.dependencies()}  # noqa: SLF001
    if len(readers) != 1:
        return []
    (reader,) = readers.values()
    return [] if reader.operand("_partitions") is not None else _of_reader(reader)


def _of_reader(reader: Any) -> list[Source]:
    if isinstance(reader, FromMap):
        return [_of_argument(x) for x in reader.iterables[0]]
    if isinstance(reader, ReadParquetPyarrowFS):
        return [(_without_secrets(x.path), "") for x in reader.fragments]
    if isinstance(reader, ReadParquetFSSpec):
        return [_of_parts(part) for part in reader._plan["parts"]]  # noqa: SLF001
    return []


def _of_argument(value: Any) -> Source:
    """Return the source that an argument of ``from_map`` names."""
    if isinstance(value, str | os.PathLike):
        return _without_secrets(os.fspath(value)), ""
    # Dask's task that reads a block of a file: the file, and its first byte
    file, *rest = getattr(value, "args", None) or (None,)
    if isinstance(file, OpenFile):
        begin = rest[0] if rest and isinstance(rest[0], int) else None
        part = "" if begin is None else f"from byte {begin:,}"
        return _without_secrets(file.path), part
    return "", ""


def _of_parts(part: Any) -> Source:
    """Return the source of a partition of Parquet data, if it is one file."""
    pieces: Iterable[Any] = part if isinstance(part, list) else [part]
    found = {piece["piece"][0]: piece["piece"][1] for piece in pieces}
    if len(found) != 1:
        return "", ""
    ((path, groups),) = found.items()
    numbers = "" if not groups else f"row group {groups[0]}"
    if groups and len(groups) > 1:
        numbers = f"row groups {groups[0]} to {groups[-1]}"
    return _without_secrets(path), numbers


def _without_secrets(path: Any) -> str:
    """Return a path or address without passwords and signatures."""
    text = str(path)
    if "://" not in text:
        return text
    return re.sub(r"(?<=://)[^/@]*@", "", re.split("[?#]", text, maxsplit=1)[0])
