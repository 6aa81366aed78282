from __future__ import annotations

from clustertune.checks.other_clients import find
from clustertune.core.model import ClientFacts, Severity
from clustertune.testing import survey, view


def found(*clients):
    some = [ClientFacts(id=i, keys=n, silent=s) for i, n, s in clients]
    return list(find(view(survey=survey(clients=tuple(some)))))


def test_silent_where_there_is_nobody_else():
    """The one that asks, published data, and clients without data."""
    assert found(("Client-me", 5, 1), ("published-X", 5, 0), ("Client-b", 0, 0)) == []
    assert list(find(view())) == []


def test_others():
    """How many, with how much, and whether one is silent."""
    (finding,) = found(("Client-me", 5, 1), ("Client-b", 7, 1))
    assert finding.severity is Severity.info
    assert finding.message == "1 other client of this cluster keeps 7 keys"
    (finding,) = found(("a", 7, 1), ("b", 3, 600))
    assert "keep 10 keys; one is silent for 10 min" in finding.message
