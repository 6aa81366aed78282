"""Find the keys of a worker that cannot be sent to another one.

Dask sends several keys in one message. A value that cannot be pickled, or a spilled
value whose file is gone, makes the whole message fail, and Dask does not report which
key was the cause.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from distributed.protocol.serialize import serialize
from distributed.spill import SpillBuffer
from distributed.utils import offload

#: packages whose values can be sent; pickling all of them would take long
TRUSTED = ("numpy", "pandas", "pyarrow", "scipy", "cupy", "cudf")
MAX_PROBLEM = 200  # characters


async def unsendable(
    dask_worker: Any, keys: Collection[Any] | None = None
) -> list[list[Any]]:
    """Return key, problem and whether the value can be read, of unsendable keys.

    Without ``keys`` the values of well-known packages are trusted. With ``keys`` each
    of these values is pickled once.
    """
    data = dask_worker.data
    found = []
    for key in list(data) if keys is None else keys:
        if key not in data:
            continue
        if missing := _missing_file(data, key):
            found.append([key, missing, False])
            continue
        if _is_on_disk(data, key):  # it was pickled when it was written
            continue
        value = data[key]
        if keys is None and _is_trusted(value):
            continue
        if problem := await offload(_pickling_problem, value):
            found.append([key, problem, True])
    return found


def _is_on_disk(data: Any, key: Any) -> bool:
    return isinstance(data, SpillBuffer) and key not in data.fast


def _missing_file(data: Any, key: Any) -> str:
    """Return why a spilled value cannot be read, or an empty text."""
    linked = getattr(data, "linked", {}).get(key)
    if linked is not None:
        path = linked.path
    elif not isinstance(data, SpillBuffer) or key in data.fast:
        return ""
    else:
        slow: Any = data.slow
        files = slow.data.d
        # a value that a task still uses is not read from its file
        if key in slow.cache or key not in files.filenames:
            return ""
        path = Path(files.directory, files.filenames[key])
    return (
        "" if path.exists() else f"its spill file is gone ({path.name})"[:MAX_PROBLEM]
    )


def _is_trusted(value: Any) -> bool:
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    # arrays of objects may hold anything
    return package in TRUSTED and str(getattr(value, "dtype", "")) != "object"


def _pickling_problem(value: Any) -> str:
    try:
        serialize(value, on_error="raise")
    except Exception as error:  # noqa: BLE001, objects raise any error
        cause = error.__cause__ or error
        return f"a {type(value).__name__}: {cause}"[:MAX_PROBLEM]
    return ""
