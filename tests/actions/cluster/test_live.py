"""Results of the live cluster, from the states of its jobs."""

from __future__ import annotations

from typing import Any

from clustertune.actions.cluster.live import _moved

STATE: dict[str, Any] = {
    "total": 10,
    "done": 3,
    "left": {"its target is paused": 1},
    "waiting": 2,
    "nbytes": 800,
    "error": "the mover's deadline of 9 s passed",
}


def test_keys_in_flight_have_not_moved() -> None:
    """The deadline of the mover ends the wait for copies in flight."""
    result = _moved(STATE)
    assert result.count == 3
    assert "4 keys: on their way" in result.not_done
    assert "1 keys: its target is paused" in result.not_done
    assert "2 keys: the move was stopped" in result.not_done
    assert result.not_done.endswith("passed")


def test_a_move_that_is_done() -> None:
    state = STATE | {"done": 10, "left": {}, "waiting": 0, "error": ""}
    result = _moved(state)
    assert (result.count, result.not_done) == (10, "")
