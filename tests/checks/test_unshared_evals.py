"""The check ``unshared_evals``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.checks.unshared_evals import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view

TRAINING = layout([10] * 4, [0, 1, 0, 1])


def found(rows, homes, *, needed=True, copied=True, training=TRAINING):
    valid = layout(rows, homes, ("Xv", "yv"), label="eval_set[0]")
    if copied:
        members = [
            replace(m, keys=tuple((f"copied-{m.label}", i) for _, i in m.keys))
            for m in valid.members
        ]
        valid = replace(valid, members=tuple(members))
    seen = view((), [training, valid])
    workload = replace(seen.goal.workload, eval_copies=needed)
    return list(find(replace(seen, goal=replace(seen.goal, workload=workload))))


def test_silent_where_every_worker_has_all():
    """In the first piece of each, beside the training data."""
    assert found([7, 7, 0, 0], [0, 1, 0, 1]) == []


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"needed": False}, id="the library scores on all workers"),
        pytest.param({"training": layout([10], None)}, id="not loaded"),
    ],
)
def test_silent_where_it_does_not_matter(how):
    """Or is not known yet."""
    assert found([5, 5], [0, 1], **how) == []
    assert list(find(view())) == []


@pytest.mark.parametrize(
    ("rows", "homes", "copied"),
    [
        pytest.param([5, 5], [0, 1], False, id="shared out"),
        pytest.param([7, 7], [0, 1], True, id="fewer pieces"),
        pytest.param([7, 0, 7, 0], [0, 1, 0, 1], True, id="twice on one worker"),
        pytest.param([7, 6, 0, 0], [0, 1, 0, 1], True, id="unlike rows"),
        pytest.param([7, 7, 0, 0], [0, 1, 1, 1], True, id="an empty piece elsewhere"),
        pytest.param([7, 7, 0, 0], [0, 1, 0, 1], False, id="other rows, as it was cut"),
    ],
)
def test_workers_without_all_of_it(rows, homes, copied):
    """However it comes to be so, it is copied."""
    (finding,) = found(rows, homes, copied=copied)
    assert finding.severity is Severity.warning
    assert finding.subject == ("Xv", "yv")
    assert finding.message.startswith("eval_set[0] is not on every worker as a whole")
    assert finding.fixed_by == "replicate"
