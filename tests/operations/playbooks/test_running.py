"""Playbooks on live clusters: shipped playbooks, conditions, limits, failures."""

from __future__ import annotations

import asyncio
import re
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Nanny, futures_of, wait
from distributed.core import Status

import clustertune
from clustertune.operations.playbooks import reading
from clustertune.operations.playbooks.running import PlaybookRun
from tests.core.test_progress import Stderr
from tests.in_process import TWO, gen_cluster
from tests.processes import soon

HEAD = "version: 1\nname: p\n"


def quick(name: str, folder: Path) -> Path:
    """Write a shipped playbook with shorter pauses."""
    text = reading.shipped()[name].read_text()
    file = folder / f"{name}.yaml"
    file.write_text(re.sub(r"(holds|settle): \d+s", r"\1: 1s", text))
    return file


# --- shipped playbooks ----------------------------------------------------------------


@gen_cluster(client=True, nthreads=TWO)
async def test_before_and_after_training(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Path
) -> None:
    """They load, rechunk, place and release data; a dry run changes nothing."""
    X = da.random.default_rng(0).random((1200, 4), chunks=(400, 4))
    y = da.random.default_rng(1).random(1200, chunks=500)
    expected = X.compute(scheduler="sync")
    plan = await clustertune.run_playbook(c, "before-training", X, y, dry_run=True)
    assert [step.status for step in plan.steps] == [
        "skipped",
        "planned",
        "checked",
    ]
    assert plan.exit_status() == 0
    assert not s.tasks
    done = await clustertune.run_playbook(
        c, quick("before-training", tmp_path), X, y, estimator="xgboost"
    )
    assert done.status == "done", str(done)
    assert [s.action for s in done.steps[1].report.steps][:2] == ["load", "rechunk"]
    assert done.X.chunks[0] == done.y.chunks[0]
    # before anything else copies partitions: of two copies Dask may delete either
    assert (await done.prepared.verify()).status == "fine"
    np.testing.assert_array_equal(await c.compute(done.X), expected)
    held = {f.key for f in futures_of([done.X, done.y])}
    kept = await c.scatter(np.arange(9))
    gone = await clustertune.run_playbook(
        c, quick("after-training", tmp_path), done.X, done.y
    )
    assert gone.status == "done", str(gone)
    assert gone.X is None
    assert len(s.workers) == 1
    await soon(lambda: not held & s.tasks.keys())
    assert (await kept).sum() == 36  # only what was given


@gen_cluster(client=True, nthreads=TWO)
async def test_two_steps_that_prepare(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Path
) -> None:
    """The second step gets the results of the first, with companions cut like X."""
    X = da.random.default_rng(0).random((1200, 4), chunks=(400, 4))
    y = X[:, 0].rechunk(500)
    file = tmp_path / "p.yaml"
    file.write_text(HEAD + "limits: {settle: 0}\nsteps: [{do: prepare}, {do: prepare}]")
    done = await clustertune.run_playbook(
        c, file, X, y, sample_weight=y + 1, estimator="xgboost"
    )
    assert {step.status for step in done.steps} <= {"done", "fine"}, str(done)
    weights = done.prepared.sample_weight
    assert done.X.chunks[0] == done.y.chunks[0] == weights.chunks[0]
    first, *both = await c.gather(c.compute([done.X[:, 0], done.y, weights]))
    np.testing.assert_array_equal(both, [first, first + 1])


@gen_cluster(client=True, nthreads=TWO)
async def test_observe(c: Any, s: Any, a: Any, b: Any) -> None:
    """It changes nothing, and checks the given data."""
    X = da.ones((80, 2), chunks=(10, 2))
    seen = await clustertune.run_playbook(c, "observe", X)
    assert seen.status == "fine"
    assert "unloaded_data" in {f.check for f in seen.found}  # of the data
    assert seen.X is X
    assert not s.tasks


LEAK = 720 * 2**20  # bytes; with those of any worker more than its pause threshold


def leak() -> None:
    import builtins

    builtins.leaked = b"x" * LEAK  # type: ignore[attr-defined]


