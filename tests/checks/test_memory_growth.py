from __future__ import annotations

from dataclasses import replace

from clustertune.checks.memory_growth import find
from clustertune.core.model import Severity
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
    # spills at 0.7 of 4 GiB: (2867.2 - 1800) / 500
    assert finding.evidence == {
        "bytes_per_run": 500 * MIB,
        "runs": 5,
        "runs_until_spill": 3,
        "runs_until_pause": 3,
        "runs_until_terminate": 5,
    }
    assert finding.message == (
        "unmanaged memory of worker 0 grows from run to run: worker 0 keeps 500.0 MiB "
        "more after each of the last 5 runs. It will spill (at 2.8 GiB) in run 3 from "
        "now, pause (at 3.2 GiB) in run 3 from now and be killed by its nanny (at 3.8 "
        "GiB) in run 5 from now"
    )
    assert "between two runs, after at most 2 more runs" in finding.remedy
    (finding,) = found(1200, 2000, 2800)
    assert "run ``clustertune.restart(client)`` before the next run" in finding.remedy
    (finding,) = found(200, 250, 300, 350)
    assert finding.severity is Severity.info


def test_silent_for_workers_that_are_new_or_never_pause():
    """They have no past, or no threshold to reach."""
    past = runs({0: 200 * MIB}, {0: 700 * MIB}, {0: 1200 * MIB})
    assert list(find(view([worker(1)], runs=past))) == []
    none = worker(0, spill=None, pause=None, terminate=None)
    assert list(find(view([none], runs=past))) == []
    (finding,) = find(view([worker(0, pause=None)], runs=past))
    assert "runs_until_pause" not in finding.evidence
    assert list(find(view([worker(0, memory_limit=0)], runs=past))) == []


def test_only_runs_that_ended_alike_are_compared():
    """A computation after each fit is a run as well, and need not leak."""
    past = runs(*({0: n * MIB} for n in (200, 201, 700, 701, 1200, 1201)))
    ends = ("training", "gap") * 3
    alike = tuple(replace(run, ended_by=end) for run, end in zip(past, ends))
    (finding,) = find(view([worker(0)], runs=alike))
    assert finding.evidence["bytes_per_run"] == 500 * MIB
    assert finding.evidence["runs"] == 3


def test_memory_that_comes_with_data_is_no_leak():
    """Loading data grows the process by more than the keys."""
    past = runs(*({0: n * MIB} for n in (200, 700, 1200)))
    loaded = tuple(
        replace(run, managed={0: i * 600 * MIB}) for i, run in enumerate(past)
    )
    assert list(find(view([worker(0)], runs=loaded))) == []
