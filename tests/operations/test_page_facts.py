"""Facts that a client sends to the scheduler for the dashboard page (pure)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune import checks
from clustertune.core.model import Finding, Severity, Unknown
from clustertune.operations import journal as journals
from clustertune.remote.keys import unpack
from tests.builders import layout, view, worker

GIB = 2**30


def test_thresholds_are_bytes_of_each_worker() -> None:
    told = journals.page_facts(view([worker(0), worker(1, pause=None)]), [])
    first, second = told["workers"].values()
    assert first == [int(f * 4 * GIB) for f in (0.6, 0.7, 0.8, 0.95)]
    assert second == [int(0.6 * 4 * GIB), int(0.7 * 4 * GIB), None, int(0.95 * 4 * GIB)]


@pytest.mark.parametrize(
    "blind",
    [
        worker(0, facts=Unknown("silent")),
        worker(0, memory_limit=0),
        worker(0, memory_limit=0, pause=None),
    ],
)
def test_what_is_not_known_is_none(blind) -> None:
    told = journals.page_facts(view([blind]), [])
    assert list(told["workers"].values()) == [[None] * 4]


def test_collections_of_an_earlier_call_stay_where_this_one_has_none() -> None:
    assert "collections" not in journals.page_facts(view(), [])
    (told,) = journals.page_facts(view(layouts=[layout([5, 7], [0, 1])]), [])[
        "collections"
    ]
    assert told["rows"] == [5, 7]
    assert [list(unpack(m)) for m in told["members"]] == [
        [("X", 0), ("X", 1)],
        [("y", 0), ("y", 1)],
    ]


@pytest.mark.parametrize("some", [None, frozenset({1})])
def test_workers_that_train(some) -> None:
    """The page expects no rows on workers that do not train."""
    seen = view([worker(0), worker(1)], [layout([5, 7], [1, 1])])
    (told,) = journals.page_facts(replace(seen, trainers=some), [])["collections"]
    assert told["trainers"] == (None if some is None else [1])


def test_too_many_keys_are_not_sent(monkeypatch) -> None:
    monkeypatch.setattr(journals, "MOST_KEYS", 3)
    many = journals.page_facts(view(layouts=[layout([5, 7], [0, 1])]), [])
    assert many["collections"] == []


def test_findings_of_processes_say_of_which() -> None:
    """Findings have the addresses of their processes, if they depend on processes."""
    workers = [worker(0), worker(1)]
    every = {
        check: Finding(check=check, severity=Severity.warning, message="m", subject=who)
        for check, who in (
            ("memory_growth", (1,)),
            ("thread_count", (1,)),
            ("blocked_event_loops", ("scheduler",)),
        )
    }
    told = journals.page_facts(view(workers), every.values())["findings"]["found"]
    assert [f["processes"] for f in told] == [[workers[1].address], [], []]


def test_the_checks_of_processes_exist() -> None:
    assert set(checks.available()) >= journals.OF_PROCESSES
