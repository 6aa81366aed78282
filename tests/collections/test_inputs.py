"""Arguments form groups of row-aligned collections; errors have a fix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, wait

import clustertune
from clustertune import errors
from clustertune.collections import graphs, inputs, partitions
from clustertune.collections.inputs import Inputs, gather
from clustertune.core.model import Goal
from clustertune.integrations.libraries import GENERIC, choose, refuse
from clustertune.planner import remedies
from tests.in_process import ONE, gen_cluster

X = da.ones((100, 4), chunks=(10, 4))
Y = da.zeros(100, chunks=10)
PANDAS = pd.DataFrame({"a": range(100), "b": np.arange(100, dtype="float32"), "c": "s"})
FRAME = dd.from_pandas(PANDAS, npartitions=5)


def labels(given: Inputs) -> list[tuple[str, list[str]]]:
    return [(g.label, [x.label for x in g.given]) for g in given.groups]


def loaded(*collections: Any) -> list[bool]:
    return [graphs.partitions(c)[1] is not None for c in collections]


# --- groups ---------------------------------------------------------------------------


def test_everything_has_the_name_of_its_argument() -> None:
    """Training data is one group in the order of the arguments, without None."""
    given = gather(X, Y, Y + 1, X + 1, qid=Y + 2, sample_weight=Y + 3, init_score=None)
    members = ["X", "y", "others[0]", "others[1]", "sample_weight", "qid"]
    assert labels(given) == [("training data", members)]
    assert list(given.training) == members
    assert given.collection("qid").name == (Y + 2).name
    assert given.collection("init_score") is None
    assert labels(gather(FRAME)) == [("training data", ["X"])]
    assert gather(X).eval_sets == ()


def test_names_of_companions() -> None:
    """A library refuses a companion that it does not take."""
    given = gather(X, Y, Y + 1, sample_weight=Y + 2, base_margin=Y + 3)
    assert list(inputs.companions(given)) == ["sample_weight", "base_margin"]
    assert remedies.prepare_again(given.training) == (
        "X, y, *others, sample_weight, base_margin = clustertune.prepare(client, X, y, "
        "*others, sample_weight=sample_weight, base_margin=base_margin)"
    )
    with pytest.raises(ValueError, match="LightGBM takes no base_margin="):
        refuse(choose("lightgbm"), inputs.companions(given))


@pytest.mark.parametrize("pair", [(Y, Y + 1), (Y,), [FRAME["a"], FRAME["b"]]])
def test_bounds_of_labels_as_y(pair: Any) -> None:
    """A pair is refused; the fix gives both bounds as collections."""
    fix = r"X, lower, upper = clustertune\.prepare\(client, X, lower, upper\)"
    with pytest.raises(TypeError, match=f"y must be a Dask Array.*{fix}"):
        gather(X, pair)


def test_what_is_given_twice_is_one_member() -> None:
    """Data with two names is placed once, and returned under both names."""
    given = gather(X, Y, Y, sample_weight=Y)
    assert labels(given) == [("training data", ["X", "y"])]
    assert given.training == ("X", "y", "others[0]", "sample_weight")
    for label in given.training[1:]:
        assert given.collection(label) is Y


def test_an_eval_set_is_a_group_of_its_own() -> None:
    """An eval set forms its own group."""
    given = gather(X, Y, eval_set=[(X[:50], Y[:50]), (X[50:], Y[50:])])
    assert labels(given)[1:] == [
        ("eval_set[0]", ["eval_set[0].X", "eval_set[0].y"]),
        ("eval_set[1]", ["eval_set[1].X", "eval_set[1].y"]),
    ]
    assert given.eval_sets == (
        ("eval_set[0].X", "eval_set[0].y"),
        ("eval_set[1].X", "eval_set[1].y"),
    )


def test_an_eval_set_with_companions() -> None:
    """Companions of an eval set join its group by name; None is none."""
    more = {"qid": Y[:50] * 2, "sample_weight": None, "init_score": Y[:50] * 3}
    given = gather(X, Y, eval_set=[(X[:50], Y[:50], more), (X[50:], Y[50:], {})])
    first = ["X", "y", "qid", "init_score"]
    assert labels(given)[1] == ("eval_set[0]", [f"eval_set[0].{n}" for n in first])
    assert given.eval_sets[0] == tuple(f"eval_set[0].{n}" for n in first)
    assert given.eval_sets[1] == ("eval_set[1].X", "eval_set[1].y")
    assert given.collection("eval_set[0].qid") is more["qid"]


@pytest.mark.parametrize(
    ("one", "text"),
    [
        ((X, Y, {"weight": Y}), "companions are sample_weight, .*; weight is none"),
        ((X, Y, Y), "eval_set must be a list of pairs"),
        ((X, Y, {}, {}), "eval_set must be a list of pairs"),
        ((X,), "eval_set must be a list of pairs"),
    ],
)
def test_what_is_no_companion(one: Any, text: str) -> None:
    """The error lists the allowed names."""
    with pytest.raises(ValueError, match=text):
        gather(X, Y, eval_set=[one])


def test_what_was_given_beside_x_and_y() -> None:
    """Companions have the names of their arguments."""
    assert inputs.companions(gather(X, Y)) == ()
    given = gather(X, Y, qid=Y * 2, eval_set=[(X[:50], Y[:50])])
    assert inputs.companions(given) == ("qid", "eval_set")


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"persist": False, "release_inputs": True}, "persist=False leaves lazy data"),
        ({"persist": False, "rechunk": 8}, "persist=False leaves lazy data"),
        ({"release_inputs": True, "rechunk": False}, "rechunk=False cuts none"),
    ],
)
def test_what_does_not_go_together(wanted: dict[str, Any], text: str) -> None:
    """Arguments that exclude each other are an error before any change."""
    goal = Goal(workload=GENERIC.profile, **wanted)
    with pytest.raises(ValueError, match=text):
        inputs.refuse_unfit(gather(X, Y), goal)


@pytest.mark.parametrize("number", [1, 8])
def test_a_number_of_partitions_of_query_groups(number: int) -> None:
    """Groups are not cut, so the number would be ignored."""
    group = da.from_array(SIZES, chunks=2)
    goal = Goal(workload=GENERIC.profile, rechunk=number)
    ranks = replace(GENERIC.profile, groups="together")
    sorts = replace(GENERIC.profile, groups="anywhere")
    for given in (gather(X, Y, qid=Y + 1), gather(X, Y, group=group)):
        with pytest.raises(ValueError, match=f"rechunk={number} cuts at any row"):
            inputs.refuse_unfit(given, replace(goal, workload=ranks))
        inputs.refuse_unfit(given, replace(goal, workload=sorts))
        inputs.refuse_unfit(given, replace(goal, rechunk=False))


def test_groups_without_a_ranker() -> None:
    """Groups need a ranker: without one, cuts would go through them."""
    evals = gather(X, Y, eval_set=[(X[:50], Y[:50], {"qid": Y[:50]})])
    for given, label in ((gather(X, Y, qid=Y), "qid"), (evals, r"eval_set\[0\].qid")):
        inputs.refuse_groups(given, choose("xgboost_rank"))
        with pytest.raises(ValueError, match=f"{label} needs a ranker as estimator="):
            inputs.refuse_groups(given, GENERIC.profile)
    inputs.refuse_groups(gather(X, Y, Y), GENERIC.profile)


def test_swapped() -> None:
    """X with one column and y with several are probably swapped."""
    goal = Goal(workload=GENERIC.profile)
    frame = dd.from_pandas(pd.DataFrame({"a": [1, 2], "b": [1, 2]}), npartitions=1)
    for features, labels in ((X, Y), (frame, frame["a"])):
        inputs.refuse_unfit(gather(features, labels), goal)
        with pytest.raises(ValueError, match=r"y has \d: are they swapped"):
            inputs.refuse_unfit(gather(labels, features), goal)


def test_other_columns_of_an_eval_set() -> None:
    """LightGBM scores columns by their position, without an error."""
    goal = Goal(workload=GENERIC.profile)
    local = pd.DataFrame({"a": [1, 2], "b": [1, 2], 3: [1, 2]})
    frame = dd.from_pandas(local, npartitions=1)

    def judge(valid: Any) -> None:
        given = gather(frame, frame["a"], eval_set=[(valid, valid["a"])])
        inputs.refuse_unfit(given, goal)

    for same in (frame + 1, local):
        judge(same)
    for other, text in (
        (frame[["b", "a", 3]], "has another order"),
        (local[["a", "b"]], "lacks 3;"),
        (frame.assign(c=1), "also has c;"),
    ):
        with pytest.raises(ValueError, match=rf"eval_set\[0\]\.X needs .* {text}"):
            judge(other)
    judge(local[[3, "b", "a"]][[*frame.columns]])  # the remedy
    inputs.refuse_unfit(gather(X, Y, eval_set=[(X[:50], Y[:50])]), goal)
    with pytest.raises(ValueError, match=r"eval_set\[0\]\.X has 2 columns, and X has"):
        inputs.refuse_unfit(gather(X, Y, eval_set=[(X[:50, :2], Y[:50])]), goal)


ARRAYS = replace(GENERIC.profile, kinds=("array",), title="The library")


def test_frames_become_arrays_for_a_library_of_arrays() -> None:
    """Columns have the order of the metadata, also where a partition has another."""

    def part(i: int) -> pd.DataFrame:
        columns = {"a": [i, i], "b": [-i, -i]}
        return pd.DataFrame({c: columns[c] for c in ("ab", "ba")[i % 2]})

    frame = dd.from_map(part, [1, 2], meta=part(2), enforce_metadata=False)
    given = gather(frame, frame["b"], X)
    made = inputs.with_arrays(given, ARRAYS, asynchronous=False)
    found = [x.collection for x in made]
    assert all(isinstance(x, da.Array) for x in found)
    assert found[0].compute(scheduler="sync").tolist() == [[1, -1]] * 2 + [[2, -2]] * 2
    assert found[1].compute(scheduler="sync").tolist() == [-1, -1, -2, -2]
    assert found[2] is X
    same = inputs.with_arrays(given, GENERIC.profile, asynchronous=False)
    assert same is given
    # a pipeline transforms X before its last step, and passes y on
    steps = replace(ARRAYS, transforms=True)
    made = inputs.with_arrays(given, steps, asynchronous=False)
    kinds = [isinstance(x.collection, da.Array) for x in made]
    assert kinds == [False, True, True]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (pd.Series(["u", "v"]), r"X has other types: c \(.*\); encode"),
        (pd.Series(["u", "v"]).astype("category"), r"c \(category\); encode"),
        (
            pd.Series([1, None], dtype="Int64"),
            r'X.astype\(dict.fromkeys\(\["c"\], "flo',
        ),
    ],
)
def test_columns_that_no_array_has(values: Any, text: str) -> None:
    """The error names the column and its type, and its line works."""
    frame = pd.DataFrame({"a": [1.0, 2.0], "c": values})
    given = gather(dd.from_pandas(frame, npartitions=1))
    with pytest.raises(ValueError, match=text) as error:
        inputs.with_arrays(given, ARRAYS, asynchronous=False)
    names = {"X": given.collection("X")}
    exec(str(error.value).rpartition(": ")[2], names)
    made = gather(names["X"])
    made = inputs.with_arrays(made, ARRAYS, asynchronous=False)
    assert made.collection("X").compute(scheduler="sync").dtype == "f8"
    labels = gather(X, dd.from_pandas(values, npartitions=1))
    with pytest.raises(ValueError, match="y has other types: y"):
        inputs.with_arrays(labels, ARRAYS, asynchronous=False)


def test_the_training_data_as_eval_set_is_no_second_group() -> None:
    """A collection that is given twice is placed once."""
    given = gather(X, Y, eval_set=[(X, Y), (X[:50], Y[:50]), (X[:50], Y[:50])])
    assert [label for label, _ in labels(given)] == ["training data", "eval_set[1]"]
    assert len(given.eval_sets) == 3
    found = [[given.collection(label) for label in pair] for pair in given.eval_sets]
    expected = [[X, Y], [X[:50], Y[:50]], [X[:50], Y[:50]]]
    assert [[c.name for c in x] for x in found] == [
        [c.name for c in x] for x in expected
    ]


def test_the_training_data_as_eval_set() -> None:
    """An eval set that is the training data stays the same object.

    Libraries recognize it by identity. Without early stopping no library needs replicas
    of it.
    """
    given = gather(X, Y, eval_set=[(X, Y), (X[:50], Y[:50])])
    assert inputs.evaluated(given) == ("eval_set[0]",)
    assert given.collection("eval_set[0].X") is given.collection("X")
    copies = replace(GENERIC.profile, eval_copies=True)
    inputs.refuse_unfit(given, Goal(workload=copies))
    stops = replace(copies, stops_early=True)
    with pytest.raises(ValueError, match=r"eval_set\[0\] is the training data"):
        inputs.refuse_unfit(given, Goal(workload=stops))
    inputs.refuse_unfit(gather(X, Y, eval_set=[(X[:50], Y[:50])]), Goal(workload=stops))


# --- groups that are given as sizes ---------------------------------------------------

SIZES = np.array([30, 20, 25, 25])


@pytest.mark.parametrize(
    "group",
    [
        da.from_array(SIZES, chunks=2),
        da.from_array(SIZES.astype("u8"), chunks=(1, 3)),
        dd.from_pandas(pd.Series(SIZES), npartitions=2),
        dd.from_pandas(pd.Series(SIZES), npartitions=2).to_dask_array(),
    ],
)
def test_sizes_of_groups_become_the_group_of_each_row(group: Any) -> None:
    """Each row gets the number of its group; numbers are unique."""
    given = gather(X, Y, group=group, eval_set=[(X[:50], Y[:50], {"group": group})])
    assert given.eval_sets[0][2] == "eval_set[0].qid"
    assert given.training == ("X", "y", "qid")
    assert given.sizes["qid"] is group
    qid = given.collection("qid").compute(scheduler="sync")
    values, counts = np.unique(qid, return_counts=True)
    assert (np.diff(qid) >= 0).all()
    assert counts.tolist() == SIZES.tolist()
    assert len(values) == 4
    with pytest.raises(ValueError, match="group needs a ranker"):
        inputs.refuse_groups(given, GENERIC.profile)
    with pytest.raises(ValueError, match=r"group= has sizes .* give qid="):
        inputs.refuse_groups(given, choose("xgboost_rank"))
    inputs.refuse_groups(given, choose("lightgbm_rank"))


def test_what_are_no_sizes_of_groups() -> None:
    """The error names the argument and the allowed values."""
    with pytest.raises(TypeError, match="group must be a Dask Array or Series"):
        gather(X, Y, group=[30, 70])
    with pytest.raises(ValueError, match="group must have one whole number"):
        gather(X, Y, group=da.ones(4))
    with pytest.raises(ValueError, match="qid and group are given"):
        gather(X, Y, group=da.ones(4, dtype=int), qid=Y)


def test_other_labels_for_the_same_rows_join_their_group() -> None:
    """Another y for the training X joins the group of that X."""
    given = gather(X, Y, eval_set=[(X, Y + 1)])
    assert labels(given) == [("training data", ["X", "y", "eval_set[0].y"])]
    assert given.training == ("X", "y")
    assert given.collection("eval_set[0].X") is X


def test_other_collections_keep_names_and_groups() -> None:
    """Persisted collections replace the given ones under the same names."""
    given = gather(X, Y, eval_set=[(X[:50], Y[:50])])
    new = [x.collection + 1 for x in given]
    found = given.with_collections(new)
    assert labels(found) == labels(given)
    assert found.eval_sets == given.eval_sets
    assert [x.collection.name for x in found] == [c.name for c in new]


# --- what a collection says of itself -------------------------------------------------


def test_an_array_tells_its_bytes() -> None:
    """Bytes of an array are known without computing its graph."""
    found = graphs.describe("X", X, *_keys(X))
    assert (found.kind, found.columns, found.column_blocks) == ("array", 4, 1)
    assert (found.total_bytes, found.itemsize, found.loaded) == (3200, 8, False)
    assert found.n_partitions == 10


def test_an_array_of_unknown_rows_says_so() -> None:
    """Rows of unknown chunks are unknown, not guessed."""
    found = graphs.describe("X", X[X[:, 0] > 0], *_keys(X[X[:, 0] > 0]))
    assert found.rows is None
    assert found.total_bytes is None
    assert found.columns == 4


def test_blocks_of_columns_are_counted() -> None:
    """An array with blocks of columns has fewer partitions than keys."""
    cut = da.ones((100, 4), chunks=(10, 2))
    found = graphs.describe("X", cut, *_keys(cut))
    assert (len(found.keys), found.column_blocks, found.n_partitions) == (20, 2, 10)


def test_a_frame_tells_columns_but_not_rows() -> None:
    """The item size of a frame is that of its widest numbers; rows are unknown."""
    found = graphs.describe("X", FRAME, *_keys(FRAME))
    assert (found.kind, found.rows, found.columns) == ("dataframe", None, 3)
    assert (found.itemsize, found.total_bytes) == (8, None)
    numbers = graphs.describe("X", FRAME[["b"]], *_keys(FRAME), np.array([10, 5]))
    assert (numbers.itemsize, numbers.total_bytes) == (4, 60)
    assert graphs.describe("X", FRAME[["c"]], *_keys(FRAME)).itemsize is None


def test_a_series_is_a_column() -> None:
    """A series has one column and differs from a frame."""
    found = graphs.describe("y", FRAME["b"], *_keys(FRAME["b"]))
    assert (found.kind, found.columns, found.itemsize) == ("series", 1, 4)


def _keys(collection: Any) -> tuple[Any, bool]:
    keys, futures = graphs.partitions(collection)
    return keys, futures is not None


# --- partitions -----------------------------------------------------------------------


def test_lazy_collections_have_no_futures() -> None:
    """Lazy collections have ordered keys and no futures."""
    keys, futures = graphs.partitions(X)
    assert futures is None
    assert keys == [(X.name, i, 0) for i in range(10)]
    assert loaded(FRAME, FRAME["a"], FRAME[["a"]]) == [False] * 3


@gen_cluster(client=True, nthreads=ONE)
async def test_partitions_of_persisted_collections(c, s, a):
    """Keys are those of the futures, in row order, for arrays, frames and series."""
    array = da.arange(400, chunks=40).reshape(100, 4)
    values = await c.compute(array)
    given = c.persist([array, array.rechunk((25, 2))])
    given += c.persist([FRAME, FRAME["a"]])
    await wait(given)
    expected = [
        [values[i : i + 10] for i in range(0, 100, 10)],
        [values[i : i + 25, j : j + 2] for i in range(0, 100, 25) for j in (0, 2)],
        [PANDAS[i : i + 20] for i in range(0, 100, 20)],
        [PANDAS["a"][i : i + 20] for i in range(0, 100, 20)],
    ]
    for collection, parts in zip(given, expected, strict=True):
        keys, futures = graphs.partitions(collection)
        assert keys == [f.key for f in futures]
        assert all(s.tasks[key].state == "memory" for key in keys)
        found = await c.gather(futures)
        assert [np.shape(x) for x in found] == [np.shape(x) for x in parts]
        assert all(np.array_equal(x, y) for x, y in zip(found, parts, strict=True))


@gen_cluster(client=True, nthreads=ONE)
async def test_aliases_are_followed(c, s, a):
    """A selection of whole partitions of a persisted frame keeps the keys."""
    frame = await c.persist(FRAME)
    keys, _ = graphs.partitions(frame)
    part, futures = graphs.partitions(frame.partitions[1:3])
    assert part == keys[1:3]
    assert [f.key for f in futures] == part
    # the frame's own keys are aliases: nothing on the scheduler has their names
    assert not set(frame.__dask_keys__()) & set(s.tasks)


@gen_cluster(client=True, nthreads=ONE)
async def test_what_is_derived_is_not_persisted(c, s, a):
    """A collection computed from a persisted one is not loaded."""
    array, frame = c.persist(X), c.persist(FRAME)
    await wait([array, frame])
    derived = [array + 1, array[:, :2], frame[["a"]], frame["a"], frame.a + 1]
    assert loaded(array, frame) == [True, True]
    assert loaded(*derived, frame.to_dask_array()) == [False] * 6


def test_sources_are_known_without_their_graph(monkeypatch: Any) -> None:
    """The graph of a lazy frame is not built to find out that it is lazy."""

    def refuse(self: Any) -> Any:
        raise AssertionError("the graph was built")

    monkeypatch.setattr(dd.DataFrame, "__dask_graph__", refuse)
    monkeypatch.setattr(dd.Series, "__dask_graph__", refuse)
    for lazy in (FRAME, FRAME["a"], FRAME[["a"]] + 1):
        assert graphs.partitions(lazy)[1] is None
        assert graphs.missing_rows(lazy) == 0


# --- bad input, seen without a cluster ------------------------------------------------


@pytest.mark.parametrize("label", ["X", "y", "sample_weight", "eval_set[0].y"])
@pytest.mark.parametrize(
    ("value", "was", "what_to_do"),
    [
        (np.ones((3, 2)), "numpy.ndarray", r"from_array\(\w+, chunks=\(rows, -1\)\)"),
        (np.ones(3), "numpy.ndarray", r"from_array\(\w+, chunks=rows\)"),
        (PANDAS, "pandas.DataFrame", r"from_pandas\(\w+, npartitions=n\)"),
        (PANDAS["a"], "pandas.Series", r"from_pandas\(\w+, npartitions=n\)"),
        (db.from_sequence([1]), "dask.Bag", "without Dask"),
        (dask.delayed(len)([]), "dask.Delayed", r"from_delayed\(\[\w+\]\)"),
        ([dask.delayed(len)([])], "list", r"dataframe.from_delayed\(\w+\), or"),
        ([1, 2], "builtins.list", "without Dask"),
        (FRAME.index, "Index", "without Dask"),
        (FRAME["a"].sum(), "Scalar", "without Dask"),
    ],
)
def test_no_collection(label: str, value: Any, was: str, what_to_do: str) -> None:
    """Another object is named with its type and with the way to make a collection."""
    given = {
        "X": lambda: gather(value, Y),
        "y": lambda: gather(X, value),
        "sample_weight": lambda: gather(X, Y, sample_weight=value),
        "eval_set[0].y": lambda: gather(X, Y, eval_set=[(X, value)]),
    }
    if label == "eval_set[0].y" and was.startswith(("numpy", "pandas")):
        assert given[label]().collection(label).npartitions == 1
        return
    with pytest.raises(TypeError, match=rf"must be a Dask .*{was}.*{what_to_do}") as e:
        given[label]()
    assert str(e.value).startswith(f"{label} must be")


def test_futures_are_no_collection() -> None:
    """The error for futures names a function that makes collections of them."""
    with Client(
        processes=False, n_workers=1, dashboard_address="127.0.0.1:0"
    ) as client:
        future = client.submit(pd.DataFrame, {"a": range(6)})
        for given in (future, [future, future]):
            with pytest.raises(TypeError, match="from_delayed") as error:
                gather(given)
            line = str(error.value).partition("X = ")[2].partition(", or ")[0]
            made = eval(line, {"dask": dask, "X": given})
            assert labels(gather(made)) == [("training data", ["X"])]


def test_a_matrix_of_xgboost() -> None:
    """The error has the order of ``prepare`` and the matrix."""
    made = type("DaskDMatrix", (), {"__module__": "xgboost.dask"})()
    with pytest.raises(TypeError, match=r"prepare\(client, X, y\); .*DaskDMatrix\("):
        gather(made)


def test_the_way_to_a_collection_works() -> None:
    """The fix in the error for NumPy arrays works."""
    for array in (np.ones(6), np.ones((6, 2))):
        with pytest.raises(TypeError) as error:
            gather(array)
        line = str(error.value).partition("Make it one: X = ")[2]
        made = eval(line, {"dask": dask, "X": array, "rows": 2})
        assert labels(gather(made)) == [("training data", ["X"])]
        assert made.numblocks[0] == 3


def test_nothing_at_all() -> None:
    """X is required, and so is y before other collections."""
    with pytest.raises(TypeError, match=r"X must be a Dask Array, .*NoneType"):
        gather(None)
    with pytest.raises(TypeError, match="y is None but collections follow it"):
        gather(X, None, Y)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (da.ones(()), "has no rows: it is a Dask Array without dimensions"),
        (da.ones((0, 3)), r"is empty: its shape is \(0, 3\)"),
        (da.ones((3, 0)), r"is empty: its shape is \(3, 0\)"),
        (FRAME[[]], "is a DataFrame without columns"),
    ],
)
def test_empty_collections(value: Any, text: str) -> None:
    """A collection without rows or columns is refused by name."""
    with pytest.raises(ValueError, match=f"X {text}"):
        gather(value)
    with pytest.raises(ValueError, match=f"y {text}"):
        gather(X, value)


@pytest.mark.parametrize(
    "value", [(X, Y), X, [X, Y], [(X, Y, Y)]], ids=lambda v: type(v).__name__
)
def test_an_eval_set_that_is_no_list_of_pairs(value: Any) -> None:
    """An eval set in another form is refused with an example."""
    with pytest.raises(ValueError, match=r"eval_set=\[\(X_valid, "):
        gather(X, Y, eval_set=value)


# --- bad input, with a cluster --------------------------------------------------------


@gen_cluster(client=True, nthreads=ONE)
async def test_no_client(c, s, a):
    """An address or a cluster instead of a client is refused with its type."""
    for thing in (s.address, s, None):
        with pytest.raises(
            TypeError, match=f"client must be .* {type(thing).__name__}"
        ):
            clustertune.prepare(thing, X, Y)


@gen_cluster(client=True, nthreads=ONE)
async def test_a_closed_client(c, s, a):
    """A closed client, and data of a closed client, are refused."""
    other = await Client(s.address, asynchronous=True, set_as_default=False)
    data = await other.persist(Y)
    await other.close()
    with pytest.raises(
        errors.ConnectionLostError, match=r"the client is closed.* Client\("
    ):
        clustertune.prepare(other, X, Y)
    with pytest.raises(ValueError, match=r"y was persisted by a client that is closed"):
        clustertune.prepare(c, X, data)


@gen_cluster(client=True, nthreads=ONE)
async def test_data_of_another_cluster(c, s, a):
    """Data that another cluster has loaded is named, with both addresses."""
    from distributed import LocalCluster

    options = {"n_workers": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    async with (
        LocalCluster(asynchronous=True, **options) as cluster,
        Client(cluster, asynchronous=True, set_as_default=False) as other,
    ):
        data = await other.persist(Y)
        theirs = other.scheduler.address
        with pytest.raises(
            ValueError, match=f"y was loaded .*to {theirs}; .*to {s.address}"
        ):
            clustertune.prepare(c, X, data)


WRONG: list[tuple[str, Any, str]] = [
    ("estimator", "xgb", "'xgb' is no known workload; choose from generic, glm"),
    ("estimator", ["xgb"], "estimator=list is not one .* its workload instead"),
    ("estimator", 1, "estimator=int is not one .* workload instead: generic"),
    ("n_workers", 0, "n_workers=0 must be a whole number"),
    ("on_low_memory", "yes", 'on_low_memory=\'yes\' must be "report" or "raise"'),
    ("dry_run", 1, "dry_run=1 must be True or False"),
    ("timeout", "soon", "timeout='soon' must be a duration"),
    ("workers", "0", "workers='0' must be a list"),
    ("workers", ["absent"], r"workers: there is no absent .* are 0"),
]


@gen_cluster(client=True, nthreads=ONE)
async def test_other_arguments(c, s, a):
    """Each argument is checked before any change on the cluster."""
    for argument, value, text in WRONG:
        with pytest.raises(ValueError, match=text):
            await clustertune.prepare(c, X, Y, **{argument: value})
        assert not s.tasks
        assert "clustertune" not in s.plugins


@gen_cluster(client=True, nthreads=ONE)
async def test_lengths_that_differ(c, s, a):
    """X and y of different length are refused with both counts; nothing is loaded."""
    with pytest.raises(errors.AlignmentError, match="X has 100 rows, y has 50"):
        await clustertune.prepare(c, X, Y[:50])
    assert not s.tasks


# --- Parquet --------------------------------------------------------------------------


@pytest.fixture
def parquet(tmp_path: Path) -> dd.DataFrame:
    """Eight small files, of which Dask joins some if few columns are read."""
    rng = np.random.default_rng(0)
    columns = {f"f{i}": rng.random(8000) for i in range(20)}
    frame = pd.DataFrame({**columns, "s": "text"}, index=pd.RangeIndex(8000, name="id"))
    dd.from_pandas(frame, npartitions=8).to_parquet(tmp_path)
    return dd.read_parquet(tmp_path)


@gen_cluster(client=True, nthreads=ONE)
async def test_partitions_that_dask_joins(c, s, a, parquet):
    """Dask persists fewer partitions than the frame has; clustertune keeps all."""
    for frame in (parquet[["f1", "s"]], parquet["f1"]):
        joined = c.persist(frame)
        assert graphs.missing_rows(frame) == 0
        assert graphs.missing_rows(joined) == 5
        whole = c.persist(partitions.unjoined(frame))
        assert graphs.missing_rows(whole) == 0
        assert loaded(whole) == [True]
        assert type(whole) is type(frame)
        assert whole.divisions == frame.divisions
        expected, found = await c.compute(frame), await c.compute(whole)
        assert found.equals(expected)
        assert found.index.name == "id"


@gen_cluster(client=True, nthreads=ONE)
async def test_joined_partitions_are_refused(c, s, a, parquet):
    """A frame whose partitions Dask has joined is refused by name."""
    y = c.persist(parquet["f1"])
    with pytest.raises(
        errors.AlignmentError, match=r"y has 8 partitions .* but only 3 were"
    ):
        await clustertune.prepare(c, parquet[["f0"]], y)


@pytest.mark.parametrize("kind", ["frames", "one frame", "array and series"])
@gen_cluster(client=True, nthreads=ONE)
async def test_parquet_is_loaded_in_the_partitions_that_it_has(c, s, a, kind, parquet):
    """Columns of small files keep all partitions and values, also with an array."""
    array = da.arange(8000, chunks=1000)
    given = {
        "frames": [parquet[["f0", "s"]], parquet["f1"]],
        "one frame": [parquet[["f0", "s"]]],
        "array and series": [array, parquet["f1"]],
    }[kind]
    prepared = await clustertune.prepare(c, *given)
    for collection, lazy in zip(prepared, given, strict=True):
        assert type(collection) is type(lazy)
        assert len(graphs.partitions(collection)[1]) == 8
        found, expected = await c.compute(collection), await c.compute(lazy)
        assert np.array_equal(found, expected)
