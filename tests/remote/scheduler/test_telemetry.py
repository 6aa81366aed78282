"""Metrics for Prometheus: counters of events, gauges of the plugin, the page."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.array as da
import pytest
import yaml
from distributed import Client, Nanny, Worker, wait
from distributed.utils_test import captured_logger
from prometheus_client.parser import text_string_to_metric_families
from tornado.httpclient import AsyncHTTPClient

import clustertune
from clustertune.monitor import monitor
from clustertune.remote.keys import pack
from clustertune.remote.scheduler import telemetry
from clustertune.remote.scheduler.lease import TOPIC
from clustertune.remote.scheduler.telemetry import MAX_READS, RETURN, Metrics
from tests.in_process import TWO, gen_cluster
from tests.processes import soon


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Our samples by name and label values."""
    return {
        (s.name, *s.labels.values()): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name.startswith("clustertune_")
    }


async def scrape(scheduler: Any) -> dict[tuple[str, ...], float]:
    url = f"http://127.0.0.1:{scheduler.http_server.port}/metrics"
    answer = await AsyncHTTPClient().fetch(url)
    return samples(answer.body.decode())


@gen_cluster(client=True, nthreads=TWO)
async def test_a_scrape(c, s, a, b):
    """The scheduler's own page has them from the first call on."""
    X = c.persist(da.random.random((400, 2), chunks=(50, 2)), workers=[a.address])
    await wait(X)
    X, *_ = await clustertune.prepare(c, X)
    await clustertune.check(c, X)
    found = await scrape(s)
    assert found["clustertune_operations_total", "prepare", "done"] == 1
    assert found["clustertune_operation_seconds_total", "prepare"] > 0
    assert found["clustertune_moved_bytes_total",] == 4 * 50 * 2 * 8
    assert found["clustertune_lease",] == found["clustertune_holds",] == 0
    assert any(name[0] == "clustertune_findings" for name in found)
    plugin = s.plugins["clustertune"]
    plugin.holds.begin(c.id, "a fit", "name")
    assert (await scrape(s))["clustertune_holds",] == 1
    plugin.lease.grant(c.id, "an operation", "token")
    assert (await scrape(s))["clustertune_lease",] == 1
    plugin.lease.release("token")


@gen_cluster(client=True, nthreads=TWO)
async def test_growth_of_workers_that_are_there(c, s, a, b):
    """Memory of a worker that has left grows no more."""
    await clustertune.check(c)
    plugin = s.plugins["clustertune"]
    for run in range(4):
        floors = [[a.name, 100 * run], [b.name, 300 * run]]
        plugin.runs.kept.append({"ended_by": "gap", "floors": floors})
    name = ("clustertune_unmanaged_memory_growth_bytes",)
    assert (await scrape(s))[name] == 300
    await b.close()
    assert (await scrape(s))[name] == 100
    await a.close()
    assert name not in await scrape(s)


