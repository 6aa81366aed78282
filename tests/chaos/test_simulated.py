"""A short run on simulated clusters; ``python -m tests.chaos simulated`` runs more."""

from __future__ import annotations

import pytest

from tests.chaos import simulated
from tests.chaos.simulated import FAULTS, draw
from tests.chaos.simulated_rounds import play

ROUNDS = 60


@pytest.mark.parametrize("part", range(3))
def test_faults_lose_no_rows(part: int) -> None:
    """No row is lost or paired wrongly, and no worker is overfilled."""
    for seed in range(part * ROUNDS // 3, (part + 1) * ROUNDS // 3):
        played = play(seed)
        assert not played.broken, str(played)


def test_rounds_depend_on_the_seed_only() -> None:
    """The same seed plays the same round."""
    for seed in (3, 17):
        first, again = play(seed), play(seed)
        assert (first.outcome, first.faults) == (again.outcome, again.faults)


def test_seeds_cover_all_cases() -> None:
    """Seeds draw all faults, calls and workloads."""
    cases = [draw(seed) for seed in range(300)]
    assert {kind for c in cases for kind in c.faults.values()} == set(FAULTS)
    assert {c.action for c in cases} == set(simulated.ACTIONS)
    assert len({c.start.goal.workload.name for c in cases}) > 10
