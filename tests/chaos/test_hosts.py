"""A short run on a lab of hosts; ``python -m tests.chaos hosts`` runs longer."""

from __future__ import annotations

import pytest

from tests.chaos.hosts import draw, opened
from tests.hosts import lab

#: a cable is pulled in a move, and a host is slow in a cut
SEEDS = (0, 1)


@pytest.mark.slow
@pytest.mark.skipif(bool(lab.missing()), reason="this machine cannot have hosts")
def test_faults_of_hosts_lose_no_rows() -> None:
    """Every row exists with its label, and the next call works."""
    with opened() as player:
        for seed in SEEDS:
            played = player.play(draw(seed))
            assert not played.broken, str(played)
