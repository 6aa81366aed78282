"""Files that cannot be read, or differ from the others: errors name them."""

from __future__ import annotations

import re

import dask.dataframe as dd
import pandas as pd
import pytest

import clustertune
from clustertune.errors import IncompleteError
from tests.processes import local_workers


@pytest.fixture(scope="module")
def client():
    """A client of two worker processes."""
    with local_workers() as client:
        yield client


def test_the_file_of_a_partition(client, tmp_path):
    """Check and prepare name it, also if Dask would join the reads of columns."""
    for i in range(6):
        columns = "abcdefgh" if i != 4 else "abcdefg"
        pd.DataFrame(1.0, range(5), list(columns)).to_parquet(tmp_path / f"{i}.parquet")
    frame = dd.read_parquet(tmp_path)
    report = clustertune.check(client, frame[["h"]], frame["a"], deep=True)
    (finding,) = (f for f in report.found if f.check == "unreadable_values")
    place = f"partition 4 ({tmp_path}/4.parquet)"
    assert f"missing: {place}: " in finding.message
    text = re.escape(f"partition 4 of X ({tmp_path}/4.parquet) could not be computed")
    for estimator in (None, "glm"):
        with pytest.raises(IncompleteError, match=text):
            clustertune.prepare(client, frame[["h"]], frame["a"], estimator=estimator)
    frame = dd.from_map(_read_text, sorted(tmp_path.glob("*.parquet")))
    text = re.escape(f"than its metadata: {place} has ")
    with pytest.raises(ValueError, match=text):
        clustertune.prepare(client, frame[["a"]], frame["b"], estimator="xgboost")


def _read_text(path):
    frame = pd.read_parquet(path)
    return frame.astype({"a": str}) if path.stem == "4" else frame


def _read_file(number):
    if number == 1:
        b"\xf6".decode()
    return pd.DataFrame({"a": [[1.0]][number]})


def test_files_that_cannot_be_read(client):
    """All partitions are named with their problems, once for X and y."""
    frame = dd.from_map(_read_file, range(4), meta=pd.DataFrame({"a": [1.0]}))
    report = clustertune.check(client, frame, frame["a"], deep=True)
    (finding,) = (f for f in report.found if f.check == "unreadable_values")
    assert finding.subject == ("X", "y")
    assert re.search(
        "partition.* 1: UnicodeDecodeError: .*invalid start byte", finding.message
    )
    assert "partitions 2 and 3: IndexError: list index" in finding.message
    assert 'with `encoding=`, such as "cp1252"' in finding.remedy


def test_a_file_without_a_column(client, tmp_path):
    """The check and the error of prepare have the line that reads such files."""
    columns = ["a", "b"]
    files = [tmp_path / f"{i}.parquet" for i in range(2)]
    for file, there in zip(files, (columns, ["a"]), strict=True):
        pd.DataFrame(1.0, range(5), there).to_parquet(file)
    X = dd.read_parquet(tmp_path)[columns]
    line = re.escape("dd.from_map(lambda file: pd.read_parquet(file).reindex(")
    report = clustertune.check(client, X, deep=True)
    (finding,) = (f for f in report.found if f.check == "unreadable_values")
    (fix,) = re.findall(rf"`frame = ({line}.*?)`", finding.remedy)
    with pytest.raises(IncompleteError, match=line):
        clustertune.prepare(client, X)
    known = {"dd": dd, "pd": pd, "columns": columns, "files": files}
    frame = eval(fix, known)
    prepared = clustertune.prepare(client, frame[columns])
    assert prepared.X.isna().sum().sum().compute() == 5
