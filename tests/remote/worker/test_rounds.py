"""Reports of a training task arrive on the scheduler."""

from __future__ import annotations

from typing import Any

from clustertune.remote.scheduler.plugin import NAME
from clustertune.remote.worker.rounds import Reports
from tests.in_process import gen_cluster
from tests.processes import until


def report() -> None:
    """Stand in for a training of which a checkpoint is wanted, until it is ended."""
    reports = Reports("name", None, None)
    reports.wanted = True

    def ended() -> bool:
        with reports.guarded():
            reports.note(4, str, lambda: (b"model", None))
        return reports.ended

    until(ended)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_broken_connection_loses_no_checkpoint(c: Any, s: Any, a: Any) -> None:
    """The next report sends it over another connection, and later reports follow."""
    arrived: list[Any] = []

    def answer(comm: Any, model: Any = None, **_: Any) -> Any:
        arrived.append(model)
        if len(arrived) == 1:
            comm.abort()
        return {"result": {"ended": len(arrived) == 3}}

    s.handlers[NAME] = answer
    await c.submit(report)
    assert arrived == [b"model", b"model", None]
