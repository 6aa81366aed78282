"""The preload module of a scheduler that an operator starts, and Prometheus."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import dask
import pytest
import yaml
from distributed import Client, Scheduler

import clustertune
from clustertune import preload
from clustertune.remote.scheduler import telemetry
from tests.processes import free_ports, process, until, workers_of

ROOT = Path(__file__).parents[1]
SETTINGS = {"schedules": [{"cron": "0 3 * * *", "if_needed": True}]}


@contextmanager
def scheduler(folder: Path, port: int, page: int) -> Iterator[subprocess.Popen[bytes]]:
    """A scheduler with the module; its settings are in a file."""
    settings = SETTINGS | {"audit": str(folder / "audit.jsonl")}
    (folder / "dask.yaml").write_text(yaml.safe_dump({"clustertune": settings}))
    with process(
        sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1",
        "--port", str(port), "--dashboard-address", f"127.0.0.1:{page}",
        "--preload", "clustertune.preload", DASK_CONFIG=str(folder / "dask.yaml"),
    ) as started:  # fmt: skip
        until(lambda: reached(f"http://127.0.0.1:{page}/metrics"))
        yield started


def reached(url: str) -> bytes:
    try:
        with urlopen(url, timeout=10) as answer:
            content: bytes = answer.read()
    except URLError:
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


def test_each_schedule_has_its_own_next_attempt(local_cluster: Any) -> None:
    """It is renewed when it expires; one that is refused does not delay others."""
    cluster, client = local_cluster(1)

    def seconds(**arguments: Any) -> float:
        given = {"cron": "* * * * *", "if_needed": True, **arguments}
        found: float = client.sync(preload._schedule, cluster.scheduler, given)
        return found

    assert 3000 < seconds(expires="1h") <= 3600
    assert seconds(expires="1h", workers=["none"]) == preload.RETRY
    (made,) = waiting(client)
    assert made.if_needed


def test_a_scheduler_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def seconds() -> float:
        async with Scheduler(port=0, dashboard_address="127.0.0.1:0") as ended:
            pass
        return await preload._schedule(ended, {"cron": "0 3 * * *"})

    with dask.config.set({"distributed.comm.timeouts.connect": "200ms"}):
        assert asyncio.run(seconds()) == preload.RETRY
    assert "clustertune.schedules: Timed out" in caplog.text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"schedules": "daily"}, "must be a list of mappings"),
        ({"schedules": [{"idle_for": "1m"}]}, r"schedules\[0\]=.* mapping with cron"),
        ({"schedules": [{"cron": "0 3 * * *", "when": 1}]}, "no argument 'when'"),
    ],
)
def test_wrong_schedules(settings: dict[str, Any], text: str) -> None:
    with (
        dask.config.set({"clustertune": settings}),
        pytest.raises(ValueError, match=text),
    ):
        preload.configured_schedules()


def test_lines_of_any_event() -> None:
    """A client may log any event: a line stays one short line of JSON."""
    event = {"action": "a\nb", "more": [object()], 3: 1, (1, 2): 2, "long": "x" * 10**6}
    text = telemetry.audit_line(event)
    assert "\n" not in text
    assert len(text) <= telemetry.MAX_LINE
    assert json.loads(text)["action"] == "a\nb"


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


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus")
def test_alerts_and_panels(tmp_path: Path) -> None:
    """A worker that dies with scattered data fires the alert; each panel has data."""
    port, page = free_ports(2)
    with (
        scheduler(tmp_path, port, page),
        workers(tmp_path, port, 2),
        Client(f"tcp://127.0.0.1:{port}") as client,
        prometheus(tmp_path, f"127.0.0.1:{page}") as api,
    ):
        client.wait_for_workers(2)
        first = next(iter(workers_of(client)))
        X = dask.array.random.random((100, 2), chunks=(10, 2))
        X = client.persist(X, workers=[first], allow_other_workers=True)
        clustertune.prepare(client, X, progress=False)
        until(lambda: query(api, 'clustertune_lost_keys_total{kind="scattered"}'))
        assert "ClustertuneLostKeys" not in firing(api)
        lost = client.scatter([1, 2, 3], workers=[first])
        (pid,) = client.run(os.getpid, workers=[first]).values()
        os.kill(pid, signal.SIGKILL)
        until(lambda: "ClustertuneLostKeys" in firing(api))
        panels = json.loads((ROOT / "docs/metrics/grafana.json").read_text())["panels"]
        empty = {"Growth of unmanaged memory in the last run"}  # there were no two runs
        for panel in panels:
            expression = panel["targets"][0]["expr"]
            if panel["title"] not in empty:
                assert until(lambda e=expression: query(api, e)), panel["title"]
        del lost
