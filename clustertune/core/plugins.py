"""Load checks and workloads that other packages add by entry points."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from clustertune.core.wording import printable

logger = logging.getLogger("clustertune")


def of(group: str, function: str = "") -> Mapping[str, Any]:
    """Return the objects of an entry point group by the names of the entries.

    An object is omitted with a warning if it cannot be loaded, or if it is no function
    and has none named ``function``.
    """
    loaded = {
        e.name: _load(e, function) for e in entry_points(group=f"clustertune.{group}")
    }
    return {name: found for name, found in loaded.items() if found is not None}


def _load(entry: EntryPoint, function: str) -> Any:
    named = f"{entry.group}: {entry.name} = {entry.value}"
    try:
        found = entry.load()
    except Exception as error:  # noqa: BLE001 (code of other packages)
        text = printable(repr(error), longest=200)
        logger.warning("%s cannot be loaded and is left out: %s", named, text)
        return None
    if function and not callable(getattr(found, function, found)):
        logger.warning("%s has no function %s and is left out", named, function)
        return None
    return found
