"""The command line: help everywhere, exit codes for scripts, errors in one line."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import dask
import dask.array as da
import pytest
from click.testing import CliRunner, Result
from distributed import Client, LocalCluster, Worker

import clustertune
from clustertune import errors
from clustertune.cli import COMMANDS as TABLE
from clustertune.cli import inspection, main, running
from clustertune.operations.watch import Monitor
from tests.certificates import Authority
from tests.in_process import gen_cluster
from tests.processes import soon, workers_of

COMMANDS = tuple(main.list_commands(click.Context(main)))
LOOKING = {
    *("check", "dashboard", "demo", "explain", "history", "schedule", "size", "watch"),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A scheduler and a worker that other clients can reach."""
    options: dict[str, Any] = {"processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def no_address() -> Iterator[None]:
    """Ignore an address in the environment."""
    with dask.config.set({"scheduler-address": None}):
        yield


def run(*arguments: str) -> Result:
    """Run a command; an exception fails the test."""
    result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def known(name: str) -> click.Command:
    """Return the command of that name."""
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


# --- help and usage -------------------------------------------------------------------


def test_help_says_the_same_everywhere() -> None:
    """The list of commands has the first line of each command's help."""
    for name, (_, text) in TABLE.items():
        lines = (known(name).help or "").splitlines()
        assert lines[0] == text


def test_help_and_explanations_start_fast() -> None:
    """No `VERB --help` and no `explain` imports distributed, pandas or Bokeh.

    `clustertune --help` and `dask --help` import not even Dask.
    """
    code = """
import sys
from clustertune.cli import COMMANDS, main
explained = ["explain"], ["explain", "uneven_rows"]
for line in (["--help"], *explained, *([v, "-h"] for v in COMMANDS)):
    try:
        main(line, standalone_mode=False)
    except SystemExit as error:
        assert not error.code, line
    heavy = {"distributed", "pandas", "bokeh", "pyarrow", "sklearn"}
    heavy |= {"dask", "numpy", "yaml"} if line == ["--help"] else set()
    heavy &= {m.partition(".")[0] for m in sys.modules}
    assert not heavy, (line, heavy)
"""
    subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=120, check=True
    )


