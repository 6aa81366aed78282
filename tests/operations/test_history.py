"""The history: its records, concurrent use, damages; what calls and holds note."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from time import time
from typing import Any

import dask
import dask.array as da
import pandas as pd
import pytest

import clustertune
from clustertune.core.report import Report
from clustertune.errors import ClustertuneError, RefusedError
from clustertune.operations import history
from clustertune.operations.history import Record, append, file_of, read
from tests.in_process import TWO, gen_cluster
from tests.processes import soon

RECORD = Record(
    call="fit",
    label="nightly",
    began=1000.5,
    seconds=12.25,
    status="done",
    cluster="tcp://10.0.0.1:8786",
    workers=2,
    threads=4,
    hosts=1,
    workload="xgboost",
    rows=1_000_000,
    columns=20,
    partitions=8,
    nbytes=2**30,
    predicted_peak=2**31,
    peak=2**31,
    limit=2**32,
    spilled=0,
    busy=3.2,
    error="a\x1b[2J",
)


def noted_in(folder: Path, **settings: Any) -> Any:
    """Write records to a file of that folder, within a block."""
    path = str(folder / "history.jsonl")
    known = {"enabled": True, "path": path, "label": None}
    return dask.config.set({"clustertune.history": known | settings})


def read_in(path: Path, *selection: Any, **others: Any) -> pd.DataFrame:
    with dask.config.set({"clustertune.history.path": str(path)}):
        return clustertune.history(*selection, **others)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file in a missing folder; its name has special characters."""
    return tmp_path / "new" / "a b?c#%41.jsonl"


# --- the file -------------------------------------------------------------------------


def test_records_are_read_back(path: Path) -> None:
    """Records come back unchanged, in their order."""
    assert read(path) == ([], 0)
    other = replace(RECORD, began=2.0, error="")
    append(RECORD, path)
    append(other, path)
    assert read(path) == ([RECORD, other], 0)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


ADDING = """
import sys
from pathlib import Path
from clustertune.operations import history
for i in range(20):
    record = history.Record(call=sys.argv[2], began=float(i), seconds=1.0)
    history.append(record, Path(sys.argv[1]))
"""


def test_several_processes_at_once(path: Path) -> None:
    """Several processes create and write the file at once."""
    started = [
        subprocess.Popen([sys.executable, "-c", ADDING, path, name]) for name in "ab"
    ]
    assert [p.wait(60) for p in started] == [0, 0]
    records, skipped = read(path)
    assert skipped == 0
    for name in "ab":
        seen = [r.began for r in records if r.call == name]
        assert seen == [float(i) for i in range(20)]


def test_a_full_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size stays bounded, and the newest records remain."""
    monkeypatch.setattr(history, "MAX_SIZE", 4000)
    for began in range(100):
        append(Record(call="fit", began=float(began), seconds=1.0), path)
    records, skipped = read(path)
    assert skipped == 0
    assert 8 <= len(records) < 100
    assert [r.began for r in records] == [*range(100 - len(records), 100)]
    names = {p.name for p in path.parent.iterdir()}
    assert names <= {path.name, f"{path.name}.old"}


def line(**values: Any) -> str:
    return json.dumps({"clustertune": 1} | asdict(RECORD) | values)


@pytest.mark.parametrize(
    "damaged",
    [
        "no JSON",
        "[]",
        "{}",
        "null",
        '{"clustertune": 1, "call": "fit"}',
        "[" * 100_000,
        "\xff",
        line(seconds=None),
        line(seconds="soon"),
        line(seconds=float("nan")),
        line(began=-1),
        line(began=1e300),
        line(began=9.5e9),
        line(rows=1.5),
        line(rows=10**400),
        line(rows=2**63),
        line(label=3),
        line()[:40],
    ],
)
def test_a_damaged_line(path: Path, damaged: str) -> None:
    """It is skipped and counted; the others are read, and others are appended."""
    append(RECORD, path)
    with path.open("a", encoding="latin-1") as file:
        file.write(f"{damaged}\n\n")
    append(RECORD, path)
    assert read(path) == ([RECORD, RECORD], 1)
    found = read_in(path)
    assert (len(found), found.attrs["skipped"]) == (2, 1)


def test_an_interrupted_line(path: Path) -> None:
    """A writer that was killed damages only its own line."""
    append(RECORD, path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])
    append(RECORD, path)
    assert read(path) == ([RECORD, RECORD], 1)
    path.write_bytes(whole[:5])
    append(RECORD, path)
    assert read(path) == ([RECORD], 1)


def test_fields_of_a_later_release(path: Path) -> None:
    """Unknown fields are ignored."""
    append(RECORD, path)
    path.write_text(f"{line(new=1)}\n")
    assert read(path) == ([RECORD], 0)


@pytest.mark.parametrize("kind", ["text", "folder", "pipe"])
def test_a_file_of_another_program(tmp_path: Path, kind: str) -> None:
    """It is not changed, and a named pipe does not block."""
    path = tmp_path / "mine"
    if kind == "text":
        path.write_text("mine\n")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(ClustertuneError, match=r"set clustertune\.history\.path to"):
        append(RECORD, path)
    if kind == "text":
        assert path.read_text() == "mine\n"
    else:
        with pytest.raises(ClustertuneError, match="cannot be used"):
            read(path)


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a line is skipped, and does not damage the next line."""
    append(RECORD, path)
    with monkeypatch.context() as patched:
        write = os.write
        patched.setattr(os, "write", lambda file, data: write(file, data[:20]))
        with pytest.raises(ClustertuneError, match="the disk is full"):
            append(RECORD, path)
    append(RECORD, path)
    assert read(path) == ([RECORD, RECORD], 1)


