"""Records of calls and held runs, and the commands that read them."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest
from click.testing import CliRunner, Result
from distributed import LocalCluster
from distributed.utils_test import gen_cluster

import clustertune
from clustertune.cli import main
from clustertune.core.counts import Done
from clustertune.core.report import Report
from clustertune.errors import HistoryError, RefusedError
from clustertune.operations.history import recording
from clustertune.operations.history.query import KINDS
from clustertune.operations.history.store import Record, Store, WorkerMemory
from clustertune.operations.journal import Journal
from tests.processes import soon

TWO = [("127.0.0.1", 1)] * 2


def noted_in(folder: Path, **settings: Any) -> Any:
    """Write records to a file of that folder, within a block."""
    path = str(folder / "history.sqlite")
    known = {"enabled": True, "path": path, "keep": 100, "job": None}
    return dask.config.set({"clustertune.history": known | settings})


def data() -> tuple[Any, Any]:
    X = da.random.random((1000, 20), chunks=(100, 20))
    return X, X[:, 0]


# --- what is noted --------------------------------------------------------------------


@gen_cluster(client=True, nthreads=TWO)
async def test_calls_and_runs_are_noted(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Path
) -> None:
    """A plan, a prepare, held runs, one of which failed, and an operation."""
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
        found = clustertune.history()
        assert clustertune.history(cluster=s.address).records == found.records
        host_and_port = s.address.rpartition("/")[2]
        of_here = clustertune.history(cluster=host_and_port, kind="fit", last=1)
        missing = clustertune.history(cluster="tcp://x:1").missing
    assert missing == (
        f"no record is of the cluster 'tcp://x:1'; there are {s.address}"
    )
    assert of_here.records == found.records[4:5]
    assert str(found).count(f"  {s.address}  ") == 6
    assert found.path == tmp_path / "history.sqlite"
    plan, prepare, fit, failed, mine, trim = found.records
    kinds = [r.kind for r in found.records]
    assert kinds == ["plan", "prepare", "fit", "fit", "fit", "trim"]
    assert [r.status for r in found.records] == [
        "planned", "done", "done", "failed", "done", "done"
    ]  # fmt: skip
    assert {r.job for r in (plan, prepare, fit, failed)} == {"xgboost-20"}
    assert (mine.job, trim.job) == ("mine", "")
    assert {r.cluster for r in found.records} == {s.address}
    assert {(r.workers, r.threads, r.hosts) for r in found.records} == {(2, 2, 1)}
    for record in (prepare, fit):
        assert (record.rows, record.columns, record.partitions) == (1000, 20, 10)
        assert record.workload == "xgboost"
        assert record.nbytes == 1000 * 21 * 8
        assert record.predicted_peak is not None
    assert ("info", "unloaded_data") in prepare.findings
    assert prepare.steps[0].startswith("load X, y")
    assert (fit.steps, fit.predicted_bytes) == ((), None)
    assert {m.worker for m in fit.memory} == {0, 1}
    assert all(m.peak and m.idle is not None for m in fit.memory)
    assert fit.spilled == 0
    assert fit.busy is not None
    # it ended before the first sample
    assert (failed.spilled, failed.busy, failed.peak) == (None, None, None)
    assert failed.error == "ZeroDivisionError: no"
    assert prepare.began <= prepare.ended <= fit.began + 0.1


@gen_cluster(client=True, nthreads=TWO)
async def test_a_worker_that_leaves(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Path
) -> None:
    """The record of the run has another status than a successful one."""
    with noted_in(tmp_path, job="nightly"):
        async with clustertune.hold(c) as held:
            held.monitor.interval = 0.05
            await b.close()
            await soon(lambda: len(held.monitor.snapshots[-1].workers) == 1)
        (record,) = clustertune.history("nightly").records
    assert (record.status, record.error) == ("left", "worker 1 left meanwhile")


@gen_cluster(client=True, nthreads=TWO)
async def test_a_failed_call_is_recorded(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Path
) -> None:
    """The record has the reason."""
    with noted_in(tmp_path, job="nightly"):
        with pytest.raises(RefusedError):
            await clustertune.restart_workers(c)  # there are no nannies
        (record,) = clustertune.history("nightly").records
    assert (record.kind, record.status) == ("restart", "failed")
    assert "nanny" in record.error


@gen_cluster(client=True, nthreads=TWO)
async def test_a_history_that_cannot_be_written(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The call succeeds; one line names the problem and a fix."""
    (tmp_path / "history.sqlite").write_text("no history" * 1000)
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
    assert "mv " in note
    # without white space, because the report wraps lines
    assert "".join(str(report).split()).count("".join(note.split())) == 1
    assert Report.from_json(report.to_json()).notes == report.notes
    # a wrong setting is refused before the call does anything, as the docs promise
    with (
        noted_in(tmp_path, keep="many"),
        pytest.raises(ValueError, match="keep='many' must be a whole number"),
    ):
        await clustertune.trim_memory(c)


