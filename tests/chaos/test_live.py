"""A short run on real clusters; ``python -m tests.chaos live`` runs longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos import faults, live, low_memory, operations
from tests.chaos.live import ClusterPool, draw, play

#: on one cluster: a client and workers are killed, one is frozen
SEEDS = (54, 55, 57, 58)


@pytest.fixture(scope="module")
def pool() -> Iterator[ClusterPool]:
    with ClusterPool() as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_faults_lose_no_rows(pool: ClusterPool, seed: int) -> None:
    """Every row exists with its label, and settings are restored."""
    played = play(draw(seed), pool)
    assert not played.broken, str(played)


#: on one cluster: full, paused and spilled workers; one is killed, one is filled
LOW_MEMORY_SEEDS = (0, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", LOW_MEMORY_SEEDS)
def test_workers_without_memory(pool: ClusterPool, seed: int) -> None:
    """A restart succeeds, and no key is lost."""
    played = play(low_memory.draw(seed), pool, fill=low_memory.FilledWorkers)
    assert not played.broken, str(played)


def test_seeds_cover_all_cases() -> None:
    """Seeds draw all calls and all faults, on both kinds of clusters."""
    cases = [draw(seed) for seed in range(2000)]
    assert {c.operation.name for c in cases} == set(operations.OPERATIONS)
    drawn = {c.fault.kind for c in cases if c.fault is not None}
    assert {c.outside for c in cases} == {True, False}
    assert drawn == {*faults.FAULTS, *live.CLIENTS} - {"fill memory"}
    cases = [low_memory.draw(seed) for seed in range(2000)]
    assert {c.filled for c in cases} == set(low_memory.STATES)
    assert all(any(c.operation == call for c in cases) for call in low_memory.CALLS)
    drawn = {c.fault.kind for c in cases if c.fault is not None}
    assert drawn == {*low_memory.FAULTS, "kill nanny"}
