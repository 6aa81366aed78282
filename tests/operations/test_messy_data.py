"""Messy data stops ``prepare`` and ``fit`` before a library trains on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask_ml.linear_model import LinearRegression
from dask_ml.preprocessing import Categorizer, DummyEncoder
from distributed import futures_of, wait
from lightgbm import DaskLGBMClassifier, DaskLGBMRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from xgboost.dask import DaskXGBClassifier, DaskXGBRegressor

import clustertune
from clustertune.errors import AlignmentError, IncompleteError
from tests.in_process import TWO, gen_cluster

ROWS = 4000


def numbers(**columns: Any) -> pd.DataFrame:
    draw = np.random.default_rng(0).standard_normal
    return pd.DataFrame({"a": draw(ROWS), "b": draw(ROWS), **columns})


def run(error: Exception, line: int = 0, **names: Any) -> dict[str, Any]:
    """Run a line of the remedy in an error, and return the variables."""
    found = names | {"numpy": np}
    exec(str(error).split("`")[1::2][line], found)
    return found


@pytest.mark.parametrize(
    ("model", "wrong"),
    [
        (DaskXGBRegressor, np.inf),
        (DaskXGBClassifier, np.nan),
        (DaskLGBMRegressor, np.nan),
        (DaskLGBMClassifier, np.inf),
    ],
)
@gen_cluster(client=True, nthreads=TWO)
async def test_labels(c: Any, s: Any, a: Any, b: Any, model: Any, wrong: float) -> None:
    """A missing or infinite label is an error, and nothing moves."""
    frame = numbers(y=np.arange(ROWS) % 2 * 1.0)
    frame.loc[:99, "y"] = wrong
    X = dd.from_pandas(frame, npartitions=4)
    X, y = X[["a", "b"]], X["y"]
    X, y = c.persist([X, y], workers=[a.address])
    what = "100 missing labels" if np.isnan(wrong) else "100 infinite values"
    with pytest.raises(ValueError, match=what) as error:
        await clustertune.prepare(c, X, y, estimator=model)
    # a worker that answers late has a copy: the labels were counted there
    await wait([X, y])
    assert a.data.keys() >= {future.key for future in futures_of([X, y])}
    names = run(error.value, X=X, y=y)
    p = await clustertune.prepare(c, names["X"], names["y"], estimator=model)
    assert await c.compute(p.y.isna().sum()) == 0
    assert "nonfinite_values" not in {f.check for f in p.report.left}


@gen_cluster(client=True, nthreads=TWO)
async def test_a_file_with_other_spellings(c: Any, s: Any, a: Any, b: Any) -> None:
    """Its labels are missing after ``map``; the error names the partition."""
    label = np.where(np.arange(ROWS) < ROWS // 4, "Y", "yes")
    frame = dd.from_pandas(numbers(y=label), npartitions=4)
    X, y = frame[["a", "b"]], frame["y"].map({"no": 0, "yes": 1}, meta=("y", "int64"))
    with pytest.raises(
        ValueError, match=r"1,000 missing labels \(no row of partition 0"
    ):
        await clustertune.prepare(c, X, y, estimator=DaskXGBClassifier)


@gen_cluster(client=True, nthreads=TWO)
async def test_a_file_of_0_bytes(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Path
) -> None:
    """The error has the number of the partition, its collections, and the fix."""
    files = [tmp_path / f"{i}.csv" for i in range(3)]
    for file in files:
        numbers(y=1).to_csv(file, index=False)
    files[1].write_bytes(b"")
    frame = dd.from_map(pd.read_csv, files, meta=numbers(y=1)[:0])
    X, y = frame[["a", "b"]], frame["y"]
    text = r"^partition 1 of (X|y) \(.*1\.csv\) could .*EmptyDataError"
    text += ".* Leave out files of 0 bytes"
    with pytest.raises(IncompleteError, match=text):
        await clustertune.prepare(c, X, y, estimator=DaskXGBClassifier)


@pytest.mark.parametrize("n_classes", [2, 12])
@gen_cluster(client=True, nthreads=TWO)
async def test_labels_of_text(c: Any, s: Any, a: Any, b: Any, n_classes: int) -> None:
    """One error names missing and text labels, and its remedies repair both."""
    texts = [f"class {i:02}" for i in range(n_classes)]
    frame = numbers(y=np.resize(np.array(texts, dtype=object), ROWS))
    frame.loc[:99, "y"] = None
    frame = dd.from_pandas(frame, npartitions=4)
    X, y = c.persist([frame[["a", "b"]], frame["y"]], workers=[a.address])
    with pytest.raises(ValueError, match="y has texts as labels") as error:
        await clustertune.prepare(c, X, y, estimator=DaskXGBClassifier)
    lines = [code for code in str(error.value).split("`")[1::2] if " = " in code]
    names: dict[str, Any] = {"X": X, "y": y}
    # an asynchronous client cannot compute in one line
    assert "sorted(y.dropna().unique().compute())" in lines[0]
    lines[0] = lines[0].partition("; ")[2]
    names["classes"] = texts
    for line in lines:
        exec(line, names)
    p = await clustertune.prepare(
        c, names["X"], names["y"], estimator=DaskXGBClassifier
    )
    found = await c.compute(p.y)
    assert len(found) == ROWS - 100
    expected = np.resize(np.arange(n_classes), ROWS)[100:]
    assert (found.to_numpy() == expected).all()


@gen_cluster(client=True, nthreads=TWO)
async def test_labels_of_text_in_an_eval_set(c: Any, s: Any, a: Any, b: Any) -> None:
    """It may lack a class, so its texts get the numbers that they have in y."""
    texts = ["no", "perhaps", "yes"]
    X = dd.from_pandas(numbers(), npartitions=4)
    y, y_valid = (
        dd.from_pandas(pd.Series(np.resize(found, ROWS), name="y"), npartitions=4)
        for found in (texts, ["no", "yes"])
    )
    names: dict[str, Any] = {"y": y, "eval_set": [(X, y_valid)], "classes": texts}
    with pytest.raises(ValueError, match="has texts as labels") as error:
        await clustertune.prepare(
            c, X, y, eval_set=names["eval_set"], estimator=DaskXGBClassifier
        )
    for line in [x for x in str(error.value).split("`")[1::2] if " = " in x]:
        exec(line.partition("; ")[2] if line.startswith("classes") else line, names)
    p = await clustertune.prepare(
        c, X, names["y"], eval_set=names["eval_set"], estimator=DaskXGBClassifier
    )
    assert set(await c.compute(p.eval_set[0][1])) == {0, 2}


@gen_cluster(client=True, nthreads=TWO)
async def test_texts_that_are_numbers(c: Any, s: Any, a: Any, b: Any) -> None:
    """XGBoost converts them, so they are no problem."""
    y = dd.from_pandas(pd.Series(["0", "1"] * (ROWS // 2), name="y"), npartitions=4)
    X = dd.from_pandas(numbers(), npartitions=4)
    p = await clustertune.prepare(c, X, y, estimator=DaskXGBClassifier)
    assert "non_numeric_columns" not in {f.check for f in p.report.left}


@gen_cluster(client=True, nthreads=TWO)
async def test_labels_of_no_known_library(c: Any, s: Any, a: Any, b: Any) -> None:
    """The finding is a warning, because the library may take them."""
    y = da.where(da.arange(ROWS, chunks=1000) < 9, np.nan, 1.0)
    p = await clustertune.prepare(c, da.ones((ROWS, 2), chunks=(1000, 2)), y)
    (finding,) = [f for f in p.report.left if f.check == "nonfinite_values"]
    assert finding.message.startswith("y has 9 missing labels")


@pytest.mark.parametrize(
    ("model", "column"),
    [
        (DaskXGBRegressor, pd.Series(["u", "v"] * (ROWS // 2))),
        (DaskLGBMClassifier, pd.Series(pd.date_range("2024", periods=ROWS))),
        (DaskXGBRegressor, pd.Series(pd.to_timedelta(np.arange(ROWS)))),
        (DaskLGBMClassifier, pd.Series(pd.interval_range(0, ROWS))),
        (DaskLGBMClassifier, pd.Series(np.arange(ROWS), dtype=object)),
    ],
    ids=["text", "dates", "durations", "intervals", "objects"],
)
@gen_cluster(client=True, nthreads=TWO)
async def test_columns_that_are_no_numbers(
    c: Any, s: Any, a: Any, b: Any, model: Any, column: Any
) -> None:
    """They are refused by name before anything is loaded; a remedy drops them."""
    frame = dd.from_pandas(numbers(t=column), npartitions=4)
    valid = (frame, frame["a"])
    with pytest.raises(ValueError, match=r"X has 1 column of type .* \(t\)") as error:
        await clustertune.prepare(c, frame, frame["a"], estimator=model)
    assert not s.tasks
    X = run(error.value, -1, X=frame)["X"]
    y = (frame["a"] > 0).astype(int)
    await clustertune.prepare(c, X, y, estimator=model, dry_run=True)
    if model is DaskXGBRegressor:
        X = dd.from_pandas(numbers(t=1.0), npartitions=4)
        with pytest.raises(ValueError, match=r"eval_set\[0\].X has 1 column"):
            await clustertune.prepare(c, X, y, eval_set=[valid], estimator=model)


@gen_cluster(client=True, nthreads=TWO)
async def test_categories_of_xgboost(c: Any, s: Any, a: Any, b: Any) -> None:
    """They are refused unless the model has ``enable_categorical``."""
    column = pd.Categorical(["u", "v"] * (ROWS // 2))
    X = dd.from_pandas(numbers(t=column), npartitions=4)
    with pytest.raises(ValueError, match="enable_categorical=True"):
        await clustertune.prepare(c, X, X["a"], estimator=DaskXGBRegressor())
    model = DaskXGBRegressor(enable_categorical=True)
    p = await clustertune.prepare(c, X, X["a"], estimator=model)
    assert p.report.status == "done"


def part(i: int, odd: Any) -> pd.DataFrame:
    rows = np.arange(1000.0) + 1000 * i
    frame = pd.DataFrame({"a": rows, "b": -rows})
    return odd(frame) if i == 2 else frame


def as_text(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[:0].astype(object)


ODD = {
    "partition 2 has the order b, a": lambda p: p[["b", "a"]],
    "partition 2 lacks b": lambda p: p[["a"]],
    "partition 2 has c in addition": lambda p: p.assign(c=1),
    "partition 2 has .* in b instead of numbers": lambda p: p.astype({"b": str}),
}
ORDER, MISSING, MORE, TYPE = ODD


@pytest.mark.parametrize(
    ("text", "estimator", "persisted"),
    [
        (ORDER, "xgboost", True),
        (ORDER, None, False),
        (MISSING, "xgboost", False),
        (MORE, None, True),
        (TYPE, "xgboost", True),
        (TYPE, None, False),
    ],
)
@gen_cluster(client=True, nthreads=TWO)
async def test_columns_unlike_the_metadata(
    c: Any, s: Any, a: Any, b: Any, text: str, estimator: Any, persisted: bool
) -> None:
    """A partition that differs from the metadata is an error with its number."""
    meta = pd.DataFrame({"a": [1.0], "b": [1.0]})
    X = dd.from_map(part, range(4), odd=ODD[text], meta=meta, enforce_metadata=False)
    X = await c.persist(X) if persisted else X
    y = da.arange(4000, chunks=1000)
    with pytest.raises(ValueError, match=f"1 partition of X has .*{text}") as error:
        await clustertune.prepare(c, X, y, estimator=estimator)
    if text == ORDER:
        X = run(error.value, X=X)["X"]
        p = await clustertune.prepare(c, X, y, estimator=estimator, rechunk=3)
        found = await c.compute(p.X)
        assert found["a"].tolist() == list(range(4000))


@gen_cluster(client=True, nthreads=TWO)
async def test_an_empty_file_that_is_read_as_text(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """A fit would fail on its types; the remedy converts them."""
    meta = pd.DataFrame({"a": [1.0], "b": [1.0]})
    X = dd.from_map(part, range(4), odd=as_text, meta=meta)
    y = dd.from_map(part, range(4), odd=lambda p: p[:0], meta=meta)["a"]
    text = "partition 2 has .* in a instead of numbers"
    with pytest.raises(ValueError, match=f"1 partition of X has .*{text}") as error:
        await clustertune.prepare(c, X, y, estimator="xgboost")
    X = run(error.value, X=X)["X"]
    p = await clustertune.prepare(c, X, y, estimator="xgboost")
    types = await c.compute(p.X.map_partitions(lambda x: x.dtypes.astype(str)))
    assert set(types) == {"float64"}


@gen_cluster(client=True, nthreads=TWO)
async def test_columns_of_arrays(c: Any, s: Any, a: Any, b: Any) -> None:
    """An Array has the columns in the order of the metadata, or an error."""
    meta = pd.DataFrame({"a": [1.0], "b": [1.0]})
    y = da.arange(4000, chunks=1000)

    def frame(odd: Any) -> Any:
        return dd.from_map(part, range(4), odd=odd, meta=meta, enforce_metadata=False)

    X = frame(lambda p: p[["b", "a"]])
    p = await clustertune.prepare(c, X, y, estimator="glm")
    assert (await c.compute(p.X))[:, 0].tolist() == list(range(4000))
    with pytest.raises(clustertune.errors.IncompleteError, match="b"):
        await clustertune.prepare(c, frame(lambda p: p[["a"]]), y, estimator="glm")


@pytest.mark.parametrize("npartitions", [4, 3])
@gen_cluster(client=True, nthreads=TWO)
async def test_labels_in_another_order(
    c: Any, s: Any, a: Any, b: Any, npartitions: int
) -> None:
    """Both indexes show it; the remedy joins them."""
    mixed = numbers().sample(frac=1, random_state=1)
    X = dd.from_pandas(mixed[["a", "b"]], npartitions=4)
    y = dd.from_pandas(mixed["a"], npartitions=npartitions, sort=False)
    with pytest.raises(AlignmentError, match="y have another order") as error:
        await clustertune.prepare(c, X, y, estimator="xgboost")
    names = run(error.value, X=X, y=y)
    p = await clustertune.prepare(c, names["X"], names["y"], estimator="xgboost")
    X, y = await c.gather(c.compute([p.X, p.y]))
    assert X["a"].tolist() == y.tolist()
    same = dd.from_pandas(mixed["a"], npartitions=npartitions)
    p = await clustertune.prepare(c, dd.from_pandas(mixed, npartitions=4), same)
    assert p.report.status == "done"


@gen_cluster(client=True, nthreads=TWO)
async def test_labels_that_match_by_position(c: Any, s: Any, a: Any, b: Any) -> None:
    """A join would mix up rows whose index says nothing; the remedy names both."""
    mixed = numbers().sample(frac=1, random_state=1)
    X = dd.from_pandas(mixed[["a", "b"]], npartitions=4, sort=False)
    y = dd.from_pandas(pd.Series(mixed["a"].to_numpy()), npartitions=4)
    with pytest.raises(AlignmentError, match="y have another order") as error:
        await clustertune.prepare(c, X, y, estimator="xgboost")
    names = run(error.value, line=1, X=X, y=y)
    p = await clustertune.prepare(c, names["X"], names["y"], estimator="xgboost")
    X, y = await c.gather(c.compute([p.X, p.y]))
    assert X["a"].tolist() == y.tolist() == mixed["a"].tolist()


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (DaskXGBRegressor, "pandas"),
        (DaskXGBClassifier, "NumPy"),
        (DaskLGBMRegressor, "NumPy"),
        (DaskLGBMClassifier, "pandas"),
    ],
)
@gen_cluster(client=True, nthreads=TWO)
async def test_eval_sets_of_pandas_and_numpy(
    c: Any, s: Any, a: Any, b: Any, model: Any, kind: str
) -> None:
    """They become collections of one partition, or of replicas."""
    frame = numbers(y=np.arange(ROWS) % 2)
    X, y = frame[["a", "b"]], frame["y"]
    Xv, yv = X[:300], y[:300]
    if kind == "NumPy":
        Xv, yv = Xv.to_numpy(), yv.to_numpy()
        given = [
            da.from_array(x.to_numpy(), chunks=(1000, -1)[: x.ndim]) for x in (X, y)
        ]
    else:
        given = [dd.from_pandas(x, npartitions=4) for x in (X, y)]
    p = await clustertune.prepare(c, *given, eval_set=[(Xv, yv)], estimator=model)
    ((X2, y2),) = p.eval_set
    found, labels = await c.gather(c.compute([X2, y2]))
    np.testing.assert_array_equal(np.asarray(found)[:300], np.asarray(Xv))
    np.testing.assert_array_equal(np.asarray(labels)[:300], np.asarray(yv))


def as_array(frame: Any) -> Any:
    return frame.to_dask_array(lengths=True).astype(float)


def test_pipelines(local_cluster: Any) -> None:
    """The first step gets X as it is; the needs of the last step apply to y."""
    _, client = local_cluster(2)
    frame = numbers(color=np.random.default_rng(1).choice(["r", "g"], ROWS))
    frame["y"] = frame["a"] + (frame["color"] == "r")
    D = dd.from_pandas(frame, npartitions=4)
    pick = FunctionTransformer(lambda d: d[["a", "b"]], validate=False)
    array = FunctionTransformer(as_array, validate=False)
    # few iterations, each of which takes several tasks
    options = {"solver": "gradient_descent", "fit_intercept": False, "max_iter": 3}
    for steps, X in (
        ((pick, array), D[["a", "b"]]),
        ((Categorizer(), DummyEncoder(), array), D[["a", "b", "color"]]),
    ):
        y = D["y"].to_dask_array(lengths=True)
        alone = make_pipeline(*steps, LinearRegression(**options)).fit(X, y)
        model = make_pipeline(*steps, LinearRegression(**options))
        clustertune.fit(client, model, X, D["y"], progress=False)
        np.testing.assert_allclose(model[-1].coef_, alone[-1].coef_, rtol=0.01)
