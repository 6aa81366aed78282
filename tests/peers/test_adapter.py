"""The adapter for the libraries' own tests works on stand-ins for these tests."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import wait

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
        alone = None if library == "lightgbm" else fit(*on_first())
        data = on_first()
        adapter = module("adapter").Adapter(library)
        with adapter.installed():
            prepared = fit(*data)
        (call,) = adapter.calls
        assert (call.labels, call.error) == (labels, "")
        assert call.steps == ("rebalance",)
        plain = fit(*data)  # the same partitions, now even on both workers
        assert len(adapter.calls) == 1  # outside of the block nothing is prepared
        np.testing.assert_allclose(prepared, plain, rtol=1e-5)
        if alone is not None:
            np.testing.assert_allclose(prepared, alone, rtol=1e-5)


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


STAND_IN = """
import warnings

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from lightgbm import DaskLGBMClassifier

@pytest.fixture(scope="module")
def client():
    options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(2, **options) as cluster, Client(cluster) as client:
        yield client

def fit(ones):
    X = da.random.default_rng(1).random((400, 3), chunks=(200, 3))
    y = da.from_array((np.arange(400) < ones).astype(int), chunks=200)
    assert DaskLGBMClassifier(n_estimators=1, verbose=-1).fit(X, y).fitted_

def test_passes(client):
    fit(300)

def test_fails_as_it_is(client):
    assert not client

def test_is_refused(client):
    fit(1)

def test_is_refused_otherwise(client):
    fit(1)

def test_is_refused_unexpectedly(client):
    fit(1)

def test_passes_unexpectedly(client):
    fit(300)

@pytest.mark.parametrize("sizes", [[0]])
def test_with_other_arguments(client, sizes):
    if sizes == [0]:
        with pytest.warns(UserWarning, match="one worker trains"):
            warnings.warn("one worker trains")
    else:
        assert sizes == [0.5]
        fit(300)
"""

ENTRIES = """
lightgbm:
- &entry
  test: test_stand_in.py::test_is_refused
  kind: refusal
  error: AlignmentError
  match: too few for 2 workers
  reason: one class has one row
- {<<: *entry, test: "test_*::test_is_refused_other*", match: another text}
- {<<: *entry, test: "test_stand_in.py::test_passes_unexpectedly"}
- test: test_stand_in.py::test_with_other_arguments[*]
  kind: other arguments
  arguments: {sizes: [0.5]}
  reason: the test checks nothing but a warning
"""


@pytest.mark.slow
@pytest.mark.timeout(600)  # two runs of pytest, with a cluster each
def test_only_expected_differences_pass(tmp_path: Path, module: Any) -> None:
    """An error without an entry, another error and an entry too many fail the run."""
    (tmp_path / "test_stand_in.py").write_text(STAND_IN)
    (tmp_path / "expected.yaml").write_text(ENTRIES)

    def run(mode: str, *more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, HERE / "run.py", mode, "--results", tmp_path, *more]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    tests = (
        "--library",
        "lightgbm",
        "--expected",
        tmp_path / "expected.yaml",
        tmp_path / "test_stand_in.py",
    )
    plain = run("plain", *tests)
    assert "1 failed, 6 passed" in plain.stdout, plain.stdout
    prepared = run("prepared", *tests, "--", "-ra")
    assert "3 failed, 2 passed, 1 skipped, 1 xfailed" in prepared.stdout, (
        prepared.stdout
    )
    lines = (tmp_path / "lightgbm-prepared.jsonl").read_text().splitlines()
    found = {e["test"].partition("::test_")[2]: e for e in map(json.loads, lines)}
    assert {name: e["outcome"] for name, e in found.items()} == {
        "passes": "passed",
        "fails_as_it_is": "skipped",
        "is_refused": "expected refusal",
        "is_refused_otherwise": "failed",
        "is_refused_unexpectedly": "failed",
        "passes_unexpectedly": "failed",
        "with_other_arguments[sizes0]": "passed",
    }
    assert "AlignmentError" in found["is_refused"]["error"]
    for name in ("passes", "with_other_arguments[sizes0]"):
        assert found[name]["fits"][0]["error"] == ""
    assert "remove its entry" in prepared.stdout
    other = {**found["is_refused"], "test": "of another commit", "commit": "other"}
    file = tmp_path / "lightgbm-prepared.jsonl"
    file.write_text("\n".join([json.dumps(other), *lines]))
    read = module("run").Results(tmp_path, "lightgbm", "prepared").read()
    assert len(read) == 7
    table = module("run").table(tmp_path)
    assert "| lightgbm | 7 | 6 | 2 (2 with a prepared fit) | 1 | 3 |" in table


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