@gen_cluster(client=True, nthreads=TWO)
async def test_switched_off(c: Any, s: Any, a: Any, b: Any, tmp_path: Path) -> None:
    """No record is written."""
    with noted_in(tmp_path, enabled=False):
        await clustertune.trim_memory(c)
        assert clustertune.history().records == ()


@gen_cluster(client=True, nthreads=TWO)
async def test_collecting(c: Any, s: Any, a: Any, b: Any, tmp_path: Path) -> None:
    """Each run is added once, with the job of an overlapping record."""
    await clustertune.check(c)
    plugin = s.plugins["clustertune"]
    for n in range(3):
        run = {"floors": [(0, n + 1)], "peaks": [(0, 100), (1, 90)]}
        plugin.runs.kept.append(run | {"began": 10.0 * n, "ended": 10.0 * n + 5})
    with noted_in(tmp_path):
        fit = Record(kind="fit", job="j", began=9, seconds=2, cluster=s.address)
        other = Record(kind="fit", job="other", began=20, seconds=2, cluster="b")
        Store(tmp_path / "history.sqlite").add([fit, other], keep=10)
        assert await recording.collect(c) == 3
        assert await recording.collect(c) == 0
        runs = clustertune.history(kind="run").records
    assert [r.job for r in runs] == ["", "j", ""]
    assert [r.seconds for r in runs] == [5, 5, 5]
    assert runs[2].memory == (
        WorkerMemory(worker=0, limit=a.memory_manager.memory_limit, idle=3, peak=100),
        WorkerMemory(worker=1, limit=b.memory_manager.memory_limit, peak=90),
    )


# --- how it is read -------------------------------------------------------------------


