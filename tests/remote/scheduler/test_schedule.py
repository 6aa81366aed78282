"""One scheduled restart: its obstacles, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from clustertune.operations.schedules import read
from clustertune.remote.scheduler import page
from clustertune.remote.scheduler.schedule import (
    Moment,
    Schedule,
    busy_text,
    result_text,
)

IDLE = 30.0


def schedule(**terms: Any) -> Schedule:
    """Return a schedule that was made at time 0."""
    given = {"idle_for": IDLE, "instants": [], "expires": 1000.0}
    given |= {"owner": "me", "reason": None, "if_needed": False, "workers": None}
    return Schedule("name", given | terms, 0.0, 0.0)


HOLDER = {"label": "x", "client": "c", "since": 9.0}


def moment(now: float, **others: Any) -> Moment:
    tasks, queued = others.get("tasks", 0), others.get("queued", 0)
    busy = busy_text(tasks, queued, others.get("holder"))
    return Moment(now, now, busy, others.get("idle_since", -100.0))


@pytest.mark.parametrize(
    ("now", "others", "reason"),
    [
        (29, {}, "idle for 29 s of 30 s"),  # from when it was scheduled
        (31, {}, ""),
        (50, {"idle_since": 30}, "idle for 20 s of 30 s"),
        (60, {"idle_since": 30}, ""),
        (60, {"tasks": 2}, "not idle: 2 tasks running"),
        (60, {"queued": 3000}, "not idle: 0 tasks running, 3,000 queued"),
        (60, {"holder": HOLDER, "tasks": 2}, "held by x since 1970-01-01T00:00:09Z"),
    ],
)
def test_what_is_in_the_way(now: float, others: Any, reason: Any) -> None:
    """A gap has no tasks, no queued tasks and no holds."""
    assert schedule().obstacle(moment(now, **others)) == reason


def shown(it: Schedule, now: float) -> tuple[float, bool]:
    """Return its time on the page, and whether the list shows that it is due."""
    plain = it.describe(now)
    (event,) = page._scheduled([plain])
    return event["time"], "for 30 s, now and after 1970" in str(read(plain, None))


def test_instants() -> None:
    """Each time is used once, in the first gap after it."""
    it = schedule(instants=[100.0, 200.0, 210.0, 400.0])
    first = "not before 1970-01-01T00:01:40Z"
    assert it.waits == it.obstacle(moment(99)) == first
    assert it.obstacle(moment(101, tasks=1)).startswith("not idle")
    assert shown(it, 101) == (101, True)
    assert it.obstacle(moment(150)) == ""
    it.settle("done", 150, 150)
    assert shown(it, 150) == (200, False)
    assert it.waits == "not before 1970-01-01T00:03:20Z"
    it.settle("done", 250, 250)  # one gap is enough for two of them
    assert (it.state, list(it.instants)) == ("waiting", [400.0])
    it.settle("done", 450, 450)
    assert it.state == "done"


def test_what_has_begun_needs_no_instant() -> None:
    """The rest of a begun restart needs a gap only."""
    it = schedule(instants=[100.0, 500.0])
    assert it.obstacle(moment(101)) == ""
    it.left = ["b"]
    it.settle("interrupted", 150.0, 150.0)
    assert it.obstacle(moment(170)) == "idle for 20 s of 30 s"
    assert it.obstacle(moment(181)) == ""


def test_a_time_that_comes_before_the_rest_is_done() -> None:
    """The restart begins with all workers again, also one that could not restart."""
    it = schedule(instants=[100.0, 500.0, 600.0, 900.0])
    assert it.obstacle(moment(101)) == ""
    it.left = ["b"]
    it.wait("no headroom", 650.0)
    assert it.obstacle(moment(400)) == "no headroom"
    assert (it.left, it.instants[0]) == (["b"], 500.0)
    assert it.obstacle(moment(651)) == ""
    assert (it.left, list(it.instants)) == (None, [900.0])


def test_without_instants_it_is_done_once() -> None:
    """Without times it ends after one restart."""
    it = schedule()
    assert not it.is_over.is_set()
    it.settle("done", 50.0, 50.0)
    assert it.ended
    assert it.is_over.is_set()


def test_when_it_must_end() -> None:
    """A cancelled one ends before it expires."""
    it = schedule()
    assert (it.must_end(999.0), it.must_end(1000.0)) == ("", "expired")
    it.cancelled = True
    assert it.must_end(1000.0) == "cancelled"


def test_a_failure() -> None:
    """It ends the restart; the next one begins with all workers at the next time."""
    it = schedule(instants=[100.0, 500.0])
    assert it.obstacle(moment(101)) == ""
    it.left = ["b"]
    it.settle("failed", 120.0, 120.0)
    assert (it.state, it.left) == ("waiting", None)
    assert it.waits == "not before 1970-01-01T00:08:20Z"
    it.settle("failed", 520.0, 520.0)
    assert (it.state, it.failed_at) == ("failed", 520.0)


@pytest.mark.parametrize("outcome", ["lost", "refused"])
def test_lost_keys(outcome: str) -> None:
    """They end it before later times; so does a configured one that is refused."""
    it = schedule(instants=[100.0, 500.0])
    assert it.obstacle(moment(101)) == ""
    it.settle(outcome, 120.0, 120.0)
    assert (it.state, it.failed_at) == ("failed", 120.0)


def test_what_takes_longer_to_see_is_not_asked_again_at_once() -> None:
    """A slow condition keeps its last result until it is checked again."""
    it = schedule()
    it.wait("no headroom", again=50.0)
    assert it.obstacle(moment(45)) == "no headroom"
    assert it.obstacle(moment(50)) == ""


def test_a_result_as_text() -> None:
    """Restarted and remaining workers, and the reason."""
    result = {"outcome": "interrupted", "restarted": [1], "left": [2]}
    result |= {"keys": 0, "nbytes": 0, "lost": 0, "problem": "tasks came"}
    text = result_text(result)
    assert text.startswith("interrupted; worker 1 restarted, 0 keys")
    assert text.endswith("; worker 2 not restarted; tasks came")
    assert "an unknown number lost" in result_text(result | {"lost": None})
