"""`check` on the command line: which features work, and no code for other versions."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from distributed import LocalCluster, Nanny
from distributed.core import Status
from distributed.utils_test import async_poll_for, gen_cluster

from clustertune.cli import features
from clustertune.cli.features import Feature, Inspection, inspect
from clustertune.core.model import Finding, Severity
from clustertune.core.report import Report
from clustertune.errors import TimedOutError
from clustertune.remote import versions
from tests.cli.test_cli import no_address, run  # noqa: F401 (a fixture)

ONE = [("127.0.0.1", 1)]
TWO = [("127.0.0.1", 1), ("127.0.0.1", 2)]


def rows(found: Inspection) -> dict[str, Feature]:
    return {feature.subject: feature for feature in found.features}


@gen_cluster(client=True, nthreads=TWO, Worker=Nanny)
async def test_a_healthy_cluster(c, s, *nannies):
    """With nannies and equal versions, everything but scaling works."""
    found = await inspect(c)
    assert found.usable
    assert found.address == s.address
    row = rows(found)
    assert row["workers"].detail == "2 running; 3 threads"
    assert row["sending code"].works
    assert row["placing data"].works
    assert row["restarting workers"].works
    assert row["memory limits"].works
    assert not row["scaling (n_workers=)"].works
    assert "run cluster.scale(3)" in row["scaling (n_workers=)"].detail
    # the tests install one of these two
    booster = next(x for x in ("xgboost", "xgboost-cpu") if x in row)
    for name in ("python", "dask", "distributed", "cloudpickle", booster):
        assert row[name].works
    assert "torch" not in row or row["torch"].detail


@gen_cluster(client=True, nthreads=ONE)
async def test_it_changes_nothing_but_the_plugin(c, s, a):
    """An inspection leaves no task and no lease on the scheduler."""
    await inspect(c)
    assert not s.tasks
    assert s.plugins["clustertune"].lease.current is None
    assert s.extensions["amm"].running


@gen_cluster(client=True, nthreads=ONE)
async def test_without_nannies(c, s, a):
    """Workers without a nanny cannot be restarted, which prepare does not need."""
    found = await inspect(c)
    assert not rows(found)["restarting workers"].works
    assert a.address in rows(found)["restarting workers"].detail
    assert found.usable


@gen_cluster(client=True, nthreads=[])
async def test_without_workers(c, s):
    """Without workers prepare does not work."""
    found = await inspect(c)
    assert not found.usable
    assert rows(found)["workers"] == Feature(
        subject="workers", works=False, detail="none; 0 threads"
    )


@gen_cluster(client=True, nthreads=TWO)
async def test_paused_workers(c, s, a, b):
    """The result counts workers by status; one running worker is enough."""
    b.status = Status.paused
    await async_poll_for(lambda: s.workers[b.address] not in s.running, 10)
    found = await inspect(c)
    assert rows(found)["workers"].detail == "1 paused, 1 running; 3 threads"
    assert found.usable


@gen_cluster(client=True, nthreads=ONE, worker_kwargs={"memory_limit": 0})
async def test_without_a_memory_limit(c, s, a):
    """The result names workers without a memory limit."""
    found = rows(await inspect(c))["memory limits"]
    assert found.detail == "no memory limit: 0"


@gen_cluster(client=True, nthreads=ONE, config={"distributed.worker.memory.spill": 0})
async def test_without_spilling(c, s, a):
    """The result counts workers that cannot spill."""
    found = rows(await inspect(c))["memory limits"]
    assert found.detail == "1 worker cannot spill to disk"


@gen_cluster(client=True, nthreads=ONE)
async def test_no_code_goes_to_another_python(c, s, a, monkeypatch):
    """Another Python minor is an answer, and the scheduler gets no code."""
    read = versions.read

    async def other(*args: Any, **options: Any) -> versions.Sides:
        sides = await read(*args, **options)
        python = {"python": "3.4.1.final.0"}
        return replace(sides, scheduler={**sides.scheduler, **python})

    monkeypatch.setattr(versions, "read", other)
    found = await inspect(c)
    row = rows(found)
    assert not row["sending code"].works
    assert "the scheduler runs Python 3.4.1" in row["sending code"].detail
    assert not row["placing data"].works
    assert row["python"].detail.startswith("differs: client 3.")
    assert "clustertune" not in s.plugins
    assert not found.usable
    assert found.exit_code(None) == 1
    assert found.report.status == "failed"
    assert "the scheduler runs Python 3.4.1" in str(found)


@gen_cluster(client=True, nthreads=ONE)
async def test_a_scheduler_that_does_not_answer(c, s, a, monkeypatch):
    """The inspection ends with an error after its time."""

    async def hang(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(features, "TIMEOUT", 0.2)
    monkeypatch.setattr(versions, "read", hang)
    with pytest.raises(TimedOutError, match="did not answer within"):
        await inspect(c)


def test_versions_that_differ() -> None:
    """Packages that differ or are missing have the versions of all sides."""
    sides = versions.Sides(
        client={"python": "3.11", "numpy": "2.0", "xgboost": "3.2"},
        scheduler={"python": "3.11", "numpy": None, "xgboost": "3.2"},
        workers={
            "a": {"python": "3.11", "numpy": "2.0", "xgboost": None},
            "b": {"python": "3.11", "numpy": "2.1", "xgboost": None},
        },
        silent=("tcp://c",),
    )
    found = {row.subject: row for row in features._version_features(sides)}
    assert found["python"] == Feature(subject="python", works=True, detail="3.11")
    assert found["numpy"].works is None
    assert found["numpy"].detail == (
        "differs: client 2.0, scheduler without, 1 worker 2.0, 1 worker 2.1"
    )
    assert found["xgboost"].detail.endswith("scheduler 3.2, 2 workers without")
    assert found["silent workers"].detail == "tcp://c did not report their versions"
    assert "torch" not in found


def test_a_cluster_that_can_scale() -> None:
    """A client with a cluster object can scale it."""

    async def check() -> Inspection:
        options: dict[str, Any] = {
            "processes": False,
            "dashboard_address": "127.0.0.1:0",
        }
        async with (
            LocalCluster(n_workers=1, asynchronous=True, **options) as cluster,
            await cluster.get_client() as client,
        ):
            return await inspect(client)

    found = rows(asyncio.run(check()))
    assert found["scaling (n_workers=)"].works
    assert found["scaling (n_workers=)"].detail == "with LocalCluster"
    assert found["dashboard"].works
    assert found["dashboard"].detail.startswith("port ")


# --- forms ----------------------------------------------------------------------------

EVIL = "\x1b[2J<script>\r\n\u202e"
BAD = Finding(severity=Severity.warning, message=EVIL, check="uneven_rows")
SICK = Inspection(
    address=EVIL,
    report=Report(status="checked", seconds=1.0, found=(BAD,)),
    features=(
        Feature(subject="workers", works=True, detail=EVIL),
        Feature(subject="dashboard", works=None, detail="3.10"),
        Feature(subject="placing data", works=False, detail="x" * 200),
    ),
)


def test_as_text() -> None:
    """The report, then what works and why not; no character acts on a terminal."""
    text = str(SICK)
    assert all(c.isprintable() or c == "\n" for c in text)
    lines = [line.split() for line in text.splitlines()]
    assert ["note", "dashboard:", "3.10"] in lines
    assert any(line[:3] == ["no", "placing", "data:"] for line in lines)
    assert max(map(len, text.splitlines())) <= 120
    assert not SICK.usable


def test_as_html() -> None:
    """Names and versions cannot be markup."""
    html = SICK._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script") >= 3
    assert "3.10" in html


def test_as_json() -> None:
    """JSON has its schema version and every feature, and can be read as a report."""
    data = json.loads(SICK.to_json())
    assert data["schema_version"] == 1
    assert data["address"] == EVIL
    assert [f["works"] for f in data["features"]] == [True, None, False]
    assert Report.from_json(SICK.to_json()) == SICK.report


def test_exit_codes() -> None:
    """1 for a finding of the severity, or if prepare would not work."""
    well = replace(SICK, features=SICK.features[:2])
    levels = (None, Severity.info, Severity.warning, Severity.critical)
    assert [well.exit_code(level) for level in levels] == [0, 1, 1, 0]
    assert SICK.exit_code(None) == 1
