"""A short run on simulated clusters; ``python -m tests.chaos simulated`` runs more."""

from __future__ import annotations

import pytest

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
