"""Schedulers and workers without clustertune, or with another Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import dask.array as da
import pytest
from distributed import Client, wait

import clustertune
from clustertune import errors
from tests.processes import blocking, cluster, workers_of

OTHER_PYTHON = os.environ.get("CLUSTERTUNE_OTHER_PYTHON")


def importable() -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec("clustertune") is not None
    except ModuleNotFoundError:
        return False


def test_nobody_else_has_clustertune(tmp_path: Path) -> None:
    """Scheduler and workers need no clustertune for prepare."""
    with (
        cluster(tmp_path, 2, **blocking(tmp_path)) as file,
        Client(scheduler_file=file) as client,
    ):
        client.wait_for_workers(2, timeout=30)
        # sent as source of this test module, which is not importable there either
        check = compile_here(importable)
        assert client.run_on_scheduler(check) is False
        assert set(client.run(check).values()) == {False}
        first = next(iter(workers_of(client)))
        X = client.persist(
            da.random.random((2000, 4), chunks=(100, 4)), workers=[first]
        )
        y = client.persist(X[:, 0] > 0.5, workers=[first])
        wait([X, y])
        p = clustertune.prepare(client, X, y)
        assert p.report.status == "done"
        assert [w.rows for w in p.report.after[0].workers] == [1000, 1000]
        assert p.verify().status == "fine"
        assert clustertune.last_report(client) == p.report
        facts = p.report.left
        assert not [f for f in facts if f.severity.name == "unknown"]


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


@pytest.mark.skipif(
    not OTHER_PYTHON, reason="CLUSTERTUNE_OTHER_PYTHON names no other Python"
)
@pytest.mark.filterwarnings("ignore::distributed.versions.VersionMismatchWarning")
def test_another_python_gets_no_code(tmp_path: Path) -> None:
    """A scheduler with another Python release is refused, and continues to run."""
    assert OTHER_PYTHON is not None
    with (
        cluster(tmp_path, 1, python=OTHER_PYTHON) as file,
        Client(scheduler_file=file) as client,
    ):
        client.wait_for_workers(1, timeout=60)
        with pytest.raises(errors.VersionMismatchError, match="Python minor"):
            clustertune.prepare(client, da.ones((10, 2), chunks=5))
        assert workers_of(client)
        assert client.nthreads()
