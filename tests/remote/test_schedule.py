"""One scheduled restart: what is in its way, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from clustertune.remote.schedule import MOST_RESULTS, TRIES, Moment, Schedule

IDLE = 30.0


def schedule(**terms: Any) -> Schedule:
    """Made at 0."""
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
    """A gap is when nothing runs, nothing is queued and nobody holds, for a while."""
    assert schedule().in_the_way(moment(now, **others)) == reason


def test_instants() -> None:
    """Not before the first; then in the next gap; each once."""
    it = schedule(instants=[100.0, 200.0, 210.0, 400.0])
    assert it.waits == {"for": "instant", "until": 100.0}
    assert it.in_the_way(moment(99)) == {"for": "instant", "until": 100.0}
    assert it.in_the_way(moment(101, tasks=1))["for"] == "busy"
    assert it.in_the_way(moment(150)) is None
    it.over(150)
    assert it.waits == {"for": "instant", "until": 200.0}
    it.over(250)  # one gap is enough for two of them
    assert (it.state, list(it.instants)) == ("waiting", [400.0])
    it.over(450)
    assert it.state == "done"


def test_what_has_begun_needs_no_instant() -> None:
    """The rest of it waits for a gap only."""
    it = schedule(instants=[100.0, 500.0])
    it.instants.popleft()
    it.left = ["b"]
    it.wait_for_the_next_gap(150.0)
    assert it.in_the_way(moment(170)) == {"for": "idle", "seconds": 20}
    assert it.in_the_way(moment(181)) is None


def test_without_instants_it_is_done_once() -> None:
    """After the restart, not before."""
    it = schedule()
    it.restarted = 50.0
    it.over(50.0)
    assert it.ended


def test_failures() -> None:
    """After three it stops; in between it waits for another gap."""
    it = schedule()
    for n in range(1, TRIES):
        it.failed(100.0 * n)
        assert it.state == "waiting"
        assert it.in_the_way(moment(100.0 * n + 5)) == {"for": "idle", "seconds": 5}
    it.failed(300.0)
    assert it.state == "failed"


def test_what_takes_longer_to_see_is_not_asked_again_at_once() -> None:
    """Until then it says what it said."""
    it = schedule()
    reason = {"for": "room", "text": "no headroom"}
    it.wait(reason, again=50.0)
    assert it.in_the_way(moment(45)) == reason
    assert it.in_the_way(moment(50)) is None


def test_results_are_bounded() -> None:
    """A restart every minute for a week keeps the last ones."""
    it = schedule()
    it.results.extend({"time": i} for i in range(MOST_RESULTS + 5))
    assert len(it.describe(0.0)["results"]) == MOST_RESULTS
