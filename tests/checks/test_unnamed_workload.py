"""The check ``unnamed_workload``."""

import pytest

from clustertune.checks.unnamed_workload import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view

DATA = layout([10], [0])
RANKED = layout([10], [0], ("X", "y", "qid"))


@pytest.mark.parametrize(
    ("data", "goal"),
    [
        pytest.param([RANKED], {}, id="it was named"),
        pytest.param([DATA], {"chosen": False}, id="no library needs more"),
        pytest.param([], {"chosen": False}, id="no data"),
    ],
)
def test_silent(data, goal):
    """Where what will train is known, or any will do."""
    imported = frozenset(("lightgbm",) if goal == {} else ())
    assert list(find(view((), data, imported=imported, **goal))) == []


def test_groups_for_any_library():
    """A ranking is about to be trained, and nothing keeps its groups whole."""
    (finding,) = find(view((), [RANKED], chosen=False))
    assert finding.severity is Severity.warning
    assert finding.message == (
        "prepared for any library, and a ranking needs query groups that are whole and "
        "in order: pass estimator="
    )


def test_lightgbm_is_there():
    """It may be what will train, and needs more than others."""
    imported = frozenset(("lightgbm",))
    (finding,) = find(view((), [DATA], chosen=False, imported=imported))
    assert finding.severity is Severity.info
    assert "every class on every worker: pass estimator=" in finding.message
