"""Conditions of scheduled restarts: what can be meant, and what cannot."""

from __future__ import annotations

import dask
import pytest

from clustertune.core.model import Severity
from clustertune.operations.scheduling import conditions
from clustertune.operations.scheduling.conditions import Condition, parse
from clustertune.remote.scheduler.schedule import RANKS
from clustertune.testing import worker


@pytest.mark.parametrize(
    ("text", "condition", "shown"),
    [
        ("leak", Condition(kind="leak"), "leak"),
        ("memory", Condition(kind="memory"), "memory:warning"),
        (
            "memory:critical",
            Condition(kind="memory", severity=Severity.critical),
            "memory:critical",
        ),
        (
            "thread_pools:info",
            Condition(kind="check", check="thread_pools", severity=Severity.info),
            "thread_pools:info",
        ),
    ],
)
def test_what_can_be_meant(text: str, condition: Condition, shown: str) -> None:
    """Without a severity a warning is enough."""
    assert parse(text) == condition
    assert str(condition) == shown
    assert condition.plain()["text"] == shown


def test_none() -> None:
    """Is none."""
    assert parse(None) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("leaks", "did you mean leak"),
        ("uneven_row:critical", "did you mean uneven_rows"),
        ("memory:fatal", "'fatal' is no severity; allowed are info, warning, critical"),
        ("memory:", "'' is no severity"),
        ("memory:unknown", "'unknown' is no severity"),
        ("memory:info", "warning .spills. or critical .pauses."),
        ("leak:critical", "leak has no severity"),
        ("", "there is no check ''"),
        (3, "there is no check '3'"),
    ],
)
def test_what_cannot(text: object, message: str) -> None:
    """Says what is allowed, and what may be meant."""
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_how_much_growth_counts() -> None:
    """As the check has it set."""
    with dask.config.set({"clustertune.checks.memory_growth.least": 0.25}):
        assert Condition(kind="leak").plain()["least"] == 0.25
    assert Condition(kind="leak").plain()["least"] == 0.01


def test_what_the_scheduler_is_told() -> None:
    """Thresholds that are known; and it ranks severities as the model does."""
    assert conditions.lines([worker(0)]) == {0: {"spill": 0.7, "pause": 0.8}}
    assert {s.name: int(s) for s in Severity if s is not Severity.unknown} == RANKS
