"""The history file: its content, concurrent use, and damages."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clustertune.errors import HistoryError
from clustertune.operations.history.store import (
    MAX_WORKERS,
    VERSION,
    Record,
    Store,
    WorkerMemory,
    file_of,
)

RECORD = Record(
    kind="fit",
    job="nightly",
    began=1000.5,
    seconds=12.25,
    status="done",
    cluster="tcp://10.0.0.1:8786",
    workers=2,
    threads=4,
    hosts=1,
    host_cpus=3.5,
    workload="xgboost",
    rows=1_000_000,
    columns=20,
    partitions=8,
    nbytes=2**30,
    findings=(("warning", "uneven_rows"),),
    steps=("move 3 partitions",),
    actual_seconds=1.5,
    predicted_bytes=10,
    actual_bytes=10,
    predicted_peak=2**31,
    memory=(
        WorkerMemory(worker=1, limit=2**32, idle=5, peak=2**31),
        WorkerMemory(worker="a\x1b[2J"),
    ),
    spilled=0,
    busy=3.2,
    error="no",
)


def small(**what):
    return Record(**{"kind": "fit", "began": 1.0, "seconds": 1.0} | what)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store in a missing folder; its name has characters special to URLs."""
    return Store(tmp_path / "new" / "a b?c#%41.sqlite", patience=0.05)


def test_records_are_read_back(store: Store) -> None:
    """Records come back unchanged, with a number."""
    assert store.read() == ()
    assert store.add([RECORD], keep=10) == 1
    (found,) = store.read()
    assert found.id == 1
    assert found == Record(
        **{name: getattr(RECORD, name) for name in Record.__slots__} | {"id": 1}
    )
    assert found.peak == 0.5
    assert [p.name for p in store.path.parent.iterdir()] == [store.path.name]


def test_selecting(store: Store) -> None:
    """Records are selected by job and kind, and limited to the last ones."""
    store.add([small(job=j, kind=k) for j in "ab" for k in ("fit", "plan")], keep=10)
    assert [r.id for r in store.read(job="b")] == [3, 4]
    assert [r.id for r in store.read(kind="fit")] == [1, 3]
    assert [r.id for r in store.read(job="a", kind="plan")] == [2]
    assert store.read(kind="run") == ()
    assert [r.id for r in store.read(last=2)] == [3, 4]
    assert store.read(job="'; DROP TABLE records; --") == ()


def test_the_oldest_records_are_deleted(store: Store) -> None:
    """The oldest records are deleted, and numbers are not reused."""
    for began in range(5):
        store.add([small(began=float(began))], keep=3)
    assert [(r.id, r.began) for r in store.read()] == [(3, 2.0), (4, 3.0), (5, 4.0)]


def test_a_record_with_a_key_is_added_once(store: Store) -> None:
    """Only the first record with a key is kept; records without a key always are."""
    assert store.add([small(key="a"), small(key="a"), small()], keep=10) == 2
    assert store.add([small(key="a"), small(key="b"), small()], keep=10) == 2


def test_a_large_cluster(store: Store) -> None:
    """Only the fullest workers are kept."""
    memory = tuple(WorkerMemory(worker=i, peak=i) for i in range(1000))
    store.add([small(memory=memory)], keep=10)
    (found,) = store.read()
    assert len(found.memory) == MAX_WORKERS
    assert found.memory[0].worker == 999


ADDING = """
import sys
from pathlib import Path
from clustertune.operations.history.store import Record, Store
store = Store(Path(sys.argv[1]), patience=60)
for i in range(20):
    store.add([Record(kind="fit", began=float(i), seconds=1.0)], keep=1000)
"""


def test_several_processes_at_once(store: Store) -> None:
    """Several processes create and write the file at once."""
    command = [sys.executable, "-c", ADDING, str(store.path)]
    started = [subprocess.Popen(command) for _ in range(3)]
    assert [p.wait(60) for p in started] == [0, 0, 0]
    assert [r.id for r in store.read()] == list(range(1, 61))


# --- what can be wrong ----------------------------------------------------------------


def changed(store: Store, statement: str) -> None:
    with closing(sqlite3.connect(store.path)) as file:
        file.execute(statement)
        file.commit()


def test_a_locked_file(store: Store) -> None:
    """Reading and writing wait a moment, then raise an error."""
    store.add([RECORD], keep=10)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(HistoryError, match=r"another process for 0\.05 s: try"):
            store.add([RECORD], keep=10)
        with pytest.raises(HistoryError, match="locked by another process"):
            store.read()
    assert store.add([RECORD], keep=10) == 1


