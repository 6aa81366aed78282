"""The adapter for the libraries' own tests works on stand-ins for these tests."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import wait

from clustertune.errors import AlignmentError
from tests.processes import workers_of

HERE = Path(__file__).parent
ROWS, PARTITIONS = 1200, 6


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of this folder by its name, as ``run.py`` does."""
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module


def fit_xgboost(X: Any, y: Any, w: Any) -> Any:
    import xgboost.dask as dxgb

    model = dxgb.DaskXGBRegressor(n_estimators=5, max_depth=3)
    model.fit(X, y, sample_weight=w, eval_set=[(X, y)], verbose=False)
    return model.predict(X).compute()


def fit_xgboost_matrix(X: Any, y: Any, w: Any) -> Any:
    import xgboost.dask as dxgb

    matrix = dxgb.DaskQuantileDMatrix(None, X, y, weight=w)
    booster = dxgb.train(None, {"max_depth": 3}, matrix, num_boost_round=5)
    return dxgb.predict(None, booster, X).compute()


def fit_lightgbm(X: Any, y: Any, w: Any) -> Any:
    from lightgbm import DaskLGBMRegressor

    model = DaskLGBMRegressor(n_estimators=5, verbose=-1)
    return model.fit(X, y, sample_weight=w).predict(X).compute()


def fit_kmeans(X: Any, y: Any, w: Any) -> Any:
    from dask_ml.cluster import KMeans

    model = KMeans(n_clusters=2, init=np.array([[0.0] * 4, [30.0] * 4]))
    return model.fit(X).predict(X).compute()


FITS = (
    (
        "xgboost",
        fit_xgboost,
        ("X", "y", "sample_weight", "eval_set[0].X", "eval_set[0].y"),
    ),
    ("xgboost", fit_xgboost_matrix, ("X", "y", "sample_weight")),
    ("lightgbm", fit_lightgbm, ("X", "y", "sample_weight")),
    ("dask-ml", fit_kmeans, ("X",)),
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Parameter n_jobs will be ignored:UserWarning")
def test_a_prepared_fit_gives_the_same_model(local_cluster: Any, module: Any) -> None:
    """All rows are on one of two workers; prepare moves half of them.

    A model of LightGBM depends on the number of workers that have rows.
    """
    _, client = local_cluster(2)
    rng = np.random.default_rng(5)
    # few distinct values, so that bins do not depend on the worker that computes them
    x = rng.integers(0, 30, (ROWS, 4)).astype("f4")
    y, w = x[:, 0] * 4 + x[:, 1], 1 + x[:, 2]
    first = next(iter(workers_of(client)))

    def on_first() -> Any:
        # of new names: replicas that one fit makes are none of the other's
        data = [
            da.from_array(
                part, chunks=(ROWS // PARTITIONS, -1)[: part.ndim], name=False
            )
            for part in (x, y, w)
        ]
        data = client.persist(data, workers=[first])
        wait(data)
        return data

    for library, fit, labels in FITS:
        data = on_first()
        adapter = module("adapter").Adapter(library)
        with adapter.installed():
            prepared = fit(*data)
        (call,) = adapter.calls
        assert (call.labels, call.error) == (labels, "")
        assert call.steps == ("rebalance",)
        np.testing.assert_allclose(prepared, fit(*data), rtol=1e-5)  # now even
        if library != "lightgbm":
            np.testing.assert_allclose(prepared, fit(*on_first()), rtol=1e-5)
        assert len(adapter.calls) == 1  # outside of the block nothing is prepared


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (np.array([1, 2]), np.array([1.0, 2.0]), ""),
        (np.array([1, 2]), np.array([2, 1]), "y: "),
        (np.array([1, 2]), np.array([1]), "y: 2 rows before, 1 after"),
        (np.ma.array([1, 2], mask=[1, 0]), np.ma.array([1, 2], mask=[0, 0]), "y: "),
        (frame(a=["x", None]), frame(a=pd.Categorical(["x", None])), ""),
        (frame(a=[1, 2]), frame(b=[1, 2]), "y: "),
        (frame(a=[1, 2]), frame(a=[1, 2]).set_index(pd.Index([5, 6])), "y: "),
    ],
)
def test_changed_values_are_found(
    before: Any, after: Any, text: str, module: Any
) -> None:
    """Values, names and order count; the type that holds the same values does not."""
    values = module("values")
    X = values.Values(np.zeros((2, 3)), (1, 1))
    given = {"X": X, "y": values.Values(before, (2,))}
    handed = {"X": X, "y": values.Values(after)}
    if not text:
        values.compare(given, handed)
        return
    with pytest.raises(values.ValuesChangedError) as raised:
        values.compare(given, handed, takes_arrays=True)
    assert str(raised.value).startswith(text)


