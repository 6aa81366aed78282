"""Partitions on the workers of several hosts: few bytes between hosts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clustertune.errors import CapacityError
from clustertune.planner import placement
from clustertune.planner.hosts import nearby, place_on_hosts
from clustertune.planner.layouts import HeldBytes
from clustertune.planner.placement import Placement, place

OPTIONS: dict[str, Any] = {"tolerance": 0.05, "aim": 1.0}
ROW = 80  # bytes
HOSTS = np.repeat(np.arange(3), 2)


def random_partitions(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of partitions, and a worker of six for each."""
    generator = np.random.default_rng(seed)
    rows = generator.integers(1, 60, 26)
    return rows, generator.integers(0, 6, 26)


def crossed(target: np.ndarray, rows: np.ndarray, on: np.ndarray) -> int:
    """Rows that go to another host; each has two workers."""
    return int(rows[target // 2 != on // 2].sum())


def both(seed: int, budget: float = np.inf) -> tuple[Placement, Placement]:
    """The placement by the search over workers alone, and that on hosts first."""
    rows, on = random_partitions(seed)
    held, nbytes = HeldBytes(np.arange(rows.size), on, rows * ROW), rows * ROW
    weights, given = np.ones(6), {"nbytes": nbytes, "budget": np.full(6, budget)}
    near = nearby(held, nbytes, weights > 0, HOSTS)
    alone = place(rows, near, weights, **given, **OPTIONS)
    return alone, place_on_hosts(rows, held, weights, hosts=HOSTS, **given, **OPTIONS)


@pytest.mark.parametrize("seed", [8, 13, 19, 36, 39])
def test_bytes_are_not_more(seed: int) -> None:
    """With bytes between hosts as the larger part of the price."""
    rows, on = random_partitions(seed)
    alone, found = both(seed)

    def price(target: np.ndarray) -> int:
        return 15 * crossed(target, rows, on) + int(rows[target != on].sum())

    assert found.imbalance <= 1.05 * (1 + 1e-9)
    assert price(found.target) <= price(alone.target)
    assert found.moved == ROW * rows[found.target != on].sum()


@pytest.mark.parametrize("seed", [36, 39])
def test_partitions_make_room_within_a_host(seed: int) -> None:
    """So another one can stay on its host."""
    rows, on = random_partitions(seed)
    alone, found = both(seed)
    assert crossed(found.target, rows, on) < crossed(alone.target, rows, on)


def test_budgets_hold() -> None:
    """Those of all workers of a host together are not enough."""
    rows, _ = random_partitions(0)
    most = 1.1 * rows.sum() * ROW / 6
    _, found = both(0, budget=most)
    assert np.bincount(found.target, rows * ROW, 6).max() <= most
    with pytest.raises(CapacityError):
        both(0, budget=0.9 * rows.sum() * ROW / 6)


def test_many_partitions_take_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step reads all holdings, which are those of all workers of a host."""
    hosts, partitions = np.repeat(np.arange(6), 16), np.arange(6000)
    on = np.random.default_rng(1).integers(0, 48, partitions.size)
    nbytes = np.full(partitions.size, ROW)
    steps: list[None] = []
    neighbours = placement._neighbours

    def counted(*arguments: Any, **options: Any) -> Any:
        steps.append(None)
        return neighbours(*arguments, **options)

    monkeypatch.setattr(placement, "_neighbours", counted)
    found = place_on_hosts(
        nbytes // ROW,
        HeldBytes(partitions, on, nbytes),
        np.ones(96),
        hosts=hosts,
        nbytes=nbytes,
        budget=None,
        **OPTIONS,
    )
    assert found.imbalance <= 1.05
    assert np.count_nonzero(hosts[found.target] < 3) >= 3000
    assert len(steps) < 1000
