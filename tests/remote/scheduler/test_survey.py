"""The scheduler's survey for a diagnosis."""

from __future__ import annotations

from clustertune.remote.scheduler.survey import survey
from tests.in_process import TWO, gen_cluster


@gen_cluster(client=True, nthreads=TWO)
async def test_a_quiet_scheduler(c, s, a, b):
    """There are no tasks."""
    found = await survey(s, ["dask"])
    assert found["running"] == found["unmet"] == []
    assert found["worker_ttl"] == s.worker_ttl
    assert set(found["packages"]) == {"dask"}
