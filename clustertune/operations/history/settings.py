"""Settings of the history in Dask's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clustertune.core import settings
from clustertune.operations.history.record import file_of


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
        return file_of(self.file)


def configured() -> HistorySettings:
    """Return the settings of the history.

    Raises
    ------
    ValueError
        Something is set that does not exist, or that is not what it must be.
    """
    found = settings.section("clustertune.history")
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
    known = settings.defaults()["clustertune"]["history"] | dict(found)
    return HistorySettings(
        enabled=known["enabled"],
        file=known["path"],
        keep=known["keep"],
        job=known["job"],
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
