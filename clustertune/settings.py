"""clustertune's part of Dask's configuration: defaults, and what is set now.

The defaults and their schema are ``clustertune.yaml`` and ``clustertune-schema.yaml``,
made from the checks by ``docs/make_checks.py``. Importing this module makes Dask know
the defaults, so that ``dask config list`` shows them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import dask
import yaml

from clustertune import checks
from clustertune.past import record
from clustertune.wording import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySettings:
    """Where calls and runs are noted."""

    enabled: bool
    file: str | None  # None: in the user's data folder
    keep: int  # records
    job: str | None  # None: it is told from the data

    @property
    def path(self) -> Path:
        """Of the file; raises HistoryError where the user has no folder for it."""
        return record.file_of(self.file)


def refuse_wrong() -> None:
    """Check all settings, and the environment variables that set some.

    Raises
    ------
    ValueError
        A setting does not exist or has a wrong value, or a variable is misspelt.
    """
    refuse_unknown()
    try:
        of_checks()
        of_history()
    except ValueError as error:
        for name in os.environ:
            # as Dask makes a setting of the variable
            if _ours(name) and name[5:].lower().replace("__", ".") in str(error):
                raise ValueError(f"{error}; {name} sets it") from error
        raise


def refuse_unknown() -> None:
    """Refuse names of settings, and of environment variables, that do not exist.

    Dask ignores a variable that it cannot read, and takes any other name.

    Raises
    ------
    ValueError
        There is such a name; the text says which names there are.
    """
    for name in os.environ:
        if _ours(name):
            _refuse_variable(name)
    known = _defaults()["clustertune"]
    for name in _section("clustertune"):
        if name.replace("-", "_") not in known:
            raise ValueError(
                f"clustertune has no setting {name!r}; it has {', '.join(known)}"
                f"{_near(name, known)}"
            )


def _ours(variable: str) -> bool:
    upper = f"{variable.upper()}_"
    return upper.startswith(("DASK_CLUSTERTUNE_", "CLUSTERTUNE__"))


def _refuse_variable(variable: str) -> None:
    """Refuse an environment variable that sets none of the settings.

    Raises
    ------
    ValueError
        It is misspelt, or it is a heading and its value is no mapping.
    """
    known: dict[str, Any] = {**_defaults()["clustertune"]}
    known["checks"] = {
        name: checks.settings_of(module) for name, module in checks.available().items()
    }
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
        _section(setting, dask.config.interpret_value(os.environ[variable]))
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


def of_checks() -> Mapping[str, Mapping[str, Any]]:
    """By name of check, its settings.

    Raises
    ------
    ValueError
        Something is set that does not exist, or that is not what it must be.
    """
    found = {
        name: _section(f"clustertune.checks.{name}", values)
        for name, values in _section("clustertune.checks").items()
    }
    checks.refuse_wrong(found)
    return found


def of_check(name: str, setting: str) -> Any:
    """One setting of a check: what is set, else its default.

    Raises
    ------
    ValueError
        As :func:`of_checks`.
    """
    default = checks.settings_of(checks.available()[name])[setting]
    return of_checks().get(name, {}).get(setting, default)


_ABSENT = object()


def _section(name: str, value: Any = _ABSENT) -> Mapping[str, Any]:
    """Settings below that name; of a heading below which nothing is written, none."""
    value = dask.config.get(name, None) if value is _ABSENT else value
    found = {} if value is None else value
    if isinstance(found, Mapping):
        return found
    raise ValueError(f"{name}={value!r} must be a mapping of names to values")


def of_history() -> HistorySettings:
    """What is set of the history.

    Raises
    ------
    ValueError
        Something is set that does not exist, or that is not what it must be.
    """
    found = _section("clustertune.history")
    allowed: Mapping[str, tuple[Callable[[Any], bool], str]] = {
        "enabled": (lambda v: isinstance(v, bool), "True or False"),
        "path": (lambda v: v is None or _is_text(v), "the path of a file, or null"),
        "keep": (lambda v: type(v) is int and v >= 1, "a whole number of at least 1"),
        "job": (lambda v: v is None or _is_text(v), "a name, or null"),
    }
    for name, value in found.items():
        if name not in allowed:
            raise ValueError(
                f"clustertune.history has no setting {name!r}; it has "
                f"{', '.join(allowed)}"
            )
        fits, what = allowed[name]
        if not fits(value):
            raise ValueError(f"clustertune.history.{name}={value!r} must be {what}")
    known = _defaults()["clustertune"]["history"] | dict(found)
    return HistorySettings(
        enabled=known["enabled"],
        file=known["path"],
        keep=known["keep"],
        job=known["job"],
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


@cache
def _defaults() -> Mapping[str, Any]:
    text = files("clustertune").joinpath("clustertune.yaml").read_text()
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found


dask.config.update_defaults(_defaults())
