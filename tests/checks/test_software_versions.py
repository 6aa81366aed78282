from __future__ import annotations

from dataclasses import replace

from clustertune.checks.software_versions import find
from clustertune.core.model import Severity
from clustertune.testing import details, survey, view, worker


def found(client, scheduler, *workers, needed=()):
    some = [worker(i, details=details(packages=p)) for i, p in enumerate(workers)]
    both = {"client": client, "scheduler": scheduler}
    seen = view(some, survey=survey(packages=both))
    workload = replace(seen.goal.workload, packages=needed)
    return list(find(replace(seen, goal=replace(seen.goal, workload=workload))))


def test_silent_where_they_are_the_same():
    """What a side does not have is no difference."""
    same = {"dask": "1"}
    assert found({**same, "xgboost": "3"}, same, {**same, "xgboost": "3"}, same) == []
    assert list(find(view())) == []


def test_other_releases():
    """Named for each side, workers counted."""
    (finding,) = found(
        {"xgboost": "3.2"},
        {},
        {"xgboost": "3.1"},
        {"xgboost": "3.1"},
        {"xgboost": "3.2"},
    )
    assert finding.severity is Severity.warning
    text = "xgboost differs: client 3.2, 2 workers 3.1, 1 worker 3.2"
    assert finding.message == text


def test_what_trains_is_missing():
    """Where the workload needs it, the fit cannot run there."""
    (finding,) = found({}, {}, {"xgboost": "3"}, {}, needed=("xgboost", "x"))
    assert finding.severity is Severity.critical
    assert finding.subject == (1,)