@contextmanager
def without_rights() -> Iterator[Path]:
    """Make a read-only folder, even if root runs the tests."""
    with tempfile.TemporaryDirectory() as folder:
        append(RECORD, Path(folder, "h.jsonl"))
        Path(folder, "h.jsonl").chmod(0o444)
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
        assert read(folder / "h.jsonl") == ([RECORD], 0)
        for path in (folder / "h.jsonl", folder / "x.jsonl", folder / "x" / "y"):
            with pytest.raises(ClustertuneError, match=r"history\.path to another"):
                append(RECORD, path)


def test_the_path_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is in the user's data folder."""
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert file_of(None) == Path("/data/clustertune/history.jsonl")
    assert file_of("~/h.jsonl") == Path("/home/ada/h.jsonl")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    assert file_of(None) == Path("/home/ada/.local/share/clustertune/history.jsonl")


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers may run as a user without a name."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    for path in (None, "~/h.jsonl"):
        with pytest.raises(ClustertuneError, match=r"set clustertune\.history\.path"):
            file_of(path)
    assert file_of("/h.jsonl") == Path("/h.jsonl")


# --- the public call ------------------------------------------------------------------


def test_selecting(tmp_path: Path) -> None:
    """Records are selected by call, label and time; the latest is last."""
    path = tmp_path / "h.jsonl"
    now = time()
    for i, (call, label) in enumerate([("fit", "a"), ("trim", ""), ("fit", "b")]):
        began = now - 3600 * (3 - i)
        append(replace(RECORD, call=call, label=label, began=began), path)

    def chosen(*args: Any, **selection: Any) -> list[int]:
        found = read_in(path, *args, **selection)
        return [3 - round((now - t.timestamp()) / 3600) for t in found.began]

    assert chosen() == [0, 1, 2]
    assert chosen("fit") == [0, 2]
    assert chosen("fit", label="b") == [2]
    assert chosen("fits") == []
    assert chosen(label="") == [1]
    for since in ("150 minutes", 9000):
        assert chosen(since=since) == [1, 2]
    for wrong in ("soon", "", -1, datetime, [1]):
        with pytest.raises(ValueError, match=r"since=.* must be a duration"):
            clustertune.history(since=wrong)  # type: ignore[arg-type]


def test_a_dataframe(tmp_path: Path) -> None:
    """Columns have types, also without records; texts are escaped."""
    path = tmp_path / "h.jsonl"
    empty = read_in(path)
    append(RECORD, path)
    append(Record(call="trim", began=2.0, seconds=1.0), path)
    found = read_in(path)
    assert list(found.dtypes.astype(str)) == list(empty.dtypes.astype(str))
    assert found.rows.sum() == 1_000_000
    assert found.rows.isna().tolist() == [False, True]
    assert found.began[0] == pd.Timestamp(1000.5, unit="s", tz="UTC")
    assert found.error[0] == "a\\x1b[2J"


# --- what is noted --------------------------------------------------------------------


def data() -> tuple[Any, Any]:
    X = da.random.random((1000, 20), chunks=(100, 20))
    return X, X[:, 0]


