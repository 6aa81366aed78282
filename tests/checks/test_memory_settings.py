from __future__ import annotations

import pytest

from clustertune.checks.memory_settings import find
from clustertune.core.model import Severity, Unknown
from clustertune.testing import view, worker


def found(**thresholds):
    return list(find(view([worker(0, **thresholds), worker(1)])))


@pytest.mark.parametrize(
    "thresholds",
    [
        {},
        {"target": None, "spill": None},
        {"pause": None, "terminate": None},
        {"target": 0.7, "spill": 0.7},
        {"terminate": Unknown("no answer")},
        {"facts": Unknown("no answer")},
    ],
)
def test_silent_where_they_act_in_order(thresholds):
    """Also where some are off, equal, or not known."""
    assert found(**thresholds) == []


@pytest.mark.parametrize(
    ("thresholds", "text"),
    [
        ({"target": 0.8}, "target (80%) is above spill (70%), which acts first"),
        ({"spill": 0.9}, "spill (90%) is above pause (80%)"),
        ({"pause": 0.97}, "pause (97%) is above terminate (95%)"),
        ({"spill": None, "target": 0.9}, "target (90%) is above pause (80%)"),
        ({"terminate": 1.2}, "terminate is 120% of the limit"),
    ],
)
def test_another_order(thresholds, text):
    """Which of them never acts is said."""
    (finding,) = found(**thresholds)
    assert finding.severity is Severity.warning
    assert text in finding.message
    assert finding.subject == (0,)


def test_no_limit():
    """Nothing acts then; some clusters are meant so."""
    (finding,) = found(memory_limit=0, target=0.9)
    assert finding.severity is Severity.info
    assert "1 worker has no memory limit" in finding.message
