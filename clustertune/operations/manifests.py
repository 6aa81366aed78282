"""The folder of a save and its manifest, which the client reads and writes.

A path contains one folder for each save and one manifest. The client writes the
manifest last, so a path without a manifest has no complete save. Another user with
write access may have changed the manifest. So every field is checked, and nothing
outside of the path is read or removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Annotated, Any, NoReturn
from urllib.parse import urlsplit
from zlib import crc32

import dask.array as da
import dask.dataframe as dd
import msgspec
import numpy as np
import pandas as pd
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from msgspec import Meta, Struct

from clustertune.collections.inputs import Given
from clustertune.core import decoding
from clustertune.core.wording import bytes_text, printable
from clustertune.errors import RefusedError, SaveError
from clustertune.remote.worker import partitions

SCHEMA_VERSION = 2
MANIFEST = "clustertune.json"
FOLDER = re.compile(r"clustertune-[0-9a-f]{8}")
# of numbers, dates and text of fixed length: these types hold no objects
_DTYPE = re.compile(rf"[<>|][{partitions.KINDS}][0-9]+(\[\w+\])?")

Count = Annotated[int, Meta(ge=0)]


class ArrayPartition(Struct, frozen=True):
    """One chunk of an array: files, and the facts that they must match."""

    shape: list[Count]
    dtype: str
    rows: Annotated[int, Meta(ge=1)]  # in each file
    bytes: Count
    crc32: list[Count]  # by file


class FramePartition(Struct, frozen=True):
    """One partition of a DataFrame or Series: one file."""

    shape: list[Count]
    bytes: Count
    crc32: Count


class SavedArray(Struct, frozen=True, tag_field="kind", tag="array"):
    """A Dask Array; its chunks are in C order."""

    label: str
    folder: str
    dtype: str
    chunks: Annotated[list[list[Count]], Meta(min_length=1)]
    partitions: list[ArrayPartition]


class SavedFrame(Struct, frozen=True, tag_field="kind", tag="dataframe"):
    """A Dask DataFrame."""

    label: str
    folder: str
    divisions: bool  # whether they are known
    partitions: Annotated[list[FramePartition], Meta(min_length=1)]
    crc32: dict[str, Count]  # of the files with the empty frame and the divisions


class SavedSeries(SavedFrame, frozen=True, tag_field="kind", tag="series"):
    """A Dask Series, saved as a frame of one column."""


Saved = SavedArray | SavedFrame | SavedSeries


class Manifest(Struct, frozen=True):
    """The content of the manifest."""

    schema_version: int
    folder: str
    order: list[Count]  # numbers of collections, in the order of the arguments
    collections: list[Saved]

    @property
    def nbytes(self) -> int:
        return sum(
            partition.bytes
            for saved in self.collections
            for partition in saved.partitions
        )


# --- paths ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A local folder or a URL that the client and all workers can use."""

    path: str  # as the user gave it
    url: str  # the same for all processes
    options: Mapping[str, Any] = field(repr=False)  # may hold secrets

    def files(self) -> tuple[Any, str]:
        """Return the file system, with an empty listing cache, and the root in it."""
        files, root = url_to_fs(self.url, **self.options)
        files.invalidate_cache()
        return files, str(root).rstrip("/")


def target(name: str, path: Any, storage_options: Any) -> Target:
    """Check the arguments for a path of a save."""
    if not isinstance(path, str) and not hasattr(path, "__fspath__"):
        raise TypeError(
            f"{name}={path!r} must be the path of a folder that the client and all "
            'workers see, like "/shared/save" or "s3://bucket/save"'
        )
    text = path if isinstance(path, str) else path.__fspath__()
    if not isinstance(storage_options, Mapping | None):
        raise TypeError("storage_options must be a mapping for fsspec, or None")
    if not text.strip("/") or "::" in text:
        raise ValueError(
            f"{name}={text!r} must be a separate folder; chained URLs (::) are not "
            "supported"
        )
    if _has_password(text):
        raise ValueError(
            f"{name} contains a password, which reports and logs would show; give it "
            'as storage_options={"password": ...}'
        )
    options = dict(storage_options or {})
    try:
        files, root = url_to_fs(text, **options)
    except (ImportError, ValueError, TypeError, OSError) as error:
        raise ValueError(f"{name}={text!r} cannot be used: {error}") from error
    if isinstance(files, LocalFileSystem):
        options["auto_mkdir"] = True
    return Target(text, files.unstrip_protocol(root), options)


def _has_password(text: str) -> bool:
    try:
        return "://" in text and urlsplit(text).password is not None
    except ValueError:  # such as brackets around something that is not an address
        return "@" in text


