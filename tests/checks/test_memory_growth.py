from __future__ import annotations

from clustertune.checks.memory_growth import find
from clustertune.model import Severity
from clustertune.testing import runs, view, worker

MIB = 2**20


def found(*floors, **options):
    """Of one worker, from its floors after each run, in MiB."""
    past = runs(*({0: n * MIB} for n in floors))
    return list(find(view([worker(0)], runs=past), **options))


def test_silent_where_nobody_asked():
    """Prepare does not ask for past runs."""
    assert list(find(view())) == []


def test_silent_where_memory_stays():
    """Up and down, less than counts, or a first rise that ends."""
    for floors in ((200, 210, 195, 205), (200, 210, 220), (200, 700, 702, 701, 703)):
        assert found(*floors) == []


def test_unknown_with_too_few_runs():
    """Two runs make one step, which may be chance."""
    for floors, text in (((), "no run was seen yet"), ((200, 900), "2 runs")):
        (finding,) = found(*floors)
        assert finding.severity is Severity.unknown
        assert text in finding.message


def test_growth_is_found_with_the_runs_that_are_left():
    """By the median step: one that is odd does not count for much."""
    (finding,) = found(200, 700, 1200, 1300, 1800)
    assert finding.severity is Severity.warning
    # pauses at 0.8 of 4 GiB: (3276.8 - 1800) / 500
    assert finding.evidence == {"bytes_per_run": 500 * MIB, "runs_left": 3}
    assert "after about 3 more runs" in finding.message
    (finding,) = found(200, 250, 300, 350)
    assert finding.severity is Severity.info


def test_silent_for_workers_that_are_new_or_never_pause():
    """They have no past, or nothing to run into."""
    past = runs({0: 200 * MIB}, {0: 700 * MIB}, {0: 1200 * MIB})
    assert list(find(view([worker(1)], runs=past))) == []
    assert list(find(view([worker(0, pause=None)], runs=past))) == []
    assert list(find(view([worker(0, memory_limit=0)], runs=past))) == []
