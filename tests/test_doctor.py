"""What will work on a cluster; and no code where none may go."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from distributed import LocalCluster, Nanny
from distributed.core import Status
from distributed.utils_test import async_poll_for, gen_cluster

from clustertune.cli import doctor
from clustertune.cli.doctor import Examination, Row, examine
from clustertune.remote import versions

ONE = [("127.0.0.1", 1)]
TWO = [("127.0.0.1", 1), ("127.0.0.1", 2)]


def rows(found: Examination) -> dict[str, Row]:
    return {row.subject: row for row in found.rows}


@gen_cluster(client=True, nthreads=TWO, Worker=Nanny)
async def test_a_healthy_cluster(c, s, *nannies):
    """With nannies and equal versions everything works but scaling."""
    found = await examine(c)
    assert found.healthy
    assert found.address == s.address
    row = rows(found)
    assert row["workers"].detail == "2 running; 3 threads"
    assert row["code can be sent"].works
    assert row["placing data"].works
    assert row["restarting workers"].works
    assert row["memory limits"].works is None
    assert not row["scaling (n_workers=)"].works
    assert "run cluster.scale(3)" in row["scaling (n_workers=)"].detail
    # installed under one of two names
    booster = next(x for x in ("xgboost", "xgboost-cpu") if x in row)
    for name in ("python", "dask", "distributed", "cloudpickle", booster):
        assert row[name].works
    assert "torch" not in row or row["torch"].detail


@gen_cluster(client=True, nthreads=ONE)
async def test_it_changes_nothing_but_the_resident(c, s, a):
    """Looking at a cluster leaves no task and no lease there."""
    await examine(c)
    assert not s.tasks
    assert s.plugins["clustertune"].lease is None
    assert s.extensions["amm"].running


@gen_cluster(client=True, nthreads=ONE)
async def test_without_nannies(c, s, a):
    """Workers without a nanny cannot be restarted, which prepare does not need."""
    found = await examine(c)
    assert not rows(found)["restarting workers"].works
    assert a.address in rows(found)["restarting workers"].detail
    assert found.healthy


@gen_cluster(client=True, nthreads=[])
async def test_without_workers(c, s):
    """Without workers nothing can be prepared, and this is seen at once."""
    found = await examine(c)
    assert not found.healthy
    assert rows(found)["workers"] == Row(
        subject="workers", works=False, detail="none; 0 threads"
    )


@gen_cluster(client=True, nthreads=TWO)
async def test_paused_workers(c, s, a, b):
    """Workers are counted by their state; one that runs is enough."""
    b.status = Status.paused
    await async_poll_for(lambda: s.workers[b.address] not in s.running, 10)
    found = await examine(c)
    assert rows(found)["workers"].detail == "1 paused, 1 running; 3 threads"
    assert found.healthy


@gen_cluster(client=True, nthreads=ONE, worker_kwargs={"memory_limit": 0})
async def test_without_a_memory_limit(c, s, a):
    """A worker that has no limit is named: nothing protects its host's memory."""
    found = rows(await examine(c))["memory limits"]
    assert found.detail == "no memory limit: 0"


@gen_cluster(client=True, nthreads=ONE, config={"distributed.worker.memory.spill": 0})
async def test_without_spilling(c, s, a):
    """A worker that cannot write to disk is counted."""
    found = rows(await examine(c))["memory limits"]
    assert found.detail == "1 worker cannot spill to disk"


@gen_cluster(client=True, nthreads=ONE)
async def test_no_code_goes_to_another_python(c, s, a):
    """If a side runs another Python minor, this is said and nothing is installed."""
    sides = await versions.read(c)
    other = replace(sides, scheduler={**sides.scheduler, "python": "3.4.1.final.0"})
    (row,) = await doctor._shipping(c, await c.scheduler.identity(), other)
    assert (row.subject, row.works) == ("code can be sent", False)
    assert "the scheduler runs Python 3.4.1" in row.detail
    assert "clustertune" not in s.plugins
    assert not Examination(address="x", rows=(row,)).healthy


def test_versions_that_differ() -> None:
    """Packages that differ, or are missing somewhere, are shown side by side."""
    sides = versions.Sides(
        client={"python": "3.11", "numpy": "2.0", "xgboost": "3.2"},
        scheduler={"python": "3.11", "numpy": None, "xgboost": "3.2"},
        workers={
            "a": {"python": "3.11", "numpy": "2.0", "xgboost": None},
            "b": {"python": "3.11", "numpy": "2.1", "xgboost": None},
        },
        silent=("tcp://c",),
    )
    found = {row.subject: row for row in doctor._versions(sides)}
    assert found["python"] == Row(subject="python", works=True, detail="3.11")
    assert found["numpy"].works is None
    assert found["numpy"].detail == (
        "differs: client 2.0, scheduler without, 1 worker 2.0, 1 worker 2.1"
    )
    assert found["xgboost"].detail.endswith("scheduler 3.2, 2 workers without")
    assert found["silent workers"].detail == "tcp://c did not say their versions"
    assert "torch" not in found


def test_a_cluster_that_can_scale() -> None:
    """A client that has its cluster object can scale it, and how is said."""

    async def check() -> Examination:
        options: dict[str, Any] = {
            "processes": False,
            "dashboard_address": "127.0.0.1:0",
        }
        async with (
            LocalCluster(n_workers=1, asynchronous=True, **options) as cluster,
            await cluster.get_client() as client,
        ):
            return await examine(client)

    found = rows(asyncio.run(check()))
    assert found["scaling (n_workers=)"].works
    assert found["scaling (n_workers=)"].detail == "through LocalCluster"
    assert found["dashboard"].works
    assert found["dashboard"].detail.startswith("port ")


# --- forms ------------------------------------------------------------------------

EVIL = "\x1b[2J<script>\r\n\u202e"
SICK = Examination(
    address=EVIL,
    rows=(
        Row(subject="workers", works=True, detail=EVIL),
        Row(subject="dashboard", works=None, detail="3.10"),
        Row(subject="placing data", works=False, detail="x" * 200),
    ),
)


def test_as_text() -> None:
    """A table of subjects, what works, and why not, with nothing that acts."""
    text = str(SICK)
    assert all(c.isprintable() or c == "\n" for c in text)
    lines = [line.split() for line in text.splitlines()]
    assert ["dashboard", "3.10"] in lines
    assert any(line[:3] == ["placing", "data", "NO"] for line in lines)
    assert max(map(len, text.splitlines())) <= 120
    assert not SICK.healthy


def test_as_html() -> None:
    """Names and versions cannot be markup."""
    html = SICK._repr_html_()
    assert "<script" not in html
    assert "&lt;script" in html
    assert "3.10" in html


def test_as_json() -> None:
    """JSON has its schema version and every row."""
    data = json.loads(SICK.to_json())
    assert data["schema_version"] == 1
    assert data["address"] == EVIL
    assert [r["works"] for r in data["rows"]] == [True, None, False]