def refuse_occupied(target: Target, *, overwrite: bool) -> None:
    """Raise unless the folder is empty, or holds a save that may be replaced."""
    files, root = target.files()
    if not files.exists(root):
        return
    if files.isfile(root):
        raise RefusedError(f"{target.path} is a file; give the path of a folder")
    listed = files.ls(root, detail=False)
    found = {str(name).rstrip("/").rpartition("/")[2] for name in listed}
    others = sorted(n for n in found if n != MANIFEST and not FOLDER.fullmatch(n))
    if others:
        raise RefusedError(
            f"{target.path} holds other files ({printable(others[0], longest=60)}); "
            "give the path of an empty folder"
        )
    if found and not overwrite:
        if MANIFEST in found:
            _refuse_save(target)
        raise RefusedError(
            f"{target.path} holds an unfinished save: another process is writing it, "
            "or was interrupted; give another path, or overwrite=True to save there "
            "without removing the unfinished save"
        )


def _refuse_save(target: Target) -> NoReturn:
    raise RefusedError(
        f"{target.path} holds a complete save; give overwrite=True to replace it, or "
        "another path"
    )


# --- manifests ------------------------------------------------------------------------


def read(target: Target) -> Manifest:
    """Read the manifest of a path."""
    files, root = target.files()
    try:
        text = files.cat_file(f"{root}/{MANIFEST}")
    except FileNotFoundError as error:
        raise SaveError(
            f"{target.path} has no {MANIFEST}, so it holds no complete save; give the "
            "path of clustertune.save_data"
        ) from error
    try:
        data = decoding.parse_json(text)
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version in (None, SCHEMA_VERSION):
            return _manifest(data)
    except ValueError as error:
        raise SaveError(
            f"{target.path}/{MANIFEST} is not a manifest of clustertune: {error}"
        ) from error
    raise SaveError(
        f"{target.path} was saved with schema version {printable(repr(version))}, but "
        f"this release reads {SCHEMA_VERSION}; load it with the release that saved it"
    )


def _manifest(data: Any) -> Manifest:
    """Check a manifest; raise ValueError if ``save_data`` never writes one like it."""
    manifest = decoding.convert(data, Manifest)
    if not FOLDER.fullmatch(manifest.folder):
        raise ValueError("folder: this is not the name of a save's folder")
    if any(i >= len(manifest.collections) for i in manifest.order):
        raise ValueError("order: a collection is missing")
    for number, saved in enumerate(manifest.collections):
        where = f"collections[{number}]"
        if saved.folder != f"{manifest.folder}/{number}":
            raise ValueError(f"{where}.folder: it is outside of the save's folder")
        if isinstance(saved, SavedArray):
            _refuse_unlike_array(saved, where)
        elif not {"meta", *["divisions"] * saved.divisions} <= saved.crc32.keys():
            raise ValueError(f"{where}.crc32: a checksum is missing")
    return manifest


def _refuse_unlike_array(saved: SavedArray, where: str) -> None:
    _refuse_objects(saved.dtype, where)
    if prod(map(len, saved.chunks)) != len(saved.partitions):
        raise ValueError(f"{where}.partitions: their number does not match the chunks")
    for block, partition in zip(product(*saved.chunks), saved.partitions, strict=True):
        _refuse_objects(partition.dtype, f"{where}.partitions")
        if partition.shape != list(block):
            raise ValueError(f"{where}.partitions: a shape does not match the chunks")


def _refuse_objects(dtype: str, where: str) -> None:
    try:
        known = _DTYPE.fullmatch(dtype) and np.dtype(dtype)
    except (TypeError, ValueError, OverflowError):
        known = None
    if known is None:
        raise ValueError(f"{where}.dtype: save_data never writes the type {dtype!r}")


def publish(target: Target, manifest: Manifest, *, overwrite: bool) -> None:
    """Write the manifest, then remove the save that it replaces.

    Another process may save to the same path at the same time. Each save has its own
    folder, and the manifest is replaced in one step, so it always names a complete
    save. Only the folder that the replaced manifest named is removed. Any other folder
    may belong to a save that is still being written.
    """
    files, root = target.files()
    new, old = manifest.folder, _current(files, root)
    if old is not None and not overwrite:
        files.rm(f"{root}/{new}", recursive=True)
        _refuse_save(target)
    files.pipe_file(f"{root}/{new}/{MANIFEST}", msgspec.json.encode(manifest))
    files.mv(f"{root}/{new}/{MANIFEST}", f"{root}/{MANIFEST}")
    if _current(files, root) != new:
        raise SaveError(
            f"{target.path}/{MANIFEST} names another save, which ended at the same "
            f"time, so load_data cannot find the files of this one in {new}; save the "
            "data to another path"
        )
    if old is not None:
        with suppress(FileNotFoundError):  # another save removed it first
            files.rm(f"{root}/{old}", recursive=True)


