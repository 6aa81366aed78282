"""When a scheduled restart is due: cron times in a time zone.

The client computes cron times and sends numbers, so the scheduler needs neither cronsim
nor the client's time zone. Daylight-saving changes follow Debian's cron. A time in the
skipped hour is due at its end, and a time in the repeated hour is due once. If the
minute or the hour begins with ``*``, times follow the elapsed time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, tzinfo
from itertools import islice, takewhile
from pathlib import Path
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MAX_TIMES = 10_000  # every minute of a week
LOCALTIME = Path("/etc/localtime")
EXAMPLE = '"0 3 * * *" (at 03:00 each day), "30 22 * * 1-5" or "*/15 * * * *"'


def cron_times(cron: str, tz: tzinfo, start: float, end: float) -> tuple[float, ...]:
    """Return the distinct times of a cron expression after ``start``, until ``end``.

    Times are epoch seconds. Raise ValueError if the expression is invalid, or has more
    than 10,000 times.
    """
    stamps = takewhile(lambda t: t <= end, _stamps(cron, tz, start))
    # several times are the same moment if clocks skip an hour
    found = sorted({t for t in islice(stamps, MAX_TIMES + 1) if t > start})
    if len(found) > MAX_TIMES:
        raise ValueError(
            f"cron={cron!r} has more than {MAX_TIMES:,} times before it expires; give "
            'fewer times, or a shorter time such as expires="5 days"'
        )
    return tuple(found)


def next_time(cron: str, tz: tzinfo, start: float, seconds: float) -> float | None:
    """Return the first time within some seconds after ``start``, or None."""
    first = next((t for t in _stamps(cron, tz, start) if t > start), None)
    return first if first is not None and first <= start + seconds else None


def _stamps(cron: str, tz: tzinfo, start: float) -> Iterator[float]:
    """Return the times after ``start``, without an end; a time may come twice."""
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
    return (tick.timestamp() for tick in ticks)


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
        raise ValueError(
            f"{given} is no time zone of this machine: give a name like "
            "'Europe/Berlin' or 'UTC', or install the package tzdata"
        ) from error


def _local_zone() -> tzinfo:
    if not LOCALTIME.exists():  # the C library uses UTC then
        return zone("UTC")
    with LOCALTIME.open("rb") as file:
        return ZoneInfo.from_file(file, key="local time")
