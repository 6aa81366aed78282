from __future__ import annotations

import os
from typing import Any

import joblib
import pytest
from sklearn.utils import _openmp_helpers

from clustertune.training import remote_sums
from tests.in_process import gen_cluster


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the state of a process without a nanny before its first fit."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(_openmp_helpers, "_CPU_COUNTS", {})


@pytest.mark.usefixtures("uncounted")
@gen_cluster(client=False)
async def test_limits_of_cpu_counts(s: Any, a: Any, b: Any) -> None:
    """Two workers of a process share the limit. Cached CPU counts stay unlimited."""
    cpus = {p: joblib.cpu_count(only_physical_cores=p) for p in (True, False)}
    before = os.environ.get(remote_sums.CPU_COUNT)
    assert await remote_sums.limit_threads(a, "mine", {}, 1) == 1
    assert await remote_sums.limit_threads(b, "mine", {}, 2) == 1
    assert joblib.cpu_count(only_physical_cores=True) == 1
    await remote_sums.restore_threads(a, "mine")
    assert joblib.cpu_count() == 1
    assert cpus == _openmp_helpers._CPU_COUNTS
    await remote_sums.restore_threads(b, "mine")
    assert os.environ.get(remote_sums.CPU_COUNT) == before


@gen_cluster(client=False, nthreads=[("127.0.0.1", 1)])
async def test_each_fit_gets_a_share_of_the_cpus(
    s: Any, a: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that joined later counts as alone on its machine."""
    monkeypatch.setattr("dask.system.CPU_COUNT", 8)
    assert remote_sums.thread_share(a, {a.address: 3}, None) == 2
    assert remote_sums.thread_share(a, {a.address: 16}, None) == 1
    assert remote_sums.thread_share(a, {}, None) == 8
    assert remote_sums.thread_share(a, {a.address: 3}, 5) == 5
