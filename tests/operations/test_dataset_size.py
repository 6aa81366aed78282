"""Estimates from Parquet footers match the memory that pandas then uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clustertune.operations import dataset_size

ROWS = 1000


def frame(n: int = ROWS, **more: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns = {
        "narrow": rng.integers(0, 100, n).astype("int8"),
        "single": rng.random(n).astype("float32"),
        "double": rng.random(n),
        "truth": rng.random(n) > 0.5,
        "when": pd.date_range("2020", periods=n, freq="s"),
    }
    return pd.DataFrame(columns | more)


def loaded(path: Path) -> int:
    """Bytes in memory after loading with Dask, without the index."""
    found = dd.read_parquet(path).compute(scheduler="sync")
    return int(found.memory_usage(index=False, deep=True).sum())


def test_dense() -> None:
    """Rows times columns times width."""
    found = dataset_size.dense(100, 5, "float32")
    assert (found.nbytes, found.itemsize, found.at_least) == (2000, 4, False)
    assert dataset_size.dense(100, 5, None).nbytes == 4000


def test_a_file(tmp_path: Path) -> None:
    """Columns of a fixed width take exactly the estimated bytes."""
    path = tmp_path / "data.parquet"
    frame().to_parquet(path, row_group_size=300)
    found = dataset_size.parquet(path)
    assert (found.rows, found.columns, found.itemsize) == (ROWS, 5, 8)
    assert found.nbytes == loaded(path) == ROWS * (1 + 4 + 8 + 1 + 8)
    assert found.joined_bytes == ROWS * 4 * 8  # four columns are numbers
    assert not found.at_least
    assert "in 1 file of " in found.notes[0]


def test_numbers_of_another_type(tmp_path: Path) -> None:
    """Columns that are not numbers keep their width."""
    path = tmp_path / "data.parquet"
    frame().to_parquet(path)
    found = dataset_size.parquet(path, "float32")
    assert found.itemsize == 4
    assert found.nbytes == ROWS * (4 * 4 + 8)
    assert "as float32" in found.notes[0]


def test_integers_with_missing_values(tmp_path: Path) -> None:
    """Pandas converts them to eight bytes, for NaN."""
    path = tmp_path / "data.parquet"
    values = [None, *range(99)]
    table = pa.table({"a": pa.array(values, pa.int16()), "b": pa.array([1] * 100)})
    pq.write_table(table, path)
    assert dataset_size.parquet(path).nbytes == loaded(path) == 100 * (8 + 8)
    pq.write_table(table, path, write_statistics=False)
    assert dataset_size.parquet(path).nbytes == 100 * (8 + 8)
    # the widest number counts, even if only one file has it
    folder = tmp_path / "two"
    folder.mkdir()
    pq.write_table(table.select(["a"]), folder / "1.parquet")
    narrow = pa.table({"a": pa.array(range(100), pa.int16())})
    pq.write_table(narrow, folder / "0.parquet")
    assert dataset_size.parquet(folder).itemsize == 8
    full = table.set_column(0, "a", pa.array([7] * 100, pa.int16()))
    pq.write_table(full, path)
    assert dataset_size.parquet(path).nbytes == loaded(path) == 100 * (2 + 8)


def test_texts_are_not_guessed(tmp_path: Path) -> None:
    """A lower bound is counted, and the notes state it."""
    path = tmp_path / "data.parquet"
    rng = np.random.default_rng(0)
    texts = rng.choice(["a text that repeats", "another that does"], ROWS)
    lists = [[1.0, 2.0]] * ROWS
    dates = pd.Series([pd.Timestamp("2020-01-01").date()] * ROWS)
    frame(text=texts, list=lists, date=dates, last=1.0).to_parquet(path)
    found = dataset_size.parquet(path)
    fixed = ROWS * (1 + 4 + 8 + 1 + 8 + 8)
    assert fixed + 3 * 8 * ROWS <= found.nbytes <= loaded(path)
    assert found.at_least
    assert "text, list and date have no fixed width" in found.notes[-1]
    unique = tmp_path / "unique.parquet"
    frame(text=[f"{i:100}" for i in range(ROWS)]).to_parquet(unique)
    assert 100 * ROWS < dataset_size.parquet(unique).nbytes <= loaded(unique)


def test_categories_are_codes(tmp_path: Path) -> None:
    """A category is a code for each row."""
    path = tmp_path / "data.parquet"
    codes = pa.array([0, 1] * 500, pa.int8())
    pq.write_table(
        pa.table({"c": pa.DictionaryArray.from_arrays(codes, ["x", "y"])}), path
    )
    found = dataset_size.parquet(path)
    assert found.nbytes == pytest.approx(loaded(path), rel=0.2)
    assert found.itemsize is None


def test_a_folder_of_folders(tmp_path: Path) -> None:
    """Names like ``year=2024`` are a categorical column; private files are ignored."""
    years = np.arange(ROWS) % 200
    frame(year=years).to_parquet(tmp_path / "data", partition_cols=["year"])
    for name in ("_metadata.parquet", ".hidden.parquet", "notes.txt"):
        (tmp_path / "data" / name).write_text("no data")
    (tmp_path / "data/_old").mkdir()
    frame().to_parquet(tmp_path / "data/_old/x.parquet")
    found = dataset_size.parquet(tmp_path / "data")
    assert found.columns == 6
    assert found.rows == pytest.approx(ROWS, rel=0.05)  # a sample of 200 files
    assert found.nbytes == pytest.approx(found.rows * (1 + 4 + 8 + 1 + 8 + 2), abs=2)
    assert "50 of 200 files were read" in found.notes[1]


def test_many_files_are_estimated_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of footers is read, from the first file to the last."""
    for i in range(20):
        frame(500 + 100 * i).to_parquet(tmp_path / f"{i:02}.parquet")
    whole = dataset_size.parquet(tmp_path)
    assert whole.rows == sum(500 + 100 * i for i in range(20))
    assert len(whole.notes) == 1
    monkeypatch.setattr(dataset_size, "MAX_FOOTERS", 5)
    (tmp_path / "07.parquet").write_bytes(b"a footer that is not read" * 1000)
    found = dataset_size.parquet(tmp_path)
    assert found.rows == pytest.approx(whole.rows, rel=0.1)
    assert found.nbytes == pytest.approx(whole.nbytes, rel=0.1)


