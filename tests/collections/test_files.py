"""The file of each partition, checked with the values that the partition has."""

from __future__ import annotations

import dask.dataframe as dd
import pandas as pd
import pytest

from clustertune.collections.partitions import files_of

N_FILES = 3


@pytest.fixture
def folder(tmp_path):
    """CSV and Parquet files; the column ``file`` has the number of the file."""
    for kind in ("csv", "parquet"):
        (tmp_path / kind).mkdir()
    for number in range(N_FILES):
        frame = pd.DataFrame({"file": number, "a": range(30), "b": "text"})
        frame.to_csv(tmp_path / "csv" / f"{number}.csv", index=False)
        path = tmp_path / "parquet" / f"{number}.parquet"
        frame.to_parquet(path, row_group_size=10)
    return tmp_path


def readers(folder):
    csv, parquet = folder / "csv", folder / "parquet"
    files = sorted(csv.glob("*.csv"), reverse=True)
    yield dd.read_csv(csv / "*.csv")
    yield dd.read_csv(csv / "*.csv", blocksize=120, include_path_column=True)
    yield dd.read_parquet(parquet)
    yield dd.read_parquet(parquet, filesystem="arrow")
    yield dd.read_parquet(parquet, split_row_groups=1)
    yield dd.from_map(pd.read_csv, files)
    yield dd.from_map(pd.read_csv, list(map(str, files)))


def test_the_named_file_has_the_rows(folder):
    """Also after filters, new columns and a choice of columns."""
    for frame in readers(folder):
        X = frame[frame["a"] < 29].assign(c=frame["a"] + 1)
        X = X.map_partitions(lambda part: part)[["c", "file"]].dropna()
        for x in (frame, X, X["file"]):
            found = files_of(x)
            assert len(found) == x.npartitions >= N_FILES
            for i, text in enumerate(found):
                rows = x.partitions[i].compute()
                (number,) = set(rows["file"] if rows.ndim > 1 else rows)
                assert f"/{number}.{'csv' if '.csv' in text else 'parquet'}" in text


def test_unknown_sources(folder):
    """A partition that may be made of others, or of no file, has no name."""
    frame = dd.read_csv(folder / "csv" / "*.csv")
    other = dd.read_parquet(folder / "parquet")
    for x in (
        frame.shuffle("a"),
        frame.partitions[1:],
        frame.repartition(npartitions=2),
        frame["a"] / frame["a"].mean(),
        frame.map_overlap(lambda part: part, 1, 0),
        frame.assign(c=other["a"]),
        frame.persist(scheduler="sync"),
        frame["a"].to_dask_array(),
        dd.concat([frame, other]),
        dd.read_parquet(folder / "parquet", split_row_groups=False).partitions[[2, 0]],
        dd.from_pandas(pd.DataFrame({"a": range(9)}), npartitions=3),
    ):
        assert not any(files_of(x))
    empty = pd.DataFrame({"a": [1]})
    made = dd.from_map(lambda number: empty, range(2), meta=empty)
    assert files_of(made) == ("", "")


def test_secrets_are_not_shown():
    """Addresses may have passwords and signatures."""
    empty = pd.DataFrame({"a": [1]})
    texts = ["s3://user:word@bucket/a.csv", "https://host/b.csv?sig=word#word"]
    frame = dd.from_map(lambda path: empty, texts, meta=empty)
    assert files_of(frame) == ("s3://bucket/a.csv", "https://host/b.csv")