def test_as_a_module() -> None:
    """The module runs without the script; its help has the exit codes."""
    done = subprocess.run(
        [sys.executable, "-m", "clustertune", "-h"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("Usage: clustertune [OPTIONS] COMMAND")
    assert "3 the cluster was not reached" in " ".join(done.stdout.split())


@pytest.mark.parametrize("command", [(), *((c,) for c in COMMANDS)])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(command: tuple[str, ...], flag: str) -> None:
    """Every command describes itself and its options."""
    result = run(*command, flag)
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    assert len(result.stdout.splitlines()) > 5
    for parameter in (known(command[0]) if command else main).params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[-1] in result.stdout
            assert parameter.help


def every() -> Iterator[tuple[str, click.Command]]:
    """Return all commands by their words, with the commands of groups."""
    for name in COMMANDS:
        command = known(name)
        yield name, command
        if isinstance(command, click.Group):
            parent = click.Context(main, **main.context_settings)
            context = click.Context(command, parent=parent)
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield f"{name} {inner}", found


def options_of(command: click.Command) -> set[str]:
    return {o for p in command.params for o in (*p.opts, *p.secondary_opts)}


def test_every_help_has_examples() -> None:
    """Examples fit a line, and use existing commands and options."""
    commands = dict(every())
    for name in ("", *commands):
        help_text = run(*name.split(), "--help").stdout
        _, _, examples = help_text.partition("\n  Examples:\n")
        lines = examples.splitlines()
        assert lines, name
        for line in filter(lambda x: x.split()[0] == "clustertune", lines):
            assert len(line) <= 80, line
            _, *words = line.split()
            verb = max(
                (v for v in commands if words[: len(v.split())] == v.split()), key=len
            )
            used = {word for word in words if word.startswith("-")} - {"--help"}
            assert used <= options_of(commands[verb]), line


def test_what_changes_a_cluster_can_be_tried_and_explained() -> None:
    """A command that changes a cluster has these options."""
    for name in set(COMMANDS) - LOOKING:
        needed = {"--dry-run", "--yes", "--quiet", "--reason"}
        assert needed <= options_of(known(name)), name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    """A shell completes commands, verbs and options."""
    whole = {"prog_name": "clustertune"}
    variable = "_CLUSTERTUNE_COMPLETE"
    source = CliRunner().invoke(main, [], env={variable: f"{shell}_source"}, **whole)
    assert source.exit_code == 0
    assert variable in source.stdout
    for typed, expected in (
        (["clustertune", "rest"], "restart"),
        (["clustertune", "trim", "--dry"], "--dry-run"),
    ):
        words = " ".join(typed)
        place = typed[-1] if shell == "fish" else str(len(typed) - 1)
        asked = {variable: f"{shell}_complete", "COMP_WORDS": words}
        asked["COMP_CWORD"] = place
        found = CliRunner().invoke(main, [], env=asked, **whole)
        assert expected in found.stdout


def test_version() -> None:
    """The version is that of the package."""
    result = run("--version")
    assert result.exit_code == 0
    assert clustertune.__version__ in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["divine"], "No such command"),
        (["chekc", "a"], "there is no command 'chekc' (did you mean check?)"),
        (["check", "-f", "xml"], "'xml' is not one of"),
        (["check", "--divine"], "No such option"),
        (["check"], "which cluster? give ADDRESS"),
        (["history", "--last"], "which cluster? give ADDRESS"),
        (["history", "--last", "a", "b"], "unexpected extra argument"),
        (["check", "--scheduler-file", "/no/such/file"], "does not exist"),
        (
            ["check", "--scheduler-file", __file__, "a"],
            "replaces ADDRESS: leave 'a' out",
        ),
        (["check", "--tls-cert", __file__, "a"], "--tls-cert needs --tls-key"),
        (["check", "--tls-key", __file__, "a"], "--tls-key needs --tls-cert"),
        (["schedule", "restart", "--expires", "400days", "a"], "at most a year"),
        (["schedule", "restart", "--tz", "UTC", "a"], "give cron, too"),
        (["restart", "--end-tasks", "--if-needed", "a"], "leave --if-needed out"),
        *(
            (["restart", how, "--max-unavailable", "2", "a"], "leave --max-unavail")
            for how in ("--drop-data", "--end-tasks")
        ),
        (["demo", "--workers", "1"], "1 is not in the range"),
        (["size", "--rows", "3"], "Missing option '--columns'"),
        (["size", "--rows", "-3", "--columns", "2"], "-3 is not in the range"),
        (["size", "--rows", "3", "--columns", "2", "--estimator", "x"], "choose from"),
    ],
)
def test_usage(arguments: list[str], text: str) -> None:
    """Wrong usage exits with 2 and names the possible values."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stdout == ""


# --- unreachable clusters -------------------------------------------------------------


def one_line(result: Result) -> str:
    """Return the one line of stderr; stdout is empty."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("clustertune: ")
    return line