def fits() -> list[Record]:
    return [
        Record(
            kind="fit",
            job="nightly",
            status="done",
            began=1e9 + n,
            seconds=60 / n + 1,
            workers=n,
            threads=n,
            workload="xgboost",
            rows=1000,
            memory=(WorkerMemory(worker=0, limit=100, idle=10, peak=30),),
            error="\x1b[2J",
        )
        for n in (1, 2, 4)
    ]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A history of three fits and a restart."""
    path = tmp_path / "history.sqlite"
    Store(path).add([*fits(), Record(kind="restart", began=1, seconds=1)], keep=100)
    with noted_in(tmp_path):
        yield path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["history", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.parametrize("command", [(), ("list",)])
def test_listing(file: Path, command: tuple[str, ...]) -> None:
    """All records, or selected ones; the latest is last."""
    assert len(run(*command).stdout.splitlines()) == 6
    assert "61 s" in run(*command, "--job", "nightly").stdout
    assert "restart" not in run(*command, "--job", "nightly").stdout
    assert len(run(*command, "--kind", "restart").stdout.splitlines()) == 3
    found = json.loads(run(*command, "--last", "1", "-f", "json").stdout)
    assert found["schema_version"] == 1
    assert found["records"][0]["kind"] == "restart"
    for form in ("text", "json"):
        none = run(*command, "--job", "nightli", "-f", form)
        assert none.exit_code == 1
        assert "no record is of the job 'nightli' (did you mean nightly?)" in (
            none.stderr
        )
    none = run(*command, "--job", "nightly", "--kind", "restart")
    assert (none.exit_code, none.stdout) == (1, "")
    assert (
        "no record of the job 'nightly' is of the kind 'restart'; there are fit"
        in none.stderr
    )
    assert "there are no records in" in run(*command, "--path", "/no/such").stdout


def test_showing(file: Path) -> None:
    """One record, or two side by side; names are escaped."""
    assert "30 B" in run("show", "1").stdout
    assert "\\x1b[2J" in run("show", "1").stdout
    assert json.loads(run("show", "1", "-f", "json").stdout)["record"]["id"] == 1
    assert "0.508 times" in run("compare", "1", "2").stdout
    found = json.loads(run("compare", "1", "2", "-f", "json").stdout)
    assert {"what": "workers", "first": "1", "second": "2", "ratio": "2 times"} in (
        found["differences"]
    )
    for command in (("show", "9"), ("compare", "1", "9")):
        result = run(*command)
        assert result.exit_code == 1
        assert "there is no record 9" in result.stderr


def test_an_option_of_the_list_before_a_command(file: Path) -> None:
    """Such an option would have no effect, so it is refused."""
    result = run("--job", "other", "trends")
    assert result.exit_code == 2
    assert (
        "put the options after the command: clustertune history trends" in result.stderr
    )


def test_trends(file: Path) -> None:
    """Each trend is shown, or unknown."""
    text = run("trends").stdout
    assert text.startswith("job nightly\nmemory: ")
    assert "size: peaked at 30% of memory" in text
    assert "change: unknown: too few runs: 1 fits on" in text
    found = json.loads(run("trends", "-f", "json").stdout)["trends"]
    assert found["sizing"]["enough"] == 1
    assert "too few" in found["regressions"]["unknown"]


def test_trends_in_a_pipeline(file: Path) -> None:
    """The exit code is 1 if a trend has at least the severity."""
    assert run("trends", "--fail-on", "info").exit_code == 0  # all are unknown
    leaking = [
        Record(
            kind="run",
            job="nightly",
            began=2e9 + n,
            seconds=1,
            cluster="tcp://10.0.0.5:8786",
            memory=(WorkerMemory(worker=3, limit=100, idle=10 * n, peak=99),),
        )
        for n in range(5)
    ]
    Store(file).add(leaking, keep=100)
    command = ("trends", "--job", "nightly")
    shown = run(*command)
    assert shown.exit_code == 0
    assert "memory (warning): worker 3 keeps 10 B more after each run" in shown.stdout
    codes = {
        level: run(*command, "--fail-on", level).exit_code
        for level in ("never", "info", "warning", "critical")
    }
    assert codes == {"never": 0, "info": 1, "warning": 1, "critical": 0}
    failed = run(*command, "--fail-on", "warning", "-f", "json")
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["severity"] == "warning"
    here = ("--cluster", "10.0.0.5:8786")
    assert run(*command, *here, "--fail-on", "info").exit_code == 1
    assert run(*command, "--cluster", "b").exit_code == 1


def test_the_cluster_of_a_record(file: Path) -> None:
    """Records without an address have a dash; a filter leaves them out."""
    there = Record(kind="trim", began=2e9, seconds=1, cluster="tcp://10.0.0.5:8786")
    Store(file).add([there], keep=100)
    rows = run().stdout.splitlines()[2:]
    column = re.compile(r"  (-|tcp://\S+)  ")
    shown_clusters = [found[1] for row in rows if (found := column.search(row))]
    assert shown_clusters == ["-"] * 4 + ["tcp://10.0.0.5:8786"]
    shown = run("--cluster", "10.0.0.5:8786")
    assert [row.split() for row in shown.stdout.splitlines()[2:]] == [rows[-1].split()]
    assert run("show", "1").stdout.splitlines()[1].split() == ["cluster", "-"]
    missing = run("--cluster", "tcp://10.0.0.9:8786", "--kind", "trim")
    assert missing.exit_code == 1
    assert (
        "is of the cluster 'tcp://10.0.0.9:8786' (did you mean tcp://" in missing.stderr
    )


def test_a_file_that_cannot_be_read(file: Path) -> None:
    """One line names a fix, and the exit code is 5."""
    with closing(sqlite3.connect(file)) as newer:
        newer.execute("PRAGMA user_version = 9")
    result = run()
    assert result.exit_code == 5
    assert "a newer clustertune wrote " in result.stderr
    assert "(schema 9; this one knows 1)" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_settings_that_are_wrong(file: Path, tmp_path: Path) -> None:
    """Wrong settings are usage errors."""
    with noted_in(tmp_path, path=3):
        assert run().exit_code == 2
        assert "clustertune.history.path=3 must be the path of" in run().stderr


def test_collecting_by_command(file: Path) -> None:
    """A new scheduler has seen no run."""
    options: dict[str, Any] = {"processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=0, **options) as cluster:
        result = run("collect", cluster.scheduler_address)
    assert (result.exit_code, result.stdout) == (0, "0 runs added\n")


def test_in_python(file: Path) -> None:
    """The public call returns the same values."""
    found = clustertune.history("nightly")
    assert repr(found) == "<History: 3 records>"
    assert "<table>" in found._repr_html_()
    assert "\x1b" not in found._repr_html_()
    assert found.record(2).workers == 2
    with pytest.raises(LookupError, match="no record 4"):
        found.record(4)
    assert str(found.trends()).startswith("job nightly\nmemory: no worker leaks")
    for kind in KINDS:
        assert all(r.kind == kind for r in clustertune.history(kind=kind).records)
    with pytest.raises(ValueError, match="kind='fits' is none of prepare, plan, fit"):
        clustertune.history(kind="fits")
    with pytest.raises(ValueError, match="last=0"):
        clustertune.history(last=0)
    file.write_text("no history")
    with pytest.raises(HistoryError, match="mv "):
        clustertune.history()


def test_many(tmp_path: Path) -> None:
    """Only the last records are shown."""
    path = tmp_path / "h.sqlite"
    Store(path).add([fits()[0]] * 60, keep=100)
    assert str(clustertune.history(path=path)).startswith("(10 older ones)\n")


def test_an_unexpected_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Unexpected errors are returned as text and logged, not raised."""
    with noted_in(tmp_path):
        text = asyncio.run(recording.note(lambda: fits()[9]))
    assert text == "not added to the history: IndexError('list index out of range')"
    assert "Traceback" in caplog.text
    with noted_in(tmp_path, enabled=False):
        assert asyncio.run(recording.note(lambda: fits()[9])) == ""


