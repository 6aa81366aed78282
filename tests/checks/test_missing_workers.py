"""The check ``missing_workers``."""

import pytest

from clustertune.checks.missing_workers import find
from clustertune.core.model import Severity
from clustertune.testing import snapshot, view, worker


def test_none_at_all():
    """Nothing can run, whatever was asked for."""
    (finding,) = find(view(snapshots=[snapshot([])]))
    assert finding.severity is Severity.critical
    assert finding.message == "no worker is running (workers: none)"
    (finding,) = find(view([worker(i, status="paused") for i in range(2)]))
    assert finding.message == "no worker is running (workers: 2 paused)"


@pytest.mark.parametrize("n_workers", [None, 1, 2])
def test_silent_with_enough_workers(n_workers):
    """No number was asked for, or as many or more run."""
    assert list(find(view(n_workers=n_workers))) == []


def test_fewer_running_workers_than_asked_for_are_a_warning():
    """A paused worker is not one of those that were asked for."""
    workers = [worker(0), worker(1, status="paused")]
    (finding,) = find(view(workers=workers, n_workers=4))
    assert finding.severity is Severity.warning
    assert finding.message == "1 of 4 wanted workers running"
    assert finding.evidence == {"have": 1, "wanted": 4, "can_scale": True}


def test_why_the_cluster_cannot_be_scaled_is_said():
    """Where the client cannot scale, the reason is part of the finding."""
    moment = snapshot([], can_scale="it was connected by address")
    (finding,) = find(view(snapshots=[moment], n_workers=1))
    assert finding.message == (
        "0 of 1 wanted worker running; this client cannot scale it: it was connected "
        "by address"
    )
    assert finding.evidence["can_scale"] is False
