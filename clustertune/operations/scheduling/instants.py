"""When a cron expression says so: instants as epoch seconds, in a named time zone.

They are computed here and travel as numbers, so the scheduler needs neither cronsim nor
the caller's time zone. At daylight-saving changes it goes as with Debian's cron: what
falls into the hour that is left out is due when that is over, and what falls into the
hour that comes twice is due once; unless its minute or hour begins with ``*``, which
goes by the time that passes.
"""

from __future__ import annotations

import os
from datetime import datetime, tzinfo
from itertools import islice, takewhile
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

MOST = 10_000  # instants: every minute of a week
LOCAL = Path("/etc/localtime")
EXAMPLE = '"0 3 * * *" (at 03:00 each day), "30 22 * * 1-5" or "*/15 * * * *"'


def between(cron: str, tz: tzinfo, start: float, end: float) -> tuple[float, ...]:
    """Instants of a cron expression that come after ``start``, until ``end``.

    Parameters
    ----------
    cron
        Minute, hour, day of the month, month, day of the week.
    tz
        In which these are meant.
    start, end
        Epoch seconds.

    Returns
    -------
    tuple of float
        Epoch seconds, in order, each once; empty where there are none.

    Raises
    ------
    ValueError
        It is no such expression, or says more than 10,000 instants.
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
    # where clocks are put forward, several fall on the same instant
    found = sorted({t for t in islice(stamps, MOST + 1) if t > start})
    if len(found) > MOST:
        raise ValueError(
            f"cron={cron!r} says more than {MOST:,} instants: say fewer, or let it "
            "expire sooner"
        )
    return tuple(found)


def zone(name: str | None) -> tzinfo:
    """A time zone by its name; None: that of this machine (TZ, else its own setting).

    Raises
    ------
    ValueError
        There is no such time zone, or there are no data of time zones here.
    """
    given = f"tz={name!r}"
    if name is None:
        name = os.environ.get("TZ", "").removeprefix(":")
        given = f"the variable TZ={name!r}"
        if not name:
            return _local()
    try:
        return ZoneInfo(name)
    # a name may be of any type, a folder, reach out of the folder of time zones, or go
    # through more folders than are looked into
    except (LookupError, ValueError, OSError, TypeError, RecursionError) as error:
        known = available_timezones()
        if not known:
            raise ValueError(
                f"{given}: this machine has no data of time zones; install the package "
                "tzdata (of pip, or of the system)"
            ) from error
        raise ValueError(
            f"{given} is no time zone; it must be a name like 'Europe/Berlin' or 'UTC'"
        ) from error


def _local() -> tzinfo:
    if not LOCAL.exists():  # then the C library takes it for UTC
        return zone("UTC")
    with LOCAL.open("rb") as file:
        return ZoneInfo.from_file(file, key="local time")


def text(when: float, tz: tzinfo | None = None) -> str:
    """An instant as people read it: ``2026-03-29 03:00:00 CEST``."""
    local = datetime.fromtimestamp(when, tz or _local())
    return f"{local:%Y-%m-%d %H:%M:%S %Z}"
