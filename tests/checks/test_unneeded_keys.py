from __future__ import annotations

from clustertune.checks.unneeded_keys import find
from clustertune.core.model import Severity
from clustertune.testing import layout, prefix, survey, view, worker

GIB = 2**30


def found(managed, *prefixes, layouts=None):
    data = layout([1000] * 4, [0, 0, 1, 1])  # 352,000 bytes
    some = [worker(i, managed=managed) for i in range(2)]
    given = [data] if layouts is None else layouts
    return list(find(view(some, given, survey=survey(prefixes=prefixes))))


def test_silent_where_others_take_little():
    """Of 8 GiB; or nothing was given to compare with; or nobody asked."""
    assert found(GIB // 4) == []
    assert found(3 * GIB, layouts=[]) == []
    assert list(find(view([worker(0, managed=3 * GIB)], [layout([1], [0])]))) == []


def test_other_keys():
    """The largest kinds that are in memory are named."""
    kinds = (
        prefix("old", memory=5, nbytes=GIB),
        prefix("gone", memory=0, nbytes=9 * GIB),
        prefix("small", memory=1, nbytes=10),
    )
    (finding,) = found(GIB // 2, *kinds)
    assert finding.severity is Severity.info
    assert "largest kinds of all keys: old (1.0 GiB)" in finding.message
    (finding,) = found(2 * GIB, *kinds)
    assert finding.severity is Severity.warning