def pause_early(dask_worker: Any) -> None:
    dask_worker.memory_manager.memory_pause_fraction = 0.4


@gen_cluster(
    client=True,
    nthreads=TWO,
    Worker=Nanny,
    timeout=120,
    config={"distributed.worker.memory.spill": False},
    worker_kwargs={"memory_limit": "1 GiB"},
)
async def test_between_runs_and_memory_rescue(
    c: Any, s: Any, *nannies: Any, tmp_path: Path
) -> None:
    """The worker that leaks is restarted, the other is not; no data is lost."""
    X = c.persist(da.ones((800, 100), chunks=(100, 100)))
    await wait(X)
    one, other = nannies
    pids = one.pid, other.pid
    await c.run(leak, workers=[one.worker_address])

    def is_seen(address: str) -> bool:
        return s.workers[address].memory.unmanaged > LEAK + 100 * 2**20

    await soon(lambda: is_seen(one.worker_address))
    done = await clustertune.run_playbook(c, quick("between-runs", tmp_path))
    assert [step.status for step in done.steps] == [
        "checked",
        "done",
        "skipped",
        "skipped",
        "checked",
    ]
    assert done.steps[0].report.found
    assert "unknown: whether memory grows" in done.steps[3].reason
    assert one.pid != pids[0]
    assert other.pid == pids[1]
    assert await c.compute(X.sum()) == 80_000

    address = other.worker_address
    await c.run(leak, workers=[address])
    await c.run(pause_early, workers=[address])
    await soon(lambda: s.workers[address].status == Status.paused)
    done = await clustertune.run_playbook(c, quick("memory-rescue", tmp_path))
    assert done.status == "done", str(done)
    assert [step.status for step in done.steps[1:4]] == ["done", "skipped", "skipped"]
    assert other.pid != pids[1]
    assert all(w.status == Status.running for w in s.workers.values())
    assert await c.compute(X.sum()) == 80_000


# --- conditions, limits, failures -----------------------------------------------------


@gen_cluster(client=True, nthreads=TWO)
async def test_a_condition_that_ends(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Any
) -> None:
    """The step is skipped if the condition does not last."""
    file = tmp_path / "p.yaml"
    step = "steps: [{when: paused_workers, at_least: critical, holds: 2s, do: trim}]"
    file.write_text(HEAD + step)
    a.memory_manager.memory_pause_fraction = 1e-9
    a.status = Status.paused
    shown: list[str] = []

    def resume(text: str, _fraction: float | None) -> None:
        if "waiting whether" in text and a.status == Status.paused:
            shown.append(text)
            a.memory_manager.memory_pause_fraction = False
            a.status = Status.running

    await soon(lambda: s.workers[a.address].status == Status.paused)
    done = await clustertune.run_playbook(c, file, progress=resume)
    assert shown
    assert done.steps[0].status == "skipped"
    assert done.steps[0].reason == ("paused_workers was critical, but not for 2 s")
    plan = await clustertune.run_playbook(c, file, dry_run=True)
    assert plan.steps[0].reason == "paused_workers is below critical"


@gen_cluster(client=True, nthreads=TWO)
async def test_a_condition_of_data(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Any
) -> None:
    """Diagnoses evaluate it, because snapshots do not show it."""
    file = tmp_path / "p.yaml"
    file.write_text(
        HEAD
        + "steps: [{when: empty_workers, at_least: info, holds: 0.5s, do: prepare}]"
    )
    X = c.persist(da.ones((80, 2), chunks=(10, 2)), workers=[a.address])
    await wait(X)
    plan = await clustertune.run_playbook(c, file, X, dry_run=True)
    assert plan.steps[0].reason == "if it holds for 0.5 s"
    assert plan.steps[0].report.steps[0].summary.startswith("move ")
    done = await clustertune.run_playbook(c, file, X)
    assert done.steps[0].status == "done", str(done)
    assert {len(a.data), len(b.data)} == {4}


FAILING = """
steps:
  - do: restart
  - do: scale
    with: {n_workers: 5}
  - do: trim
    with: {workers: [divine]}
  - do: release
  - do: prepare
  - check: memory_pressure
"""