ALERTS = Path(clustertune.__file__).parents[1] / "docs/metrics/alerts.yaml"
#: values of a minute each, and the alert that fires after each number of minutes
LASTING = [
    (
        'clustertune_schedules{instance="s", state="failed"}',
        "0x4 1x5 0x5",
        "ClustertuneScheduleFailed",
        {3: False, 6: True, 9: True, 11: False},
    ),
    (
        'clustertune_unmanaged_memory_growth_bytes{instance="s"}',
        "0x4 100000000x5 0x5",
        "ClustertuneMemoryGrowth",
        {3: False, 6: True, 9: True, 11: False},
    ),
    (
        'clustertune_lease{instance="s"}',
        "1x40 0x5",
        "ClustertuneLeaseHeld",
        {1: False, 29: False, 31: True, 40: True, 42: False},
    ),
]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus")
@pytest.mark.parametrize(("series", "values", "alert", "fires"), LASTING)
def test_alerts_fire_while_their_reason_lasts(
    series: str, values: str, alert: str, fires: dict[int, bool], tmp_path: Path
) -> None:
    labels = {"severity": "warning", "instance": "s"}
    if "schedules" in series:
        labels["state"] = "failed"
    expected = [
        {
            "eval_time": f"{minute}m",
            "alertname": alert,
            "exp_alerts": [{"exp_labels": labels}] * fire,
        }
        for minute, fire in fires.items()
    ]
    one = {"interval": "1m", "alert_rule_test": expected}
    one["input_series"] = [{"series": series, "values": values}]
    rules = yaml.safe_load(ALERTS.read_text())
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]  # promtool compares them, too
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rules))
    tests = {"rule_files": ["alerts.yaml"], "tests": [one]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    command = ["promtool", "test", "rules", str(tmp_path / "tests.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@gen_cluster(client=True, nthreads=TWO)
async def test_counters_start_at_zero(c, s, a, b):
    """Prometheus sees the first increase only of a series that was there before."""
    X = c.persist(da.random.random((400, 2), chunks=(50, 2)), workers=[a.address])
    await wait(X)
    await clustertune.check(c, X)
    before = await scrape(s)
    X, *_ = await clustertune.prepare(c, X)
    increased = {
        name
        for name, value in (await scrape(s)).items()
        if name[0].endswith("_total") and value
    }
    assert ("clustertune_operations_total", "prepare", "done") in increased
    assert {before.get(name) for name in increased} == {0}


@gen_cluster(client=True, nthreads=TWO)
async def test_lost_keys(c, s, a, b):
    """Scattered keys whose only worker has gone are counted."""
    await clustertune.check(c)
    [future] = await c.scatter([1], workers=[a.address])
    assert (await scrape(s))["clustertune_lost_keys_total", "scattered"] == 0
    await a.close()
    assert (await scrape(s))["clustertune_lost_keys_total", "scattered"] == 1
    del future


@pytest.mark.parametrize(
    "event",
    [
        None,
        "text",
        [],
        {},
        {"status": "done"},
        {"status": "done", "steps": "abc"},
        {"status": "done", "steps": [1, None, "x"]},
        {"action": ["x"], "status": {}, "steps": [{"action": 3, "nbytes": "much"}]},
        {"action": "x" * 10**6, "status": "y", "steps": [{"nbytes": float("nan")}]},
        {"status": "done", "steps": [], "seconds": -1},
    ],
)
def test_events_of_other_clients(event: Any) -> None:
    """Any client may log anything: labels are from fixed sets, amounts are finite."""
    metrics = Metrics(SimpleNamespace())
    metrics.note_event(TOPIC, event)
    found = {name: set(+counts) for name, counts in metrics.counted.items()}
    other = (telemetry.OTHER, telemetry.OTHER)
    assert found["operations"] <= {other, (telemetry.OTHER, "done")}
    assert not found["moved_bytes"]
    assert not found["operation_seconds"]


def test_findings_have_few_labels() -> None:
    """Names of checks that a client invents do not add series without a limit."""
    found = [{"check": f"made_up_{i}", "severity": "info"} for i in range(1000)]
    found += [{"check": "<b>", "severity": "info"}, {"check": "x", "severity": "bad"}]
    facts = {"findings": {"found": found}}
    plugin = SimpleNamespace(page_data=SimpleNamespace(facts=facts))
    counts = Metrics(plugin)._findings()
    assert len(counts) <= telemetry.MAX_CHECKS + 1
    assert counts[telemetry.OTHER, "info"] == 1001 - telemetry.MAX_CHECKS
    assert ("x", "bad") not in counts


# --- changes of workers ---------------------------------------------------------------


async def begun(c: Client) -> int:
    """Begin to watch; return the number of the last change."""
    await monitor.install_plugin(c, await monitor.identify(c))
    answer = await monitor.ask(c, "worker_changes", after=None)
    assert not answer["changes"]
    return int(answer["last"])


async def coming(c: Client, s: Any, after: int) -> Any:
    """Return the answer with the next changes, once it is known what became of them."""
    changes = s.plugins["clustertune"].changes
    await soon(lambda: changes.last > after)
    await monitor.ask(c, "worker_changes", after=after)
    await soon(lambda: all(change.is_known() for change in changes.kept))
    return await monitor.ask(c, "worker_changes", after=after)


@gen_cluster(client=True, nthreads=TWO)
async def test_nothing_is_recorded_before_a_client_asks(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    """Neither processes nor lost keys."""
    await monitor.install_plugin(c, await monitor.identify(c))
    await b.close()
    changes = s.plugins["clustertune"].changes
    assert not changes.kept
    last = await begun(c)
    assert list(changes.processes) == [a.address]
    async with Worker(s.address, name="new"):
        (change,) = (await coming(c, s, last))["changes"]
        assert (change["worker"], change["stimulus"]) == ("new", None)
        changes.watched = float("-inf")  # no client has asked for a long time
        assert not changes.is_watched()
        assert (changes.processes, list(changes.kept)) == ({}, [])


@gen_cluster(client=True, nthreads=TWO)
async def test_retired(c: Any, s: Any, a: Any, b: Any) -> None:
    """Each client gets each change once."""
    last = await begun(c)
    await c.retire_workers([b.address])
    answer = await coming(c, s, last)
    (change,) = answer["changes"]
    assert (change["worker"], change["n_workers"]) == (1, 1)
    assert change["stimulus"].startswith("retire-workers-")
    assert (change["computed"], change["scattered"]) == (0, 0)
    again = await monitor.ask(c, "worker_changes", after=answer["last"])
    assert (again["changes"], again["last"]) == ((), answer["last"])
    other = await monitor.ask(c, "worker_changes", after=last)
    assert other["changes"] == (change,)


@gen_cluster(client=True, nthreads=TWO)
async def test_lost_keys_and_rows(c: Any, s: Any, a: Any, b: Any) -> None:
    """Computed keys are computed again, scattered keys are not."""
    last = await begun(c)
    computed = c.submit(
        abs, -1, key=("X", 0), workers=[b.address], allow_other_workers=True
    )
    kept = await c.scatter({("X", 1): 1}, workers=[b.address])
    there = await c.scatter({("X", 2): 1}, workers=[a.address])
    await wait([computed, *kept.values(), *there.values()])
    layout = {
        "label": "training data",
        "names": ["X"],
        "members": [pack([("X", 0), ("X", 1), ("X", 2)])],
        "rows": [10, 20, 30],
        "alike": True,
    }
    await monitor.ask(c, "report", facts={"collections": [layout]})
    await s.remove_worker(b.address, stimulus_id="test")
    await soon(lambda: s.tasks["X", 0].who_has)
    answer = await coming(c, s, last)
    (change,) = answer["changes"]
    assert (change["computed"], change["scattered"]) == (1, 1)
    assert change["rows"] == (30,)
    (data,) = answer["data"]
    assert (data["names"], data["rows"], data["lost"]) == (("X",), 60, 20)
    assert dict(zip(data["workers"], data["held"], strict=True)) == {0: 40}
    assert not answer["leased"]


@gen_cluster(client=True, nthreads=[])
async def test_a_restart_is_one_change(c: Any, s: Any) -> None:
    """The next process has the same name; its nanny logged the end of the last one."""
    async with Nanny(s.address, name="one", nthreads=1) as nanny:
        await c.wait_for_workers(1)
        last = await begun(c)
        os.kill(nanny.pid, signal.SIGKILL)
        answer = await coming(c, s, last)
        (change,) = answer["changes"]
        assert change["worker"] == "one"
        assert change["returned"] > 0
        assert change["recorded"] == {"exit": "was killed by signal 9"}
        assert len(s.workers) == 1
        await c.restart_workers([*s.workers])
        (change,) = (await coming(c, s, answer["last"]))["changes"]
        assert change["returned"] > 0
        assert change["recorded"]["closing"].startswith("client-restart-workers-")


@gen_cluster(client=True, nthreads=[])
async def test_a_client_that_asks_late(c: Any, s: Any) -> None:
    """The nanny's log is read although the worker has returned long before."""
    async with Nanny(s.address, name="one", nthreads=1) as nanny:
        await c.wait_for_workers(1)
        last = await begun(c)
        os.kill(nanny.pid, signal.SIGKILL)
        kept = s.plugins["clustertune"].changes.kept
        await soon(lambda: kept and kept[0].returned is not None)
        kept[0].time -= 2 * RETURN
        (change,) = (await coming(c, s, last))["changes"]
        assert change["recorded"] == {"exit": "was killed by signal 9"}


@gen_cluster(client=True, nthreads=[])
async def test_a_restart_with_two_processes_is_one_change(c: Any, s: Any) -> None:
    """The next process registers before the former one ends."""
    async with (
        Nanny(s.address, name="one", nthreads=1),
        Nanny(s.address, name="two", nthreads=1),
    ):
        await c.wait_for_workers(2)
        last = await begun(c)
        kept = await c.scatter({"x": 1}, workers=["one"])
        report = await clustertune.restart_workers(c, workers=["one"])
        assert "to its new process" in report.details
        changes = s.plugins["clustertune"].changes
        await soon(lambda: any(x.stimulus is not None for x in changes.kept))
        (change,) = (await coming(c, s, last))["changes"]
        assert (change["worker"], change["returned"]) == ("one", 0.0)
        assert change["stimulus"].startswith("clustertune-unpark-")
        assert (change["computed"], change["scattered"]) == (0, 0)
        assert await c.gather(kept["x"]) == 1


@gen_cluster(client=True, nthreads=[])
async def test_few_logs_are_read_at_the_same_time(c: Any, s: Any) -> None:
    """A client may restart all workers at once."""
    async with Nanny(s.address, name="one", nthreads=1) as nanny:
        await c.wait_for_workers(1)
        await begun(c)
        changes = s.plugins["clustertune"].changes
        (process,) = changes.processes.values()
        handler, begun_reads, released = nanny.handlers["get_logs"], [], asyncio.Event()

        async def get_logs(**options: Any) -> Any:
            begun_reads.append(released.is_set())
            await released.wait()
            return handler(**options)

        nanny.handlers["get_logs"] = get_logs
        reads = [changes._read_log(process) for _ in range(MAX_READS + 5)]
        answers = asyncio.gather(*reads)
        await soon(lambda: len(begun_reads) == MAX_READS)
        released.set()
        assert all(await answers)
        assert begun_reads.count(False) == MAX_READS


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_the_memory_of_the_only_worker(c: Any, s: Any, a: Any) -> None:
    """The event of its nanny may arrive after its removal."""
    last, address = await begun(c), a.address
    await a.close()
    await soon(lambda: not s.workers)
    await c.log_event("worker-restart-memory", {"worker": address, "rss": 5})
    (change,) = (await coming(c, s, last))["changes"]
    assert change["recorded"]["rss"] == 5


@gen_cluster(client=True, nthreads=TWO)
async def test_events_that_a_client_made_up(c: Any, s: Any, a: Any, b: Any) -> None:
    """They cannot remove a worker, and garbage ends nothing."""
    last = await begun(c)
    for topic, event in (
        ("all", {"action": "remove-worker", "worker": a.address}),
        ("worker-restart-memory", {"worker": [], "rss": "x"}),
        ("scheduler", {"action": "worker-ttl-timed-out", "workers": 1, "ttl": []}),
        ("scheduler", {"action": "worker-ttl-timed-out", "workers": [[]], "ttl": 1}),
        (a.address, {"action": "closing-worker", "reason": [1] * 1000}),
    ):
        await c.log_event(topic, event)
    assert not (await monitor.ask(c, "worker_changes", after=last))["changes"]
    await a.close()
    (change,) = (await coming(c, s, last))["changes"]
    assert change["worker"] == 0


@gen_cluster(client=True, Worker=Nanny, nthreads=[("127.0.0.1", 1)])
async def test_the_client_of_a_restart(c: Any, s: Any, a: Any) -> None:
    """All lines about the restart of a client name the client."""
    with captured_logger("clustertune.audit", level=logging.INFO) as log:
        await clustertune.restart_workers(c)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line.get("state") for line in lines] == ["began", "ended", None]
    assert [line["client"] for line in lines] == [c.id] * 3
    assert [line["by"] for line in lines[:2]] == [c.id] * 2
