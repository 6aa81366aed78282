"""The preload module of a scheduler that an operator starts, and Prometheus."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import dask
import pytest
import yaml
from distributed import Client, Scheduler, wait

import clustertune
from clustertune import preload
from clustertune.operations.schedules import checked_terms
from clustertune.remote.scheduler import telemetry
from clustertune.remote.scheduler.lease import TOPIC
from tests.pages import PAGES, blocks
from tests.processes import free_ports, process, stop_stealing, until, workers_of

ROOT = Path(__file__).parents[1]
SETTINGS = {"schedules": [{"cron": "0 3 * * *", "if_needed": True}]}


def command(port: int, page: int) -> list[str]:
    return [
        sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1",
        "--port", str(port), "--dashboard-address", f"127.0.0.1:{page}",
        "--preload", "clustertune.preload",
    ]  # fmt: skip


@contextmanager
def scheduler(folder: Path, port: int, page: int) -> Iterator[subprocess.Popen[bytes]]:
    """A scheduler with the module; its settings are in a file."""
    settings = SETTINGS | {"audit": str(folder / "audit.jsonl")}
    (folder / "dask.yaml").write_text(yaml.safe_dump({"clustertune": settings}))
    with process(
        *command(port, page), DASK_CONFIG=str(folder / "dask.yaml")
    ) as started:
        until(lambda: reached(f"http://127.0.0.1:{page}/metrics"))
        yield started


def reached(url: str) -> bytes:
    try:
        with urlopen(url, timeout=10) as answer:
            content: bytes = answer.read()
    except OSError:  # also while it answers
        return b""
    return content


@contextmanager
def workers(folder: Path, port: int, count: int) -> Iterator[subprocess.Popen[bytes]]:
    with process(
        sys.executable, "-m", "dask", "worker", f"tcp://127.0.0.1:{port}",
        "--nworkers", str(count), "--nthreads", "1", "--memory-limit", "1GiB",
        "--host", "127.0.0.1", "--no-dashboard", "--local-directory", str(folder),
    ) as started:  # fmt: skip
        yield started


def waiting(client: Client) -> Any:
    return [s for s in clustertune.schedules(client) if s.state == "waiting"]


def test_a_scheduler_that_is_started_again(tmp_path: Path) -> None:
    """It has the page, metrics and schedules each time, and the audit trail goes on."""
    port, page = free_ports(2)
    address = f"tcp://127.0.0.1:{port}"
    with scheduler(tmp_path, port, page) as first:
        assert b"clustertune_lease" in reached(f"http://127.0.0.1:{page}/metrics")
        assert b"clustertune" in reached(f"http://127.0.0.1:{page}/clustertune")
        with workers(tmp_path, port, 1), Client(address) as client:
            (schedule,) = until(lambda: waiting(client))
        first.send_signal(signal.SIGKILL)
        first.wait()
    with (
        scheduler(tmp_path, port, page),
        workers(tmp_path, port, 1),
        Client(address) as client,
    ):
        (again,) = until(lambda: waiting(client))
        assert (again.if_needed, again.reason) == (True, preload.REASON)
        assert again.id != schedule.id
        clustertune.trim_memory(client, progress=False)
    lines = [json.loads(x) for x in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [x["id"] for x in lines if x.get("state") == "made"] == [
        schedule.id,
        again.id,
    ]
    (done,) = [x for x in lines if x["action"] == "trim"]
    assert done["status"] == "done"
    assert {"time", "by", "client", "reason", "seconds", "lost", "steps"} <= done.keys()


def test_a_schedule_that_cannot_be_added(
    local_cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The list has its reason; it is tried again, and delays no other schedule."""
    monkeypatch.setattr(preload, "RETRY", 0.1)
    cluster, client = local_cluster(1)
    bad = {"cron": "0 0 1 7 *", "tz": "UTC", "if_needed": True, "workers": ["late"]}
    good = {"cron": "* * * * *", "expires": "1h", "if_needed": True}

    async def begin(dask_scheduler: Any) -> None:
        with dask.config.set({"clustertune.schedules": [bad, good]}):
            await preload.dask_setup(dask_scheduler)

    async def end(dask_scheduler: Any) -> None:
        await preload.dask_teardown(dask_scheduler)

    client.run_on_scheduler(begin)
    try:
        (made,) = until(lambda: waiting(client))
        assert made.if_needed
        assert made.expires == made.instants[0] + 3600

        def failed() -> Any:
            return [s for s in clustertune.schedules(client) if s.state == "failed"]

        (it,) = until(failed)
        assert (it.id, it.workers) == ("configured-0", ("late",))
        assert "there is no late in this cluster" in str(it)
        assert it.if_needed
        assert [
            f"{datetime.fromtimestamp(t, timezone.utc):%m-%d %H}" for t in it.instants
        ] == ["07-01 00"]
        with pytest.raises(LookupError, match=r"clustertune\.schedules"):
            it.cancel()  # only the configuration has it
        metrics = cluster.scheduler.plugins["clustertune"].metrics
        assert metrics._gauges()["schedules"]["failed",] == 1
        events = [e for _, e in client.get_events("clustertune")]
        assert sum(e.get("id") == it.id for e in events) == 1  # not for each try
        with process(
            sys.executable, "-m", "dask", "worker", cluster.scheduler_address,
            "--name", "late", "--nthreads", "1", "--memory-limit", "1GiB",
            "--no-dashboard", "--local-directory", str(tmp_path),
        ):  # fmt: skip
            until(lambda: not failed())
            # the other one is due each minute, and then made again
            until(lambda: {s.workers for s in waiting(client)} == {("late",), None})
    finally:
        client.run_on_scheduler(end)


