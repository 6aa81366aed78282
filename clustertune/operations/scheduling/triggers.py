"""When a scheduled restart is due: cron times in a time zone, and conditions.

The client computes cron times and sends numbers, so the scheduler needs neither cronsim
nor the client's time zone. Daylight-saving changes follow Debian's cron. A time in the
skipped hour is due at its end, and a time in the repeated hour is due once. If the
minute or the hour begins with ``*``, times follow the elapsed time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, tzinfo
from difflib import get_close_matches
from itertools import islice, takewhile
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from clustertune import checks
from clustertune.core.model import Severity, Unknown, WorkerSnapshot

MAX_TIMES = 10_000  # every minute of a week
LOCALTIME = Path("/etc/localtime")
EXAMPLE = '"0 3 * * *" (at 03:00 each day), "30 22 * * 1-5" or "*/15 * * * *"'

SEVERITIES = tuple(s.name for s in Severity if s is not Severity.unknown)
ALLOWED = (
    "leak, memory, memory:SEVERITY, or CHECK or CHECK:SEVERITY with the name of a "
    f"check; SEVERITY is one of {', '.join(SEVERITIES)}"
)


# --- cron times -----------------------------------------------------------------------


def cron_times(cron: str, tz: tzinfo, start: float, end: float) -> tuple[float, ...]:
    """Return the distinct times of a cron expression after ``start``, until ``end``.

    Times are epoch seconds. Raise ValueError if the expression is invalid, or has more
    than 10,000 times.
    """
    fields = cron.split() if isinstance(cron, str) else []
    if len(fields) != 5:
        raise ValueError(
            f"cron={cron!r} must be five fields (minute, hour, day of the month, "
            f"month, day of the week), like {EXAMPLE}"
        )
    try:
        ticks = CronSim(cron, datetime.fromtimestamp(start, tz))
    except (CronSimError, ValueError) as error:
        raise ValueError(
            f"cron={cron!r} cannot be read ({str(error).lower()}); it must be like "
            f"{EXAMPLE}"
        ) from error
    stamps = takewhile(lambda t: t <= end, (tick.timestamp() for tick in ticks))
    # several times are the same moment if clocks skip an hour
    found = sorted({t for t in islice(stamps, MAX_TIMES + 1) if t > start})
    if len(found) > MAX_TIMES:
        raise ValueError(
            f"cron={cron!r} has more than {MAX_TIMES:,} times before it expires; give "
            "fewer times, or a shorter expires"
        )
    return tuple(found)


def zone(name: str | None) -> tzinfo:
    """Return a time zone by name. None means this machine's: TZ, or its setting."""
    given = f"tz={name!r}"
    if name is None:
        name = os.environ.get("TZ", "").removeprefix(":")
        given = f"the variable TZ={name!r}"
        if not name:
            return _local_zone()
    try:
        return ZoneInfo(name)
    # a name of another type, of a folder, outside the database, or nested too deeply
    except (LookupError, ValueError, OSError, TypeError, RecursionError) as error:
        known = available_timezones()
        if not known:
            raise ValueError(
                f"{given}: this machine has no time zone database; install the package "
                "tzdata (with pip, or from the system)"
            ) from error
        raise ValueError(
            f"{given} is no time zone; it must be a name like 'Europe/Berlin' or 'UTC'"
        ) from error


def _local_zone() -> tzinfo:
    if not LOCALTIME.exists():  # the C library uses UTC then
        return zone("UTC")
    with LOCALTIME.open("rb") as file:
        return ZoneInfo.from_file(file, key="local time")


# --- conditions -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition of a restart: ``kind`` is leak, memory or check.

    The scheduler evaluates leak and memory (``remote/scheduler/schedule.py``). For a
    check it uses the last findings.
    """

    kind: str
    check: str = ""
    severity: Severity = Severity.warning

    def __str__(self) -> str:
        if self.kind == "leak":
            return "leak"
        return f"{self.check or self.kind}:{self.severity}"

    def plain(self) -> dict[str, Any]:
        least = 0.0
        if self.kind == "leak":  # growth per run, as a fraction of the memory limit
            least = float(checks.setting("memory_growth", "min_fraction"))
        return {
            "kind": self.kind,
            "check": self.check,
            "severity": int(self.severity),
            "text": str(self),
            "least": least,
        }


def parse_condition(text: object) -> Condition | None:
    """Read a condition; None means no condition. Raise ValueError for other text."""
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
                f"condition={text!r}: memory is warning (spills) or critical (pauses)"
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


def thresholds(
    workers: Iterable[WorkerSnapshot],
) -> dict[str | int, dict[str, float]]:
    """By worker id, the known and enabled thresholds of its process memory."""
    found: dict[str | int, dict[str, float]] = {}
    for worker in workers:
        known = worker.thresholds
        if worker.parking or isinstance(known, Unknown):
            continue
        both = {"spill": known.spill, "pause": known.pause}
        found[worker.id] = {k: v for k, v in both.items() if v is not None}
    return found