def test_frames_may_become_arrays_for_libraries_that_take_arrays(module: Any) -> None:
    """The values stay the same; another library keeps its frames."""
    values = module("values")
    table = {"X": values.Values(frame(a=[1, 2], b=[3, 4]))}
    array = {"X": values.Values(np.array([[1, 3], [2, 4]]))}
    values.compare(table, array, takes_arrays=True)
    with pytest.raises(values.ValuesChangedError, match="DataFrame before"):
        values.compare(table, array)
    other = {"X": values.Values(np.array([[1, 3], [2, 5]]))}
    with pytest.raises(values.ValuesChangedError, match="X: "):
        values.compare(table, other, takes_arrays=True)


def test_lost_companions_copies_and_other_partitions_are_found(module: Any) -> None:
    """Every collection comes back, in the partitions of X; eval sets may be copied."""
    values = module("values")
    y = np.array([3, 1])
    X = values.Values(np.zeros((2, 3)), (1, 1))
    with pytest.raises(values.ValuesChangedError, match=r"no \['y'\]"):
        values.compare({"X": X, "y": values.Values(y)}, {"X": X})
    with pytest.raises(values.ValuesChangedError, match="partitions have"):
        values.compare(
            {"X": X, "y": values.Values(y)}, {"X": X, "y": values.Values(y, (2, 0))}
        )
    evals = {"eval_set[0].X": values.Values(y)}
    values.compare(evals, {"eval_set[0].X": values.Values(np.tile(y, 2))})
    with pytest.raises(values.ValuesChangedError):
        values.compare(evals, {"eval_set[0].X": values.Values(np.repeat(y, 2))})
    sizes = values.Values(pd.Series([2])), values.Values(np.array([2]))
    values.compare({"X": X, "group": sizes[0]}, {"X": X, "group": sizes[1]})
    with pytest.raises(values.ValuesChangedError, match="group: "):
        values.compare({"X": X, "group": sizes[0]}, {"X": X, "group": values.Values(y)})


def test_reading_advances_no_random_generator(module: Any) -> None:
    """A lazy array of a function with one is the same each time, as on workers."""
    rng = np.random.default_rng(1)
    X = da.zeros((6, 2), chunks=(3, 2)).map_blocks(lambda x: rng.uniform(size=x.shape))
    read = module("values").read
    first, again = (asyncio.run(read(None, X)).whole for _ in range(2))
    assert np.array_equal(first, again)
    assert np.array_equal(first[:3], first[3:])  # each task has its own copy


ENTRIES = """
lightgbm:
- test: test_a.py::test_refused[*]
  kind: refusal
  error: AlignmentError
  match: too few for 2 workers
  reason: one class has one row
- test: test_a.py::test_sizes[*]
  kind: other arguments
  arguments: {sizes: [0.5]}
  reason: the test checks nothing but a warning
"""


@pytest.fixture
def peers(tmp_path: Path, module: Any) -> Any:
    """The plugin of a run with prepare, after one test has passed as it is."""
    run = module("run")
    plain = run.Results(tmp_path, "lightgbm", "plain")
    plain.add(test="test_a.py::test_refused[1]", outcome="passed", fits=[])
    plain.add(test="test_a.py::test_fails", outcome="failed", fits=[])
    (tmp_path / "expected.yaml").write_text(ENTRIES)
    return run.Peers("lightgbm", tmp_path, tmp_path / "expected.yaml")


REFUSED, SIZES = "test_refused[1]", "test_sizes[0]"
FEW = AlignmentError("class 1 has too few for 2 workers")