@pytest.mark.parametrize(
    "address",
    [
        *("tcp://127.0.0.1:9", "127.0.0.1:9", "http://127.0.0.1:9", "nonsense://", "x"),
        "tcp://no-such-host.invalid:8786",
    ],
)
def test_no_scheduler(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a scheduler the exit code is 3, and the line has the address."""
    monkeypatch.setattr(running, "CONNECT", 0.5)
    result = run("check", address)
    assert result.exit_code == 3
    assert f"no scheduler answers at {address}" in one_line(result)


def test_something_else_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dashboard listens there, for example."""
    monkeypatch.setattr(running, "CONNECT", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        result = run("check", "tcp://{}:{}".format(*listening.getsockname()))
    assert result.exit_code == 3
    assert "Is that the dashboard's port?" in one_line(result)


def test_certificates_for_an_address_without_encryption(tmp_path: Path) -> None:
    """The line has the right form of the address."""
    file = Authority(tmp_path).file
    result = run("check", "--tls-ca-file", str(file), "tcp://127.0.0.1:9")
    assert result.exit_code == 3
    assert "begins with tls://" in one_line(result)


def test_an_address_from_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ADDRESS, Dask's configuration names the cluster."""
    monkeypatch.setattr(running, "CONNECT", 1.0)
    with dask.config.set({"scheduler-address": "tcp://127.0.0.1:9"}):
        result = run("check")
    assert result.exit_code == 3
    assert "tcp://127.0.0.1:9" in one_line(result)


def test_a_scheduler_file_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong file has the exit code of an unreachable cluster."""
    monkeypatch.setattr(running, "CONNECT", 1.0)
    file = tmp_path / "scheduler.json"
    for text in (
        "",
        "{",
        "{}",
        "[]",
        "[" * 100_000,
        '{"address": "tcp://127.0.0.1:9"}',
    ):
        file.write_text(text)
        result = run("check", "--scheduler-file", str(file))
        assert result.exit_code == 3
        assert str(file) in one_line(result)


# --- report ---------------------------------------------------------------------------


def test_a_cluster_without_workers_and_reports() -> None:
    """Without a report stdout is empty; without workers there is a critical finding."""
    options: dict[str, Any] = {"processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=0, **options) as empty:
        for form in ("text", "json"):
            result = run("history", "--last", "-f", form, empty.scheduler_address)
            assert result.exit_code == 1
            assert one_line(result) == (
                "clustertune: this cluster has no report since its scheduler started"
            )
        result = run("check", empty.scheduler_address)
    assert result.exit_code == 1
    assert "missing_workers" in result.stdout


@pytest.fixture
def prepared(cluster: LocalCluster) -> clustertune.Report:
    """Return the report of a client that has closed."""
    with Client(cluster, set_as_default=False) as client:
        X = da.ones((100, 4), chunks=(10, 4))
        return clustertune.prepare(client, X, progress=False).report


def test_report(cluster: LocalCluster, prepared: clustertune.Report) -> None:
    """Another process sees the same report, as text and JSON."""
    last = ("history", "--last", cluster.scheduler_address)
    result = run(*last)
    assert result.exit_code == 0
    assert result.stdout == f"{prepared}\n"
    result = run(*last, "-f", "json")
    assert clustertune.Report.from_json(result.stdout) == prepared


def test_a_report_of_another_release(
    cluster: LocalCluster, prepared: clustertune.Report
) -> None:
    """The command refuses a report of a later schema in one line."""
    newer = json.loads(prepared.to_json()) | {"schema_version": 2}
    _keep(cluster, json.dumps(newer))
    result = run("history", "--last", cluster.scheduler_address)
    assert result.exit_code == 4
    assert "schema version 2" in one_line(result)


def test_a_hostile_report(cluster: LocalCluster, prepared: clustertune.Report) -> None:
    """Text from a scheduler cannot act on the terminal."""
    evil = json.loads(prepared.to_json())
    evil["found"][0] |= {"check": "\x1b[2J", "message": "\x1b]0;x\x07\r\n"}
    evil["found"][0]["severity"] = "critical"
    _keep(cluster, json.dumps(evil))
    result = run("history", "--last", cluster.scheduler_address)
    assert result.exit_code == 0
    assert all(c.isprintable() or c == "\n" for c in result.stdout)


def _keep(cluster: LocalCluster, report: str) -> None:
    """Replace the last report in the scheduler plugin."""

    async def put() -> None:
        cluster.scheduler.plugins["clustertune"].report = report

    cluster.sync(put)


# --- errors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConnectionLostError, 3),
        (errors.AlignmentError, 4),
        (errors.CapacityError, 4),
        (errors.LeaseHeldError, 4),
        (errors.NoWorkersError, 4),
        (errors.VersionMismatchError, 4),
        (errors.IncompleteError, 5),
        (errors.TimedOutError, 5),
        (errors.VerificationError, 5),
        (KeyboardInterrupt, 130),
    ],
)
def test_exit_codes(
    error: type[BaseException], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each error that a user can fix has an exit code, and is one harmless line."""
    with pytest.raises(SystemExit) as stop, running.exit_on_error():
        raise error("a worker called \x1b[2J\nis gone")
    assert stop.value.code == code
    written = capsys.readouterr()
    assert written.out == ""
    (line,) = written.err.splitlines()
    assert line.isprintable()


def test_every_error_has_an_exit_code() -> None:
    """No error exits like success or wrong usage."""
    ours = [e for e in vars(errors).values() if isinstance(e, type)]
    codes = {
        running.exit_code(e()) for e in ours if issubclass(e, errors.ClustertuneError)
    }
    assert codes == {3, 4, 5}


def test_other_errors_are_bugs() -> None:
    """An error that a user cannot fix keeps its traceback."""
    with pytest.raises(ZeroDivisionError), running.exit_on_error():
        raise ZeroDivisionError


# --- check, watch, explain ------------------------------------------------------------


def test_check(cluster: LocalCluster) -> None:
    """The findings; the exit code tells whether they are bad."""
    address = cluster.scheduler_address
    result = run("check", address)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "no_nanny" in result.stdout
    assert run("check", "--fail-on", "never", address).exit_code == 0


def test_check_as_json(cluster: LocalCluster) -> None:
    """JSON is alone on stdout: a report; the answer is on stderr, or nothing."""
    address = cluster.scheduler_address
    with dask.config.set({"clustertune.checks.memory_pressure.close_fraction": 0.9999}):
        result = run("check", "-f", "json", "--fail-on", "info", address)
    assert result.exit_code == 1
    assert result.stderr.startswith("Ready: checked 1 worker in ")
    assert run("check", "-f", "json", "--quiet", address).stderr == ""
    data = json.loads(result.stdout)
    assert (data["schema_version"], data["status"]) == (1, "checked")
    command = f"`clustertune trim --worker 0 {address}`"
    assert any(command in finding["remedy"] for finding in data["found"])
    assert clustertune.Report.from_json(result.stdout).status == "checked"


def test_check_by_scheduler_file(cluster: LocalCluster, tmp_path: Path) -> None:
    """The file that a scheduler wrote replaces its address."""
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": cluster.scheduler_address}))
    result = run("check", "--scheduler-file", str(file))
    assert result.exit_code == 0
    assert "no_nanny" in result.stdout


def test_a_wrong_setting(cluster: LocalCluster) -> None:
    """Wrong usage, and no finding."""
    with dask.config.set({"clustertune.prepare.tolerance": 2}):
        result = run("check", cluster.scheduler_address)
    assert result.exit_code == 2
    assert "clustertune.prepare.tolerance=2 must be a number" in result.stderr


def test_check_for_an_unknown_estimator(cluster: LocalCluster) -> None:
    """Wrong usage; the line names the known kinds of estimators."""
    result = run("check", "--estimator", "x", cluster.scheduler_address)
    assert result.exit_code == 2
    assert "choose from generic" in " ".join(result.stderr.split())


def test_watch(cluster: LocalCluster) -> None:
    """The command ends after the time of --for."""
    address = cluster.scheduler_address
    result = run("watch", "--for", "500ms", "--interval", "100ms", address)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"watching {address}, 1 worker")
    result = run("watch", "--for", "300ms", "--interval", "x", address)
    assert result.exit_code == 2
    assert "--interval='x' must be a duration" in result.stderr
    result = run("watch", "--interval", "10m", address)
    assert result.exit_code == 2
    assert "must be at most 5 min" in " ".join(result.stderr.split())


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_watch_shows_the_round_of_a_fit(
    c: Any, s: Any, a: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fit has one line in many looks."""
    async with Monitor(c, interval=0.05) as monitor:
        fits = s.plugins["clustertune"].fits
        fits.begin("a fit", c.id, 800, [])
        fits.answer("a fit", "note", round=120, metric="valid logloss 0.3")
        await soon(lambda: monitor.fits)
        for form in ("text", "json"):
            work = inspection._print_events(monitor, form, "")
            printing = asyncio.ensure_future(work)
            looks = len(monitor.snapshots)
            await soon(lambda n=looks: len(monitor.snapshots) > n + 3)
            printing.cancel()
        fits.end("a fit")
        await soon(lambda: not monitor.fits)
    lines = capsys.readouterr().out.splitlines()
    (text,) = (line for line in lines if "training: " in line)
    assert text.endswith("training: round 120 of 800, valid logloss 0.3")
    (found,) = (json.loads(line) for line in lines if line.startswith("{"))
    assert found["kind"] == "training"
    assert found["fit"]["round"] == 120


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_watch_as_json(
    c: Any, s: Any, a: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The severity of an event is a word, as in a report."""
    async with Monitor(c, interval=0.05) as monitor, Worker(s.address):
        await soon(lambda: monitor.events)
        printing = asyncio.ensure_future(inspection._print_events(monitor, "json", ""))
        looks = len(monitor.snapshots)
        await soon(lambda: len(monitor.snapshots) > looks + 3)
        printing.cancel()
    events = map(json.loads, capsys.readouterr().out.splitlines())
    joined = next(event for event in events if event["kind"] == "joined")
    assert joined["finding"]["severity"] == "info"


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_watch_until_the_scheduler_is_gone(c: Any, s: Any, a: Any) -> None:
    """The end of the scheduler is an error, not a normal end."""
    async with Monitor(c, interval=0.05) as monitor:
        printing = asyncio.ensure_future(inspection._print_events(monitor, "text", ""))
        await soon(lambda: monitor.snapshots)
        await c.close()  # like a client that cannot connect again
        with pytest.raises(errors.ConnectionLostError, match="nothing is watched"):
            await printing


def test_explain() -> None:
    """The list of checks, and the page of one with its settings."""
    listed = run("explain")
    assert listed.exit_code == 0
    assert "paused_workers" in listed.stdout
    page = run("explain", "memory_pressure")
    assert page.exit_code == 0
    assert "clustertune.checks.memory_pressure.close_fraction: 0.1" in page.stdout
    assert "Remedy:" in page.stdout
    goal = run("explain", "unloaded_data")  # reports name it, but it is no check
    assert goal.exit_code == 0, goal.stderr
    assert "Find collections that are not in memory" in goal.stdout
    wrong = run("explain", "memory_presure")
    assert wrong.exit_code == 2
    assert "did you mean memory_pressure?" in wrong.stderr


# --- restart, trim --------------------------------------------------------------------


@pytest.fixture(scope="module")
def nannies() -> Iterator[LocalCluster]:
    """Workers with nannies."""
    options: dict[str, Any] = {
        "threads_per_worker": 1,
        "dashboard_address": "127.0.0.1:0",
    }
    with LocalCluster(n_workers=2, memory_limit="1 GiB", **options) as cluster:
        yield cluster


def test_restart(nannies: LocalCluster) -> None:
    """A dry run shows the plan; `--yes` restarts the named worker."""
    address = nannies.scheduler_address
    before = {i: w.worker_address for i, w in nannies.workers.items()}
    plan = run("restart", "--dry-run", "-f", "json", address)
    assert plan.exit_code == 0
    assert json.loads(plan.stdout)["status"] == "planned"
    assert {i: w.worker_address for i, w in nannies.workers.items()} == before
    done = run("restart", "--yes", "--worker", "1", address)
    assert done.exit_code == 0
    assert "lost 0" in " ".join(done.stdout.split())
    after = {i: w.worker_address for i, w in nannies.workers.items()}
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_without_a_terminal(nannies: LocalCluster) -> None:
    """Without a terminal the command does not wait, and changes nothing."""
    result = run("restart", nannies.scheduler_address)
    assert result.exit_code == 2
    assert "give --yes or --dry-run" in result.stderr
    assert "restart worker" in result.stderr


@pytest.mark.parametrize("answer", ["y\n", "n\n", ""])
def test_asking(
    nannies: LocalCluster, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal shows the plan first; only yes changes something."""
    monkeypatch.setattr("clustertune.cli.options.is_terminal", lambda: True)
    result = CliRunner().invoke(main, ["trim", nannies.scheduler_address], input=answer)
    assert "Go on?" in result.stderr
    assert result.exit_code == {"y\n": 0, "n\n": 4, "": 130}[answer]
    assert ("trimmed 2 of 2 workers" in result.stdout) is (answer == "y\n")


def test_what_cannot_be_restarted(cluster: LocalCluster) -> None:
    """The command refuses, with the reason, also in a dry run."""
    for option in ("--dry-run", "--yes"):
        result = run("restart", option, cluster.scheduler_address)
        assert result.exit_code == 4
        assert "it has no nanny" in " ".join((result.stdout + result.stderr).split())


def test_a_worker_that_is_not_there(nannies: LocalCluster) -> None:
    """Wrong usage; the text names the workers."""
    result = run("trim", "--yes", "--worker", "absent", nannies.scheduler_address)
    assert result.exit_code == 2
    assert "there is no absent in this cluster; its workers are 0 and 1" in (
        " ".join(result.stderr.split())
    )


def test_resize(nannies: LocalCluster) -> None:
    """With an address the workers get their new sizes."""
    address = nannies.scheduler_address
    options = ("--worker", "0", "--nthreads", "2", "--memory-limit", "900 MiB", "-yv")
    done = run("resize", *options, address)
    assert done.exit_code == 0, done.stderr
    assert "2 threads and 900.0 MiB" in " ".join(done.stdout.split())
    with Client(address, set_as_default=False) as client:
        found = client.run(_seen)
    assert sorted(found.values()) == [(1, 2**30), (2, 900 * 2**20)]


def _seen(dask_worker: Any) -> tuple[int, int]:
    return dask_worker.state.nthreads, dask_worker.memory_manager.memory_limit


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "give --nthreads or --memory-limit"),
        (("--memory-limit", "much"), "must be a size of at least 1 MiB"),
        (("--nthreads", "0"), "0 is not in the range"),
    ],
)
def test_a_wrong_size(options: tuple[str, ...], text: str) -> None:
    """The command refuses before it connects."""
    result = run("resize", *options, "tcp://127.0.0.1:1")
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())


def test_scale(nannies: LocalCluster) -> None:
    """With an address workers can leave, and none can start: the line is printed."""
    address = nannies.scheduler_address
    missing = run("scale", "5", "--yes", address)
    assert missing.exit_code == 4
    assert f": dask worker {address} --nworkers " in missing.stderr
    done = run("scale", "1", "--yes", address)
    assert done.exit_code == 0, done.stderr
    assert "lost 0" in " ".join(done.stdout.split())
    with Client(address, set_as_default=False) as client:
        assert len(workers_of(client)) == 1


def test_more_workers_with_an_address_only(cluster: LocalCluster) -> None:
    """The error has the lines to use, before any question."""
    address = cluster.scheduler_address
    for how in ("--yes", "--dry-run"):
        missing = run("scale", "7", address, how)
        assert (missing.exit_code, missing.stdout) == (4, "")
        assert "To start the missing 6 workers, run this 6 times" in missing.stderr
        assert f"dask worker {address} " in missing.stderr
        assert "clustertune.scale(cluster.get_client(), 7)" in missing.stderr


# --- size -----------------------------------------------------------------------------


def test_size_in_every_form() -> None:
    """The size of a cluster as text and JSON, without a cluster."""
    data = ("size", "--rows", "1000000", "--columns", "50", "--estimator", "xgboost")
    host = ("--host-cpus", "4", "--host-memory", "8GiB", "--dtype", "float32")
    text = run(*data, *host)
    assert text.exit_code == 0
    assert text.stdout.startswith(
        "One machine without Dask is enough. Otherwise: 1 worker x"
    )
    assert "LocalCluster(n_workers=1, threads_per_worker=4" in text.stdout
    found = json.loads(run(*data, *host, "-f", "json").stdout)
    assert (found["host_cpus"], found["memory_limit"]) == (4, 7 * 2**30)


def test_size_of_a_cluster_that_does_not_suffice() -> None:
    """Exit code 4: no number of such hosts is enough."""
    data = ("size", "--rows", "1000000000", "--columns", "50", "--host-cpus", "4")
    assert run(*data, "--host-memory", "64GiB").exit_code == 0
    tiny = run(*data, "--host-memory", "600MiB")
    assert tiny.exit_code == 4
    assert "no number of hosts with 4 CPUs and 600.0 MiB is enough" in one_line(tiny)


# --- dashboard ------------------------------------------------------------------------


def test_panel_says_where_the_page_is(cluster: LocalCluster) -> None:
    done = run("dashboard", cluster.scheduler_address)
    assert done.exit_code == 0
    port = cluster.scheduler.http_server.port
    assert done.stdout.endswith(f":{port}/clustertune\n")


@pytest.mark.parametrize(
    "option", ["--port=1", "--port=0", "--allow-websocket-origin=x"]
)
def test_what_only_a_server_takes_needs_serve(option: str) -> None:
    done = run("dashboard", option, "tcp://127.0.0.1:1")
    assert done.exit_code == 2
    assert "needs --serve" in done.output


def test_a_port_that_is_taken(cluster: LocalCluster) -> None:
    taken = cluster.scheduler.http_server.port
    done = run("dashboard", "--serve", "--port", str(taken), cluster.scheduler_address)
    assert done.exit_code == 2
    assert "give another --port, or 0 for a free one" in done.output


def test_a_wrong_origin(cluster: LocalCluster) -> None:
    """The error is about the origin, and not about the address."""
    wrong = ("--allow-websocket-origin", "http://proxy:80")
    done = run("dashboard", "--serve", *wrong, cluster.scheduler_address)
    assert done.exit_code == 2
    assert "'http://proxy:80' must be HOST or HOST:PORT" in done.output
    assert "listen" not in done.output
