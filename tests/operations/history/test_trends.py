"""What past runs tell: leaks, size, what-if, regressions; and when nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertune.core.snapshots import Unknown
from clustertune.operations.history import trends
from clustertune.operations.history.record import Record, WorkerMemory

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


def law(workers, rows=1000):
    """Seconds of a fit: 120 of work on one CPU, 2 for each other worker, 5 always."""
    return 120 * rows / 1000 / (2 * workers) + 2 * (workers - 1) + 5


# --- what if --------------------------------------------------------------------------


def test_what_if_finds_the_law() -> None:
    """Where runs follow it, each part is found, and the error is nothing."""
    found = trends.what_if([fit(n, law(n)) for n in (1, 2, 4, 8)], [3, 16])
    assert not isinstance(found, Unknown)
    assert found.work == pytest.approx(120)
    assert found.communication == pytest.approx(2)
    assert found.fixed == pytest.approx(5)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert [p.seconds for p in found.predictions] == pytest.approx([law(3), law(16)])
    assert [p.outside for p in found.predictions] == [False, True]


def test_the_error_comes_first() -> None:
    """Of points that were left out: one that is odd is predicted from the others."""
    runs = [fit(n, law(n)) for n in (1, 2, 3, 4)]
    runs.append(fit(8, 2 * law(8)))
    found = trends.what_if(runs, [2])
    assert not isinstance(found, Unknown)
    assert found.known[-1].predicted == pytest.approx(law(8))
    assert found.known[-1].error == pytest.approx(-0.5)
    assert found.worst >= 0.5 - 1e-9
    lines = str(found).splitlines()
    assert lines[0].startswith("error at known points, each left out in turn: ")
    # 26.5, but for what the fit rounds
    either = {f"  8 workers: 53 s measured (1 run), {n} s predicted" for n in (26, 27)}
    assert either & set(lines)


def test_rows_count() -> None:
    """Runs on other numbers of rows tell, too; the prediction is for the last one's."""
    runs = [fit(n, law(n, rows), rows=rows) for n in (1, 2, 4) for rows in (500, 1000)]
    found = trends.what_if(runs, [8])
    assert not isinstance(found, Unknown)
    assert found.predictions[0].seconds == pytest.approx(law(8))


def test_the_median_of_equal_runs_counts() -> None:
    """One that went wrong somehow changes nothing."""
    runs = [fit(n, law(n)) for n in (1, 2, 4) for _ in range(3)]
    found = trends.what_if([*runs, fit(2, 1000.0), *runs], [8])
    assert not isinstance(found, Unknown)
    assert found.predictions[0].seconds == pytest.approx(law(8))


def test_workers_that_share_a_host() -> None:
    """More of them do not bring more CPUs, and that is said."""
    runs = [
        fit(n, 60 / min(2 * n, 4) + n, hosts=1, host_cpus=4.0) for n in (1, 2, 3, 4)
    ]
    found = trends.what_if(runs, [2, 8])
    assert not isinstance(found, Unknown)
    two, eight = (p.seconds for p in found.predictions)
    assert two == pytest.approx(17)
    assert eight == pytest.approx(23)
    assert "shared one host of 4 CPUs" in str(found)


def test_one_worker_on_a_host_may_be_one_of_many() -> None:
    """It does not mean that others would be on that host."""
    runs = [fit(n, law(n), hosts=n) for n in (1, 2, 4)]
    found = trends.what_if(runs, [8])
    assert not isinstance(found, Unknown)
    assert found.single_host is None


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        ([], "no fit of this job was held yet"),
        ([fit(1), fit(1)], "held on 1 worker;"),
        ([fit(1), fit(2), fit(2)], "held on 1 and 2 workers; 3 different"),
        ([fit(1), fit(2), fit(4, status="failed")], "3 different"),
        ([fit(1), fit(2), fit(4, kind="run")], "3 different"),
        ([fit(1, workload="lightgbm"), fit(2), fit(4)], "held on 2 and 4 workers"),
        ([fit(1, columns=3), fit(2), fit(4)], "held on 2 and 4 workers"),
        ([fit(1, job="other"), fit(2), fit(4)], "held on 2 and 4 workers"),
        ([fit(1, rows=None), fit(2), fit(4)], "held on 2 and 4 workers"),
    ],
)
def test_too_few_runs(runs, text) -> None:
    """Nothing is guessed from them."""
    found = trends.what_if(runs, [2])
    assert isinstance(found, Unknown)
    assert "too few runs" in found.reason
    assert text in str(found)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.floats(0.01, 1e5), st.integers(1, 10**9)),
        min_size=3,
        max_size=12,
        unique_by=lambda x: x[0],
    ),
    st.integers(1, 1000),
)
def test_any_runs(points, asked) -> None:
    """No part is negative; whatever was seen, a prediction is a time."""
    runs = [fit(n, seconds, rows=rows) for n, seconds, rows in points]
    found = trends.what_if(runs, [asked])
    assert not isinstance(found, Unknown)
    assert min(found.work, found.communication, found.fixed) >= 0
    assert 0 < found.predictions[0].seconds < float("inf")
    assert found.worst >= found.error >= 0


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
        (seen(0.69, 0.69), "on 2 workers, which are as many as it needs"),
        (seen(0.9, 0.9), "on 2 workers; 4 workers would stay below 70%"),
        (seen(0.9, 0.9, idle=0.8), "workers of this size are too small"),
        (seen(0.4), "peaked at 40% of memory on 1 worker, which are"),
    ],
)
def test_size(run, text) -> None:
    """The fewest workers on which the fullest is at 70 %."""
    assert text in str(trends.sizing(run))


