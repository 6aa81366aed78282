"""Cron times of scheduled restarts."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import TZPATH, ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustertune.operations import schedules

BERLIN = ZoneInfo("Europe/Berlin")
DAY = 86400.0


def epoch(text: str, tz: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=tz, fold=fold).timestamp()


@pytest.mark.parametrize(
    ("cron", "day", "expected"),
    [
        # 02:00 to 03:00 does not come: due when it is over
        ("30 2 * * *", "2026-03-29", ["2026-03-29 03:00"]),
        ("0,30 2 * * *", "2026-03-29", ["2026-03-29 03:00"]),
        ("0 3 * * *", "2026-03-29", ["2026-03-29 03:00"]),
        # 02:00 to 03:00 comes twice: due once
        ("30 2 * * *", "2026-10-25", ["2026-10-25 02:30"]),
        ("0 3 * * *", "2026-10-25", ["2026-10-25 03:00"]),
    ],
)
def test_when_clocks_change(cron: str, day: str, expected: list[str]) -> None:
    """Once a day means once, at an existing time."""
    start = epoch(f"{day} 00:00")
    found = schedules.cron_times(cron, BERLIN, start, 20 * 3600)
    assert found == tuple(map(epoch, expected))


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_every_hour_follows_elapsed_time(day: str, hours: int) -> None:
    """A day of 23 hours has 23 times, one of 25 hours has 25, one hour apart."""
    start = epoch(f"{day} 00:00")
    end = epoch(f"{datetime.fromisoformat(day).date() + timedelta(days=1)} 00:00")
    found = schedules.cron_times("0 * * * *", BERLIN, start, hours * 3600)
    assert len(found) == hours
    assert found[-1] == end
    assert {b - a for a, b in itertools.pairwise(found)} == {3600.0}


ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "UTC",
    "Asia/Kolkata",
)


@given(
    start=st.integers(0, 2**31),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
    name=st.sampled_from(ZONES),
)
def test_daily_is_once_a_day(start: int, hour: int, minute: int, name: str) -> None:
    """At the given time, unless clocks skip it."""
    tz = ZoneInfo(name)
    found = schedules.cron_times(f"{minute} {hour} * * *", tz, start, 5 * DAY)
    assert 5 <= len(found) <= 6
    assert start < found[0] <= start + DAY + 3600
    assert all(found[0] <= t < found[0] + 5 * DAY for t in found)
    assert list(found) == sorted(set(found))
    local = [datetime.fromtimestamp(t, tz) for t in found]
    assert len({t.date() for t in local}) == len(local)
    wanted = timedelta(hours=hour, minutes=minute)
    for t in local:
        late = timedelta(hours=t.hour, minutes=t.minute) - wanted
        assert late == timedelta(0) or timedelta(0) < late <= timedelta(hours=1)


def test_a_first_time_that_is_late() -> None:
    """The seconds begin with it, whenever it is."""
    start = epoch("2026-06-01 04:00")
    found = schedules.cron_times("0 3 * * *", BERLIN, start, 3600)
    assert found == (epoch("2026-06-02 03:00"),)
    found = schedules.cron_times("0 0 29 2 *", BERLIN, start, 2 * DAY)
    assert found == (epoch("2028-02-29 00:00"),)


def test_a_time_that_never_comes() -> None:
    """February has no fifth Monday on its first or thirtieth day."""
    with pytest.raises(ValueError, match="has no time"):
        schedules.cron_times("0 0 */29 2 MON#5", BERLIN, 0, DAY)


@pytest.mark.parametrize(
    ("cron", "text"),
    [
        ("0 3 * *", "five fields"),
        ("0 0 3 * * *", "five fields"),  # seconds are not meant
        ("", "five fields"),
        (3, "five fields"),
        ("61 * * * *", "bad minute"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("0 3 * * DIV", "bad day-of-week"),
        ("@daily", "five fields"),
    ],
)
def test_bad_expressions(cron: object, text: str) -> None:
    """The message has an example."""
    with pytest.raises(ValueError, match=text) as caught:
        schedules.cron_times(cron, BERLIN, 0, DAY)  # type: ignore[arg-type]
    assert '"0 3 * * *"' in str(caught.value)


def test_too_many() -> None:
    """The number of times is limited."""
    with pytest.raises(ValueError, match="has more than 10,000 times"):
        schedules.cron_times("* * * * *", BERLIN, 0, 365 * DAY)


@pytest.mark.parametrize("name", ["Mars/Sea", "../etc/passwd", "Europe", "", "a\0b", 3])
def test_bad_time_zones(name: object) -> None:
    """Any failure of zoneinfo is a ValueError."""
    with pytest.raises(
        ValueError, match=r"is no time zone.*, or install the package tzdata"
    ):
        schedules.time_zone(name)  # type: ignore[arg-type]


def test_the_zone_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """TZ, else the setting of the system, else UTC."""
    monkeypatch.setenv("TZ", ":Europe/Berlin")
    assert schedules.time_zone(None) == BERLIN
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0")
    with pytest.raises(ValueError, match="the variable TZ='CET-1CEST"):
        schedules.time_zone(None)
    files = (Path(folder, "Asia", "Tokyo") for folder in TZPATH)
    monkeypatch.setenv("TZ", f":{next(file for file in files if file.exists())}")
    noon = datetime(2026, 6, 1, 12, tzinfo=schedules.time_zone(None))
    assert noon.utcoffset() == timedelta(hours=9)
    for wrong in (tmp_path, tmp_path / "none"):
        monkeypatch.setenv("TZ", str(wrong))
        with pytest.raises(ValueError, match="the variable TZ='/"):
            schedules.time_zone(None)
    monkeypatch.delenv("TZ")
    monkeypatch.setattr(schedules, "LOCALTIME", tmp_path / "none")
    assert str(schedules.time_zone(None)) == "UTC"
