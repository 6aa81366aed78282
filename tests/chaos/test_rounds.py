"""The log of rounds: a later call continues an earlier one."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.rounds import Log, Round, play_all, seeds


def one(seed: int) -> Round:
    broken = ("X had 3 rows and has 2",) if seed == 1 else ()
    faults = (("kill", "move"),) if seed else ()
    return Round(
        seed=seed,
        action="prepare",
        outcome="done",
        seconds=0.5,
        faults=faults,
        broken=broken,
    )


def test_a_later_call_continues(tmp_path: Path) -> None:
    """It starts with the next seed, and counts all rounds."""
    path = tmp_path / "rounds.jsonl"
    play_all(one, Log(path), seeds(Log(path), first=None, rounds=2, minutes=0))
    log = Log(path)
    assert log.rounds == [one(0), one(1)]
    assert list(seeds(log, first=None, rounds=3, minutes=0)) == [2, 3, 4]
    assert list(seeds(log, first=7, rounds=1, minutes=0)) == [7]
    assert [r.seed for r in log.broken] == [1]
    assert str(log).startswith("2 rounds in 1.0 s; 1 with faults; 1 broken")
    assert "kill in move" in str(log)
    assert "BROKEN: X had 3 rows" in str(log)


def test_time_limit() -> None:
    """Without a number of rounds, the time limit ends the run."""
    assert list(seeds(Log(), first=0, rounds=0, minutes=1e-9)) == []
