"""Results of rounds, one line of JSON each, in a file that a later call continues.

A round depends only on its seed, so the same seed plays the same round.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from tabulate import tabulate

from clustertune.errors import ClustertuneError


@dataclass(frozen=True, kw_only=True)
class Round:
    """The result of one round."""

    seed: int
    action: str
    outcome: str  # status of the report, or type of the error
    seconds: float
    faults: tuple[tuple[str, str], ...] = ()  # kind and phase
    broken: tuple[str, ...] = ()  # violated invariants
    notes: str = ""

    def __str__(self) -> str:
        injected = ", ".join(f"{kind} in {phase}" for kind, phase in self.faults)
        text = (
            f"seed {self.seed}: {self.action}; {injected or 'no fault'}; "
            f"{self.outcome} in {self.seconds:.1f} s"
        )
        return text + "".join(f"\n  BROKEN: {line}" for line in self.broken)


@dataclass
class Log:
    """All rounds; read from a file if there is one, and appended to it."""

    path: Path | None = None
    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for line in self.path.read_text().splitlines():
                self.rounds.append(_read(json.loads(line)))

    def add(self, one: Round) -> None:
        self.rounds.append(one)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(f"{json.dumps(asdict(one))}\n")

    @property
    def next_seed(self) -> int:
        return 1 + max((r.seed for r in self.rounds), default=-1)

    @property
    def broken(self) -> list[Round]:
        return [r for r in self.rounds if r.broken]

    def __str__(self) -> str:
        """Counts of calls, outcomes and faults, and the broken rounds."""
        seconds = sum(r.seconds for r in self.rounds)
        head = (
            f"{len(self.rounds)} rounds in {seconds:.1f} s; "
            f"{sum(bool(r.faults) for r in self.rounds)} with faults; "
            f"{len(self.broken)} broken"
        )
        counted = {
            "actions": Counter(r.action for r in self.rounds),
            "outcomes": Counter(r.outcome for r in self.rounds),
            "faults": Counter(
                f"{kind} in {phase}" for r in self.rounds for kind, phase in r.faults
            ),
        }
        tables = [
            tabulate(found.most_common(), headers=[name, "times"])
            for name, found in counted.items()
        ]
        return "\n\n".join([head, *tables, *map(str, self.broken)])


def seeds(log: Log, *, first: int | None, rounds: int, minutes: float) -> Iterator[int]:
    """The next seeds, up to a number of rounds or minutes (0: no limit)."""
    start = log.next_seed if first is None else first
    end = monotonic() + 60 * minutes
    seed = start
    while (not rounds or seed < start + rounds) and (not minutes or monotonic() < end):
        yield seed
        seed += 1


def play_all(play: Callable[[int], Round], log: Log, which: Iterable[int]) -> None:
    """Play the rounds of these seeds, and log the results."""
    for seed in which:
        log.add(play(seed))


def failure(error: Exception) -> tuple[str, list[str]]:
    """The outcome of a call that failed, and the problem if its error is not ours."""
    if isinstance(error, ClustertuneError):
        return type(error).__name__, []
    lines = "".join(traceback.format_exception(error)[-6:])
    return type(error).__name__, [f"unexpected error: {lines}"]


def _read(data: dict[str, Any]) -> Round:
    faults = tuple((kind, phase) for kind, phase in data["faults"])
    return Round(**(data | {"faults": faults, "broken": tuple(data["broken"])}))
