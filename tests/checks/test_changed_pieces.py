"""The check ``changed_pieces``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.checks.changed_pieces import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view, worker


def found(kept, *, keeps=True, workers=2, data=None, given=None, **goal):
    data = layout([10] * 4, [0, 1, 0, 1]) if data is None else data
    seen = view([worker(i) for i in range(workers)], [data], kept=kept, **goal)
    seen = replace(seen, given=given)
    workload = replace(seen.goal.workload, keeps_pieces=keeps)
    return list(find(replace(seen, goal=replace(seen.goal, workload=workload))))


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"kept": (40, 4)}, id="as many"),
        pytest.param({"kept": None}, id="the first fit"),
        pytest.param({"kept": None, "given": 4}, id="as it was given"),
        pytest.param({"kept": (40, 4), "given": 1}, id="as for the fit before"),
        pytest.param({"kept": None, "given": 1, "keeps": False}, id="of no account"),
        pytest.param({"kept": (41, 5)}, id="other data"),
        pytest.param({"kept": (40, 5), "keeps": False}, id="they do not matter"),
        pytest.param({"kept": (40, 5), "data": layout(None, [0])}, id="rows unknown"),
    ],
)
def test_silent(how):
    """Where the model is made of as many pieces, or it cannot be told."""
    assert found(**how) == []
    assert list(find(view())) == []


def test_another_number():
    """As many can be made again."""
    (finding,) = found((40, 5))
    assert finding.severity is Severity.warning
    assert finding.message.startswith(
        "the training data is in 4 partitions, for the fit before it was in 5: "
    )
    assert finding.evidence == {"pieces": 4, "before": 5}
    assert finding.fixed_by == "rechunk"


def test_what_cannot_be_as_before_is_said_only():
    """Each worker needs a piece, or another number was asked for, or none may be."""
    assert found((40, 3), workers=4)[0].fixed_by == ""
    assert found((40, 5), rechunk=8)[0].fixed_by == ""
    assert found((40, 5), rechunk=False)[0].fixed_by == ""


def test_another_number_than_was_given():
    """Without any fit before, too; the remedy makes the model of the given data."""
    for kept in (None, (41, 5)):
        (finding,) = found(kept, given=1)
        assert finding.severity is Severity.info
        assert finding.message.startswith(
            "the training data was given in 1 partition and is in 4 now: "
        )
        assert finding.evidence == {"pieces": 4, "given": 1}
        assert finding.fixed_by == ""
        assert "rechunk=1" in finding.remedy
