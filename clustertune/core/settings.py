"""clustertune's section of Dask's configuration: defaults and current values.

``docs/make_checks.py`` writes the defaults (``clustertune.yaml``) and their schema
(``clustertune-schema.yaml``). Importing this module adds the defaults to Dask's
configuration, so ``dask config list`` shows them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Any

import dask
import yaml

from clustertune.core import arguments
from clustertune.core.wording import near, printable


def refuse_unknown() -> None:
    """Refuse names of settings that do not exist, and variables that Dask ignores.

    Dask accepts any name. Raises ``ValueError`` if there is such a name.
    """
    for name in os.environ:
        if f"{name.upper()}_".startswith(("DASK_CLUSTERTUNE_", "CLUSTERTUNE__")):
            _refuse_ignored(name)
    refuse_names("clustertune", defaults()["clustertune"])


def refuse_names(path: str, known: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a name in a section that is no setting."""
    for name in section(path):
        if name.replace("-", "_") not in known:
            raise ValueError(
                f"{path} has no setting {name!r}; it has {', '.join(known)}"
                f"{near(name, known)}"
            )


def _refuse_ignored(variable: str) -> None:
    """Raise ``ValueError`` for a variable that Dask does not read, or replaces."""
    start, *names = variable.split("__")
    if start != "DASK_CLUSTERTUNE":
        raise ValueError(
            f"the environment variable {printable(variable, longest=100)} sets "
            "nothing: names are DASK_CLUSTERTUNE__ and a setting, with __ between its "
            "parts"
        )
    path = ".".join(["clustertune", *names]).lower()
    if isinstance(dask.config.get(path, None), Mapping):
        section(path, dask.config.interpret_value(os.environ[variable]))


def fractions() -> dict[str, float]:
    """Return the settings ``clustertune.prepare``: tolerance and memory fraction.

    Raises ``ValueError`` if a setting does not exist, or is no fraction.
    """
    known = defaults()["clustertune"]["prepare"]
    refuse_names("clustertune.prepare", known)
    return {
        name: arguments.fraction(
            f"clustertune.prepare.{name}",
            dask.config.get(f"clustertune.prepare.{name}", default),
            zero=name == "tolerance",
        )
        for name, default in known.items()
    }


def history() -> Mapping[str, Any]:
    """Return the settings ``clustertune.history``: enabled, path and label.

    Raises ``ValueError`` if a setting does not exist, or has a wrong value.
    """
    path = "clustertune.history"
    known = defaults()["clustertune"]["history"]
    refuse_names(path, known)
    found = {**known, **section(path)}
    arguments.flag(f"{path}.enabled", found["enabled"])
    arguments.file(f"{path}.path", found["path"])
    if found["label"] is not None:
        arguments.text(f"{path}.label", found["label"])
    return found


_ABSENT = object()


def section(name: str, value: Any = _ABSENT) -> Mapping[str, Any]:
    """Return the settings of a section; none if it has no value.

    Raises ``ValueError`` if the value of the section is no mapping.
    """
    value = dask.config.get(name, None) if value is _ABSENT else value
    found = {} if value is None else value
    if isinstance(found, Mapping):
        return found
    raise ValueError(f"{name}={value!r} must be a mapping of names to values")


@cache
def defaults() -> Mapping[str, Any]:
    """Return the default settings."""
    text = files("clustertune").joinpath("clustertune.yaml").read_text("utf-8")
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found


dask.config.update_defaults(defaults())


# --- checks and workloads of other packages -------------------------------------------

logger = logging.getLogger("clustertune")


def entry_points_of(
    group: str, takes: str, is_one: Callable[[Any], bool]
) -> Mapping[str, Any]:
    """Return the objects of an entry point group by the names of the entries.

    An object is omitted with a warning if it cannot be loaded, or is not what the group
    ``takes``, such as "a function".
    """
    loaded = {
        e.name: _load_entry(e, takes, is_one)
        for e in entry_points(group=f"clustertune.{group}")
    }
    return {name: found for name, found in loaded.items() if found is not None}


def _load_entry(entry: EntryPoint, takes: str, is_one: Callable[[Any], bool]) -> Any:
    named = f"{entry.group}: {entry.name} = {entry.value}"
    try:
        found = entry.load()
    except Exception as error:  # noqa: BLE001 (code of other packages)
        text = printable(repr(error), longest=200)
        logger.warning("%s cannot be loaded and is left out: %s", named, text)
        return None
    if is_one(found):
        return found
    logger.warning("%s is not %s and is left out", named, takes)
    return None
