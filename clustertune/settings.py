"""clustertune's part of Dask's configuration: defaults, and what is set now.

The defaults and their schema are ``clustertune.yaml`` and ``clustertune-schema.yaml``,
made from the checks by ``docs/make_checks.py``. Importing this module makes Dask know
the defaults, so that ``dask config list`` shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import dask
import yaml

from clustertune import checks
from clustertune.past import record


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


def _defaults() -> Mapping[str, Any]:
    text = files("clustertune").joinpath("clustertune.yaml").read_text()
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found


dask.config.update_defaults(_defaults())
