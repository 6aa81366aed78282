from __future__ import annotations

from dataclasses import replace

from clustertune.training import room
from clustertune.training.room import Seat

GIB = 2**30
SEAT = Seat("tcp://1", "left", "10.0.0.1", "m", threads=2, limit=10 * GIB, used=GIB)


def test_threads_copy_too() -> None:
    """1 GiB and 2.4 for two threads, beside 1 in use: 4.4 of 5 is allowed, not of 4."""
    assert room.obstacle([SEAT], GIB, 0.5) is None
    said = room.obstacle([SEAT], GIB, 0.4)
    assert said is not None
    assert said.startswith("worker left: a copy of the data (1.0 GiB) and what 2 thre")
    assert "take about 3.4 GiB; it has 1.0 GiB in use and may fill 40%" in said


def test_a_worker_without_a_limit_is_not_judged() -> None:
    free = replace(SEAT, id="free", limit=0)
    assert room.obstacle([free], 100 * GIB, 0.7) is None
    said = room.obstacle([free, SEAT], 100 * GIB, 0.7)
    assert said is not None
    assert "free" not in said
