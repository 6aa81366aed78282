"""The data of the demo: what is made, what is refused, and that rows stay paired."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from distributed import futures_of

from clustertune.cli.demo import DemoError, load, read, row_groups, write_digits

pytest.importorskip("sklearn")


def test_row_groups_add_up_and_are_uneven():
    """All rows are in some group, no group is empty, and their sizes differ much."""
    sizes = row_groups(100_000, 32)
    assert len(sizes) == 32
    assert sizes.sum() == 100_000
    assert sizes.min() > 0
    assert sizes.max() > 2 * sizes.min()


def test_digits_are_written_in_the_row_groups_asked_for(tmp_path):
    """Files, row groups, columns and types are what the demo says they are."""
    write_digits(tmp_path / "digits", rows=3_000, partitions=12)
    files = sorted((tmp_path / "digits").iterdir())
    found = [pq.ParquetFile(file).metadata for file in files]
    groups = [m.row_group(i).num_rows for m in found for i in range(m.num_row_groups)]
    assert len(files) == 4
    assert groups == row_groups(3_000, 12).tolist()
    table = pq.read_table(tmp_path / "digits").to_pandas()
    assert table.shape == (3_000, 65)
    assert set(table.drop(columns="digit").dtypes) == {np.dtype("float32")}
    assert sorted(table["digit"].unique()) == list(range(10))


def test_digits_are_scikit_learns_with_noise(tmp_path):
    """The mean image of each digit is the real one's; no two rows are the same."""
    from sklearn.datasets import load_digits

    write_digits(tmp_path / "digits", rows=5_000, partitions=8)
    table = pq.read_table(tmp_path / "digits").to_pandas()
    images, digits = load_digits(return_X_y=True)
    real = pd.DataFrame(images).groupby(digits).mean().to_numpy()
    made = table.groupby("digit").mean().to_numpy()
    for ours, theirs in zip(made, real, strict=True):
        assert np.corrcoef(ours, theirs)[0, 1] > 0.95
    assert not table.duplicated().any()


def test_the_same_digits_are_made_each_time(tmp_path):
    """The data does not depend on chance, so runs can be compared."""
    for name in ("a", "b"):
        write_digits(tmp_path / name, rows=500, partitions=4)
    first, second = (pq.read_table(tmp_path / name) for name in ("a", "b"))
    assert first.equals(second)


# --- what the user gave -------------------------------------------------------------


def written(folder, **columns):
    """Write a Parquet file of 200 rows, with some feature x, and return its path."""
    frame = pd.DataFrame({"x": np.arange(200.0)} | columns)
    path = folder / "data.parquet"
    frame.to_parquet(path, row_group_size=30)
    return str(path)


def test_every_row_group_is_a_partition(tmp_path):
    """Pieces are as small as the file allows, so that they can be shared out."""
    path = written(tmp_path, y=np.arange(200) % 2)
    assert read(path, "y").npartitions == 7


def test_what_is_no_parquet_is_refused(tmp_path):
    """A file of another kind is named, with the reader's reason."""
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DemoError, match=r"data\.csv' cannot be read as Parquet: ."):
        read(str(tmp_path / "data.csv"), "b")


def test_an_empty_folder_is_refused(tmp_path):
    """A folder without data is refused like a file that is none."""
    with pytest.raises(DemoError, match="cannot be read as Parquet"):
        read(str(tmp_path), "y")


def test_an_unknown_label_is_refused_with_the_columns(tmp_path):
    """Who mistypes the label reads which columns there are."""
    path = written(tmp_path, price=np.ones(200))
    with pytest.raises(DemoError, match=r"label='cost' is not a column; .* x, price"):
        read(path, "cost")


def test_a_label_alone_is_refused(tmp_path):
    """There must be a feature besides the label."""
    with pytest.raises(DemoError, match="'x' is the only column"):
        read(written(tmp_path), "x")


def test_columns_that_are_not_numbers_are_named(tmp_path):
    """Text and times are refused by name; numbers, bools, categories are not."""
    path = written(
        tmp_path,
        y=np.ones(200),
        flag=np.ones(200, dtype=bool),
        kind=pd.Categorical(["a", "b"] * 100),
        city=["Bern", "Wien"] * 100,
        when=pd.date_range("2026", periods=200),
    )
    with pytest.raises(DemoError, match=r"nor categories: city .*, when ") as caught:
        read(path, "y")
    assert "flag" not in str(caught.value)
    assert "kind" not in str(caught.value)


