"""The check ``large_groups``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustertune.checks.large_groups import ERROR, find
from clustertune.core.model import Contents, Severity
from clustertune.errors import GroupSplitError
from clustertune.remote.worker import content
from clustertune.testing import layout, view, worker

MIB = 2**20


def found(*pieces, needs="together", loaded=True, limit=1000 * MIB, row_bytes=MIB):
    """In data with these groups, one for each row of a MiB."""
    looked = Contents(pieces=tuple(content.runs(np.array(p)) for p in pieces))
    homes = [0] * len(pieces) if loaded else None
    data = layout(
        [len(p) for p in pieces],
        homes,
        ("X", "qid"),
        row_bytes={"X": row_bytes - 8},
        contents=looked,
    )
    workers = [worker(i, memory_limit=limit, process=0) for i in range(2)]
    seen = view(workers, [data])
    workload = replace(seen.goal.workload, groups=needs)
    return list(find(replace(seen, goal=replace(seen.goal, workload=workload))))


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="they fit"),
        pytest.param({"limit": 4 * MIB, "needs": ""}, id="nobody needs them whole"),
        pytest.param({"limit": 4 * MIB, "loaded": False}, id="not loaded"),
    ],
)
def test_silent(how):
    """Where the largest group has room, or none is needed."""
    assert found([7] * 5, [8], **how) == []
    assert list(find(view())) == []


def test_one_that_fits_no_worker():
    """Rows of all its runs count; its name comes from the data."""
    (finding,) = found(["a\x07", "b"], ["a\x07"] * 3, limit=5 * MIB)
    assert finding.severity is Severity.critical
    assert "\x07" not in finding.message
    assert finding.message.endswith(
        "of qid has 4 rows (4.0 MiB), and no worker has more room than 3.0 MiB below "
        "the lines at which it spills"
    )
    assert finding.evidence == {"rows": 4, "bytes": 4 * MIB}
    assert finding.fixed_by == ""
    assert ERROR is GroupSplitError
