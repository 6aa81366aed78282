"""Schedulers and workers without clustertune, or with another Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import clustertune
from clustertune import errors
from clustertune.core.model import Finding, Severity
from clustertune.training import map_reduce
from tests.processes import (
    blocking,
    cluster,
    process,
    until,
    worker_command,
    workers_of,
)
from tests.training.test_roles import example, left_there

OTHER_PYTHON = os.environ.get("CLUSTERTUNE_OTHER_PYTHON")


def importable() -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec("clustertune") is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Client of a scheduler and two workers without clustertune."""
    folder = tmp_path_factory.mktemp("cluster")
    with (
        cluster(folder, 2, **blocking(folder)) as file,
        Client(scheduler_file=file) as client,
    ):
        client.wait_for_workers(2, timeout=200)
        yield client


def test_prepare(client: Client) -> None:
    """Scheduler and workers need no clustertune for prepare."""
    # sent as source of this test module, which is not importable there either
    check = compile_here(importable)
    assert client.run_on_scheduler(check) is False
    assert set(client.run(check).values()) == {False}
    first = next(iter(workers_of(client)))
    X = client.persist(da.random.random((2000, 4), chunks=(100, 4)), workers=[first])
    y = client.persist(X[:, 0] > 0.5, workers=[first])
    wait([X, y])
    p = clustertune.prepare(client, X, y)
    assert p.report.status == "done"
    assert [w.rows for w in p.report.after[0].workers] == [1000, 1000]
    assert p.verify().status == "fine"
    assert clustertune.last_report(client) == p.report
    facts = p.report.left
    assert not [f for f in facts if f.severity.name == "unknown"]


@pytest.mark.slow
def test_map_reduce(client: Client) -> None:
    big = np.arange(1_200_000.0)  # large enough for a separate task
    found = map_reduce(client, lambda i, w: w[:2] * i, range(9), broadcast=(big,))
    assert found.tolist() == [0, 36]
    with pytest.raises(errors.FunctionError, match="item 3: ZeroDivisionError"):
        map_reduce(client, lambda i: 1 / (i - 3), range(9))


@pytest.mark.slow
def test_roles(client: Client) -> None:
    """Run the example of the page."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((4000, 3))
    labels = (rows @ [1.0, -2.0, 0.5] > 0).astype(int)
    X, y = da.from_array(rows, chunks=(500, 3)), da.from_array(labels, chunks=500)
    w = example("averaging")["average"](client, X, y, enough=0.97)
    assert ((rows @ w[:3] + w[3] > 0) == labels).mean() > 0.95
    until(lambda: not left_there(client))


def compile_here(function):  # type: ignore[no-untyped-def]
    """Return a function that pickles by value."""
    import cloudpickle

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        payload = cloudpickle.dumps(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    return _Payload(payload)


class _Payload:
    def __init__(self, payload: bytes):
        self.payload = payload

    def __reduce__(self):  # type: ignore[no-untyped-def]
        import cloudpickle

        return cloudpickle.loads, (self.payload,)


with_other_python = [
    pytest.mark.skipif(
        not OTHER_PYTHON, reason="CLUSTERTUNE_OTHER_PYTHON names no other Python"
    ),
    pytest.mark.filterwarnings("ignore::distributed.versions.VersionMismatchWarning"),
]


def another(function):  # type: ignore[no-untyped-def]
    """Mark a test that starts processes of another Python."""
    for mark in with_other_python:
        function = mark(function)
    return function


@another
def test_another_python_gets_no_code(tmp_path: Path) -> None:
    """A scheduler with another Python release is refused, and continues to run."""
    assert OTHER_PYTHON is not None
    with (
        cluster(tmp_path, 1, python=OTHER_PYTHON) as file,
        Client(scheduler_file=file) as client,
    ):
        client.wait_for_workers(1, timeout=200)
        with pytest.raises(errors.VersionMismatchError, match="Python minor"):
            clustertune.prepare(client, da.ones((10, 2), chunks=5))
        assert workers_of(client)
        assert client.nthreads()


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Client]:
    """Two workers of this Python, and the worker "unlike" of another one."""
    assert OTHER_PYTHON is not None
    with cluster(tmp_path, 2) as file:
        unlike = worker_command(file, tmp_path, "--name", "unlike", python=OTHER_PYTHON)
        with process(*unlike), Client(scheduler_file=file) as client:
            client.wait_for_workers(3, timeout=200)
            client.get_versions()  # a loaded machine answers slowly the first time
            yield client


def software(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings about the unlike worker's versions."""
    return [
        f
        for f in findings
        if f.check == "software_versions" and f.subject == ("unlike",)
    ]


@another
def test_the_others_work_next_to_another_python(mixed: Client) -> None:
    """One worker of another Python gets no code; each call works on the others."""
    unlike = {a: w for a, w in workers_of(mixed).items() if w["name"] == "unlike"}
    (address,) = unlike
    (finding,) = software(clustertune.check(mixed).found)
    assert finding.severity is Severity.warning
    assert "worker unlike gets no code" in finding.message
    assert "runs Python 3." in finding.message
    assert "use the same Python minor on all sides" in finding.message
    assert address in finding.remedy

    like = next(a for a in workers_of(mixed) if a != address)
    X = mixed.persist(da.random.random((2000, 4), chunks=(100, 4)), workers=[like])
    y = mixed.persist(X[:, 0] > 0.5, workers=[like])
    wait([X, y])
    p = clustertune.prepare(mixed, X, y)
    rows = {str(w.worker): w.rows for w in p.report.after[0].workers}
    assert rows.pop("unlike", 0) == 0
    assert list(rows.values()) == [1000, 1000]
    assert p.report.status == "done"
    assert p.verify().status == "fine"
    assert software(p.report.left)

    with clustertune.Monitor(mixed, interval=0.1) as watched:
        until(lambda: len(watched.snapshots) > 3)
        assert watched.failure is None
        until(lambda: software(watched.findings))
        (last,) = (w for w in watched.snapshots[-1].workers if w.id == "unlike")
        assert last.objection.startswith("it runs Python 3.")

    pids = mixed.run(os.getpid)
    report = clustertune.restart_workers(mixed)
    assert report.status == "left"
    statuses = {s.summary.split(";")[0]: (s.status, s.reason) for s in report.steps}
    status, reason = statuses.pop("restart worker unlike")
    assert status == "skipped"
    assert reason.startswith("it runs Python 3.")
    assert [status for status, _ in statuses.values()] == ["done", "done"]
    assert not any(s.lost for s in report.steps)
    after = mixed.run(os.getpid)
    assert pids.keys() & after.keys() == {address}
    assert pids[address] == after[address]
    # the unlike worker may have no NumPy, and ends if it receives such a task
    others = [a for a in after if a != address]
    assert mixed.compute(p.X.sum(), workers=others).result() > 0

    with pytest.raises(errors.RefusedError, match="it runs Python 3"):
        clustertune.restart_workers(mixed, workers=["unlike"])
    assert mixed.run(os.getpid) == after


@another
def test_new_workers_of_another_python_alone(mixed: Client) -> None:
    """If no worker may get code, the call is an error that names the cause."""
    like = [a for a, w in workers_of(mixed).items() if w["name"] != "unlike"]
    clustertune.check(mixed)
    mixed.retire_workers(like)
    until(lambda: len(workers_of(mixed)) == 1)
    for _ in range(2):
        with pytest.raises(errors.VersionMismatchError, match="Python minor"):
            clustertune.check(mixed)
