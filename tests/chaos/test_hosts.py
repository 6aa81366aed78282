"""A short run on a lab of hosts; ``python -m tests.chaos hosts`` runs longer."""

from __future__ import annotations

import pytest

from tests.chaos.hosts import CALLS, FAULTS, draw, opened
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


def test_seeds_cover_all_hosts_and_faults() -> None:
    """Seeds draw all calls and faults, unlike hosts, and fixed ports."""
    cases = [draw(seed) for seed in range(1000)]
    assert {c.call for c in cases} == set(CALLS)
    assert {c.fault for c in cases} == set(FAULTS)
    assert {len(c.hosts) for c in cases} == {2, 3, 4}
    hosts = [options for c in cases for options in c.hosts.values()]
    assert {options["n"] for options in hosts} == {1, 2}
    assert {"--worker-port" in options["extra"] for options in hosts} == {True, False}
    assert len({options["memory"] for options in hosts}) > 1
    assert any(len(set(c.cpus.values())) > 1 for c in cases)
