"""What a scheduled restart can be made to depend on, checked before it is sent.

``leak``, ``memory:critical``, or any check by name. The first two the scheduler sees by
itself (``remote/conditions.py``); of checks it has what was found last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from clustertune import checks
from clustertune.core.model import Severity, Unknown, WorkerSnapshot

SEVERITIES = tuple(s.name for s in Severity if s is not Severity.unknown)
ALLOWED = (
    "leak, memory, memory:SEVERITY, or CHECK or CHECK:SEVERITY with the name of a "
    f"check; SEVERITY is one of {', '.join(SEVERITIES)}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """``kind`` is leak, memory or check; at least of this severity."""

    kind: str
    check: str = ""
    severity: Severity = Severity.warning

    def __str__(self) -> str:
        if self.kind == "leak":
            return "leak"
        return f"{self.check or self.kind}:{self.severity}"

    def plain(self) -> dict[str, Any]:
        """As the resident takes it."""
        return {
            "kind": self.kind,
            "check": self.check,
            "severity": int(self.severity),
            "text": str(self),
            "least": _least() if self.kind == "leak" else 0.0,
        }


def parse(text: object) -> Condition | None:
    """Read a condition; None is none.

    Raises
    ------
    ValueError
        It is no condition; the text says what is allowed, and what may be meant.
    """
    if text is None:
        return None
    name, colon, level = str(text).partition(":")
    if colon and level not in SEVERITIES:
        raise ValueError(
            f"condition={text!r}: {level!r} is no severity; allowed are "
            f"{', '.join(SEVERITIES)}"
        )
    severity = Severity[level] if colon else Severity.warning
    if name == "leak":
        if colon:
            raise ValueError(f"condition={text!r}: leak has no severity; give 'leak'")
        return Condition(kind="leak")
    if name == "memory":
        if severity is Severity.info:
            raise ValueError(
                f"condition={text!r}: of memory it is warning (spills) or critical "
                "(pauses)"
            )
        return Condition(kind="memory", severity=severity)
    known = checks.available()
    if name not in known:
        near = get_close_matches(name, ["leak", "memory", *known], n=3)
        meant = f"; did you mean {' or '.join(near)}?" if near else "."
        raise ValueError(
            f"condition={text!r}: there is no check {name!r}{meant} Allowed: {ALLOWED}"
        )
    return Condition(kind="check", check=name, severity=severity)


def _least() -> float:
    """Growth in a run that counts, a fraction of the memory limit: as the check has."""
    return float(checks.setting("memory_growth", "least"))


def lines(workers: Iterable[WorkerSnapshot]) -> dict[str | int, dict[str, float]]:
    """By worker the thresholds of its process memory that are known and on."""
    found: dict[str | int, dict[str, float]] = {}
    for worker in workers:
        thresholds = worker.thresholds
        if worker.parking or isinstance(thresholds, Unknown):
            continue
        both = {"spill": thresholds.spill, "pause": thresholds.pause}
        found[worker.id] = {k: v for k, v in both.items() if v is not None}
    return found
