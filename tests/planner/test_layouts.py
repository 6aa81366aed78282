"""What follows from a layout agrees with plain loops over its pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustertune.core.model import Layout, View
from clustertune.planner import layouts
from clustertune.testing import layout, view, worker

Spread = dict[str, list[list[int]]]
"""By label of member, for every piece the workers that hold it."""


@st.composite
def cases(draw: Any, *, whole: bool = False) -> tuple[Layout, View, Spread]:
    """Draw a layout with copies, torn and, unless ``whole``, missing pieces."""
    n_workers = draw(st.integers(1, 4))
    rows = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    holders = st.lists(
        st.integers(0, n_workers - 1), unique=True, min_size=whole, max_size=3
    )
    one_member = st.lists(holders, min_size=len(rows), max_size=len(rows))
    labels = ["X", "y", "w"][: draw(st.integers(1, 3))]
    spread = {label: draw(one_member) for label in labels}
    widths = {label: draw(st.integers(1, 3)) for label in labels}
    workers = [
        worker(
            i,
            nthreads=draw(st.integers(1, 3)),
            status=draw(st.sampled_from(["running", "running", "paused"])),
        )
        for i in range(n_workers)
    ]
    data = layout(rows, spread, labels, row_bytes=widths)
    return data, view(workers, [data]), spread


def bytes_by_holder(data: Layout, spread: Spread) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for m in data.members:
        for piece, workers in enumerate(spread[m.label]):
            for w in workers:
                found[piece, w] = found.get((piece, w), 0) + int(m.nbytes[piece])
    return found


def home_of(piece: int, held: dict[tuple[int, int], int]) -> int:
    """The worker with most bytes of a piece, the first among equals; -1: none."""
    there = {w: n for (p, w), n in held.items() if p == piece}
    return min(there, key=lambda w: (-there[w], w)) if there else -1


@given(cases())
def test_held(case: tuple[Layout, View, Spread]) -> None:
    """Bytes of all members add up for each piece on each of its holders."""
    data, seen, spread = case
    found = layouts.held(data, len(seen.now.workers))
    triples = zip(found.piece.tolist(), found.worker.tolist(), found.nbytes.tolist())
    assert {(p, w): n for p, w, n in triples} == bytes_by_holder(data, spread)
    assert len(found.piece) == len(bytes_by_holder(data, spread))


@given(cases())
def test_copied(case: tuple[Layout, View, Spread]) -> None:
    """A piece has surplus copies if any member of it lies on several workers."""
    data, _, _ = case
    expected = [
        any((m.holders[0] == i).sum() > 1 for m in data.members)
        for i in range(len(data.rows))
    ]
    assert layouts.copied(data).tolist() == expected


@given(cases())
def test_homes(case: tuple[Layout, View, Spread]) -> None:
    """A piece is at home where most of its bytes are, and nowhere if nobody has it."""
    data, seen, spread = case
    held = bytes_by_holder(data, spread)
    expected = [home_of(i, held) for i in range(len(data.rows))]
    assert layouts.homes(data, len(seen.now.workers)).tolist() == expected


@given(cases())
def test_apart(case: tuple[Layout, View, Spread]) -> None:
    """A piece with rows is together exactly if some worker holds all members of it."""
    data, seen, spread = case
    expected = [
        rows > 0
        and not set.intersection(*(set(spread[m.label][i]) for m in data.members))
        for i, rows in enumerate(data.rows.tolist())
    ]
    assert layouts.apart(data, len(seen.now.workers)).tolist() == expected


@given(cases())
def test_shares(case: tuple[Layout, View, Spread]) -> None:
    """Rows, bytes and pieces count at their home; the share is by running threads."""
    data, seen, spread = case
    held, workers = bytes_by_holder(data, spread), seen.now.workers
    threads = sum(w.nthreads for w in workers if w.running)
    for i, share in enumerate(layouts.shares(data, seen)):
        here = [p for p in range(len(data.rows)) if home_of(p, held) == i]
        rows = sum(int(data.rows[p]) for p in here)
        due = data.rows.sum() * workers[i].nthreads / max(1, threads)
        assert share.worker == workers[i].id
        assert share.pieces == len(here)
        assert share.rows == rows
        assert share.nbytes == sum(int(m.nbytes[p]) for m in data.members for p in here)
        expected = rows / due if workers[i].running and due else 0.0
        assert share.share == pytest.approx(expected)


@given(cases(whole=True))
def test_imbalance(case: tuple[Layout, View, Spread]) -> None:
    """The imbalance is the largest share; it is above 1 unless rows lie idle."""
    data, seen, _ = case
    found = layouts.imbalance(data, seen)
    shares = layouts.shares(data, seen)
    if not data.rows.sum():
        assert found == 1.0
        return
    assert found == max(s.share for s in shares)
    running = {w.id for w in seen.now.workers if w.running}
    if running and all(s.worker in running for s in shares if s.rows):
        assert found >= 1 - 1e-9


def test_even_by_threads_is_even() -> None:
    """A worker with three times the threads is due three times the rows."""
    workers = [worker(0, nthreads=1), worker(1, nthreads=3)]
    data = layout([10, 10, 10, 10], [0, 1, 1, 1])
    assert layouts.imbalance(data, view(workers, [data])) == 1.0


def test_a_worker_that_was_not_asked_for_is_due_nothing() -> None:
    """Of three workers, two of which are wanted, the third has no claim on rows."""
    workers = [worker(i, nthreads=2) for i in range(3)]
    data = layout([10, 10], [0, 1])
    seen = view(workers, [data])
    seen = replace(seen, goal=replace(seen.goal, workers=frozenset((0, 1))))
    assert layouts.weights(seen).tolist() == [2, 2, 0]
    assert [s.share for s in layouts.shares(data, seen)] == [1, 1, 0]


def test_more_bytes_than_a_float_counts() -> None:
    """Rows and bytes of a piece are exact far above a gigabyte."""
    many = 2**50 + 1
    data = layout([many, many], [0, 0], ["X"], row_bytes={"X": 1})
    only = layouts.shares(data, view([worker(0)], [data]))[0]
    assert only.rows == only.nbytes == 2 * many
    assert layouts.piece_bytes(data).tolist() == [many, many]


def test_nothing_is_held_of_what_is_not_loaded() -> None:
    """Data that is not in memory has no holder, no copy and no home."""
    data = layout([3, 3], None)
    assert layouts.held(data, 2).piece.tolist() == []
    assert layouts.copied(data).tolist() == [False, False]
    assert layouts.homes(data, 2).tolist() == [-1, -1]
    assert np.all(layouts.apart(data, 2))
