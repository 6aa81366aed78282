"""Memory needs of ``joblib_backend``, without a cluster."""

from __future__ import annotations

from dataclasses import replace

from clustertune.training.joblib_fits import WorkerCapacity, memory_problem

GIB = 2**30
LIMITED = WorkerCapacity(
    "tcp://1", "left", "10.0.0.1", threads=2, limit=10 * GIB, used=GIB
)


def test_threads_copy_too() -> None:
    """1 GiB of data, 2.4 for two threads and 1 in use fit 5 GiB but not 4."""
    assert memory_problem([LIMITED], GIB, 0.5) is None
    said = memory_problem([LIMITED], GIB, 0.4)
    assert said is not None
    assert said.startswith(
        "worker left: a copy of the data (1.0 GiB) and the copies of "
    )
    assert "take about 3.4 GiB; it uses 1.0 GiB and may fill 40%" in said


def test_a_worker_without_a_limit_has_no_problem() -> None:
    free = replace(LIMITED, id="free", limit=0)
    assert memory_problem([free], 100 * GIB, 0.7) is None
    said = memory_problem([free, LIMITED], 100 * GIB, 0.7)
    assert said is not None
    assert "free" not in said
