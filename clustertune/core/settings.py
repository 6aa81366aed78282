"""clustertune's part of Dask's configuration: defaults, and what is set now.

The defaults and their schema are ``clustertune.yaml`` and ``clustertune-schema.yaml``,
made from the checks by ``docs/make_checks.py``. Importing this module makes Dask know
the defaults, so that ``dask config list`` shows them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

import dask
import yaml

from clustertune.core.wording import printable


def refuse_unknown(checks: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse names of settings, and of environment variables, that do not exist.

    Dask ignores a variable that it cannot read, and takes any other name.

    Parameters
    ----------
    checks
        By name of each check, also those of other packages, its settings.

    Raises
    ------
    ValueError
        There is such a name; the text says which names there are.
    """
    for name in os.environ:
        if is_ours(name):
            _refuse_variable(name, checks)
    known = defaults()["clustertune"]
    for name in section("clustertune"):
        if name.replace("-", "_") not in known:
            raise ValueError(
                f"clustertune has no setting {name!r}; it has {', '.join(known)}"
                f"{_near(name, known)}"
            )


def is_ours(variable: str) -> bool:
    """Whether this environment variable is meant for a setting of clustertune."""
    upper = f"{variable.upper()}_"
    return upper.startswith(("DASK_CLUSTERTUNE_", "CLUSTERTUNE__"))


def _refuse_variable(variable: str, checks: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse an environment variable that sets none of the settings.

    Raises
    ------
    ValueError
        It is misspelt, or it is a heading and its value is no mapping.
    """
    known: dict[str, Any] = {**defaults()["clustertune"]}
    known["checks"] = checks
    names = {f"DASK_CLUSTERTUNE{path}": is_leaf for path, is_leaf in _paths(known)}
    if variable.startswith("DASK_") and variable.upper() in names:
        if not names[variable.upper()]:
            _refuse_heading(variable)
        return
    # the names of the level at which the variable leaves the known ones
    level: Any = known
    for part in variable.upper().partition("CLUSTERTUNE")[2].split("__")[1:]:
        if not isinstance(level.get(part.lower()), Mapping):
            break
        level = level[part.lower()]
    raise ValueError(
        f"the environment variable {printable(variable, longest=100)} sets nothing: "
        "names are DASK_CLUSTERTUNE__ and a setting, with __ between its parts"
        f"{_near(variable.upper(), names)}. Correct or unset it; settings here are "
        f"{', '.join(level) or 'none'}"
    )


def _refuse_heading(variable: str) -> None:
    """Refuse a value that is no mapping: Dask replaces it by the defaults.

    Raises
    ------
    ValueError
        It is not.
    """
    setting = variable.removeprefix("DASK_").lower().replace("__", ".")
    try:
        section(setting, dask.config.interpret_value(os.environ[variable]))
    except ValueError as error:
        raise ValueError(f"{error}; {variable} sets it") from error


def _paths(known: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, bool]]:
    """Names of variables, without what all begin with; whether no name is below."""
    yield path, False
    for name, value in known.items():
        below = f"{path}__{name.upper()}"
        if isinstance(value, Mapping):
            yield from _paths(value, below)
        else:
            yield below, True


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


_ABSENT = object()


def section(name: str, value: Any = _ABSENT) -> Mapping[str, Any]:
    """Return the settings below a heading; none if nothing is written below it.

    Raises
    ------
    ValueError
        The heading has a value that is no mapping.
    """
    value = dask.config.get(name, None) if value is _ABSENT else value
    found = {} if value is None else value
    if isinstance(found, Mapping):
        return found
    raise ValueError(f"{name}={value!r} must be a mapping of names to values")


@cache
def defaults() -> Mapping[str, Any]:
    """Return the settings that clustertune ships with."""
    text = files("clustertune").joinpath("clustertune.yaml").read_text()
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found


dask.config.update_defaults(defaults())
