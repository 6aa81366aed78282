"""Eval sets of which every worker has all rows, and the step that makes them so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustertune.actions import replicate
from clustertune.core.model import Finding, Severity
from clustertune.errors import CapacityError
from clustertune.planner import replicas
from clustertune.planner.sizes import list_bytes
from clustertune.testing import layout, view, worker

TRAINING = layout([10, 0, 10, 10], [1, 0, 1, 0])
WRONG = Finding(
    severity=Severity.warning, message="", subject=("Xv",), fixed_by="replicate"
)


def evals(rows, homes, *, copied=False):
    valid = layout(rows, homes, ("Xv", "yv"), label="eval_set[0]")
    if not copied:
        return valid
    members = [
        replace(m, keys=tuple((f"copied-{m.label}", i) for _, i in m.keys))
        for m in valid.members
    ]
    return replace(valid, members=tuple(members))


def seen(valid, **overrides):
    return view([worker(i, **overrides) for i in range(2)], [TRAINING, valid])


def test_what_is_a_copy_is_told_by_its_keys():
    """They are what is left of one that is given again."""
    assert replicas.is_copied(evals([5, 5], [0, 1], copied=True))
    assert not replicas.is_copied(evals([5, 5], [0, 1]))
    assert replicas.copies(evals([5, 5, 0], [0, 1, 0], copied=True)) == 2
    assert replicas.copies(evals([5, 5], [0, 1])) == 1
    assert replicas.copies(evals([0, 0], [0, 1], copied=True)) == 1


def test_all_rows_once():
    """The pieces that were given, or one of the copies of all."""
    assert replicas.original(evals([0, 3, 4], [0, 1, 0])) == ((1, 0, 3), (2, 0, 4))
    copies = evals([0, 5, 5], [0, 1, 0], copied=True)
    assert replicas.original(copies) == ((1, 0, 5),)
    assert replicas.original(evals([0, 0], [0, 1])) == ((0, 0, 0),)


def test_first_pieces_are_those_with_rows():
    """Of each worker, in the order of pieces."""
    assert replicas.first_pieces(seen(evals([5], [0]))).tolist() == [0, 3]


def test_what_is_in_place():
    """As many pieces, on the same workers, with all rows in the first of each."""
    assert replicas.are_in_place(
        evals([5, 0, 0, 5], [1, 0, 1, 0], copied=True),
        seen(evals([5], [0])),
    )
    for rows, homes in (
        ([5, 0, 0, 5], [0, 0, 1, 0]),
        ([5, 0, 5, 5], [1, 0, 1, 0]),
        ([5, 0, 0, 6], [1, 0, 1, 0]),
        ([5, 0, 0], [1, 0, 1]),
    ):
        valid = evals(rows, homes, copied=True)
        assert not replicas.are_in_place(valid, seen(valid))
    alone = view([worker(0)], [layout([4, 4], [0, 0]), evals([5, 0], [0, 0])])
    assert replicas.are_in_place(alone.layouts[1], alone)  # one worker needs no copy


def test_the_step():
    """All rows of each member for the first piece of each worker, none for others."""
    valid = evals([3, 4], [0, 1])
    (step,) = replicate.propose((WRONG,), seen(valid))
    recut = step.args
    assert recut.rows.tolist() == [7, 0, 0, 7]
    assert recut.targets.tolist() == [1, 0, 1, 0]
    assert recut.copies == 2
    assert [c.label for c in recut.cuts] == ["Xv", "yv"]
    for cut in recut.cuts:
        parts = zip(cut.new, cut.key, cut.start, cut.stop, cut.owner, strict=True)
        assert [tuple(int(x) for x in p) for p in parts] == [
            (0, 0, 0, 3, 0),
            (0, 1, 0, 4, 1),
            (1, 0, 0, 0, 0),
            (2, 0, 0, 0, 0),
            (3, 0, 0, 3, 0),
            (3, 1, 0, 4, 1),
        ]
    # of both members three rows, four, and none for the empty piece, each in a list
    (one,) = list_bytes(np.array([1]))
    assert step.price.nbytes == 7 * 88 + 6 * one
    assert step.price.peak == 7 * 88


def test_nothing_to_do():
    """Where nothing was found of it."""
    assert list(replicate.propose((), seen(evals([3], [0])))) == []


def test_copies_that_do_not_fit():
    """Each worker needs room for all of it: said before anything is copied."""
    small = {"memory_limit": 4500, "process": 0}
    with pytest.raises(CapacityError, match=r"on every worker, .* 2 workers would"):
        list(replicate.propose((WRONG,), seen(evals([20], [0]), **small)))


def test_two_sets_take_room_of_each_other():
    """What the first brings is not there for the second."""
    one = evals([10], [0])
    other = layout([10], [0], ("Xw", "yw"), label="eval_set[1]")
    both = replace(WRONG, subject=("Xv", "Xw"))
    workers = [worker(i, memory_limit=7000, process=0) for i in range(2)]
    at = view(workers, [TRAINING, one, other])
    assert len(list(replicate.propose((WRONG,), at))) == 1
    with pytest.raises(CapacityError, match=r"eval_set\[1\]"):
        list(replicate.propose((both,), at))
    assert np.array_equal(at.layouts[1].rows, [10])


def test_an_eval_set_with_separated_labels_is_not_in_place():
    """Its larger part is on the right worker, but its labels are on another one."""
    training = layout([10], [0])
    for homes, expected in (
        ({"Xv": [0], "yv": [0]}, True),
        ({"Xv": [0], "yv": [1]}, False),
    ):
        valid = layout([5], homes, ("Xv", "yv"), label="eval_set[0]")
        built = view([worker(0), worker(1)], [training, valid])
        assert replicas.are_in_place(valid, built) == expected
