"""A short form of chaos on live clusters; ``python -m tests.chaos live`` has hours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos import acts, blows, live, rescue
from tests.chaos.live import Stage, draw, play

#: of one cluster: a client and workers are killed, one is frozen, at work
SEEDS = (54, 55, 57, 58)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens(stage: Stage, seed: int) -> None:
    """Every row is there beside its label, and everything as it was."""
    played = play(draw(seed), stage)
    assert not played.broken, str(played)


#: of one cluster: full, paused and spilled workers; one is killed, one fills further
RESCUES = (0, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", RESCUES)
def test_workers_without_memory(stage: Stage, seed: int) -> None:
    """They are rescued, and no key is lost, whatever happened before."""
    played = play(rescue.draw(seed), stage, fill=rescue.Rescue)
    assert not played.broken, str(played)


def test_everything_is_drawn() -> None:
    """Seeds come to all calls and all faults, on both kinds of clusters."""
    cases = [draw(seed) for seed in range(2000)]
    assert {c.act.name for c in cases} == set(acts.ACTS)
    drawn = {c.blow.kind for c in cases if c.blow is not None}
    assert {c.outside for c in cases} == {True, False}
    assert drawn == {*blows.BLOWS, *live.CLIENTS} - {"fill"}
    cases = [rescue.draw(seed) for seed in range(2000)]
    assert {c.filled for c in cases} == set(rescue.STATES)
    assert all(any(c.act == call for c in cases) for call in rescue.CALLS)
    drawn = {c.blow.kind for c in cases if c.blow is not None}
    assert drawn == {*rescue.FAULTS, "kill nanny"}
