"""Metrics for Prometheus: counters of events, gauges of the plugin, the page."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.array as da
import pytest
import yaml
from distributed import wait
from prometheus_client.parser import text_string_to_metric_families
from tornado.httpclient import AsyncHTTPClient

import clustertune
from clustertune.remote.scheduler import telemetry
from clustertune.remote.scheduler.lease import TOPIC
from clustertune.remote.scheduler.telemetry import Metrics
from tests.in_process import gen_cluster

TWO = [("127.0.0.1", 1)] * 2


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
    assert found["clustertune_steps_total", "rebalance", "done"] == 1
    assert found["clustertune_operation_seconds_total", "prepare"] > 0
    assert found["clustertune_moved_bytes_total",] == 4 * 50 * 2 * 8
    assert found["clustertune_imbalance_ratio",] == 1
    assert found["clustertune_lease",] == found["clustertune_holds",] == 0
    assert any(name[0] == "clustertune_findings" for name in found)
    plugin = s.plugins["clustertune"]
    plugin.holds.begin(c.id, "a fit", "name")
    assert (await scrape(s))["clustertune_holds",] == 1
    assert found["clustertune_lease_seconds_total",] > 0  # of the operation
    plugin.lease.grant(c.id, "an operation", "token")
    later = await scrape(s)
    assert later["clustertune_lease",] == 1
    name = ("clustertune_lease_seconds_total",)
    assert found[name] < later[name] < (await scrape(s))[name]
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
async def test_the_rounds_of_running_fits(c, s, a, b):
    await clustertune.check(c)
    fits = s.plugins["clustertune"].fits
    for name, rounds in (("one", 100), ("other", None), ("silent", 50)):
        fits.begin(name, c.id, rounds, [])
    fits.answer("one", "note", round=30)
    fits.answer("other", "note", round=4)
    found = await scrape(s)
    assert found["clustertune_fits",] == 2
    assert found["clustertune_fit_rounds_done",] == 34
    assert found["clustertune_fit_rounds",] == 100
    for name in list(fits.running):
        fits.end(name)
    assert (await scrape(s))["clustertune_fits",] == 0


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
    assert ("clustertune_steps_total", "rebalance", "done") in increased
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
        {"status": "done", "steps": [], "seconds": -1, "after": {"imbalance": "x"}},
    ],
)
def test_events_of_other_clients(event: Any) -> None:
    """Any client may log anything: labels are from fixed sets, amounts are finite."""
    metrics = Metrics(SimpleNamespace())
    metrics.note_event(TOPIC, event)
    found = {name: set(+counts) for name, counts in metrics.counted.items()}
    other = (telemetry.OTHER, telemetry.OTHER)
    assert found["operations"] <= {other, (telemetry.OTHER, "done")}
    assert found["steps"] <= {other}
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
