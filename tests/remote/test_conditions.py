"""Whether a condition is met: what the scheduler sees, and what was found last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustertune.checks.memory import memory_growth
from clustertune.operations.scheduling import triggers
from clustertune.remote.conditions import met
from clustertune.testing import runs, view, worker

GIB = 2**30
LINES = {"a": {"spill": 0.7, "pause": 0.8}}


def scheduler(**workers: tuple[int, int]) -> Any:
    """Of workers with a limit of 10 GiB, from the GiB of process and of managed."""
    return SimpleNamespace(
        workers={
            name: SimpleNamespace(
                address=f"tcp://{name}",
                name=name,
                nanny=None,
                memory_limit=10 * GIB,
                status=SimpleNamespace(name="running"),
                memory=SimpleNamespace(
                    process=process * GIB,
                    managed=managed * GIB,
                    unmanaged=(process - managed) * GIB,
                ),
            )
            for name, (process, managed) in workers.items()
        }
    )


def memory(severity: str, **workers: tuple[int, int]) -> tuple[bool, str]:
    condition = triggers.parse_condition(f"memory:{severity}")
    assert condition is not None
    return met(condition.plain(), scheduler(**workers), [], LINES, None, 0.0)


def test_memory() -> None:
    """At the line, with mostly no data; one that came later is like the others."""
    assert memory("critical", a=(7, 1)) == (
        False,
        "no worker is at its pause threshold",
    )
    assert memory("warning", a=(7, 1))[0]
    assert memory("critical", a=(1, 0), later=(8, 1)) == (
        True,
        "worker later at the pause threshold, with mostly no data",
    )
    yes, text = memory("critical", a=(9, 8))
    assert not yes
    assert "which a restart would bring back" in text


def test_a_worker_that_is_paused() -> None:
    """Whatever its memory is now."""
    there = scheduler(a=(3, 1))
    there.workers["a"].status.name = "paused"
    condition = triggers.parse_condition("memory:critical")
    assert condition is not None
    assert met(condition.plain(), there, [], LINES, None, 0.0)[0]


@given(
    floors=st.lists(st.integers(0, 400), max_size=8),
    least=st.sampled_from([0.01, 0.1]),
)
def test_a_leak_is_what_the_check_calls_growth(floors: list[int], least: float) -> None:
    """The scheduler cannot run checks; both have the same rule."""
    floors = [n * 2**20 for n in floors]
    it = worker(0)
    found = list(
        memory_growth(view([it], runs=runs(*({0: n} for n in floors))), least=least)
    )
    growing = any(f.subject == (0,) for f in found)
    condition = {"kind": "leak", "least": least}
    past = [{"floors": [("a", n)]} for n in floors]
    there = scheduler(a=(1, 0))
    there.workers["a"].memory_limit = it.memory_limit
    assert met(condition, there, past, {}, None, 0.0)[0] == growing


def test_leak() -> None:
    """By worker; too few runs say nothing."""
    condition = triggers.parse_condition("leak")
    assert condition is not None
    there = scheduler(a=(1, 0), b=(1, 0))
    past = [{"floors": [("a", i * GIB), ("b", GIB)]} for i in range(4)]
    plain = condition.plain()
    assert met(plain, there, past, {}, None, 0.0) == (
        True,
        "memory of worker a grows from run to run",
    )
    assert met(plain, there, past[:2], {}, None, 0.0)[1].startswith("2 runs were seen")
    assert not met(plain, there, [{"floors": [("b", GIB)]}] * 4, {}, None, 0.0)[0]


@pytest.mark.parametrize(
    ("text", "since", "yes", "seen"),
    [
        ("thread_pools", 0.0, True, "too many threads"),
        ("thread_pools:critical", 0.0, False, "thread_pools:critical was not found"),
        ("no_nanny", 0.0, False, "no_nanny:warning was not found"),
        ("thread_pools", 20.0, False, "before the last restart"),
    ],
)
def test_findings(text: str, since: float, yes: bool, seen: str) -> None:
    """The last ones, unless a restart has come since."""
    condition = triggers.parse_condition(text)
    assert condition is not None
    row = {"check": "thread_pools", "severity": "warning"}
    last = {"time": 10.0, "found": [row | {"message": "too many threads"}]}
    found, said = met(condition.plain(), scheduler(), [], {}, last, since)
    assert found == yes
    assert seen in said
    none = met(condition.plain(), scheduler(), [], {}, None, since)
    assert none == (False, "nothing was looked for yet: clustertune check does")