@gen_cluster(client=True, nthreads=TWO)
async def test_failures(c: Any, s: Any, a: Any, b: Any, tmp_path: Any) -> None:
    """A failure ends the playbook, or not, as on_failure has it."""
    file = tmp_path / "p.yaml"
    file.write_text(HEAD + FAILING)
    X = c.persist(da.ones((80, 2), chunks=(10, 2)))
    await wait(X)
    done = await clustertune.run_playbook(c, file, X)
    assert [step.status for step in done.steps] == ["refused", *["not begun"] * 5]
    assert "no nanny" in done.steps[0].reason
    assert done.exit_status() == 4
    file.write_text(f"{HEAD}{FAILING}on_failure: continue\nlimits: {{settle: 0}}\n")
    done = await clustertune.run_playbook(c, file, X)
    found = [(step.status, step.reason) for step in done.steps]
    statuses = ["refused", "refused", "failed", "done", "failed", "checked"]
    assert [status for status, _ in found] == statuses, str(done)
    assert "n_workers=5" in found[1][1]
    assert "there is no divine in this cluster" in found[2][1]
    assert "X must be a Dask Array" in found[4][1]  # it was released
    assert done.exit_status() == 5
    plan = await clustertune.run_playbook(c, file, X, dry_run=True)
    assert "not begun" not in {step.status for step in plan.steps}


@gen_cluster(client=True, nthreads=TWO)
async def test_lines_of_a_terminal(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Path
) -> None:
    """The line of a pause is gone before a step prints its result."""
    file = tmp_path / "p.yaml"
    trims = ", ".join(["do: trim"] * 3)  # the second pause shows a line
    file.write_text(f"{HEAD}steps: [{trims}]\nlimits: {{settle: 0.6s}}\n")
    with redirect_stderr(Stderr(terminal=True)) as stderr:
        await clustertune.run_playbook(c, file)
    lines = re.split(r"[\r\n]", stderr.getvalue())
    assert any("letting the cluster settle" in line for line in lines)
    assert max(line.count("clustertune: ") for line in lines) == 1


@gen_cluster(client=True, nthreads=TWO)
async def test_a_client_that_is_closed(c: Any, s: Any, a: Any, b: Any) -> None:
    """The step fails, and no other step begins."""
    read = reading.read("between-runs")
    job = PlaybookRun(client=c, playbook=read, data={}, progress=False)
    await c.close()
    done = await asyncio.wait_for(job.run(), 20)
    assert done.steps[0].status == "failed"
    assert "closed" in done.steps[0].reason
    assert {step.status for step in done.steps[1:]} == {"not begun"}


@gen_cluster(client=True, nthreads=TWO)
async def test_bad_calls(c: Any, s: Any, a: Any, b: Any, tmp_path: Any) -> None:
    """Wrong arguments raise errors before any step."""
    with pytest.raises(ValueError, match="is to prepare, and no data is given"):
        await clustertune.run_playbook(c, "before-training")
    file = tmp_path / "my.yaml"
    file.write_text("version: 1\nname: nightly\nsteps:\n  - do: prepare\n")
    with pytest.raises(ValueError, match=re.escape(f'client, "{file}", X, y)')):
        await clustertune.run_playbook(c, file)
    with pytest.raises(TypeError, match="X is None but other data is given"):
        await clustertune.run_playbook(c, "observe", y=da.ones(3))
    with pytest.raises(TypeError, match="X"):
        await clustertune.run_playbook(c, "before-training", np.ones(3))
    X, qid = da.ones((4, 2)), da.ones(4)
    with pytest.raises(ValueError, match="qid needs a ranker"):
        await clustertune.run_playbook(c, "before-training", X, qid=qid)
    with pytest.raises(ValueError, match="playbook no-such cannot be read"):
        await clustertune.run_playbook(c, "no-such")
    with pytest.raises(ValueError, match="choose from"):
        await clustertune.run_playbook(c, "observe", estimator="divine")
    with pytest.raises(ValueError, match="dry_run=1 must be True or False"):
        await clustertune.run_playbook(c, "observe", dry_run=1)
