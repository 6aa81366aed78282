"""Formats of numbers and names."""

import time
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest

from clustertune.core.wording import (
    are,
    bytes_text,
    names_text,
    plural,
    printable,
    seconds_text,
    time_text,
    times_text,
    utc_text,
    variable,
    workers_text,
)


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1023.9 * 1024, "1023.9 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (3.25 * 2**30, "3.2 GiB"),
        (2000 * 2**60, "2000.0 EiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_have_binary_prefixes(n, text):
    """Bytes are divided by 1024 and never shown as 1024 of the smaller unit."""
    assert bytes_text(n) == text


@pytest.mark.parametrize(
    ("s", "text"),
    [
        (0, "0 s"),
        (0.254, "0.25 s"),
        (9.96, "10 s"),
        (12.4, "12 s"),
        (99, "99 s"),
        (100, "2 min"),
        (180, "3 min"),
        (5940, "99 min"),
        (5975, "1.66 h"),
        (9000, "2.5 h"),
    ],
)
def test_seconds_have_a_unit_that_suits_them(s, text):
    """Short durations are in seconds, longer ones in minutes and hours."""
    assert seconds_text(s) == text


@pytest.mark.parametrize(("ratio", "text"), [(2.0, "2 times"), (1.0625, "1.06 times")])
def test_ratios_have_three_figures(ratio, text):
    """Ratios are rounded to three figures without trailing zeros."""
    assert times_text(ratio) == text


def test_nouns_agree_with_their_count():
    """One partition, any other number of partitions, with thousands separated."""
    assert plural(1, "partition") == "1 partition"
    assert plural(0, "partition") == "0 partitions"
    assert plural(12000, "copy", "copies") == "12,000 copies"
    assert plural(3.5, "CPU") == "3.5 CPUs"
    assert plural(1.0, "CPU") == "1 CPU"
    assert (are(["a"]), are(["a", "b"])) == ("is", "are")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        ([3], "3"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        (list("abcd"), "a, b, c and 1 more"),
        (range(10), "0, 1, 2 and 7 more"),
    ],
)
def test_at_most_three_names_are_listed(names, text):
    """Three names are listed, and further ones are counted."""
    assert names_text(names) == text


def test_workers_are_named_as_such():
    """The noun is singular or plural."""
    assert workers_text([0]) == "worker 0"
    assert workers_text(["a", "b"]) == "workers a and b"


@pytest.mark.parametrize(
    "name", ["a\x1b[2Jb", "a\nb", "a\u202eb", "a\x00b", "a\u2028b", "a\x9bb"]
)
def test_names_from_the_cluster_cannot_act_on_a_terminal(name):
    """Control characters in a worker's name are shown as codes."""
    shown = names_text([name])
    assert shown.isprintable()
    assert shown.startswith("a\\")
    assert shown.endswith("b")


def test_long_names_are_cut():
    """Names are cut to a limited length; other text is not."""
    assert names_text(["x" * 10_000]) == "x" * 60 + "..."
    assert printable("x" * 10_000) == "x" * 10_000
    assert printable("x" * 60, longest=60) == "x" * 60


def test_a_collection_is_typed_by_the_users_name():
    """The label of a collection of an eval set becomes the user's name."""
    assert variable("eval_set[0].X") == "X"
    assert variable("sample_weight") == "sample_weight"


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("when", "tz", "text"),
    [
        ("2026-07-01 12:00", BERLIN, "2026-07-01 14:00:00 CEST (12:00:00 UTC)"),
        ("2026-01-01 12:00", BERLIN, "2026-01-01 13:00:00 CET (12:00:00 UTC)"),
        (
            "2026-06-30 23:00",
            BERLIN,
            "2026-07-01 01:00:00 CEST (2026-06-30 23:00:00 UTC)",
        ),
        ("2026-07-01 12:00", timezone.utc, "2026-07-01 12:00:00 UTC"),
    ],
)
def test_local_times_have_their_zone_and_utc(when, tz, text):
    """The date in UTC is shown only if it differs; JSON has UTC only."""
    seconds = datetime.fromisoformat(f"{when}+00:00").timestamp()
    assert time_text(seconds, tz) == text
    assert time_text(seconds, tz, unit="minutes") == text.replace(":00 ", " ")
    assert utc_text(seconds) == f"{when}:00Z".replace(" ", "T")


def test_the_local_zone_is_the_default(monkeypatch):
    """The variable TZ sets it."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert time_text(0) == "1970-01-01 09:00:00 JST (00:00:00 UTC)"
    finally:
        monkeypatch.undo()
        time.tzset()