def test_patterns_and_urls(tmp_path: Path) -> None:
    """Patterns of files or folders, and other file systems of fsspec."""
    for name in ("a/1.parquet", "a/2.parquet", "b/3.parquet"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        frame().to_parquet(path)
    assert dataset_size.parquet(f"{tmp_path}/a/*.parquet").rows == 2 * ROWS
    assert dataset_size.parquet(f"{tmp_path}/*").rows == 3 * ROWS
    assert dataset_size.parquet(f"file://{tmp_path}/b").rows == ROWS
    memory = fsspec.filesystem("memory")
    memory.put(f"{tmp_path}/a", "/dataset-test", recursive=True)
    try:
        assert dataset_size.parquet("memory://dataset-test").rows == 2 * ROWS
    finally:
        memory.rm("/dataset-test", recursive=True)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nothing", "has no Parquet file: give a file, a folder with files that end"),
        ("", "must be the path or URL"),
        (3, "must be the path or URL"),
        ("no-such://bucket/x", "Protocol not known: no-such"),
        ("empty", "has no Parquet file"),
        ("broken.parquet", "'[^']*broken.parquet' cannot be read: Parquet magic"),
        ("rowless.parquet", "has no rows, in 1 file"),
    ],
)
def test_unreadable_data_sets(
    path: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors have the argument and the problem."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.parquet").write_text("this is no such file" * 10)
    frame(0).to_parquet(tmp_path / "rowless.parquet")
    with pytest.raises(ValueError, match=f"parquet={path!r}.*{text}"):
        dataset_size.parquet(path)


def test_a_pyarrow_that_unpickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old pyarrow reads no footer."""
    frame().to_parquet(tmp_path / "data.parquet")
    monkeypatch.setattr(pa, "__version__", "14.0.0")
    with pytest.raises(ValueError, match=r"pip install 'pyarrow>=14\.0\.1'"):
        dataset_size.parquet(tmp_path / "data.parquet")


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error asks to install it, as it is not a dependency."""
    monkeypatch.setattr(dataset_size, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs pyarrow to read the footers: install"):
        dataset_size.parquet("data")