class _Current(Struct, frozen=True):
    folder: str


def _current(files: Any, root: str) -> str | None:
    """Return the folder in the manifest; None if the manifest is missing or invalid."""
    try:
        text = files.cat_file(f"{root}/{MANIFEST}")
        folder = decoding.read_json(text, _Current).folder
    except (FileNotFoundError, ValueError):
        return None
    return folder if FOLDER.fullmatch(folder) else None


# --- files of a collection ------------------------------------------------------------


def kind_of(collection: Any) -> type[Saved]:
    """Return the class that describes such a collection."""
    if isinstance(collection, da.Array):
        return SavedArray
    return SavedFrame if isinstance(collection, dd.DataFrame) else SavedSeries


def small_frames(collection: Any) -> dict[str, Any]:
    """Return the empty frame and the divisions, which the client itself saves."""
    small = {"meta": collection._meta}  # noqa: SLF001 (it has no public name)
    if collection.known_divisions:
        small["divisions"] = pd.DataFrame({"divisions": list(collection.divisions)})
    return small


def file_names(collection: Any) -> list[str]:
    """Return the files or folders of all partitions, in the order of the keys."""
    if isinstance(collection, da.Array):
        return [".".join(map(str, b)) for b in np.ndindex(*collection.numblocks)]
    return [f"{i}.parquet" for i in range(collection.npartitions)]


def complete(target: Target, folder: str, x: Given, answers: Sequence[Any]) -> Saved:
    """Check the files that workers wrote, write the small ones, and describe both."""
    files, root = target.files()
    collection = x.collection
    _refuse_missing(files, f"{root}/{folder}", x, answers)
    if isinstance(collection, da.Array):
        parts = decoding.convert(answers, list[ArrayPartition])
        chunks = array_chunks(x.label, collection.numblocks, [p.shape for p in parts])
        return SavedArray(x.label, folder, collection.dtype.str, chunks, parts)
    checksums = {}
    for name, frame in small_frames(collection).items():
        data = partitions.encode(frame)
        files.pipe_file(f"{root}/{folder}/{name}.parquet", data)
        checksums[name] = crc32(data)
    written = decoding.convert(answers, list[FramePartition])
    kind = SavedSeries if collection.ndim == 1 else SavedFrame
    has_divisions = bool(collection.known_divisions)
    return kind(x.label, folder, has_divisions, written, checksums)


def array_chunks(
    label: str, numblocks: tuple[int, ...], shapes: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the chunk sizes by the saved chunks: an array may not know its own."""
    blocks = dict(zip(np.ndindex(*numblocks), shapes, strict=True))
    zeros = (0,) * len(numblocks)
    chunks = [
        [blocks[(*zeros[:axis], i, *zeros[axis + 1 :])][axis] for i in range(n)]
        for axis, n in enumerate(numblocks)
    ]
    for block, shape in blocks.items():
        expected = [chunks[axis][i] for axis, i in enumerate(block)]
        if list(shape) != expected:
            raise SaveError(
                f"{label} is not an array: its chunk {block} has the shape "
                f"{tuple(shape)}, but the other chunks need {tuple(expected)}"
            )
    return chunks


def _refuse_missing(files: Any, folder: str, x: Given, answers: Sequence[Any]) -> None:
    names = file_names(x.collection)
    seen = dict.fromkeys(names, 0)
    for path, file in files.find(folder, detail=True).items():
        name = path[len(folder) :].strip("/").partition("/")[0]
        if name in seen:
            seen[name] += file["size"]
    for name, answer in zip(names, answers, strict=True):
        if seen[name] != answer["bytes"]:
            raise SaveError(
                f"{x.label}: a worker wrote {bytes_text(answer['bytes'])} to "
                f"{folder}/{name}, but this process sees {bytes_text(seen[name])}; the "
                "data in memory is unchanged; save it to another storage"
            )


def read_small_frame(
    target: Target, saved: SavedFrame, name: str, *, series: bool
) -> Any:
    """Read a small file of a DataFrame."""
    files, root = target.files()
    data: bytes = files.cat_file(f"{root}/{saved.folder}/{name}.parquet")
    if crc32(data) != saved.crc32[name]:
        raise SaveError(
            f"{saved.folder}/{name}.parquet is not as it was saved: its checksum is "
            "another. The data cannot be loaded; save it again"
        )
    return partitions.decode(data, series=series)
