"""The memory that a fit needs on every worker, and changes that make it enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask.utils import parse_bytes
from distributed import wait
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import clustertune
from clustertune.checks.memory import fit_memory
from clustertune.core.model import Goal, Profile, Unknown, View
from clustertune.core.profiles import ByteRange, TrainingShare
from clustertune.core.wording import bytes_text
from clustertune.integrations import libraries
from clustertune.planner import forecast
from clustertune.planner.forecast import expected_workers
from tests.builders import layout, snapshot, view, worker
from tests.memory_cluster import MemoryCluster
from tests.operations.test_loop import run
from tests.processes import workers_of

MIB = 2**20
TRIPLE = Profile(name="t", title="T", memory_multiple={4: 4.0, 8: 3.0})


def data(nbytes: int, label: str = "training data", **fields: Any) -> Any:
    """Return an X of so many bytes, on the first worker."""
    name = "X" if label == "training data" else f"{label}.X"
    widths = {name: nbytes}
    return layout([1], [0], [name], widths, label, **fields)


def small(id: int, **fields: Any) -> Any:
    """Return a worker of 1000 bytes: a fit may use 700, and 100 are in use."""
    return worker(id, **{"memory_limit": 1000, "process": 100, **fields})


def totals(seen: View) -> list[float]:
    found = forecast.needs(seen)
    assert not isinstance(found, Unknown)
    return [need.total for need in found]


def is_enough(seen: View) -> bool:
    found = forecast.needs(seen)
    assert not isinstance(found, Unknown)
    return not forecast.short(found)


# --- how much -------------------------------------------------------------------------


def test_a_process_has_at_least_the_library() -> None:
    """A new worker will import the library; a larger process has done so."""
    profile = replace(TRIPLE, base_bytes=250)
    some = [small(0), small(1, process=300)]
    assert totals(view(some, [data(100)], workload=profile)) == [400, 450]


def test_other_keys_stay() -> None:
    """Other keys are not unmanaged memory, and are added to the library."""
    profile = replace(TRIPLE, base_bytes=250)
    some = [small(0, process=300, managed=200)]
    assert totals(view(some, [data(50)], workload=profile)) == [250 + 150 + 150]


def test_eval_sets_take_the_same_multiple() -> None:
    """Each eval set has the multiple of its item size."""
    some = [small(0), small(1)]
    sets = [data(100), data(40, "eval_set[0]", itemsize=4)]
    assert totals(view(some, sets, workload=TRIPLE)) == [100 + 150 + 80] * 2


def test_copies_of_eval_sets_are_on_every_worker() -> None:
    """More workers do not make copies of eval sets smaller."""
    profile = replace(TRIPLE, eval_copies=True)
    some = [small(i) for i in range(2)]
    seen = view(some, [data(100), data(40, "eval_set[0]")], workload=profile)
    assert totals(seen) == [100 + 150 + 120] * 2
    large = view(some, [data(2000), data(40, "eval_set[0]")], workload=profile)
    assert forecast.workers_needed(large) == -(-6000 // (700 - 100 - 120))


def test_threads_do_not_count_with_equal_shares() -> None:
    """Workers that take each step together get equal shares of the rows."""
    profile = replace(TRIPLE, equal_shares=True)
    some = [small(0, nthreads=4), small(1, nthreads=2)]
    seen = view(some, [data(300)], workload=profile)
    assert totals(seen) == [100 + 450] * 2
    assert forecast.workers_needed(seen) == 2


def test_a_rounding_error_needs_no_more_workers() -> None:
    """Ten workers lack 0.3 bytes each, which counts as enough."""
    seen = view([small(i) for i in range(2)], [data(2001)], workload=TRIPLE)
    assert forecast.workers_needed(seen) == 10
    assert is_enough(replace(seen, goal=replace(seen.goal, n_workers=10)))


def test_workers_still_to_be_started_are_expected() -> None:
    """The goal's number counts, unless workers were named or more run already."""
    assert expected_workers(view()) == 2
    assert expected_workers(view(n_workers=5)) == 5
    assert expected_workers(view(n_workers=1)) == 2
    assert expected_workers(view(n_workers=5, goal_workers=[0])) == 1


