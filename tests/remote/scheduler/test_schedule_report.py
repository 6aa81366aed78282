"""The report of scheduled restarts, which a client reads."""

from __future__ import annotations

from typing import Any

import pytest

from clustertune.core.report import SCHEMA_VERSION, Report
from clustertune.planner.layouts import summarize
from clustertune.remote.scheduler import schedule
from tests.builders import layout, view, worker


def event(**parts: Any) -> dict[str, Any]:
    step = {"action": "restart", "summary": "restart worker 1", "status": "done"}
    step |= {"seconds": 1.0, "nbytes": 100, "reason": ""}
    late = {"status": "failed", "reason": "it did not return"}
    data = {"status": "left", "seconds": 2.0, "schedule": "abc", "lost": 0}
    data |= {"problem": "worker 2: it did not return", "steps": [step, step | late]}
    return data | parts


TURNS = [
    {"worker": 1, "address": "tcp://x", "lost": 0},
    {"worker": "w", "address": "", "lost": 0},
]


def read(former: str, **parts: Any) -> Report:
    return Report.from_json(schedule.report(event(**parts), TURNS, former))


def prepared() -> Report:
    seen = view([worker(0), worker(1)], [layout([50, 50], [0, 0])])
    summary = summarize(seen.layouts[0], seen)
    return Report(status="done", seconds=1.0, workload="incremental", after=(summary,))


def test_it_counts_what_was_restarted() -> None:
    found = read("")
    assert (found.call, found.status) == ("restart", "left")
    assert [(s.count, s.total, s.lost) for s in found.steps] == [(1, 1, 0), (0, 1, 0)]
    text = str(found)
    assert "restarted 1 of 2 workers; failed w: it did not return" in text
    assert "restart abc was scheduled; no check has run since" in text
    failed = read("", status="failed")
    assert failed.error == "worker 2: it did not return"


def test_it_keeps_the_shape_of_the_data() -> None:
    """A later ``prepare`` reads it; which worker has which rows is unknown."""
    former = prepared()
    found = read(former.to_json())
    assert found.workload == "incremental"
    (data,) = found.after
    assert (data.rows, data.partitions, data.loaded) == (100, 2, True)
    assert (data.workers, data.imbalance, data.separated) == ((), None, None)
    assert str(found)
    assert read(former.to_json(), lost=1).after == ()
    assert read(former.to_json(), lost=None).after == ()


@pytest.mark.parametrize(
    "former", ["", "x", "5", "[]", "{}", '{"after": 5}', '{"after": [5]}', "[" * 10**5]
)
def test_a_former_report_that_cannot_be_read(former: str) -> None:
    assert read(former).after == ()


def test_the_versions_are_the_same() -> None:
    assert schedule.SCHEMA_VERSION == SCHEMA_VERSION