def test_predicted_and_actual_costs() -> None:
    """Costs are sums over steps for which both are known; a plan has predictions."""
    steps = [
        Done(
            action="move",
            summary=f"step {n}",
            gain="",
            status=status,
            predicted_bytes=predicted,
            at_risk="nothing",
            nbytes=took,
            seconds=took,
        )
        for n, (status, predicted, took) in enumerate(
            [("done", 10, 12), ("partly", None, 5), ("done", 20, 21), ("failed", 1, 1)]
        )
    ]
    done = Report(status="left", seconds=3.0, steps=tuple(steps))
    record = recording.of_call("restart", Journal(), done, 5.0)
    assert (record.kind, record.began, record.seconds) == ("restart", 5.0, 3.0)
    assert record.steps == ("step 0", "step 1", "step 2")
    assert (record.predicted_bytes, record.actual_bytes) == (30, 33)
    assert record.actual_seconds == 38
    planned = [replace(s, status="planned", nbytes=None, seconds=None) for s in steps]
    plan = Report(status="planned", seconds=3.0, steps=tuple(planned))
    record = recording.of_call("restart", Journal(), plan, 5.0)
    assert (record.kind, record.predicted_bytes) == ("plan", 31)
    assert (record.actual_bytes, record.actual_seconds) == (None, None)
    nothing = recording.of_call("trim", Journal(), replace(done, steps=()), 5.0)
    assert (nothing.predicted_bytes, nothing.workers) == (None, None)