def test_no_worker_has_no_peak() -> None:
    """The last worker has ended, and its data can be computed again."""
    ended = replace(view([worker()], [layout([1], [0])]), snapshots=(snapshot(()),))
    profile = libraries.choose("xgboost")
    assert forecast.peaks(replace(ended, goal=Goal(workload=profile))) == {}


def test_peaks_are_of_the_data_where_it_lies() -> None:
    """Peaks are by worker; a worker without training data keeps its memory."""
    profile = replace(TRIPLE, base_bytes=250)
    some = [small(0, process=300, managed=200), small("b")]
    seen = view(some, [data(200)], workload=profile)
    assert forecast.peaks(seen) == {0: 250 + 600, "b": 100}
    assert forecast.peaks(view(some, [layout([1], None)])) == {}
    assert forecast.peaks(view(some)) == {}
    copies = replace(profile, eval_copies=True)
    sets = [data(200), data(10, "eval_set[0]")]
    some = [small(0, process=310, managed=210), small("b")]
    seen = view(some, sets, workload=copies)
    assert forecast.peaks(seen) == {0: 250 + 600 + 30, "b": 100}


def test_intermediate_results_are_of_partitions_in_work() -> None:
    """Each thread works on one partition; the largest ones count."""
    profile = replace(TRIPLE, partition_multiple={8: 3.0}, partitions_per_thread=2)
    some = [small(0, process=300, managed=200), small("b", nthreads=2)]

    def peak(*nbytes: int) -> int:
        one = layout(list(nbytes), [0] * len(nbytes), ["X"], {"X": 1})
        return forecast.peaks(view(some, [one], workload=profile))[0]

    assert peak(100, 100) == 100 + 600
    assert peak(200) == 100 + 300 + 600
    assert peak(50, 50, 50, 50) == 100 + 300 + 150
    assert peak(100, 50, 50) == 100 + 300 + 300
    some[0] = replace(some[0], nthreads=3)
    assert peak(50, 50, 50, 50) == 100 + 300 + 450
    assert peak(150, 50) == 100 + 300 + 600


def test_given_partitions_that_were_cut_will_be_gone() -> None:
    """The caller holds the old partitions while prepare runs, but not in the fit.

    So the forecast equals that of data that had the new partitions from the start.
    """
    some = [worker(i, memory_limit=2**30, process=100 * MIB) for i in range(2)]
    partitions = layout([MIB], [0], ["X"], {"X": 80})
    held = 80 * MIB
    some[0] = replace(some[0], managed=held, counted=held, process=held + 100 * MIB)

    class Keeps(MemoryCluster):
        """Data whose caller holds the old partitions."""

        async def look(self, notify: Any) -> View:
            seen = await super().look(notify)
            if not self.recuts:
                return seen
            full, *rest = seen.now.workers
            full = replace(
                full, managed=full.managed + held, process=full.process + held
            )
            return replace(seen, snapshots=(replace(seen.now, workers=(full, *rest)),))

    journal = run(Keeps(view(some, [partitions], workload=TRIPLE)))
    last = journal.views[-1]
    assert last.replaced == {0: held, 1: 0}
    assert forecast.peaks(last) == {0: 220 * MIB, 1: 220 * MIB}
    freed = view(some, [partitions], workload=TRIPLE, release_inputs=True)
    assert not run(MemoryCluster(freed)).views[-1].replaced


# --- by the source of the library -----------------------------------------------------


def between(least: float, most: float) -> Profile:
    """Return a library whose fit takes these bytes for each row and worker."""

    def fit_memory(share: TrainingShare) -> ByteRange:
        assert share.columns == 100
        assert share.all_rows == share.rows * share.workers
        return ByteRange(least * share.rows, most * share.rows)

    return replace(TRIPLE, fit_memory=fit_memory)


def test_memory_by_the_source_replaces_the_multiple() -> None:
    """The training data is one row of 800 bytes, half of it for each worker."""
    some = [small(0), small(1)]
    sets = [data(800), data(40, "eval_set[0]")]
    seen = view(some, sets, workload=between(10, 12))
    assert totals(seen) == [100 + 400 + 60 + 5] * 2
    found = forecast.needs(seen)
    assert not isinstance(found, Unknown)
    assert [need.most for need in found] == [100 + 400 + 60 + 6] * 2