@gen_cluster(client=True, nthreads=TWO)
async def test_calls_and_holds_are_noted(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Path
) -> None:
    """A dry run, a prepare, held blocks, one of which failed, and an operation."""
    X, y = data()
    with noted_in(tmp_path):
        await clustertune.prepare(c, X, y, estimator="xgboost", dry_run=True)
        prepared = await clustertune.prepare(c, X, y, estimator="xgboost")
        async with prepared:
            prepared.hold.monitor.interval = 0.05
            await soon(lambda: len(prepared.hold.monitor.snapshots) > 2)
        with pytest.raises(ZeroDivisionError):
            async with prepared:
                raise ZeroDivisionError("no")
        async with clustertune.hold(c, label="mine"):
            pass
        await clustertune.trim_memory(c)
    records, skipped = read(tmp_path / "history.jsonl")
    assert skipped == 0
    assert [(r.call, r.status) for r in records] == [
        ("prepare", "planned"),
        ("prepare", "done"),
        ("fit", "done"),
        ("fit", "failed"),
        ("hold", "done"),
        ("trim", "done"),
    ]
    _, prepare, fit, failed, mine, trim = records
    assert (fit.label, mine.label, trim.label) == ("", "mine", "")
    assert {r.cluster for r in records} == {s.address}
    assert {(r.workers, r.threads, r.hosts) for r in records} == {(2, 2, 1)}
    for record in (prepare, fit):
        assert (record.rows, record.columns, record.partitions) == (1000, 20, 10)
        assert record.workload == "xgboost"
        assert record.nbytes == 1000 * 21 * 8
        assert record.predicted_peak is not None
    assert fit.peak
    assert fit.limit == a.memory_manager.memory_limit
    assert fit.spilled == 0
    assert fit.busy is not None
    # it ended before the first sample
    assert (failed.spilled, failed.busy, failed.peak) == (None, None, None)
    assert failed.error == "ZeroDivisionError: no"
    assert prepare.began <= prepare.began + prepare.seconds <= fit.began + 0.1


@gen_cluster(client=True, nthreads=TWO)
async def test_a_worker_that_leaves(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Path
) -> None:
    """The record of the block has another status than a successful one."""
    with noted_in(tmp_path, label="nightly"):
        async with clustertune.hold(c, label="mine") as held:
            held.monitor.interval = 0.05
            await b.close()
            await soon(lambda: len(held.monitor.snapshots[-1].workers) == 1)
    ((record,), _) = read(tmp_path / "history.jsonl")
    assert (record.status, record.error) == ("left", "worker 1 left meanwhile")
    assert record.label == "nightly"  # the setting of a pipeline is for all its calls


@gen_cluster(client=True, nthreads=TWO)
async def test_a_failed_call_is_noted(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Path
) -> None:
    """The record has the reason."""
    with noted_in(tmp_path), pytest.raises(RefusedError):
        await clustertune.restart_workers(c)  # there are no nannies
    ((record,), _) = read(tmp_path / "history.jsonl")
    assert (record.call, record.status) == ("restart", "failed")
    assert "nanny" in record.error


@gen_cluster(client=True, nthreads=TWO)
async def test_a_history_that_cannot_be_written(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The call succeeds; one line names the problem and a fix."""
    (tmp_path / "history.jsonl").write_text("no history")
    X, y = data()
    with noted_in(tmp_path):
        prepared = await clustertune.prepare(c, X, y)
        async with prepared:
            pass
    assert "not added to the history" in caplog.messages[-1]
    report = prepared.report
    assert report.status == "done"
    (note,) = report.notes
    assert "not added to the history: " in note
    assert "set clustertune.history.path" in note
    # without white space, because the report wraps lines
    assert "".join(str(report).split()).count("".join(note.split())) == 1
    assert Report.from_json(report.to_json()).notes == report.notes
    # a wrong setting is refused before the call does anything, as the docs promise
    with (
        noted_in(tmp_path, label=3),
        pytest.raises(ValueError, match=r"label=3 .*must be a text"),
    ):
        await clustertune.trim_memory(c)


@gen_cluster(client=True, nthreads=TWO)
async def test_switched_off(c: Any, s: Any, a: Any, b: Any, tmp_path: Path) -> None:
    """No file is written."""
    with noted_in(tmp_path, enabled=False):
        await clustertune.trim_memory(c)
    assert read(tmp_path / "history.jsonl") == ([], 0)


def test_a_file_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call whose work is done returns."""
    answered = threading.Event()
    monkeypatch.setattr(history, "ANSWER", 0.1)
    monkeypatch.setattr(history, "append", lambda *_: answered.wait(60))

    async def noted() -> str:
        text = await history.note(
            lambda: Record(call="prepare", began=0.0, seconds=1.0)
        )
        answered.set()  # the loop waits for its threads
        return text

    with noted_in(tmp_path):
        text = asyncio.run(noted())
    assert text == "perhaps not added to the history: no answer of its file in 0.1 s"


def test_an_unexpected_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Unexpected errors are returned as text and logged, not raised."""

    def bad() -> Record:
        raise IndexError("no view")

    with noted_in(tmp_path):
        text = asyncio.run(history.note(bad))
    assert text == "not added to the history: IndexError('no view')"
    assert "Traceback" in caplog.text
    with noted_in(tmp_path, enabled=False):
        assert asyncio.run(history.note(bad)) == ""
