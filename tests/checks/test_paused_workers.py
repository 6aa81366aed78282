"""The check ``paused_workers``."""

from clustertune.checks.paused_workers import find
from clustertune.model import Severity
from clustertune.testing import snapshot, view, worker


def found(*workers, **goal):
    """Findings for these workers."""
    return list(find(view(workers=workers, **goal)))


def test_silent_while_all_run():
    """Running workers, and those that are only starting, are no finding."""
    assert found(worker(0), worker(1, status="init")) == []


def test_paused_workers_are_critical():
    """All paused workers are one finding that says what does not happen there."""
    (finding,) = found(worker(0), *(worker(i, status="paused") for i in (1, 2)))
    assert finding.severity is Severity.critical
    assert finding.subject == (1, 2)
    assert finding.message == (
        "workers 1 and 2 are paused: no task starts there and no data is placed there; "
        "a fit that needs them can hang"
    )


def test_a_paused_worker_that_was_not_asked_for_is_information():
    """A fit on other workers does not depend on it."""
    (finding,) = found(worker(0), worker(1, status="paused"), goal_workers=[0])
    assert finding.severity is Severity.info
    assert finding.subject == (1,)


def test_how_long_is_told_as_far_as_it_was_seen():
    """The time is counted from the first of the snapshots that show it paused."""
    window = [
        snapshot([worker(0, status=status)], time=time)
        for time, status in [(0, "paused"), (10, "running"), (20, "paused")]
    ]
    window.append(snapshot([worker(0, status="paused")], time=50.0))
    (finding,) = find(view(snapshots=window))
    assert "paused, for at least 30 s:" in finding.message
    assert finding.evidence["seconds"] == 30


def test_the_longest_time_is_that_of_one_of_them():
    """Of several workers the longest pause is told, and that it is one's."""
    early = snapshot([worker(0, status="paused"), worker(1)], time=0)
    late = snapshot([worker(i, status="paused") for i in (0, 1)], time=40.0)
    (finding,) = find(view(snapshots=[early, late]))
    assert "paused, one of them for at least 40 s:" in finding.message


def test_a_closing_worker_is_a_warning():
    """A worker that closes gracefully does not train, but nothing hangs on it."""
    (finding,) = found(worker(0), worker(1, status="closing_gracefully"))
    assert finding.severity is Severity.warning
    assert finding.message == "worker 1 is about to close and will not train"
