"""Fuzzing: random inputs for every parser, in this process.

A parser may raise the errors that its target allows. Any other error, more than two
seconds, or more memory than the limit is a finding.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from tests.chaos.targets import CORPUS, TARGETS, Target

CHUNK = 500  # inputs that a process reads at a time
SLOW = 2.0  # seconds of CPU for one input
HANGS = 30  # seconds after which one input is stopped
MEMORY = 8 * 2**30  # address space of a process in bytes


class HangError(BaseException):
    """An input was not read in time."""


@dataclass(frozen=True)
class Finding:
    """An error or a slow run, with its input."""

    target: str
    seed: int
    what: str  # equal for equal findings
    detail: str


@dataclass
class FuzzResult:
    """Counts of inputs, and the findings."""

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)  # by finding

    def add(self, other: FuzzResult) -> None:
        for mine, theirs in (
            (self.read, other.read),
            (self.refused, other.refused),
            (self.seconds, other.seconds),
            (self.times, other.times),
        ):
            mine.update(theirs)
        for what, finding in other.findings.items():
            self.findings.setdefault(what, finding)

    def to_json(self) -> str:
        data = {k: v for k, v in vars(self).items() if k != "findings"}
        found = {k: asdict(f) for k, f in self.findings.items()}
        return json.dumps({**data, "findings": found}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> FuzzResult:
        data = json.loads(text)
        found = {k: Finding(**v) for k, v in data.pop("findings").items()}
        counters: dict[str, Any] = {k: Counter(v) for k, v in data.items()}
        return cls(findings=found, **counters)

    def __str__(self) -> str:
        lines = [
            f"{name}: {n:,} inputs, {self.refused[name]:,} refused, "
            f"{self.seconds[name]:.0f} s"
            for name, n in self.read.items()
        ]
        lines += [f"{sum(self.read.values()):,} inputs; {len(self.findings)} findings"]
        for what, f in self.findings.items():
            lines.append(
                f"\n{what}: {self.times[what]:,} times\n  --target {f.target} "
                f"--seed {f.seed}\n  {f.detail}"
            )
        return "\n".join(lines)


def fuzz(target: Target, first: int, count: int) -> FuzzResult:
    """Read the inputs of consecutive seeds."""
    result, start = FuzzResult(), perf_counter()
    with _limits():
        for seed in range(first, first + count):
            refused, finding = attempt(target, target.input(seed), seed)
            result.read[target.name] += 1
            result.refused[target.name] += refused
            if finding is not None:
                result.findings.setdefault(finding.what, finding)
                result.times[finding.what] += 1
    result.seconds[target.name] += perf_counter() - start
    return result


def attempt(target: Target, data: bytes, seed: int = -1) -> tuple[bool, Finding | None]:
    """Read one input: whether it was refused with an allowed error, or the finding."""
    begin = process_time()
    refused, error = False, None
    signal.setitimer(signal.ITIMER_REAL, HANGS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ResourceWarning)
            target.read(data)
    except target.allowed:
        refused = True
    except (Exception, HangError) as caught:
        error = caught
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if error is None and process_time() - begin > SLOW:
        what = f"{target.name}: slow"
        took = f"{process_time() - begin:.1f} s for {len(data):,} bytes"
        return refused, Finding(target.name, seed, what, took)
    if error is None:
        return refused, None
    what = f"{target.name}: {type(error).__name__} at {_place(error)}"
    return False, Finding(target.name, seed, what, f"{data[:200]!r}: {error!r:.300}")


def _place(error: BaseException) -> str:
    """File and line of the package that raised an error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/clustertune/" in f.filename] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}"


@contextmanager
def _limits() -> Iterator[None]:
    """Limit the seconds and the memory of one input."""

    def stop(*_: Any) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, most[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, most)
        signal.signal(signal.SIGALRM, before)


def _chunk(name: str, first: int, count: int) -> FuzzResult:
    os.nice(0)
    sys.setrecursionlimit(1000)
    return fuzz(TARGETS[name], first, count)


def run(
    names: list[str], inputs: int, processes: int, state: Path | None
) -> FuzzResult:
    """Read inputs until their number is reached, in addition to those of ``state``."""
    result = FuzzResult()
    if state is not None and state.exists():
        result = FuzzResult.from_json(state.read_text())
    total = sum(TARGETS[n].share for n in names)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for name in sorted(names, key=lambda n: -TARGETS[n].share):  # short ones last
            wanted = round(inputs * TARGETS[name].share / total)
            firsts = range(result.read[name], wanted, CHUNK)
            works = [
                pool.submit(_chunk, name, first, min(CHUNK, wanted - first))
                for first in firsts
            ]
            for work in works:  # in order, so a later run knows the next seed
                result.add(work.result())
                if state is not None:
                    state.write_text(result.to_json())
    return result


def keep(target: Target, seed: int) -> Path:
    """Add an input to the corpus, which tests read and new inputs are made from."""
    folder = CORPUS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{seed}.txt"
    path.write_bytes(target.input(seed))
    return path
