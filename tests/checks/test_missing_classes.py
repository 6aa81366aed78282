from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustertune.checks.missing_classes import ERROR, find
from clustertune.core.model import Contents, Severity
from clustertune.errors import ClassCoverageError
from clustertune.remote.worker import content
from clustertune.testing import layout, view, worker

THREE = [worker(i) for i in range(3)]


def found(*pieces, homes=(0, 1), needed=False, workers=(), **goal):
    """In data with pieces of these labels, one for each row; None: no classes."""
    looked = [
        {"classes": None} if p is None else content.classes(np.array([*p]), 64)
        for p in pieces
    ]
    data = layout(
        [1 if p is None else len(p) for p in pieces],
        list(homes),
        contents=Contents(pieces=tuple(looked)),
    )
    seen = view(workers, [data], **goal)
    workload = replace(seen.goal.workload, needs_all_classes=needed)
    return list(find(replace(seen, goal=replace(seen.goal, workload=workload))))


@pytest.mark.parametrize("needed", [False, True])
def test_silent_where_all_are_everywhere(needed):
    """On every worker, not in every piece; of what are no classes nothing is said."""
    assert found("ab", "ba", needed=needed) == []
    assert found("a", "b", "b", "a", homes=(0, 0, 1, 1), needed=needed) == []
    assert found(None, "a", needed=needed) == []
    assert found("aa", "a", needed=needed) == []
    assert list(find(view((), [layout([10], [0])]))) == []
    assert list(find(view())) == []


def test_silent_of_workers_without_rows():
    """Other checks speak of them, where rows will come to them anyway."""
    assert found("ab", "ab", homes=(0, 0)) == []
    paused = [worker(0), worker(1), worker(2, status="paused")]
    assert found("ab", "ab", "a", homes=(0, 1, 2), needed=True, workers=paused) == []


def test_silent_before_pieces_fit_each_other():
    """Where y is cut otherwise than X, its pieces are not those of the workers."""
    data = layout([2, 2], [0, 1], contents=Contents(pieces=({"classes": [["a", 2]]},)))
    y = replace(data.members[1], rows=np.array([1, 3]))
    data = replace(data, members=(data.members[0], y))
    assert list(find(view((), [data]))) == []


def test_a_worker_lacks_one():
    """As bad as the workload takes it."""
    (finding,) = found("abc", "a")
    assert finding.severity is Severity.info
    assert finding.subject == (1,)
    assert "worker 1 lacks 2, for example b" in finding.message
    assert finding.fixed_by == ""
    (finding,) = found("abcabc", "aa", needed=True)
    assert finding.severity is Severity.critical
    assert finding.subject == ("X", "y")
    assert finding.evidence == {"classes": 3, "workers": 1}
    assert ERROR is ClassCoverageError


def test_whole_pieces_move_where_that_will_do():
    """Else they are cut, if they may be."""
    (finding,) = found("a", "b", "b", "a", homes=(0, 1, 1, 0), needed=True)
    assert finding.fixed_by == "rebalance"
    (finding,) = found("aa", "bb", needed=True)
    assert finding.fixed_by == "rechunk"
    (finding,) = found("aa", "bb", needed=True, rechunk=False)
    assert finding.fixed_by == ""
    # each is in two pieces, and yet three pieces cannot be shared out to two workers
    (finding,) = found("ab", "ac", "bc", homes=(0, 0, 1), needed=True)
    assert finding.fixed_by == "rechunk"


def test_a_worker_without_rows_lacks_all():
    """Where it will need them."""
    (finding,) = found("ab", "ab", homes=(0, 0), needed=True)
    assert "worker 1 lacks 2" in finding.message


def test_fewer_rows_than_workers():
    """No way to share them out: the text says what to do."""
    (finding,) = found("aaa", "aab", "aba", homes=range(3), needed=True, workers=THREE)
    assert finding.severity is Severity.critical
    assert finding.message == (
        "class b of y has 2 rows, too few for 3 workers: Any training library needs "
        "every class on each"
    )
    assert finding.fixed_by == ""
    assert "train on 2 workers, named in workers=" in finding.remedy


def test_labels_of_an_unknown_estimator():
    """They are shared out where that is possible; nothing is refused."""
    (finding,) = found("aa", "bb", needed=None)
    assert finding.severity is Severity.warning
    assert finding.fixed_by == "rechunk"
    (finding,) = found("aaa", "aab", "aba", homes=range(3), needed=None, workers=THREE)
    assert finding.severity is Severity.info
    assert finding.fixed_by == ""
    assert finding.message.startswith("label b of y has 2 rows, too few for 3 workers")
    assert "estimator=" in finding.remedy


def test_a_class_of_a_strange_name():
    """It comes from the data, and may be anything."""
    (finding,) = found(["\x1b[2J", "b"], ["b"], needed=True)
    assert "\x1b" not in finding.message
