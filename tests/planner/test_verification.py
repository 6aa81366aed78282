"""Verification finds every kind of damage, and no problem in a correct move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from clustertune.core.model import Layout, View
from clustertune.planner.verification import losses, moves, problems
from tests.builders import layout, snapshot, view, worker

# --- verification ---------------------------------------------------------------------


ROWS = [10, 10, 10, 10]
ALL_ON_ONE = layout(ROWS, [0, 0, 0, 0])


def seen(*layouts: Layout, **overrides: Any) -> View:
    return view([worker(0, **overrides), worker(1, **overrides)], layouts)


def changed(data: Layout, label: str, **fields: Any) -> Layout:
    """Return the layout with one collection changed."""
    collections = tuple(
        replace(m, **fields) if m.label == label else m for m in data.collections
    )
    return replace(data, collections=collections)


def replace_all(data: Layout, **overrides: Any) -> Layout:
    collections = tuple(replace(m, **overrides) for m in data.collections)
    return replace(data, collections=collections)


# --- what is no problem ---------------------------------------------------------------


def test_nothing_happened() -> None:
    """The same view twice has no problems, even with uneven rows."""
    assert problems(seen(ALL_ON_ONE), seen(ALL_ON_ONE)) == ()


def test_a_good_move() -> None:
    """A whole partition on another worker is no problem."""
    assert problems(seen(ALL_ON_ONE), seen(layout(ROWS, [0, 1, 0, 1]))) == ()


def test_a_copy_less() -> None:
    """One of two replicas may be dropped."""
    twice = layout(ROWS, [[0, 1]] * 4)
    assert problems(seen(twice), seen(layout(ROWS, [0, 1, 0, 1]))) == ()


def test_loading() -> None:
    """Loaded data may have any workers, keys and rows."""
    lazy = layout([10, 10], None)
    unknown = changed(changed(lazy, "X", rows=None), "y", rows=None)
    for before in (lazy, unknown):
        after = changed(layout([10, 10], [0, 1]), "X", keys=("a", "b"))
        assert problems(seen(before), seen(after)) == ()
    assert problems(seen(lazy), seen(lazy)) == ()


def test_pairs_that_were_apart_before() -> None:
    """Pairs that were separated before are not reported."""
    torn = layout(ROWS, {"X": [0, 0, 1, 1], "y": [1, 1, 1, 1]})
    better = layout(ROWS, {"X": [0, 0, 1, 1], "y": [0, 1, 1, 1]})
    assert problems(seen(torn), seen(torn)) == ()
    assert problems(seen(torn), seen(better)) == ()


def test_a_worker_that_was_too_full_before() -> None:
    """A full worker with less data than before is no problem."""
    tiny = {"memory_limit": 1000, "process": 0}
    before = seen(layout(ROWS, [0, 0, 0, 0]), **tiny)  # 3,520 bytes
    after = seen(layout(ROWS, [0, 0, 0, 1]), **tiny)
    assert problems(before, before) == ()
    assert len(problems(before, after)) == 1  # worker 1 alone: it was empty
    assert problems(before, after)[0].startswith("worker 1 holds 880 bytes")


# --- what is --------------------------------------------------------------------------


def test_partitions_that_are_gone() -> None:
    """A partition without a holder is lost, although its key is known."""
    after = layout(ROWS, {"X": [0, -1, 0, -1], "y": [0, 0, 0, 0]})
    found = problems(seen(ALL_ON_ONE), seen(after))
    assert found[0] == "no worker holds 2 partitions of X"
    nowhere = changed(ALL_ON_ONE, "y", holders=None)
    assert "no worker holds 4 partitions of y" in problems(
        seen(ALL_ON_ONE), seen(nowhere)
    )


def test_data_that_is_no_longer_loaded() -> None:
    """A collection that has left memory is lost as a whole."""
    found = problems(seen(ALL_ON_ONE), seen(layout(ROWS, None)))
    assert found == tuple(f"{x} is not in memory, and it was before" for x in "Xy")


def test_rows_that_changed() -> None:
    """A partition with other rows is found in any collection."""
    shuffled = changed(ALL_ON_ONE, "y", rows=np.array([10, 10, 20, 0]))
    found = problems(seen(ALL_ON_ONE), seen(shuffled))
    assert found[0] == "partitions of y have other rows than before"


def test_rows_that_changed_on_loading() -> None:
    """A lazy collection must keep the rows of its metadata."""
    found = problems(seen(layout([10, 10], None)), seen(layout([10, 9], [0, 1])))
    assert found == tuple(
        f"partitions of {x} have other rows than before" for x in "Xy"
    )


def test_keys_that_changed() -> None:
    """Loaded partitions keep their keys, so that earlier variables remain valid."""
    renamed = changed(ALL_ON_ONE, "X", keys=tuple("abcd"))
    found = problems(seen(ALL_ON_ONE), seen(renamed))
    assert found == ("X has other keys than before",)


def test_boundaries_that_agreed() -> None:
    """Boundaries of X and y that have become different are found."""
    recut = changed(ALL_ON_ONE, "y", rows=np.array([5, 15, 10, 10]))
    found = problems(seen(ALL_ON_ONE), seen(recut))
    assert "training data: row boundaries differ, and they agreed before" in found


def test_pairs_that_were_torn() -> None:
    """A pair that was together and is separated now is counted."""
    torn = layout(ROWS, {"X": [0, 0, 0, 0], "y": [0, 1, 1, 0]})
    found = problems(seen(ALL_ON_ONE), seen(torn))
    assert found == ("training data: 2 pairs are separated, 0 were before",)


def test_pairs_that_came_apart_on_loading() -> None:
    """Loaded data with separated pairs at the end is found."""
    torn = layout([10, 10], {"X": [0, 0], "y": [0, 1]})
    found = problems(seen(layout([10, 10], None)), seen(torn))
    assert found == ("training data: 1 pairs are separated, 0 were before",)


def test_a_worker_that_is_filled_too_far() -> None:
    """A worker above its thresholds is found, with figures."""
    small = {"memory_limit": 4000, "process": 0}
    before = seen(layout(ROWS, [0, 0, 1, 1]), **small)
    assert problems(before, seen(layout(ROWS, [0, 0, 0, 1]), **small)) == (
        "worker 0 holds 2,640 bytes, but only 2,400 fit",
    )


def test_every_layout_is_verified() -> None:
    """Eval sets are verified like the training data."""
    valid = layout([4], [0], label="eval_set[0]")
    lost = layout([4], [-1], label="eval_set[0]")
    found = problems(seen(ALL_ON_ONE, valid), seen(ALL_ON_ONE, lost))
    assert found[0] == "no worker holds 1 partition of X"
    assert any(x.startswith("eval_set[0]: 1 pairs are separated") for x in found)


def test_a_memory_manager_that_was_left_off() -> None:
    """A memory manager that is still paused is reported."""
    given = [layout([10, 10], [0, 1])]
    was = view(snapshots=[snapshot([worker(0), worker(1)], memory_manager=True)])
    now = view(snapshots=[snapshot([worker(0), worker(1)], memory_manager=False)])
    was, now = replace(was, layouts=tuple(given)), replace(now, layouts=tuple(given))
    assert problems(was, was) == ()
    assert problems(was, now) == ("Dask's memory manager does not run, unlike before",)


# --- copies, moves --------------------------------------------------------------------


def test_copies_of_an_eval_set_are_its_rows_again() -> None:
    """Each replica counts, and a replica with too few rows is found."""
    valid = layout([4, 3], [0, 0], ("Xv", "yv"), label="eval_set[0]")

    def copied(*rows: int) -> Layout:
        collections = [
            replace(m, keys=tuple((f"copied-{m.label}", i) for i in range(len(rows))))
            for m in layout([*rows], [0, 1], ("Xv", "yv"), made_here=True).collections
        ]
        return replace(valid, collections=tuple(collections))

    assert problems(seen(ALL_ON_ONE, valid), seen(ALL_ON_ONE, copied(7, 7))) == ()
    assert problems(seen(ALL_ON_ONE, copied(7, 7)), seen(ALL_ON_ONE, valid)) == (
        "Xv has other keys than before",
        "yv has other keys than before",
    )
    short = problems(seen(ALL_ON_ONE, valid), seen(ALL_ON_ONE, copied(7, 6)))
    assert short == ("Xv had 14 rows and has 13", "yv had 14 rows and has 13")


def test_a_member_that_this_call_has_made_was_not_there() -> None:
    """A collection that was not there before is not a changed one."""
    more = layout(ROWS, [0, 0, 0, 0], ("X", "y", "z"))
    assert problems(seen(ALL_ON_ONE), seen(more)) == ()


def test_partitions_that_moved() -> None:
    """The number of moved partitions is reported, and one example with worker names."""
    assert moves(seen(ALL_ON_ONE), seen(ALL_ON_ONE)) == ()
    moved = layout(ROWS, [0, 1, 0, 1])
    (text,) = moves(seen(ALL_ON_ONE), seen(moved))
    assert text == (
        "2 partitions of the training data moved, for example number 1 from worker 0 "
        "to worker 1"
    )


def test_a_surplus_copy_is_no_move() -> None:
    """A partition stays in place while its worker holds all of it."""
    there = seen(layout(ROWS, [1, 1, 1, 1]))
    assert moves(there, seen(layout(ROWS, [[0, 1]] * 4))) == ()
    half = layout(ROWS, {"X": [[0, 1]] * 4, "y": [0, 0, 0, 0]})
    assert len(moves(there, seen(half))) == 1


def test_workers_that_lack_a_copied_eval_set() -> None:
    """Each worker had a replica; one moved to a worker that has two now."""

    def copied(where: list[int]) -> Layout:
        made = layout([7, 0, 7, 0], where, ("Xv", "yv"), label="eval_set[0]")
        collections = [
            replace(m, keys=tuple((f"copied-{m.label}", i) for i in range(4)))
            for m in made.collections
        ]
        return replace(made, collections=tuple(collections))

    data = layout(ROWS, [0, 0, 1, 1])
    before = seen(data, copied([0, 0, 1, 1]))
    assert moves(before, before) == ()
    lost, moved = moves(before, seen(data, copied([1, 0, 1, 1])))
    assert lost == "worker 0 lost the replica of eval_set[0]"
    assert moved.startswith("1 partition of the eval_set[0] moved")
    # a partition without rows is none of it
    (moved,) = moves(before, seen(data, copied([0, 1, 1, 1])))
    assert moved.startswith("1 partition of the eval_set[0] moved")


def test_moves_of_what_cannot_be_compared() -> None:
    """Other checks report other partitions, and partitions that left memory."""
    for other in (layout([20, 20], [1, 1]), layout(ROWS, None)):
        assert moves(seen(ALL_ON_ONE), seen(other)) == ()


def test_a_collection_that_is_gone() -> None:
    """A missing collection is lost, even if the rest of the layout is unchanged."""
    both, one = layout([5, 5], [0, 1]), layout([5, 5], [0, 1], ("X",))
    assert losses(view(layouts=[both]), view(layouts=[one])) == ("y is missing",)
