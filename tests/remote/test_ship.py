"""Code is sent as bytes that can be read without clustertune."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import cloudpickle
import dask
import dask.array as da
import pytest

import clustertune
from clustertune.dashboard import mount
from clustertune.remote import keys, ship
from clustertune.remote.scheduler import plugin
from clustertune.remote.worker import content, probe
from clustertune.training import remote_sums
from tests.in_process import gen_cluster
from tests.processes import blocking


def test_bytes_can_be_read_where_clustertune_is_not(tmp_path: Path) -> None:
    """The plugin works in a process that cannot import clustertune."""
    file = tmp_path / "plugin.pickle"
    file.write_bytes(pickle.dumps(ship._Shipped(plugin.install)))
    code = (
        "import pickle, sys\n"
        f"install = pickle.loads(open({str(file)!r}, 'rb').read())\n"
        "cls = install.__globals__['ClustertunePlugin']\n"
        "try:\n    import clustertune\n"
        "except ModuleNotFoundError:\n    print(cls.name, cls.protocol)\n"
    )
    environment = dict(blocking(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [plugin.NAME, str(plugin.PROTOCOL)]


def test_the_panel_is_drawn_where_clustertune_is_not(tmp_path: Path) -> None:
    """The page needs only Bokeh; its code is sent with the function."""
    file = tmp_path / "mount.pickle"
    file.write_bytes(pickle.dumps(ship._Shipped(mount.mount)))
    code = (
        "import pickle, sys\n"
        f"mount = pickle.loads(open({str(file)!r}, 'rb').read())\n"
        "page, make = (mount.__globals__[x] for x in ('page', 'make'))\n"
        "drawn = page.Page()\n"
        "drawn.update(make(scheduler='tcp://x'))\n"
        "try:\n    import clustertune\n"
        "except ModuleNotFoundError:\n"
        "    print(drawn.texts[0].text)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(blocking(tmp_path)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "the cluster has no workers" in done.stdout


def test_the_users_own_pickling_is_not_changed() -> None:
    """After sending, no module remains registered for pickling by value."""
    ship._Shipped(probe.worker_facts)
    assert not cloudpickle.list_registry_pickle_by_value()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_each_function_is_pickled_once(c, s, a, b, monkeypatch):
    """A second call sends the same bytes; it registers no module for pickling."""
    pickled: list[object] = []
    dumps = ship._pickled

    def counted(function):
        pickled.append(function)
        return dumps(function)

    monkeypatch.setattr(ship, "_codes", {})
    monkeypatch.setattr(ship, "_pickled", counted)
    X = c.persist(da.ones((40, 2), chunks=(10, 2)))
    await clustertune.prepare(c, X, progress=False)
    assert 3 <= len(pickled) == len(set(pickled))
    pickled.clear()
    await clustertune.prepare(c, X, progress=False)
    await clustertune.restart_workers(c, dry_run=True, progress=False)
    assert len(pickled) == len(set(pickled))
    pickled.clear()
    await clustertune.prepare(c, X, progress=False)
    assert pickled == []


def test_only_code_of_clustertune_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of a closure, and the user's own function, may change."""
    monkeypatch.setattr(ship, "_codes", {})
    ship.function(lambda: 1)
    ship.function(partial(content.all_of, looks=[content.runs]))
    number = 1

    def closure() -> int:
        return number

    closure.__module__ = probe.__name__  # as if it were one of clustertune
    ship.function(closure)
    assert ship._codes == {}
    ship.function(probe.worker_facts)
    assert list(ship._codes) == [probe.worker_facts]


def test_code_becomes_a_function_where_a_task_runs() -> None:
    """Tasks share the bytes, which become a function when the task runs."""
    make = ship.Tasks(remote_sums.sum_batch)
    one, many = (pickle.dumps([make(i, i) for i in range(n)]) for n in (1, 100))
    assert len(many) < 2 * len(one)
    *_, last = pickle.loads(many)
    assert pickle.loads(pickle.dumps(last)).key == 99  # not even cloudpickle is needed
    assert ship.Tasks(keys.pack)("key", [("x", 1)])() == keys.pack([("x", 1)])


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_an_error_is_that_workers_answer(c, s, a, b):
    """The error of one worker does not affect the answers of others."""
    a.memory_manager = None
    answers = await ship.on_workers(
        c, probe.worker_facts, [a.address, b.address], timeout=60
    )
    assert isinstance(answers[a.address], AttributeError)
    assert answers[b.address]["pause"] == b.memory_manager.memory_pause_fraction


@pytest.mark.parametrize("few", [0, 32])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_worker_that_hangs_hides_no_other(c, s, a, b, few, monkeypatch):
    """A silent worker times out, and the answers of others arrive."""
    monkeypatch.setattr(ship, "FEW", few)
    forever = asyncio.Event()

    async def hang(**kwargs: object) -> None:
        await forever.wait()

    a.handlers["run"] = hang
    answers = await ship.on_workers(
        c, probe.worker_facts, [a.address, b.address], timeout=2
    )
    assert isinstance(answers[a.address], TimeoutError)
    assert answers[b.address]["affinity"]

    if few < 2:  # one call for both, and no other
        both = [a.address, b.address]
        answers = await ship.on_workers(
            c, probe.worker_facts, both, timeout=2, again=False
        )
        assert {type(answer) for answer in answers.values()} == {TimeoutError}
    forever.set()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_worker_that_is_gone(c, s, a):
    """A missing address gives an error as its answer."""
    with dask.config.set({"distributed.comm.timeouts.connect": "300 ms"}):
        answers = await ship.on_workers(
            c, probe.worker_facts, ["tcp://127.0.0.1:1"], timeout=10
        )
    assert isinstance(answers["tcp://127.0.0.1:1"], Exception)
