"""Versions and private names of the other sides are checked before code is sent."""

from __future__ import annotations

import asyncio

import distributed
import pytest
from distributed import Scheduler
from packaging.version import Version

import clustertune
from clustertune.errors import VersionMismatchError
from clustertune.remote import ship
from clustertune.remote.ship import Sides
from tests.in_process import gen_cluster

GOOD = {"python": "3.11.7.final.0", "cloudpickle": "3.1.2", "distributed": "2026.8.0"}


def objections(scheduler, workers):
    sides = Sides(GOOD, scheduler, workers)
    return sides.scheduler_objection(), sides.worker_objections()


def test_equal_sides_have_no_objections() -> None:
    """The same software everywhere may be sent code."""
    assert objections(GOOD, {"tcp://w": GOOD}) == ("", {})


def test_a_patch_release_apart_is_no_objection() -> None:
    """Patch releases of Python and minor ones of cloudpickle read each other's code."""
    near = GOOD | {"python": "3.11.2.final.0", "cloudpickle": "3.0.0"}
    assert objections(near, {"tcp://w": near}) == ("", {})


def test_another_python_minor() -> None:
    """Each side with another Python minor is named, with both versions."""
    other = GOOD | {"python": "3.12.1.final.0"}
    good = {"tcp://v": GOOD}
    scheduler, workers = objections(other, {"tcp://w": other, **good})
    assert "the scheduler" in scheduler
    assert "3.12.1" in scheduler
    assert "3.11.7" in scheduler
    assert workers.keys() == {"tcp://w"}
    assert workers["tcp://w"].startswith("runs Python 3.12.1")
    assert objections(GOOD, {"tcp://w": other})[0] == ""


def test_software_without_a_version() -> None:
    """A missing version is an objection, not a guess."""
    for name in ("python", "cloudpickle"):
        unknown = GOOD | {name: None}
        scheduler, workers = objections(unknown, {"tcp://w": unknown})
        assert scheduler
        assert workers["tcp://w"]


def test_an_old_distributed() -> None:
    """A scheduler older than the plugin knows is refused with the oldest known."""
    text, _ = objections(GOOD | {"distributed": "2021.3.0"}, {})
    assert "2021.3.0" in text
    assert ".".join(map(str, ship.OLDEST_DISTRIBUTED)) in text


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_versions_are_read_without_code(c, s, a, b):
    """Versions of all sides come from distributed's own handlers."""
    s.handlers["run_function"] = None  # would fail if it were used
    sides = await ship.read_versions(c, s.workers)
    assert set(sides.workers) == {a.address, b.address}
    assert sides.scheduler["distributed"] == sides.client["distributed"]
    assert sides.scheduler_objection() == ""
    assert sides.worker_objections() == {}


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_silent_worker(c, s, a, b, monkeypatch):
    """A worker that does not answer is named, and does not hide the others.

    A check does not wait for it twice, and has what is known.
    """
    monkeypatch.setattr(ship, "ALONE", 3.0)
    forever, requests = asyncio.Event(), []

    async def hang(**kwargs: object) -> None:
        requests.append(kwargs)
        await forever.wait()

    a.handlers["versions"] = hang
    try:
        sides = await ship.read_versions(c, s.workers)
        assert len(requests) == 2  # with the others, and alone
        report = await clustertune.check(c, timeout="20 s")
        assert len(requests) == 4
    finally:
        forever.set()
    assert sides.silent == (a.address,)
    assert set(sides.workers) == {b.address}
    assert {w.worker for w in report.workers} == {a.name, b.name}


# --- private names of distributed -----------------------------------------------------


@gen_cluster(nthreads=[])
async def test_no_name_is_missing(s):
    """The installed release has all names, and is one of the tested ones."""
    version = distributed.__version__
    assert ship.missing_names(s) == {"version": version, "missing": []}
    oldest, newest = map(Version, ship.TESTED)
    assert oldest.release[:2] == ship.OLDEST_DISTRIBUTED
    assert oldest <= Version(version) <= newest, "set versions.TESTED"


@gen_cluster(nthreads=[])
async def test_missing_names_are_found(s):
    """Names of the scheduler, of its classes, and of its extensions."""

    class Without:
        def __init__(self, thing, name):
            self.thing, self.name = thing, name

        def __getattr__(self, name):
            if name == self.name:
                raise AttributeError(name)
            return getattr(self.thing, name)

    assert ship.missing_names(Without(s, "unrunnable"))["missing"] == [
        "Scheduler.unrunnable"
    ]
    s.extensions["publish"] = Without(s.extensions["publish"], "datasets")
    s.extensions["stealing"] = None  # switched off
    assert ship.missing_names(s)["missing"] == ["publish extension.datasets"]


def test_the_message_is_short() -> None:
    """Versions and names come from another process."""
    text = ship.missing_names_text(
        "2030.1.0\x1b[2J", [f"Scheduler.{n}" for n in "abcde"]
    )
    assert "\x1b" not in text
    assert "Scheduler.c and 2 more, which clustertune needs" in text


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_scheduler_without_a_name_is_refused(c, s, a):
    """The call fails before the plugin is installed, and names what is missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Scheduler, "request_acquire_replicas")
        with pytest.raises(VersionMismatchError) as found:
            await clustertune.check(c)
    text = str(found.value)
    assert "has no Scheduler.request_acquire_replicas, which clustertune needs" in text
    assert f"distributed {distributed.__version__} on the scheduler" in text
    assert "tested with distributed 2025.5.0 to" in text
    assert "clustertune" not in s.plugins