def test_a_wide_range_is_unknown() -> None:
    """A prediction has the middle of the range, if it differs by at most 15 %."""
    some = [small(0)]

    def peak(least: float, most: float) -> int | None:
        seen = view(some, [data(800)], workload=between(least, most))
        return forecast.peaks(seen).get(0)

    assert peak(40, 60) == 100 + 800 + 50
    assert peak(0, 400) is None


def test_the_check_prints_a_wide_range() -> None:
    """It is unknown whether the memory is enough if only the least fits."""

    def found(limit: int) -> list[tuple[str, str]]:
        some = [small(0, memory_limit=limit)]
        seen = view(some, [data(800)], workload=between(0, 400))
        findings = [*fit_memory(seen)]
        assert not any("..." in f.remedy for f in findings)  # code has to run
        return [(f.severity.name, f.message) for f in findings]

    assert found(10_000) == []
    assert found(1500) == [("unknown", ANY)]
    assert "the fit takes between 900 B and 1.3 KiB on worker 0" in found(1500)[0][1]
    assert found(1000) == [("warning", ANY)]


# --- ways out -------------------------------------------------------------------------


def test_the_cheapest_come_first() -> None:
    """Changes are sorted by effort, each with its effect, and all suffice."""
    some = [
        worker(i, memory_limit=2200 * MIB, process=1100 * MIB, managed=1000 * MIB)
        for i in range(2)
    ]
    X = layout([1, 1], [0, 1], ["X"], {"X": 500 * MIB})
    seen = view(some, [X], workload=TRIPLE)
    more, larger = forecast.ways(seen)
    assert more == (
        '`X = clustertune.prepare(client, X, estimator="t", n_workers=4).X` '
        "(then at most 1.3 GiB per worker)"
    )
    assert larger == (
        '`clustertune.resize_workers(client, memory_limit="3.0 GiB")` '
        "(then at most 2.1 GiB per worker)"
    )
    float32, release = forecast.savings(seen)
    assert float32 == 'X = X.astype("float32")'
    assert release == "clustertune.release_data(client, keep=[X])"
    (finding,) = fit_memory(seen)
    assert finding.remedy == (
        f"Do one of these: {more}; {larger}. `{float32}` or `{release}` also "
        "makes the need smaller"
    )


def test_no_single_change_is_enough() -> None:
    """Larger workers always are."""
    profile = replace(TRIPLE, memory_multiple={4: 3.0, 8: 3.0})
    seen = view([small(0, managed=700, process=800)], [lazy(300)], workload=profile)
    (larger,) = forecast.ways(seen)
    assert "resize_workers" in larger


def test_what_makes_the_need_smaller() -> None:
    """Features of eight bytes, and keys of other data, if there is data to keep."""
    assert len(forecast.savings(view([small(0)], [lazy(600)]))) == 1
    assert len(forecast.savings(view([small(0, managed=100)], [lazy(600)]))) == 1
    narrow = layout([1], None, ["X"], {"X": 600}, itemsize=4)
    assert not forecast.savings(view([small(0)], [narrow]))
    types = {"float64": ("a",), "string": ("b",)}
    frame = replace(lazy(800).collections[0], kind="dataframe", types=types)
    (line,) = forecast.savings(
        view([small(0)], [replace(lazy(1), collections=(frame,))])
    )
    assert 'dict.fromkeys(X.select_dtypes("number").columns, "float32")' in line


def test_larger_workers_keep_their_limits() -> None:
    """The call names the workers that lack memory."""
    some = [small(0), small(1, memory_limit=10**6)]
    text = forecast.ways(view(some, [lazy(1200)], workload=TRIPLE))[-1]
    assert text.startswith("`clustertune.resize_workers(client, memory_limit=")
    assert "workers=[0])` (then" in text
    # hosts have to have the memory of all limits
    some = [small(0, memory_limit=5000, host_memory=7000), small(1, host_memory=7000)]
    text = forecast.ways(view(some, [lazy(1200)], workload=TRIPLE))[-1]
    assert text.startswith("start workers with --memory-limit 2.7KiB (")