@pytest.mark.parametrize("run", [fit(), seen(0.5, limit=None)])
def test_size_unknown(run) -> None:
    """Without looks, or limits, there is nothing to say."""
    assert isinstance(trends.sizing(run), Unknown)


# --- leaks ----------------------------------------------------------------------------


def after(*idle, kind="run", cluster="a", began=0.0, limit=100 * GIB):
    memory = [WorkerMemory(worker=i, idle=n, limit=limit) for i, n in enumerate(idle)]
    return Record(
        kind=kind, began=began, seconds=1, cluster=cluster, memory=tuple(memory)
    )


def test_a_leak() -> None:
    """Of the worker that leaks, and how long it can go on."""
    runs = [after(i * 2 * GIB, 5 * GIB, began=i) for i in range(5)]
    (leak,) = trends.leaks([runs[3], runs[0], runs[1], runs[2], runs[4]])
    assert (leak.worker, leak.step, leak.left) == (0, 2 * GIB, 46)
    assert "worker 0 keeps 2.0 GiB more after each run (of 5)" in str(leak)


def test_no_leak() -> None:
    """Memory that goes up and down, rises by little, or was seen on another cluster."""
    steady = [after(n * GIB) for n in (5, 7, 5, 7, 5, 7)]
    assert trends.leaks(steady) == ()
    assert trends.leaks([after(n) for n in range(5)]) == ()
    assert trends.leaks([after(n, limit=None) for n in range(5)]) == ()
    elsewhere = [after(n * 2 * GIB, cluster="b", began=n) for n in range(5)]
    assert trends.leaks([*elsewhere, *steady]) == ()


def test_a_leak_without_what_the_scheduler_saw() -> None:
    """Held blocks tell it by what workers have when they begin."""
    fits = [after(n * 2 * GIB, kind="fit", began=n, limit=None) for n in range(3)]
    (leak,) = trends.leaks([after(0), *fits])
    assert leak.left is None


def test_leaks_unknown() -> None:
    """Two runs are no trend."""
    found = trends.leaks([after(1), after(2)])
    assert str(found) == "unknown: too few runs: 2 of the same cluster, 3 are needed"


# --- regressions ----------------------------------------------------------------------


def series(*seconds, **what):
    return [fit(2, s, **what) for s in seconds]


def test_slower() -> None:
    """Beyond three standard deviations of those before."""
    noisy = [100.0, 104.0] * 5
    (found,) = trends.regressions(series(*noisy, 120, 121, 119))
    assert (found.measure, found.worse) == ("time", True)
    assert "time of the last 3 fits is worse: 2 min on average" in str(found)
    (found,) = trends.regressions(series(*noisy, 107, 107, 107))
    assert not found.worse


def test_less_than_a_unit_is_nothing() -> None:
    """However steady it was before."""
    (found,) = trends.regressions(series(*[1.0] * 10, 1.5, 1.5, 1.5))
    assert not found.worse
    assert found.line == 2.0


def test_memory_and_spill() -> None:
    """Are compared where they are known."""
    runs = [seen(0.5, 0.5, spilled=0) for _ in range(10)]
    runs += [seen(0.6, 0.6, spilled=GIB) for _ in range(3)]
    worse = {r.measure: r.worse for r in trends.regressions(runs)}
    assert worse == {"time": False, "peak memory": True, "spill": True}
    unknown = [replace(run, spilled=None) for run in runs]
    assert {r.measure for r in trends.regressions(unknown)} == {"time", "peak memory"}


def test_only_what_is_alike_is_compared() -> None:
    """Other workers and rows take another time, and are no regression."""
    others = series(*[1.0] * 10, rows=10) + [fit(4, 1.0) for _ in range(10)]
    found = trends.regressions([*others, *series(*[9.0] * 12)])
    assert "too few runs: 12 fits on as many threads" in str(found)
    assert trends.regressions([*others, *series(*[9.0] * 13)])[0].worse is False
    assert "too few runs: 0" in str(trends.regressions([]))


# --- two runs -------------------------------------------------------------------------


def test_two_runs() -> None:
    """Side by side, with the ratio of what are numbers; names cannot act."""
    first = fit(2, 10.0, error="\x1b[2J")
    found = {d.what: d for d in trends.compare(first, fit(4, 5.0, spilled=0))}
    assert found["took"].ratio == "0.5 times"
    assert (found["workers"].first, found["workers"].second) == ("2", "4")
    assert (found["spilled"].first, found["spilled"].second) == ("unknown", "0 B")
    assert found["error"].first == "\\x1b[2J"
    assert "peak predicted" not in found