@pytest.mark.parametrize(
    ("test", "error", "changed", "outcome"),
    [
        ("test_other", None, "", "passed"),
        ("test_other", FEW, "", "failed"),
        ("test_other", None, "ValuesChangedError: y", "failed"),
        (REFUSED, FEW, "", "expected refusal"),
        (REFUSED, AlignmentError("another text"), "", "failed"),
        (REFUSED, None, "", "failed"),
        (SIZES, None, "", "passed"),
    ],
)
def test_only_expected_differences_pass(
    test: str, error: Any, changed: str, outcome: str, peers: Any, module: Any
) -> None:
    """Changed values, another error and an entry too many fail a test."""
    call = module("adapter").Call(fit="fit", error=changed)
    peers.adapter.calls.append(call)
    report = pytest.TestReport(
        nodeid=test,
        location=("test_a.py", 0, test),
        keywords={},
        outcome="failed" if error else "passed",
        longrepr=None,
        when="call",
    )
    item = SimpleNamespace(nodeid=f"folder/test_a.py::{test}")
    made = SimpleNamespace(excinfo=error and SimpleNamespace(value=error))
    hook = peers.pytest_runtest_makereport(item, made)
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(report)
    (entry,) = peers.results.read().values()
    assert entry["outcome"] == outcome
    assert entry["error"] == (f"AlignmentError: {error}" if error else "")
    assert [fit["error"] for fit in entry["fits"]] == [changed]
    if (test, error) == (REFUSED, None):
        assert "remove its entry" in report.longrepr


def test_tests_are_skipped_or_get_other_arguments(peers: Any) -> None:
    """A test that fails without prepare is skipped."""
    marks: dict[str, list[str]] = {REFUSED: [], "test_fails": []}
    items = [
        SimpleNamespace(
            nodeid=f"folder/test_a.py::{name}",
            add_marker=lambda mark, found=found, **_: found.append(mark.name),
        )
        for name, found in marks.items()
    ]
    config = SimpleNamespace(getoption=lambda _: None, getini=lambda _: "240")
    peers.pytest_collection_modifyitems(config, items)
    assert marks == {REFUSED: ["timeout"], "test_fails": ["timeout", "skip"]}
    item = SimpleNamespace(
        nodeid=f"folder/test_a.py::{SIZES}", funcargs={"sizes": [0], "client": 1}
    )
    peers.pytest_pyfunc_call(item)
    assert item.funcargs == {"sizes": [0.5], "client": 1}


def test_table(tmp_path: Path, peers: Any, module: Any) -> None:
    """Of a test that was run again, the last outcome counts."""
    for outcome in ("failed", "expected refusal"):
        peers.results.add(test=f"test_a.py::{REFUSED}", outcome=outcome, fits=[1])
    table = module("run").table(tmp_path)
    assert "| lightgbm | 2 | 1 | 0 (0 with a prepared fit) | 1 | 0 |" in table


def test_every_expected_difference_names_a_fix_or_a_reason(module: Any) -> None:
    """Entries are well formed, of known kinds, and no test has two."""
    run: ModuleType = module("run")
    libraries = module("adapter").LIBRARIES
    for library in libraries:
        entries = run.expected_differences(run.EXPECTED, library)
        assert len({e.test for e in entries}) == len(entries)
        for entry in entries:
            assert entry.kind in {"refusal", "no fault", "other arguments"}
            assert bool(entry.error) == bool(entry.match) != bool(entry.arguments)
            assert entry.reason


@pytest.mark.parametrize(
    ("mode", "tests", "text"),
    [
        ("plain", HERE, "outside of the repository"),
        ("prepared", "elsewhere", "run plain first"),
    ],
)
def test_a_run_that_cannot_be_right_is_refused(
    mode: str, tests: Any, text: str, module: Any, capsys: Any, tmp_path: Path
) -> None:
    """Sources in the repository would be collected by its own pytest."""
    options = ["--library", "xgboost", "--results", str(tmp_path)]
    with pytest.raises(SystemExit):
        module("run").main([mode, *options, str(tmp_path / tests)])
    assert text in capsys.readouterr().err
