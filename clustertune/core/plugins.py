"""Load modules that other packages add by entry points."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from clustertune.core.wording import printable

logger = logging.getLogger("clustertune")


def of(group: str) -> Mapping[str, ModuleType]:
    """Return the modules of an entry point group by the names of the entries.

    A module that cannot be loaded is omitted, and the reason is logged.

    Parameters
    ----------
    group
        Kind of the modules, like ``"checks"``.
    """
    loaded = {e.name: _load(e) for e in entry_points(group=f"clustertune.{group}")}
    return {name: module for name, module in loaded.items() if module is not None}


def _load(entry: EntryPoint) -> ModuleType | None:
    try:
        module: ModuleType = entry.load()
    except Exception as error:  # noqa: BLE001 (code of other packages)
        logger.warning(
            "%s: %s = %s cannot be loaded and is left out: %s",
            entry.group,
            entry.name,
            entry.value,
            printable(repr(error), longest=200),
        )
        return None
    return module
