"""A short form of chaos in memory; ``python -m tests.chaos pure`` has thousands."""

from __future__ import annotations

import pytest

from tests.chaos import imagined
from tests.chaos.imagined import KINDS, draw
from tests.chaos.pure import play

ROUNDS = 60


@pytest.mark.parametrize("part", range(3))
def test_whatever_happens(part: int) -> None:
    """Nothing is lost, paired wrongly, overfilled or worse; or an error says why."""
    for seed in range(part * ROUNDS // 3, (part + 1) * ROUNDS // 3):
        played = play(seed)
        assert not played.broken, str(played)


def test_a_seed_is_all_that_it_takes() -> None:
    """The same seed plays the same round."""
    for seed in (3, 17):
        first, again = play(seed), play(seed)
        assert (first.outcome, first.faults) == (again.outcome, again.faults)


def test_every_fault_is_drawn() -> None:
    """Seeds come to all kinds of faults, calls and workloads."""
    cases = [draw(seed) for seed in range(300)]
    assert {kind for c in cases for kind in c.faults.values()} == set(KINDS)
    assert {c.action for c in cases} == set(imagined.ACTIONS)
    assert len({c.start.goal.workload.name for c in cases}) > 10