def test_a_schedule_that_has_ended(
    local_cluster: Any, monkeypatch: Any, tmp_path: Path, caplog: Any
) -> None:
    """It is scheduled again, unless a user has cancelled it."""
    monkeypatch.setattr(preload, "RETRY", 0.1)
    monkeypatch.setattr(telemetry.audit_logger, "handlers", [])
    file = tmp_path / "audit.jsonl"
    cluster, client = local_cluster(1)

    async def begin(dask_scheduler: Any) -> None:
        settings = {"schedules": [{"cron": "0 3 * * *"}], "audit": str(file)}
        with dask.config.set({"clustertune": settings}):
            await preload.dask_setup(dask_scheduler)

    caplog.set_level("INFO", "distributed.clustertune")
    client.run_on_scheduler(begin)
    (first,) = until(lambda: waiting(client))
    line = f"{first.id}: restart all workers once nothing has run for 30 s after 20"
    until(lambda: line in caplog.text)
    assert f"the audit trail to {file}" in caplog.text
    telemetry.audit_logger.handlers.pop().close()

    def end(dask_scheduler: Any, name: str, state: str) -> None:
        it = dask_scheduler.plugins["clustertune"].schedules.kept[name]
        it.end(state)

    for state in ("failed", "expired"):
        client.run_on_scheduler(end, name=first.id, state=state)
        (again,) = until(lambda: waiting(client))
        assert again.id != first.id
        first = again
    first.cancel()
    (task,) = preload._tasks[cluster.scheduler.id]
    until(task.done)
    assert waiting(client) == []


def test_a_scheduler_that_does_not_answer() -> None:
    """That is the reason of the refusal."""

    async def problem() -> Any:
        async with Scheduler(port=0, dashboard_address="127.0.0.1:0") as ended:
            pass
        return await preload._schedule(ended, {"cron": "0 3 * * *"})

    with dask.config.set({"distributed.comm.timeouts.connect": "200ms"}):
        assert "Timed out" in asyncio.run(problem())


ONE = {"cron": "0 3 * * *"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"schedules": "daily"}, "must be a list of mappings"),
    ({"schedules": [{"idle_for": "1m"}]}, r"schedules\[0\]=.* mapping with cron"),
    ({"schedules": [ONE | {"when": 1}]}, "no argument 'when'"),
    ({"schedules": [ONE, {"cron": "0 3 * *"}]}, r"schedules\[1\]: .*five fields"),
    ({"schedules": [ONE | {"tz": "Mars/Sea"}]}, "is no time zone"),
    ({"schedules": [ONE | {"idle_for": "soon"}]}, "idle_for='soon' must be a duration"),
    ({"schedules": [ONE | {"expires": "2000 days"}]}, "must be at most a year"),
    ({"schedules": [ONE | {"if_needed": "leak"}]}, "must be True or False"),
    ({"schedules": [ONE | {"workers": "w"}]}, "must be a list"),
    ({"schedules": [ONE | {"reason": "why"}]}, "no argument 'reason'; it has idle_for"),
    ({"schedules": [{"cron": "0 0 30 2 *"}]}, "cron='0 0 30 2"),
    ({"audit": 5}, "must be the path of a file"),
    ({"audit": "/nowhere/audit.jsonl"}, "'/nowhere/audit.jsonl' cannot be written"),
    ({"audits": "file"}, "no setting 'audits'; .*did you mean audit"),
    ({"prepare": {"tolerance": 2}}, r"prepare\.tolerance=2 must be a number"),
    ({"prepare": {"tolerence": 1}}, "no setting 'tolerence'; .*did you mean tolerance"),
    (
        {"checks": {"stuck_tasks": {"min_seconds": "many"}}},
        "stuck_tasks.min_seconds='many'",
    ),
]