# --- loading ------------------------------------------------------------------------


@pytest.fixture
def client(local_cluster):
    """A client of a cluster with one worker, all in this process."""
    return local_cluster(1, processes=False, dashboard_address="127.0.0.1:0")[1]


def loaded(client, path, label="y", partitions=4):
    return load(client, read(path, label), label, partitions=partitions)


def test_rows_stay_paired(tmp_path, client):
    """Each label is still beside its features, in both sets, and no row is lost."""
    data = loaded(client, written(tmp_path, y=3 * np.arange(200.0)))
    for X, y in ((data.X, data.y), (data.X_valid, data.y_valid)):
        assert X.map_partitions(len).compute().tolist() == (
            y.map_partitions(len).compute().tolist()
        )
        assert (3 * X["x"].compute().to_numpy() == y.compute().to_numpy()).all()
    assert len(data.X) + len(data.X_valid) == 200
    assert len(data.X) > 5 * len(data.X_valid) > 0


def test_everything_is_in_memory(tmp_path, client):
    """Loading is done when ``load`` returns: a fit times no reading."""
    data = loaded(client, written(tmp_path, y=np.arange(200) % 3))
    for collection in (data.X, data.y, data.X_valid, data.y_valid):
        futures = futures_of(collection)
        assert len(futures) == collection.npartitions
        assert {future.status for future in futures} == {"finished"}


def test_too_few_row_groups_are_cut(tmp_path, client):
    """One row group cannot be on two workers, so it is cut before it is loaded."""
    path = tmp_path / "one.parquet"
    pd.DataFrame({"x": np.arange(300.0), "y": np.arange(300.0)}).to_parquet(path)
    assert loaded(client, str(path), partitions=16).X.npartitions == 16


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([10, 20], id="few whole numbers"),
        pytest.param([False, True], id="bools"),
        pytest.param(["no", "yes"], id="text"),
        pytest.param(pd.Categorical(["no", "yes"]), id="categories"),
    ],
)
def test_a_label_of_few_values_is_a_class(tmp_path, client, values):
    """Classes are numbered in their order, as XGBoost wants them."""
    y = pd.concat([pd.Series(values)] * 100, ignore_index=True)
    data = loaded(client, written(tmp_path, y=y))
    assert data.classes == 2
    found, rows = data.y.compute().to_numpy(), data.X["x"].compute().to_numpy()
    assert (found == rows.astype(int) % 2).all()


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(np.arange(200), id="many whole numbers"),
        pytest.param(np.tile([0.0, 1.0], 100), id="fractions, however few"),
    ],
)
def test_other_numbers_are_quantities(tmp_path, client, values):
    """What is not a class is predicted as a quantity, and left as it is."""
    data = loaded(client, written(tmp_path, y=values))
    assert data.classes is None
    assert data.y.dtype == values.dtype


def test_categories_of_features_are_known_and_the_same_everywhere(tmp_path, client):
    """XGBoost numbers categories: a value must have one number in all pieces."""
    kind = pd.Categorical(["a"] * 100 + ["b"] * 60 + ["c"] * 40)
    data = loaded(client, written(tmp_path, y=np.arange(200.0), kind=kind))
    pieces = client.gather(futures_of(data.X))
    assert {tuple(piece["kind"].cat.categories) for piece in pieces} == {
        ("a", "b", "c")
    }


@pytest.mark.parametrize(
    ("y", "text"),
    [
        pytest.param(
            np.where(np.arange(200) < 5, np.nan, 1.0),
            "missing in 5 of 200",
            id="absent",
        ),
        pytest.param([f"v{i}" for i in range(200)], r"has 1\d\d different", id="many"),
        pytest.param(["same"] * 200, "has 1 different", id="one"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(tmp_path, client, y, text):
    """The error says what is in the label, and what would do."""
    with pytest.raises(DemoError, match=text):
        loaded(client, written(tmp_path, y=y))


def test_too_few_rows_are_refused(tmp_path, client):
    """With a handful of rows there is nothing to train or to compare."""
    path = tmp_path / "few.parquet"
    frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0)})
    dd.from_pandas(frame, npartitions=2).to_parquet(path)
    with pytest.raises(DemoError, match="20 rows are too few; the demo needs 100"):
        loaded(client, str(path))
