"""No code goes where it might do harm, and what is in the way is said."""

from __future__ import annotations

import asyncio

from distributed.utils_test import gen_cluster

from clustertune.remote import versions
from clustertune.remote.versions import Sides

GOOD = {"python": "3.11.7.final.0", "cloudpickle": "3.1.2", "distributed": "2026.8.0"}


def test_equal_sides_have_no_objections() -> None:
    """The same software everywhere may be sent code."""
    assert Sides(GOOD, GOOD, {"tcp://w": GOOD}).objections() == ()


def test_a_patch_release_apart_is_no_objection() -> None:
    """Patch releases of Python and minor ones of cloudpickle read each other's code."""
    near = GOOD | {"python": "3.11.2.final.0", "cloudpickle": "3.0.0"}
    assert Sides(GOOD, near, {}).objections() == ()


def test_another_python_minor() -> None:
    """Each side with another Python minor is named, with both versions."""
    other = GOOD | {"python": "3.12.1.final.0"}
    (scheduler, worker) = Sides(GOOD, other, {"tcp://w": other}).objections()
    assert "the scheduler" in scheduler
    assert "3.12.1" in scheduler
    assert "3.11.7" in scheduler
    assert "worker tcp://w" in worker


def test_software_that_does_not_say_its_version() -> None:
    """A missing version is an objection, not a guess."""
    assert Sides(GOOD, GOOD | {"python": None}, {}).objections()
    assert Sides(GOOD, GOOD | {"cloudpickle": None}, {}).objections()


def test_an_old_distributed() -> None:
    """A scheduler older than the resident knows is refused with the oldest known."""
    (text,) = Sides(GOOD, GOOD | {"distributed": "2021.3.0"}, {}).objections()
    assert "2021.3.0" in text
    assert ".".join(map(str, versions.OLDEST)) in text


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_versions_are_read_without_code(c, s, a, b):
    """Versions of all sides come from distributed's own handlers."""
    s.handlers["run_function"] = None  # would fail if it were used
    sides = await versions.read(c, packages=["scikit-learn"])
    assert set(sides.workers) == {a.address, b.address}
    assert sides.scheduler["distributed"] == sides.client["distributed"]
    assert "scikit-learn" in sides.client
    assert sides.objections() == ()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_silent_worker(c, s, a, b):
    """A worker that does not answer is named, and does not hide the others."""
    forever = asyncio.Event()

    async def hang(**kwargs: object) -> None:
        await forever.wait()

    a.handlers["versions"] = hang
    sides = await versions.read(c, timeout=3)
    forever.set()
    assert sides.silent == (a.address,)
    assert set(sides.workers) == {b.address}
