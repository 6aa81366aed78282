"""Remedies of checks of data, run as they are printed: their findings are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.delayed import delayed
from distributed import Client
from xgboost.dask import DaskXGBClassifier, DaskXGBRanker

import clustertune
from clustertune.core.model import Severity
from tests.checks.applying import Situation
from tests.processes import local_workers, stop_stealing
from tests.rules.placing import cut, placed

N = 400
Make = Callable[[Client], dict[str, Any]]
CASES: dict[str, Make] = {}


def case(*names: str, **options: Any) -> Callable[[Make], Make]:
    """Register a case; several names are several checks of one situation."""

    def register(make: Make) -> Make:
        CASES.update(dict.fromkeys(names, lambda client: options | make(client)))
        return make

    return register


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_workers(2) as client:
        client.amm.stop()  # it would drop surplus replicas
        client.run_on_scheduler(stop_stealing)
        yield client


def numbers(kind: str = "array", parts: int = 4) -> tuple[Any, Any]:
    """Return lazy X and y; y has the first column of X."""
    X = np.arange(2.0 * N).reshape(N, 2)
    if kind == "array":
        return [
            da.from_array(x, chunks=(N // parts, -1)[: x.ndim]) for x in (X, X[:, 0])
        ]
    frame = dd.from_pandas(pd.DataFrame(X, columns=["a", "b"]), npartitions=parts)
    return frame, frame["a"]


def pair(
    client: Client, homes: Sequence[int], y_homes: Sequence[int] = ()
) -> dict[str, Any]:
    """Return loaded X and y, with partitions on these workers."""
    X = np.arange(2.0 * N).reshape(N, 2)
    rows = [N // len(homes)] * len(homes)
    y_rows = [N // len(y_homes or homes)] * len(y_homes or homes)
    return {
        "X": placed(client, cut(X, *rows), homes),
        "y": placed(client, cut(X[:, 0], *y_rows), y_homes or homes),
    }


# --- rows -----------------------------------------------------------------------------


@case("empty_workers")
def all_on_one(client: Client) -> dict[str, Any]:
    return pair(client, [0, 0, 0, 0])


@case("uneven_rows")
def three_of_four(client: Client) -> dict[str, Any]:
    return pair(client, [0, 0, 0, 1])


@case("separated_pairs")
def y_apart(client: Client) -> dict[str, Any]:
    return pair(client, [0, 0, 1, 1], [1, 1, 0, 0])


def replicas(client: Client) -> dict[str, Any]:
    found = pair(client, [0, 0, 1, 1])
    client.replicate(list(found.values()))
    return found


# --- partitions -----------------------------------------------------------------------


@case("too_few_partitions")
def one_partition(client: Client) -> dict[str, Any]:
    return pair(client, [0])


@case("too_many_partitions", estimator="lightgbm")
def many_partitions(client: Client) -> dict[str, Any]:
    return pair(client, [0, 1] * 100)


@case("misaligned_partitions")
def other_cuts(client: Client) -> dict[str, Any]:
    return pair(client, [0, 0, 1, 1], [0, 0, 0, 1, 1])


@case("column_chunks")
def cut_columns(client: Client) -> dict[str, Any]:
    X, y = numbers()
    return {"X": X.rechunk((100, 1)), "y": y}


# --- values ---------------------------------------------------------------------------


@case("nonfinite_values", deep=True, lines=2)
def missing_and_infinite(client: Client) -> dict[str, Any]:
    X, y = numbers("frame")
    return {"X": X.replace(6.0, np.inf), "y": y.replace(2.0, np.nan)}


@case("differing_columns", deep=True)
def other_order(client: Client) -> dict[str, Any]:
    X, y = numbers("frame")
    parts = [X.partitions[0], X.partitions[1].map_partitions(lambda d: d[["b", "a"]])]
    parts = [part for x in parts for part in x.to_delayed()]
    X = dd.from_delayed(parts, meta=X._meta, verify_meta=False)
    return {"X": X, "y": y.partitions[:2]}


@case("differing_categories", deep=True)
def other_categories(client: Client) -> dict[str, Any]:
    lists = (["u", "v"], ["v", "u"])
    frames = [pd.DataFrame({"c": pd.Categorical(["u", "v"], x)}) for x in lists]
    parts = [delayed(x.assign(n=np.arange(2.0))) for x in frames]
    X = dd.from_delayed(parts, meta=frames[0].assign(n=0.0), verify_meta=False)
    return {"X": X, "y": X["n"]}


@case("differing_index", deep=True)
def mixed_labels(client: Client) -> dict[str, Any]:
    mixed = pd.DataFrame({"a": np.arange(40.0)}).sample(frac=1, random_state=1)
    X = dd.from_pandas(mixed, npartitions=2)
    return {"X": X, "y": dd.from_pandas(mixed["a"], npartitions=2, sort=False)}


@case("non_numeric_columns", estimator="xgboost", line=-1)
def text(client: Client) -> dict[str, Any]:
    X, y = numbers("frame")
    return {"X": X.assign(t="text"), "y": y}


@case("unshuffled_rows", deep=True)
def sorted_rows(client: Client) -> dict[str, Any]:
    return pair(client, [0, 0, 1, 1])


@case("query_groups", deep=True, estimator="lightgbm_rank", lines=2)
def mixed_groups(client: Client) -> dict[str, Any]:
    X, y = numbers()
    return {"X": X, "y": y, "qid": (y % 7).astype(int)}


@case("missing_classes", estimator="lightgbm", deep=True)
def sorted_classes(client: Client) -> dict[str, Any]:
    y = (np.arange(N) >= N / 2).astype(int)
    y = placed(client, cut(y, *[N // 4] * 4), [0, 0, 1, 1])
    return pair(client, [0, 0, 1, 1]) | {"y": y}


@case("class_labels", deep=True, estimator=DaskXGBClassifier)
def from_one(client: Client) -> dict[str, Any]:
    X, y = numbers()
    return {"X": X, "y": y // N + 1}


@pytest.mark.parametrize("name", CASES)
def test_of_training_data(client: Client, name: str) -> None:
    made = CASES[name](client)
    lines, line = made.pop("lines", 1), made.pop("line", 0)
    names = {k: made.pop(k) for k in ("X", "y", "qid") if k in made}
    names["ranker"] = "lightgbm_rank"
    situation = Situation(client, names, **made)
    for _ in range(lines):
        situation.apply(name, line)
    assert not situation.found(name)


def test_the_model_is_named(client: Client) -> None:
    """A ranker that sorts rows itself takes what the workload's name refuses."""
    X = pd.DataFrame({"a": np.arange(N)})
    parts = {"X": X, "y": X["a"], "qid": X["a"] % 7}
    names = {
        name: placed(client, cut(values, *[N // 4] * 4), [0, 0, 0, 1])
        for name, values in parts.items()
    }
    names["model"] = DaskXGBRanker()
    situation = Situation(client, names, estimator=names["model"])
    situation.apply("uneven_rows")
    assert not situation.found("uneven_rows")


def test_replicas(client: Client) -> None:
    situation = Situation(client, replicas(client))
    situation.apply("separated_pairs")
    assert not situation.found("separated_pairs")


@pytest.mark.parametrize(
    ("kind", "columns"), [("array", 2), ("array", 1), ("frame", 1)]
)
def test_missing_labels_in_columns(client: Client, kind: str, columns: int) -> None:
    """A row is dropped from X and y if one of its labels is missing.

    A mask of two dimensions would drop values of X.
    """
    X, y = numbers(kind)
    if kind == "array":
        y = da.stack([da.where(y == 2.0, np.nan, y), y][:columns], axis=1)
        y = y.rechunk({1: -1})
    else:
        y = y.replace(2.0, np.nan).to_frame("y")
    expected = [np.delete(np.asarray(d), 1, axis=0) for d in dask.compute(X, y)]
    situation = Situation(client, {"X": X, "y": y}, deep=True)
    situation.apply("nonfinite_values")
    assert not situation.found("nonfinite_values")
    left = dask.compute(situation.names["X"], situation.names["y"])
    for found, kept in zip(left, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(found), kept)


#: cases that are also cases of eval sets
ALSO = [
    *("column_chunks", "nonfinite_values", "differing_columns", "differing_index"),
    *("differing_categories", "non_numeric_columns", "query_groups"),
    *("misaligned_partitions",),
]


@pytest.mark.parametrize("more", [False, True], ids=["pair", "weights"])
@pytest.mark.parametrize("name", ALSO)
def test_of_eval_sets(client: Client, name: str, more: bool) -> None:
    made = CASES[name](client)
    lines, line = made.pop("lines", 1), made.pop("line", 0)
    bad = [made.pop(k) for k in ("X", "y", "qid") if k in made]
    named = {"qid": bad[2]} if name == "query_groups" else {}
    if more:
        named["sample_weight"] = bad[1]
    sets = [(*bad[:2], named) if named else tuple(bad)]
    X, y = healthy(bad[0])
    names = {"X": X, "y": y, "eval_set": sets}
    names |= {"qid": y // 40} if name == "query_groups" else {}
    names["ranker"] = "lightgbm_rank"
    situation = Situation(client, names, **made)
    for _ in range(lines):
        situation.apply(name, line)
    assert not situation.found(name)
    if name not in ("misaligned_partitions", "query_groups"):  # whose fix is prepare
        assert situation.names["X"] is X
        assert situation.names["y"] is y


def healthy(like: Any) -> Any:
    """Return training data with the columns of an eval set, and other categories."""
    if isinstance(like, da.Array):
        return [x + 0.5 for x in numbers()]
    columns = dict.fromkeys(like.select_dtypes("number").columns, np.arange(40.0))
    if "c" in like.columns:
        columns["c"] = pd.Categorical(["v"] * 40, ["w", "v", "u"])
    X = dd.from_pandas(pd.DataFrame(columns)[[*like.columns][:2]], npartitions=2)
    return X, X[X.select_dtypes("number").columns[0]]


@pytest.mark.parametrize(
    ("labels", "kind", "local"),
    [  # each two of the values come together
        ([1, 2], "array", False),
        ([1, 2], "frame", True),
        ([-1.0, 1.0], "array", True),
        ([-1.0, 1.0], "frame", False),
        ([0, 2], "array", True),
        ([0, 2], "frame", False),
    ],
    ids=str,
)
def test_labels_that_xgboost_refuses(
    client: Client, kind: str, labels: Any, local: bool
) -> None:
    """They stop ``prepare``; the numbers of the remedy train."""
    frame = pd.DataFrame({"a": np.arange(400.0), "y": np.array(labels * 200)})
    if kind == "array":
        X = da.from_array(frame[["a"]].to_numpy(), chunks=(100, 1))
        y = da.from_array(frame["y"].to_numpy(dtype=np.array(labels).dtype), chunks=100)
    else:
        whole = dd.from_pandas(frame, npartitions=4)
        X, y = whole[["a"]], whole["y"]
    model = DaskXGBClassifier(n_estimators=5, max_depth=2)
    with pytest.raises(ValueError, match="y has the label"):
        clustertune.prepare(client, X, y, estimator=model)
    other = y.copy() if kind == "frame" else y.map_blocks(np.copy)
    valid = (X + 1, other)
    names = {"X": X, "y": y, "eval_set": [dask.compute(*valid) if local else valid]}
    situation = Situation(client, names, estimator=model, deep=True)
    situation.apply("class_labels")
    situation.apply("class_labels")
    assert not situation.found("class_labels")
    assert list(situation.names["classes"]) == labels
    X, y, sets = (situation.names[name] for name in names)
    p = clustertune.prepare(client, X, y, eval_set=sets, estimator=model)
    model.client = client
    model.fit(p.X, p.y, **p.fit_kwargs)
    assert sorted(model.classes_) == [0, 1]


@pytest.mark.parametrize("local", [False, True], ids=["Dask", "pandas"])
def test_texts_as_features(client: Client, local: bool) -> None:
    """The first line of each remedy makes categories, the same ones in all sets."""
    frame = pd.DataFrame({"c": ["u", "v"] * 200, "a": np.arange(400.0)})
    X = dd.from_pandas(frame, npartitions=4)
    y = X["a"] % 2
    model = DaskXGBClassifier(n_estimators=5, enable_categorical=True)
    valid = (frame[::-1], frame["a"][::-1] % 2)
    lazy = tuple(dd.from_pandas(x, npartitions=2, sort=False) for x in valid)
    names = {"X": X, "y": y, "eval_set": [valid if local else lazy]}
    situation = Situation(client, names, estimator=model)
    situation.apply("non_numeric_columns")
    situation.apply("non_numeric_columns")
    problems = situation.found("non_numeric_columns")
    assert not any(f.severity > Severity.info for f in problems)
    X, y, sets = (situation.names[name] for name in names)
    assert sets[0][0]["c"].dtype == X["c"].dtype
    p = clustertune.prepare(client, X, y, eval_set=sets, estimator=model)
    model.client = client
    model.fit(p.X, p.y, **p.fit_kwargs)