@pytest.mark.parametrize("damage", ["garbage", "half", "middle"])
def test_a_damaged_file(store: Store, damage: str) -> None:
    """The file is not changed; the error has a command that moves it away."""
    store.add([RECORD] * 50, keep=100)
    whole = store.path.read_bytes()
    broken = {
        "garbage": b"no history at all" * 100,
        "half": whole[: len(whole) // 2],
        "middle": whole[:4096] + b"\xff" * 8192 + whole[12288:],
    }[damage]
    store.path.write_bytes(broken)
    with pytest.raises(HistoryError, match="damaged") as caught:
        store.read()
    with pytest.raises(HistoryError, match="damaged"):
        store.add([RECORD] * 50, keep=100)
    assert store.path.read_bytes() == broken
    command = str(caught.value).partition("(mv ")[2].partition(");")[0]
    subprocess.run(f"mv {command}", shell=True, check=True)
    assert store.add([RECORD], keep=100) == 1


@pytest.mark.parametrize(
    "data", ["no JSON", "[]", "{}", '{"kind": "fit"}', '{"memory": [{}]}', "null"]
)
def test_a_damaged_record(store: Store, data: str) -> None:
    """The error names the record."""
    store.add([RECORD], keep=10)
    changed(store, f"UPDATE records SET data = '{data}'")
    with pytest.raises(HistoryError, match="record 1 is damaged"):
        store.read()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seconds", "null"),
        ("seconds", "'soon'"),
        ("began", "-1"),
        ("began", "1e300"),
        ("began", "9e999"),
        ("steps", "3"),
        ("findings", "json('[[\"warning\"]]')"),
        ("memory", 'json(\'[{"worker": 1, "peak": "all"}]\')'),
        ("rows", "1.5"),
    ],
)
def test_a_value_of_another_type(store: Store, field: str, value: str) -> None:
    """Values of wrong types raise an error when the file is read."""
    store.add([RECORD], keep=10)
    changed(store, f"UPDATE records SET data = json_set(data, '$.{field}', {value})")
    with pytest.raises(HistoryError, match="record 1 is damaged"):
        store.read()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job", 3),
        ("rows", 1.5),
        ("rows", np.int64(3)),
        ("seconds", float("nan")),
        ("began", -1.0),
        ("steps", (3,)),
        ("memory", (WorkerMemory(worker=(1, 2)),)),  # type: ignore[arg-type]
    ],
)
def test_a_record_that_could_not_be_read_is_not_written(
    store: Store, field: str, value: Any
) -> None:
    """It would make all records unreadable."""
    store.add([RECORD], keep=10)
    with pytest.raises(HistoryError, match="could not be read again"):
        store.add([replace(RECORD, **{field: value})], keep=10)
    assert len(store.read()) == 1


def test_more_bytes_than_possible(store: Store) -> None:
    """A limit that SQLite cannot hold means all records."""
    store.add([RECORD] * 3, keep=10)
    assert len(store.read(last=10**30)) == 3
    assert len(store.read(last=2)) == 2


def test_a_newer_file(store: Store) -> None:
    """A newer file is neither read nor written."""
    store.add([RECORD], keep=10)
    changed(store, f"PRAGMA user_version = {VERSION + 1}")
    for work in (store.read, lambda: store.add([RECORD], keep=10)):
        with pytest.raises(HistoryError, match=f"schema {VERSION + 1}; this one knows"):
            work()


def test_fields_of_a_later_release(store: Store) -> None:
    """Unknown fields are dropped if the schema is the same."""
    store.add([RECORD], keep=10)
    changed(store, """UPDATE records SET data = json_set(data, '$.new', 1)""")
    assert store.read()[0].job == "nightly"


def test_a_database_of_another_program(store: Store) -> None:
    """Other databases are not changed."""
    store.path.parent.mkdir()
    changed(store, "CREATE TABLE mine (x)")
    before = store.path.read_bytes()
    for work in (store.read, lambda: store.add([RECORD], keep=10)):
        with pytest.raises(HistoryError, match="a database of another program"):
            work()
    assert store.path.read_bytes() == before


@contextmanager
def without_rights() -> Iterator[Path]:
    """Make a read-only folder, even if root runs the tests."""
    with tempfile.TemporaryDirectory() as folder:
        Store(Path(folder, "h.sqlite")).add([RECORD], keep=10)
        Path(folder, "h.sqlite").chmod(0o444)
        Path(folder).chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            os.seteuid(user)
            Path(folder).chmod(0o755)


def test_a_file_without_write_permission() -> None:
    """A read-only file is read, and adding a record raises an error."""
    with without_rights() as folder:
        store = Store(folder / "h.sqlite")
        assert store.read()[0].job == "nightly"
        for path in (folder / "h.sqlite", folder / "x.sqlite", folder / "x" / "y"):
            with pytest.raises(HistoryError, match=r"history\.path to a file"):
                Store(path).add([RECORD], keep=10)


def test_the_path_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is in the user's data folder."""
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert file_of(None) == Path("/data/clustertune/history.sqlite")
    assert file_of("~/h.sqlite") == Path("/home/ada/h.sqlite")
    usual = Path("/home/ada/.local/share/clustertune/history.sqlite")
    for invalid in ("", "data"):
        monkeypatch.setenv("XDG_DATA_HOME", invalid)
        assert file_of(None) == usual


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers may run as a user without a name."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    for path in (None, "~/h.sqlite"):
        with pytest.raises(HistoryError, match=r"set clustertune\.history\.path, or"):
            file_of(path)
    assert file_of("/h.sqlite") == Path("/h.sqlite")
