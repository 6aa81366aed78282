from __future__ import annotations

from clustertune.checks.large_results import find
from clustertune.model import Severity
from clustertune.testing import prefix, survey, view


def found(*prefixes):
    return list(find(view(survey=survey(prefixes=prefixes))))


def test_silent_where_results_are_small_or_spread():
    """Pieces may be large together."""
    assert found(prefix("finalize", memory=3, nbytes=2**30)) == []
    assert found(prefix("random", memory=3, nbytes=2**40)) == []
    assert list(find(view())) == []


def test_a_large_result_in_one_place():
    """Each of them went through one worker's memory."""
    (finding,) = found(prefix("finalize", memory=2, nbytes=2**33))
    assert finding.severity is Severity.warning
    assert "2 results of 8.0 GiB" in finding.message