@pytest.mark.parametrize("lack", [{"host_memory": 1200}, {"nanny": None}])
def test_what_cannot_be_resized_is_not_told_to_be(lack: dict[str, Any]) -> None:
    """Without memory on the host, or a nanny, the text has the limit but no call."""
    full = small(0, **lack)
    text = forecast.ways(view([full], [lazy(600)], workload=TRIPLE))[-1]
    assert text.startswith("start workers with --memory-limit 2.7KiB (")


def lazy(nbytes: int) -> Any:
    """Return a lazy X of so many bytes."""
    return layout([1], None, ["X"], {"X": nbytes})


@st.composite
def lacking(draw: Any) -> View:
    """Draw workers on which a fit lacks memory, for different reasons."""
    some = []
    for i in range(draw(st.integers(1, 4))):
        managed = draw(st.integers(0, 900 * MIB))
        process = managed + draw(st.integers(0, 900 * MIB))
        some.append(
            worker(
                i,
                nthreads=draw(st.integers(1, 3)),
                memory_limit=draw(st.integers(200 * MIB, 2000 * MIB)),
                process=process,
                managed=managed,
            )
        )
    profile = replace(
        TRIPLE,
        base_bytes=draw(st.integers(0, 400 * MIB)),
        eval_copies=draw(st.booleans()),
    )
    # mostly too much: Hypothesis complains about a test that drops many examples
    limits = sum(w.memory_limit for w in some)
    sets = [lazy(2 * draw(st.integers(limits // 4, max(limits, 2000 * MIB))))]
    if draw(st.booleans()):
        name = "eval_set[0].X"
        widths = {name: 2 * draw(st.integers(1, 500 * MIB))}
        sets.append(layout([1], None, [name], widths, "eval_set[0]"))
    seen = view(some, sets, workload=profile)
    assume(not is_enough(seen))
    return seen


def resized(seen: View, limit: int) -> View:
    """Return the view after workers that lack memory got the printed limit."""
    lack = {need.worker.id for need in forecast.short(known(seen))}
    shown = parse_bytes(bytes_text(limit))
    workers = [
        replace(w, memory_limit=max(shown, w.memory_limit)) if w.id in lack else w
        for w in seen.now.workers
    ]
    return replace(seen, snapshots=(replace(seen.now, workers=tuple(workers)),))


def known(seen: View) -> list[forecast.Need]:
    found = forecast.needs(seen)
    assert not isinstance(found, Unknown)
    return found


@given(lacking())
@settings(deadline=None, max_examples=100)
def test_what_is_said_would_do(seen: View) -> None:
    """After each suggested change the memory suffices; one worker less is too few."""
    assert is_enough(resized(seen, forecast.needed_limit(seen)))
    enough = forecast.workers_needed(seen)
    assert (len(forecast.ways(seen)) == 2) == isinstance(enough, int)
    if isinstance(enough, int):
        goals = [replace(seen.goal, n_workers=n) for n in (enough, enough - 1)]
        assert is_enough(replace(seen, goal=goals[0]))
        assert not is_enough(replace(seen, goal=goals[1]))


@given(lacking(), st.floats(1, 4), st.integers(1, 50))
@settings(deadline=None)
def test_it_grows_with_the_data_and_not_with_workers(
    seen: View, times: float, more: int
) -> None:
    """More bytes need more memory on every worker; more workers never do."""
    grown = tuple(
        replace(
            x,
            collections=tuple(
                replace(m, total_bytes=int((m.total_bytes or 0) * times))
                for m in x.collections
            ),
        )
        for x in seen.layouts
    )
    before = np.array(totals(seen))
    assert (np.array(totals(replace(seen, layouts=grown))) >= before - 1).all()
    wide = replace(seen, goal=replace(seen.goal, n_workers=more))
    assert (np.array(totals(wide)) <= before + 1).all()


# --- live -----------------------------------------------------------------------------


def peak_memory() -> int:
    """Return the peak memory of this process since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(x.split()[1] for x in lines if x.startswith("VmHWM")))


#: of the prediction, over what was taken; libraries of old take less before a fit
MOST = 1.2 if int(pd.__version__.split(".")[0]) >= 3 else 1.3


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def ratios(client: Any, predicted: dict[Any, Any]) -> list[float]:
    """Return the predicted peak of each worker over the memory that it has taken."""
    ids = {address: entry["id"] for address, entry in workers_of(client).items()}
    taken = client.run(peak_memory)
    return [predicted[ids[address]] / nbytes for address, nbytes in taken.items()]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_xgboost_really_takes(local_cluster: Any, dtype: str) -> None:
    """Measured after a cut that released the old partitions, with an eval set."""
    import xgboost.dask as dxgb

    _, client = local_cluster(2)
    rng = da.random.default_rng(1)
    rows = 240 * MIB // 50 // np.dtype(dtype).itemsize
    X = rng.random((rows, 50), chunks=(rows // 3 + 1, 50), dtype=dtype)
    X_valid = rng.random((rows // 4, 50), chunks=(rows // 8, 50), dtype=dtype)
    X, y, X_valid, y_valid = client.persist(
        [X, X[:, 0] > 0.5, X_valid, X_valid[:, 0] > 0.5]
    )
    wait([X, y, X_valid, y_valid])
    prepared = clustertune.prepare(
        client, X, y, eval_set=[(X_valid, y_valid)], estimator="xgboost"
    )
    assert prepared.report.steps[0].action == "rechunk"
    X, y = prepared
    eval_set = prepared.eval_set
    predicted = {w.worker: w.peak for w in prepared.report.workers}
    del prepared, X_valid, y_valid
    client.run(forget_peak)
    model = dxgb.DaskXGBClassifier(n_estimators=3, tree_method="hist")
    model.client = client
    model.fit(X, y, eval_set=eval_set, verbose=False)
    found = ratios(client, predicted)
    assert all(0.8 <= ratio <= MOST for ratio in found), found


def wide(library: str) -> Any:
    """Return a model whose histograms take most of the memory."""
    if library == "xgboost":
        from xgboost.dask import DaskXGBRegressor

        return DaskXGBRegressor(n_estimators=2, max_depth=5)
    from lightgbm import DaskLGBMRegressor

    return DaskLGBMRegressor(n_estimators=2, num_leaves=63, verbose=-1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Parameter n_jobs will be ignored")
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_many_classes_take_gradients(local_cluster: Any, library: str) -> None:
    """The data of a worker has 13 MB; gradients of 90 classes have 324 MB or more."""
    from lightgbm import DaskLGBMClassifier
    from xgboost.dask import DaskXGBClassifier

    _, client = local_cluster(2)
    rows, classes = 600_000, 90
    X = da.random.default_rng(1).random((rows, 10), chunks=(100_000, 10), dtype="f4")
    X, y = client.persist([X, (X[:, 0] * classes).astype("i4")])
    wait([X, y])
    model: Any = DaskXGBClassifier(n_estimators=1, max_depth=2)
    if library == "lightgbm":
        model = DaskLGBMClassifier(n_estimators=1, num_leaves=4, verbose=-1)
    prepared = clustertune.prepare(client, X, y, estimator=model)
    X, y = prepared
    predicted = {w.worker: w.peak for w in prepared.report.workers}
    assert len(predicted) == 2
    assert all(predicted.values())
    del prepared
    client.run(forget_peak)
    model.client = client
    model.fit(X, y)
    found = ratios(client, predicted)
    assert all(0.8 <= ratio <= MOST for ratio in found), found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Parameter n_jobs will be ignored")
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_wide_data_takes_histograms(local_cluster: Any, library: str) -> None:
    """The data has 46 MiB; histograms have 120 to 240 MiB."""
    _, client = local_cluster(2)
    X = da.random.default_rng(1).random((6000, 1000), chunks=(1500, 1000))
    X, y = client.persist([X, X[:, :5].sum(axis=1)])
    wait([X, y])
    prepared = clustertune.prepare(client, X, y, estimator=wide(library))
    X, y = prepared
    predicted = {w.worker: w.peak for w in prepared.report.workers}
    assert len(predicted) == 2
    del prepared
    client.run(forget_peak)
    model = wide(library)
    model.client = client
    model.fit(X, y)
    most = 1 + forecast.UNCERTAIN + MOST - 1.2
    for ratio in ratios(client, predicted):
        assert 1 - forecast.UNCERTAIN <= ratio <= most
