"""Restarts by need on real processes: trim, measure, restart what stays above."""

from __future__ import annotations

import gc
import html
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.utils import parse_bytes
from distributed import Client, Event, wait

import clustertune
from clustertune.core.report import Report
from clustertune.core.tables import change
from clustertune.core.wording import bytes_text
from tests.processes import local_workers, until

MEMORY = {f"distributed.worker.memory.{k}": v for k, v in (("pause", 0.9),)}
MORE = 620 * 2**20  # bytes; with those of any worker more than its spill threshold
LINE = int(0.7 * 2**30)


@contextmanager
def cluster(n_workers: int = 3) -> Iterator[Client]:
    with (
        dask.config.set(MEMORY),
        local_workers(n_workers, memory_limit="1 GiB") as client,
    ):
        yield client


def waste() -> None:
    """Leave garbage that only a collection frees."""
    gc.disable()
    ring: list[Any] = [b"x" * MORE]
    ring.append(ring)


def leak() -> None:
    import builtins

    builtins.leaked = b"x" * MORE  # type: ignore[attr-defined]


def by_name(client: Client) -> dict[int, str]:
    def of(dask_scheduler: Any) -> dict[int, str]:
        return {ws.name: a for a, ws in dask_scheduler.workers.items()}

    found: dict[int, str] = client.run_on_scheduler(of)
    return found


def pids(client: Client) -> dict[int, int]:
    found = client.run(os.getpid)
    return {name: found[a] for name, a in by_name(client).items()}


def fill(client: Client) -> tuple[da.Array, list[Any]]:
    """Data on all workers; garbage on worker 0, a leak on worker 1."""
    X = client.persist(da.random.default_rng(0).random((900, 500), chunks=(100, 500)))
    values = client.scatter([np.arange(1000) + i for i in range(6)], hash=False)
    wait([X, values])
    at = by_name(client)
    client.run(waste, workers=[at[0]])
    client.run(leak, workers=[at[1]])

    def full(dask_scheduler: Any) -> int:
        ws = dask_scheduler.workers.values()
        return sum(w.memory.process > LINE for w in ws)

    until(lambda: client.run_on_scheduler(full) == 2)
    return X, values


def refuse_losses(client: Client, X: da.Array, values: list[Any]) -> None:
    expected = da.random.default_rng(0).random((900, 500), chunks=(100, 500))
    np.testing.assert_array_equal(
        client.compute(X, sync=True), expected.compute(scheduler="sync")
    )
    for i, value in enumerate(client.gather(values)):
        np.testing.assert_array_equal(value, np.arange(1000) + i)


def refuse_rows(report: Report, *others: int) -> None:
    """The rows of the workers that ``fill`` has filled, and of others."""
    rows = {row.worker: row for row in report.workers}
    assert rows.keys() == {0, 1, 2}
    for row in (rows[0], rows[1]):
        assert row.process_before is not None
        assert row.process_before > LINE
        assert row.process_after is not None
        assert row.process_after < LINE - MORE // 2
    trim, restart = report.steps[:2]
    assert {*trim.workers} == {0, 1, *others}
    pattern = r"worker (\d): \S+ \S+ to (\S+ \S+?)(?:;|$)"
    measured = dict(re.findall(pattern, trim.details))
    assert measured.keys() == {str(id) for id in trim.workers}
    assert parse_bytes(measured["0"]) < LINE - MORE // 2
    assert parse_bytes(measured["1"]) > LINE
    assert restart.workers == (1,)
    assert restart.seconds is not None
    assert restart.details
    assert not restart.details.startswith("0 keys")


@pytest.mark.parametrize("how", ["prepare", "restart"])
def test_only_what_a_trim_does_not_cure_is_restarted(how: str) -> None:
    """Garbage goes with the trim, a leak with its process; all keys stay."""
    with cluster() as client:
        X, values = fill(client)
        before = pids(client)
        if how == "prepare":
            plan = clustertune.prepare(client, X, restart="auto", dry_run=True).report
            assert [s.action for s in plan.steps] == ["trim"]
            assert "memory after the trim" in plan.needs[0]
            report = clustertune.prepare(client, X, restart="auto").report
            refuse_rows(report)
        else:
            report = clustertune.restart_workers(client, if_needed=True)
            refuse_rows(report, 2)
        assert [s.action for s in report.steps][:2] == ["trim", "restart"]
        after = pids(client)
        assert after[1] != before[1]
        assert (after[0], after[2]) == (before[0], before[2])
        (row,) = (w for w in report.workers if w.worker == 1)
        assert row.process_after is not None
        # a cell of the table may have its unit in the next line; HTML has no such lines
        assert bytes_text(row.process_after).split()[0] in str(report)
        shown = change(row.process_before, row.process_after, bytes_text)
        assert shown in html.unescape(report._repr_html_())
        refuse_losses(client, X, values)


def dispatched_train(event: str) -> None:
    Event(event).wait()


def test_a_plan_states_what_it_interrupts() -> None:
    """The plan names workers with tasks, and how long it waits for them."""
    with cluster(2) as client:
        address = by_name(client)[1]
        fit = client.submit(dispatched_train, "go", workers=[address])

        def runs(dask_scheduler: Any) -> bool:
            return bool(dask_scheduler.workers[address].executing)

        until(lambda: client.run_on_scheduler(runs))
        plan = clustertune.restart_workers(client, dry_run=True)
        (note,) = plan.notes
        assert note == "worker 1 runs tasks; the plan waits up to 60 s on each"
        assert note in " ".join(str(plan).split())
        assert (
            clustertune.restart_workers(client, workers=[0], dry_run=True).notes == ()
        )
        report = clustertune.restart_workers(client, workers=[1], wait="0.5 s")
        assert [s.status for s in report.steps] == ["skipped"]
        assert len(report.notes) == 1
        Event("go", client=client).set()
        fit.result()
        assert clustertune.restart_workers(client, dry_run=True).notes == ()
