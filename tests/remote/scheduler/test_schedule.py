"""One scheduled restart: its obstacles, and how it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustertune.checks.memory import memory_growth
from clustertune.operations.scheduling import triggers
from clustertune.remote.scheduler.schedule import (
    MAX_FAILURES,
    MAX_RESULTS,
    Moment,
    Schedule,
)
from tests.builders import runs, view, worker

IDLE = 30.0


def schedule(**terms: Any) -> Schedule:
    """Return a schedule that was made at time 0."""
    given = {"idle_for": IDLE, "instants": [], "lines": [], "expires": 1000.0}
    given |= {"owner": "me", "reason": None, "condition": None, "workers": None}
    return Schedule("name", given | terms, 0.0)


def moment(now: float, **others: Any) -> Moment:
    what = {"tasks": 0, "queued": 0, "idle_since": -100.0, "holder": None}
    return Moment(now=now, **(what | others))


@pytest.mark.parametrize(
    ("now", "others", "reason"),
    [
        (29, {}, {"for": "idle", "seconds": 29}),  # from when it was scheduled
        (31, {}, None),
        (50, {"idle_since": 30}, {"for": "idle", "seconds": 20}),
        (60, {"idle_since": 30}, None),
        (60, {"tasks": 2}, {"for": "busy", "tasks": 2, "queued": 0}),
        (60, {"queued": 3}, {"for": "busy", "tasks": 0, "queued": 3}),
        (60, {"holder": {"label": "x"}, "tasks": 2}, {"for": "held", "label": "x"}),
    ],
)
def test_what_is_in_the_way(now: float, others: Any, reason: Any) -> None:
    """A gap has no tasks, no queued tasks and no holds."""
    assert schedule().obstacle(moment(now, **others)) == reason


def test_instants() -> None:
    """Each time is used once, in the first gap after it."""
    it = schedule(instants=[100.0, 200.0, 210.0, 400.0])
    assert it.waits == {"for": "instant", "until": 100.0}
    assert it.obstacle(moment(99)) == {"for": "instant", "until": 100.0}
    assert it.obstacle(moment(101, tasks=1))["for"] == "busy"
    assert it.obstacle(moment(150)) is None
    it.end_instant(150)
    assert it.waits == {"for": "instant", "until": 200.0}
    it.end_instant(250)  # one gap is enough for two of them
    assert (it.state, list(it.instants)) == ("waiting", [400.0])
    it.end_instant(450)
    assert it.state == "done"


def test_what_has_begun_needs_no_instant() -> None:
    """The rest of a begun restart needs a gap only."""
    it = schedule(instants=[100.0, 500.0])
    it.instants.popleft()
    it.left = ["b"]
    it.wait_for_next_gap(150.0)
    assert it.obstacle(moment(170)) == {"for": "idle", "seconds": 20}
    assert it.obstacle(moment(181)) is None


def test_without_instants_it_is_done_once() -> None:
    """Without times it ends after one restart."""
    it = schedule()
    it.restarted = 50.0
    it.end_instant(50.0)
    assert it.ended


def test_failures() -> None:
    """It stops after three failures, and waits for another gap between them."""
    it = schedule()
    for n in range(1, MAX_FAILURES):
        it.failed(100.0 * n)
        assert it.state == "waiting"
        assert it.obstacle(moment(100.0 * n + 5)) == {"for": "idle", "seconds": 5}
    it.failed(300.0)
    assert it.state == "failed"


def test_what_takes_longer_to_see_is_not_asked_again_at_once() -> None:
    """A slow condition keeps its last result until it is checked again."""
    it = schedule()
    reason = {"for": "room", "text": "no headroom"}
    it.wait(reason, again=50.0)
    assert it.obstacle(moment(45)) == reason
    assert it.obstacle(moment(50)) is None


def test_results_are_bounded() -> None:
    """A restart every minute for a week keeps the last results only."""
    it = schedule()
    it.results.extend({"time": i} for i in range(MAX_RESULTS + 5))
    assert len(it.describe(0.0)["results"]) == MAX_RESULTS


GIB = 2**30
LINES = {"a": {"spill": 0.7, "pause": 0.8}}


def scheduler(**workers: tuple[int, int]) -> Any:
    """Return a scheduler from the GiB of process and managed memory of its workers."""
    return SimpleNamespace(
        workers={
            name: SimpleNamespace(
                address=f"tcp://{name}",
                name=name,
                nanny=None,
                memory_limit=10 * GIB,
                status=SimpleNamespace(name="running"),
                memory=SimpleNamespace(
                    process=process * GIB,
                    managed=managed * GIB,
                    unmanaged=(process - managed) * GIB,
                ),
            )
            for name, (process, managed) in workers.items()
        }
    )


def met(
    condition: Any, there: Any, past: Any, lines: Any, last: Any, since: float
) -> tuple[bool, str]:
    """Return whether the condition of a schedule is met, and the reason."""
    it = schedule(condition=condition, lines=lines.items())
    it.restarted = since
    return it.is_met(there, past, last)


def memory(severity: str, **workers: tuple[int, int]) -> tuple[bool, str]:
    condition = triggers.parse_condition(f"memory:{severity}")
    assert condition is not None
    return met(condition.plain(), scheduler(**workers), [], LINES, None, 0.0)


def test_memory() -> None:
    """Processes at the threshold with little data are due, also new workers."""
    assert memory("critical", a=(7, 1)) == (
        False,
        "no worker is at its pause threshold",
    )
    assert memory("warning", a=(7, 1))[0]
    assert memory("critical", a=(1, 0), later=(8, 1)) == (
        True,
        "worker later at the pause threshold, with mostly no data",
    )
    yes, text = memory("critical", a=(9, 8))
    assert not yes
    assert "which a restart would bring back" in text


def test_a_worker_that_is_paused() -> None:
    """A paused worker is due, whatever its memory is now."""
    there = scheduler(a=(3, 1))
    there.workers["a"].status.name = "paused"
    condition = triggers.parse_condition("memory:critical")
    assert condition is not None
    assert met(condition.plain(), there, [], LINES, None, 0.0)[0]


@given(
    floors=st.lists(st.integers(0, 400), max_size=8),
    least=st.sampled_from([0.01, 0.1]),
)
def test_a_leak_is_what_the_check_calls_growth(floors: list[int], least: float) -> None:
    """The scheduler cannot run checks; both have the same rule."""
    floors = [n * 2**20 for n in floors]
    it = worker(0)
    found = list(
        memory_growth(
            view([it], runs=runs(*({0: n} for n in floors))), min_fraction=least
        )
    )
    growing = any(f.subject == (0,) for f in found)
    condition = {"kind": "leak", "least": least}
    past = [{"floors": [("a", n)]} for n in floors]
    there = scheduler(a=(1, 0))
    there.workers["a"].memory_limit = it.memory_limit
    assert met(condition, there, past, {}, None, 0.0)[0] == growing


def test_leak() -> None:
    """Leaks are by worker; too few runs are no leak."""
    condition = triggers.parse_condition("leak")
    assert condition is not None
    there = scheduler(a=(1, 0), b=(1, 0))
    past = [{"floors": [("a", i * GIB), ("b", GIB)]} for i in range(4)]
    plain = condition.plain()
    assert met(plain, there, past, {}, None, 0.0) == (
        True,
        "memory of worker a grows from run to run",
    )
    assert met(plain, there, past[:2], {}, None, 0.0)[1].startswith("2 runs were seen")
    assert not met(plain, there, [{"floors": [("b", GIB)]}] * 4, {}, None, 0.0)[0]


@pytest.mark.parametrize(
    ("text", "since", "yes", "seen"),
    [
        ("thread_pools", 0.0, True, "too many threads"),
        ("thread_pools:critical", 0.0, False, "thread_pools:critical was not found"),
        ("no_nanny", 0.0, False, "no_nanny:warning was not found"),
        ("thread_pools", 20.0, False, "before the last restart"),
    ],
)
def test_findings(text: str, since: float, yes: bool, seen: str) -> None:
    """The last findings count, unless a restart has followed."""
    condition = triggers.parse_condition(text)
    assert condition is not None
    row = {"check": "thread_pools", "severity": "warning"}
    last = {"time": 10.0, "found": [row | {"message": "too many threads"}]}
    found, said = met(condition.plain(), scheduler(), [], {}, last, since)
    assert found == yes
    assert seen in said
    none = met(condition.plain(), scheduler(), [], {}, None, since)
    assert none == (False, "no check has run yet: run clustertune check")
