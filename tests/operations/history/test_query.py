"""Trends over past runs: leaks, sufficient workers, regressions; too few runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clustertune.core.findings import Severity
from clustertune.core.snapshots import Unknown
from clustertune.operations.history import query, trends
from clustertune.operations.history.store import Record, WorkerMemory

GIB = 2**30


def fit(workers=2, seconds=10.0, **what):
    defaults = {
        "kind": "fit",
        "job": "nightly",
        "status": "done",
        "began": 0.0,
        "threads": 2 * workers,
        "hosts": workers,
        "host_cpus": 4.0 * workers,
        "workload": "xgboost",
        "rows": 1000,
        "columns": 20,
    }
    return Record(workers=workers, seconds=seconds, **(defaults | what))


# --- size -----------------------------------------------------------------------------


def seen(*peaks, idle=0.4, limit=GIB, **what):
    return fit(
        len(peaks),
        memory=tuple(
            WorkerMemory(
                worker=i, limit=limit, idle=round(idle * GIB), peak=round(p * GIB)
            )
            for i, p in enumerate(peaks)
        ),
        **what,
    )


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (seen(0.61, 0.6, 0.6, 0.6), "peaked at 61% of memory on 4 workers; 3 workers"),
        (seen(0.69, 0.69), "on 2 workers, as many as needed"),
        (seen(0.9, 0.9), "on 2 workers; 4 workers would stay below 70%"),
        (seen(0.9, 0.9, idle=0.8), "workers of this size are too small"),
        (seen(0.4), "peaked at 40% of memory on 1 worker, as many as"),
    ],
)
def test_size(run, text) -> None:
    """The fewest workers on which the fullest is at 70 %."""
    assert text in str(trends.usage(run))


@pytest.mark.parametrize("run", [fit(), seen(0.5, limit=None)])
def test_size_unknown(run) -> None:
    """Without samples, or memory limits, the result is unknown."""
    assert isinstance(trends.usage(run), Unknown)


# --- leaks ----------------------------------------------------------------------------


def after(*idle, kind="run", cluster="a", began=0.0, limit=100 * GIB):
    memory = [WorkerMemory(worker=i, idle=n, limit=limit) for i, n in enumerate(idle)]
    return Record(
        kind=kind, began=began, seconds=1, cluster=cluster, memory=tuple(memory)
    )


def test_a_leak() -> None:
    """The result names the worker and the runs until its limit is full."""
    runs = [after(i * 2 * GIB, 5 * GIB, began=i) for i in range(5)]
    (leak,) = trends.leaks([runs[3], runs[0], runs[1], runs[2], runs[4]])
    assert (leak.worker, leak.step, leak.left) == (0, 2 * GIB, 46)
    assert "worker 0 keeps 2.0 GiB more after each run (of 5)" in str(leak)


def test_no_leak() -> None:
    """Memory may go up and down, grow a little, or be of another cluster."""
    steady = [after(n * GIB) for n in (5, 7, 5, 7, 5, 7)]
    assert trends.leaks(steady) == ()
    assert trends.leaks([after(n) for n in range(5)]) == ()
    assert trends.leaks([after(n, limit=None) for n in range(5)]) == ()
    elsewhere = [after(n * 2 * GIB, cluster="b", began=n) for n in range(5)]
    assert trends.leaks([*elsewhere, *steady]) == ()


def test_a_leak_without_records_of_the_scheduler() -> None:
    """The memory at the beginning of held blocks is used instead."""
    fits = [after(n * 2 * GIB, kind="fit", began=n, limit=None) for n in range(3)]
    (leak,) = trends.leaks([after(0), *fits])
    assert leak.left is None


def test_leaks_unknown() -> None:
    """Two runs are no trend."""
    found = trends.leaks([after(1), after(2)])
    assert str(found) == "unknown: too few runs: 2 of the same cluster, 3 are needed"


@pytest.mark.parametrize(
    ("left", "severity"),
    [(None, "info"), (40, "info"), (10, "warning"), (1.5, "warning"), (1, "critical")],
)
def test_the_severity_of_a_leak(left, severity) -> None:
    """The nearer the limit is, the worse."""
    leak = trends.Leak(worker=0, runs=5, step=1.0, left=left)
    found = query.Trends(
        job="", leaks=(leak,), sizing=Unknown("-"), regressions=Unknown("-")
    )
    assert str(leak.severity) == severity
    assert f"memory ({severity}): worker 0 keeps" in str(found)
    assert json.loads(found.to_json())["severity"] == severity
    levels = [None, *(s for s in Severity if s is not Severity.unknown)]
    codes = [found.exit_status(level) for level in levels]
    assert codes == [0, *(int(leak.severity >= level) for level in levels[1:])]


# --- regressions ----------------------------------------------------------------------


def series(*seconds, **what):
    return [fit(2, s, **what) for s in seconds]


def test_slower() -> None:
    """Slower means by more than three standard deviations."""
    noisy = [100.0, 104.0] * 5
    (found,) = trends.regressions(series(*noisy, 120, 121, 119))
    assert (found.measure, found.worse) == ("time", True)
    assert "time of the last 3 fits is worse: 2 min on average" in str(found)
    assert found.severity is Severity.warning
    (found,) = trends.regressions(series(*noisy, 107, 107, 107))
    assert not found.worse
    assert found.severity is Severity.unknown


def test_growth_below_a_unit_is_ignored() -> None:
    """Smaller growth is ignored, even after constant values."""
    (found,) = trends.regressions(series(*[1.0] * 10, 1.5, 1.5, 1.5))
    assert not found.worse
    assert found.line == 2.0


def test_memory_and_spill() -> None:
    """They are compared if they are known."""
    runs = [seen(0.5, 0.5, spilled=0) for _ in range(10)]
    runs += [seen(0.6, 0.6, spilled=GIB) for _ in range(3)]
    worse = {r.measure: r.worse for r in trends.regressions(runs)}
    assert worse == {"time": False, "peak memory": True, "spill": True}
    unknown = [replace(run, spilled=None) for run in runs]
    assert {r.measure for r in trends.regressions(unknown)} == {
        "time",
        "peak memory",
    }


def test_only_similar_runs_are_compared() -> None:
    """Runs on other numbers of workers or rows are not compared."""
    others = series(*[1.0] * 10, rows=10) + [fit(4, 1.0) for _ in range(10)]
    found = trends.regressions([*others, *series(*[9.0] * 12)])
    assert "too few runs: 12 fits on as many threads" in str(found)
    assert trends.regressions([*others, *series(*[9.0] * 13)])[0].worse is False
    assert "too few runs: 0" in str(trends.regressions([]))


# --- two runs -------------------------------------------------------------------------


def test_two_runs() -> None:
    """Numbers have a ratio, and texts are escaped."""
    first = fit(2, 10.0, error="\x1b[2J")
    found = {d.what: d for d in query.compare(first, fit(4, 5.0, spilled=0))}
    assert found["took"].ratio == "0.5 times"
    assert (found["workers"].first, found["workers"].second) == ("2", "4")
    assert (found["spilled"].first, found["spilled"].second) == ("unknown", "0 B")
    assert found["error"].first == "\\x1b[2J"
    assert "peak predicted" not in found
