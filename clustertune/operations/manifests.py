"""The folder of a save and its manifest: what is there, and what may be written there.

A manifest is JSON. Another user with write access to the folder may have changed it, so
each of its fields is checked, and nothing outside of the folder is read or removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NoReturn
from urllib.parse import urlsplit

import numpy as np
from fsspec.core import url_to_fs

from clustertune.core.wording import printable
from clustertune.errors import RefusedError, SaveError
from clustertune.remote.worker import pieces

SCHEMA_VERSION = 2
MANIFEST = "clustertune.json"
FOLDER = re.compile(r"clustertune-[0-9a-f]{8}")
KINDS = ("array", "dataframe", "series")
# what reading something that is none brings out: values of other types, numbers that
# are none, lists in lists in lists
_UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    SyntaxError,  # of a dtype in words
    AttributeError,
    OverflowError,
    RecursionError,
)


@dataclass(frozen=True, slots=True)
class Target:
    """A folder, local or behind a URL, for the client and for all workers."""

    path: str  # as the user gave it
    url: str  # the same for everybody
    options: Mapping[str, Any] = field(repr=False)  # may hold secrets

    def files(self) -> tuple[Any, str]:
        """Its file system, without what that remembers, and its root there."""
        files, root = url_to_fs(self.url, **self.options)
        files.invalidate_cache()
        return files, str(root).rstrip("/")


def place(name: str, path: Any, storage_options: Any) -> Target:
    """Check a path.

    Raises
    ------
    TypeError, ValueError
        It is no path, or the file system is not known here.
    """
    if not isinstance(path, str) and not hasattr(path, "__fspath__"):
        raise TypeError(
            f"{name}={path!r} must be the path of a folder that the client and all "
            'workers see, like "/shared/save" or "s3://bucket/save"'
        )
    text = path if isinstance(path, str) else path.__fspath__()
    if not isinstance(storage_options, Mapping | None):
        raise TypeError(
            "storage_options must be a mapping, as fsspec takes it, or None"
        )
    if not text.strip("/") or "::" in text:
        raise ValueError(
            f"{name}={text!r} must be a folder of its own, without caches (::) between"
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
    if "file" in _protocols(files):
        options["auto_mkdir"] = True
    return Target(text, files.unstrip_protocol(root), options)


def _has_password(text: str) -> bool:
    try:
        return "://" in text and urlsplit(text).password is not None
    except ValueError:  # such as brackets that are no address
        return "@" in text


def _protocols(files: Any) -> tuple[str, ...]:
    known = files.protocol
    return (known,) if isinstance(known, str) else tuple(known)


def refuse_occupied(place: Target, *, overwrite: bool) -> None:
    """See that the folder is empty, or holds a save that may be replaced.

    Raises
    ------
    RefusedError
        It does not.
    """
    files, root = place.files()
    if not files.exists(root):
        return
    if files.isfile(root):
        raise RefusedError(f"{place.path} is a file; give another path")
    found = set(names(files, root))
    if not found:
        return
    others = sorted(n for n in found if n != MANIFEST and not FOLDER.fullmatch(n))
    if others:
        raise RefusedError(
            f"{place.path} holds other files ({printable(others[0], longest=60)}); "
            "give a folder that is empty"
        )
    if not overwrite:
        if MANIFEST in found:
            raise_for_save(place)
        raise RefusedError(
            f"{place.path} holds an unfinished save: either it is being written, or it "
            "was broken off; give another path, or overwrite=True to save there and "
            "leave the unfinished one alone"
        )


def raise_for_save(place: Target) -> NoReturn:
    """Refuse to replace a save that is there.

    Raises
    ------
    RefusedError
        Always.
    """
    raise RefusedError(
        f"{place.path} holds a save of clustertune; give overwrite=True to replace it, "
        "or another path"
    )


def names(files: Any, root: str) -> list[str]:
    """What is in a folder."""
    return [str(n).rstrip("/").rpartition("/")[2] for n in files.ls(root, detail=False)]


def read(place: Target) -> dict[str, Any]:
    """What is saved there, by the manifest.

    Raises
    ------
    SaveError
        There is none, or it is not one that can be read here.
    """
    files, root = place.files()
    try:
        text = files.cat_file(f"{root}/{MANIFEST}")
    except FileNotFoundError as error:
        raise SaveError(
            f"{place.path} has no {MANIFEST}: nothing was saved there, or the save was "
            "broken off"
        ) from error
    try:
        manifest: dict[str, Any] = json.loads(text)
        version = manifest["schema_version"]
        if version == SCHEMA_VERSION:
            _check(manifest)
    except _UNREADABLE as error:
        raise SaveError(
            f"{place.path}/{MANIFEST} is not a manifest of clustertune's: {error!r}"
        ) from error
    if version != SCHEMA_VERSION:
        raise SaveError(
            f"{place.path} was saved with schema version {version!r}; this release "
            f"reads {SCHEMA_VERSION}: use the one that wrote it"
        )
    return manifest


def current(files: Any, root: str) -> str | None:
    """The folder that the manifest names now; None: there is none to be read."""
    try:
        folder = json.loads(files.cat_file(f"{root}/{MANIFEST}"))["folder"]
        return folder if FOLDER.fullmatch(folder) else None
    except (FileNotFoundError, *_UNREADABLE):
        return None


def _check(manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest that names a place or an encoding that save never writes."""
    if not FOLDER.fullmatch(manifest["folder"]):
        raise ValueError("its folder is none of clustertune's")
    if not all(0 <= i < len(manifest["collections"]) for i in manifest["order"]):
        raise ValueError("its order names what is not there")
    for number, entry in enumerate(manifest["collections"]):
        if entry["folder"] != f"{manifest['folder']}/{number}":
            raise ValueError("the folder of a collection is elsewhere")
        if entry["kind"] not in KINDS:
            raise ValueError(f"a collection is of kind {entry['kind']!r}")
        if entry["kind"] == "array":
            _check_array(entry)
            continue
        for piece in entry["pieces"]:
            _whole(piece["crc32"]), [_whole(n) for n in piece["shape"]]
        for name in ("meta", *(["divisions"] if entry["divisions"] else [])):
            _whole(entry["crc32"][name])


def _check_array(entry: Mapping[str, Any]) -> None:
    _refuse_objects(entry["dtype"])
    blocks = list(product(*entry["chunks"]))
    if not entry["chunks"] or len(blocks) != len(entry["pieces"]):
        raise ValueError("an array has other pieces than its chunks say")
    for block, piece in zip(blocks, entry["pieces"], strict=True):
        _refuse_objects(piece["dtype"])
        shape = [_whole(n) for n in piece["shape"]]
        if shape != list(block) or _whole(piece["rows"]) < 1:
            raise ValueError("a piece has another shape than its array says")
        [_whole(crc) for crc in piece["crc32"]]


def _refuse_objects(dtype: Any) -> None:
    """Types of numbers, dates and texts of fixed length hold no objects."""
    if not isinstance(dtype, str) or np.dtype(dtype).kind not in pieces.KINDS:
        raise ValueError(f"values are of the type {dtype!r}, which is never saved")


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} must be a whole number")
    return value
