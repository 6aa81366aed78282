from __future__ import annotations

from clustertune.checks.spill_space import find
from clustertune.core.model import Severity
from clustertune.testing import details, view, worker

GIB = 2**30


def found(spilled=0, thresholds=None, **disk):
    options = {"spilled": spilled, "details": details(**disk), **(thresholds or {})}
    return list(find(view([worker(i, **options) for i in range(2)])))


def test_silent_with_a_local_disk_with_room():
    """Or where nobody asked."""
    assert found() == []
    assert list(find(view())) == []


def test_silent_where_nothing_spills():
    """Without thresholds, or without a limit, the disk does not matter."""
    off = {"target": None, "spill": None}
    assert found(thresholds=off, disk="tmpfs", disk_free=0) == []
    assert found(thresholds={"memory_limit": 0}, disk_free=0) == []


def test_disks_that_are_none():
    """A warning once there is something on them."""
    for kind, where in (("tmpfs", "in memory"), ("nfs4", "on the network")):
        (finding,) = found(disk=kind)
        assert finding.severity is Severity.info
        assert where in finding.message
        (finding,) = found(spilled=1, disk=kind)
        assert finding.severity is Severity.warning


def test_no_room():
    """Against what all workers on that disk may hold."""
    assert found(disk_free=GIB) == []
    (finding,) = found(disk_free=GIB // 2)
    assert finding.severity is Severity.warning
    assert (
        found(disk_free=2 * GIB, thresholds={"memory_limit": 40 * GIB})[0].severity
        is Severity.info
    )
    (finding,) = found(spilled=1, disk_free=GIB // 2)
    assert finding.severity is Severity.warning
    assert "512.0 MiB are free where workers 0 and 1 spill" in finding.message