@pytest.mark.parametrize(("settings", "text"), WRONG)
def test_wrong_settings(settings: dict[str, Any], text: str) -> None:
    """All values are checked when a scheduler starts."""
    with (
        dask.config.set({"clustertune": settings}),
        pytest.raises(ValueError, match=text),
    ):
        preload.check_settings()


def test_a_scheduler_with_a_wrong_setting(tmp_path: Path) -> None:
    """It does not start; the last line has the reason, and no traceback."""
    settings, text = WRONG[3]
    (port,) = free_ports(1)
    (tmp_path / "dask.yaml").write_text(yaml.safe_dump({"clustertune": settings}))
    done = subprocess.run(
        command(port, 0),
        env=os.environ | {"DASK_CONFIG": str(tmp_path / "dask.yaml")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    lines = [x for x in done.stderr.splitlines() if "clustertune.preload: " in x]
    assert len(lines) == 1
    assert re.search(text, lines[0])


def test_a_time_after_the_end() -> None:
    """A restart each year expires after its next time, at any time of the year."""
    yearly: dict[str, Any] = {"cron": "0 0 1 7 *", "tz": "UTC", "expires": "2 days"}
    with dask.config.set({"clustertune.schedules": [yearly]}):
        assert preload.configured_schedules() == [yearly]
    for now in (0.0, 180 * 86400.0):
        assert checked_terms(now, **yearly)["expires"] == (181 + 2) * 86400


def test_the_audit_file_is_rotated(tmp_path: Path) -> None:
    """Lines go to the new file of that name, as after ``logrotate``."""
    file, former = tmp_path / "audit.jsonl", list(telemetry.audit_logger.handlers)
    with dask.config.set({"clustertune.audit": str(file)}):
        preload.check_settings()
        preload.check_settings()  # a second scheduler in this process
    try:
        telemetry.audit_logger.info("one")
        file.rename(tmp_path / "audit.jsonl.1")
        telemetry.audit_logger.info("two")
        assert (tmp_path / "audit.jsonl.1").read_text() == "one\n"
        assert file.read_text() == "two\n"
    finally:
        for handler in set(telemetry.audit_logger.handlers) - set(former):
            telemetry.audit_logger.removeHandler(handler)
            handler.close()


def test_a_handler_of_the_operator() -> None:
    """The code on the page is enough; without it no line is made."""
    page = PAGES["docs/metrics.md"].read_text()
    (code,) = (b.code for b in blocks(page) if b.mark.startswith("audit handler: "))
    logger = telemetry.audit_logger
    level, former = logger.level, list(logger.handlers)
    logger.setLevel(logging.NOTSET)
    exec(code, {})
    own = logging.StreamHandler(io.StringIO())
    logger.addHandler(own)
    try:
        telemetry.audit(TOPIC, {"action": "trim"})
        (line,) = own.stream.getvalue().splitlines()
        assert json.loads(line)["action"] == "trim"
    finally:
        logger.setLevel(level)
        for handler in set(logger.handlers) - set(former):
            logger.removeHandler(handler)
            handler.close()


def test_lines_of_any_event() -> None:
    """A client may log any event: a line stays one short line of JSON."""
    event = {"action": "a\nb", "more": [object()], 3: 1, (1, 2): 2, "long": "x" * 10**6}
    text = telemetry.audit_line(event)
    assert "\n" not in text
    assert len(text) <= telemetry.MAX_LINE
    assert json.loads(text)["action"] == "a\nb"


@pytest.mark.parametrize("long", ["", "x" * 10**6])
def test_each_line_has_its_time_and_author(long: str) -> None:
    """The time is the scheduler's; JSON has no NaN, so every parser reads the line."""
    event = {"action": "x", "time": 5.0, "n": [float("nan")], "m": math.inf}
    for by, fields in (
        ("ada@node7", {"by": "ada@node7", "client": "c", "time": "1970"}),
        ("c", {"client": "c"}),
        ("me", {"owner": "me"}),
        ("the scheduler", {}),
    ):
        text = telemetry.audit_line(event | fields | {"long": long})
        assert len(text) <= telemetry.MAX_LINE
        line = json.loads(text, parse_constant=pytest.fail)
        assert line["by"] == by
        age = datetime.now(timezone.utc) - datetime.fromisoformat(line["time"])
        assert abs(age.total_seconds()) < 60


# --- Prometheus -----------------------------------------------------------------------


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """A Prometheus server on loopback that scrapes every second, with our rules."""
    (port,) = free_ports(1)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "docs/metrics/alerts.yaml")],
        "scrape_configs": [
            {"job_name": "dask", "static_configs": [{"targets": [target]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with process(
        "prometheus", f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ):  # fmt: skip
        until(lambda: reached(f"http://127.0.0.1:{port}/-/ready"))
        yield f"http://127.0.0.1:{port}/api/v1"


def query(api: str, expression: str) -> Any:
    answer = reached(f"{api}/query?{urlencode({'query': expression})}")
    return answer and json.loads(answer)["data"]["result"]


def firing(api: str) -> set[str]:
    alerts = json.loads(reached(f"{api}/alerts"))["data"]["alerts"]
    return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}


def runs_and_schedule() -> Any:
    """Return a function for the scheduler, which cannot import this module."""

    def change(dask_scheduler: Any, growing: bool) -> None:
        from clustertune.remote.scheduler.state import id_of

        plugin = dask_scheduler.plugins["clustertune"]
        schedules, runs = plugin.schedules, plugin.runs.kept
        workers = [id_of(ws) for ws in dask_scheduler.workers.values()]
        runs.clear()
        for run in range(10):
            floors = [[worker, run * growing * 2**27] for worker in workers]
            runs.append({"ended_by": "gap", "floors": floors})
        if growing:
            terms = {"owner": "me", "reason": None, "idle_for": 60.0, "instants": []}
            terms |= {"if_needed": False, "workers": None}
            name = schedules.add(terms | {"expires": 2.0**40})["id"]
            schedules.kept[name].settle("lost", schedules.kept[name].made, 0.0)
        for one in schedules.kept.values():
            one.failed_at -= 0 if growing else 3601

    return change


changed = runs_and_schedule()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus")
def test_alerts_and_panels(tmp_path: Path) -> None:
    """Alerts fire while their reason lasts; each panel has data."""
    port, page = free_ports(2)
    with (
        scheduler(tmp_path, port, page),
        workers(tmp_path, port, 2),
        Client(f"tcp://127.0.0.1:{port}") as client,
        prometheus(tmp_path, f"127.0.0.1:{page}") as api,
    ):
        client.wait_for_workers(2)
        client.run_on_scheduler(stop_stealing)  # so all partitions are on one worker
        first = next(iter(workers_of(client)))
        X = dask.array.random.random((100, 2), chunks=(10, 2))
        X = client.persist(X, workers=[first], allow_other_workers=True)
        clustertune.prepare(client, X, progress=False)
        until(lambda: query(api, 'clustertune_lost_keys_total{kind="scattered"}'))
        assert "ClustertuneLostKeys" not in firing(api)
        Y = dask.array.random.random((100, 2), chunks=(10, 2))
        Y = client.persist(Y, workers=[first])
        wait(Y)
        clustertune.check(client, Y)  # the other worker is empty
        lost = client.scatter([1, 2, 3], workers=[first])
        (pid,) = client.run(os.getpid, workers=[first]).values()
        os.kill(pid, signal.SIGKILL)
        until(lambda: "ClustertuneLostKeys" in firing(api))
        client.run_on_scheduler(changed, growing=True)
        until(lambda: {"ClustertuneMemoryGrowth", "ClustertuneScheduleFailed"}
              <= firing(api))  # fmt: skip
        client.run_on_scheduler(changed, growing=False)
        until(lambda: {"ClustertuneMemoryGrowth", "ClustertuneScheduleFailed"}
              .isdisjoint(firing(api)))  # fmt: skip
        panels = json.loads((ROOT / "docs/metrics/grafana.json").read_text())["panels"]
        empty = {"Growth of unmanaged memory with each run"}  # there were no two runs
        for panel in panels:
            for target in () if panel["title"] in empty else panel["targets"]:
                expression = target["expr"]
                until(lambda e=expression: query(api, e), what=panel["title"])
        del lost
