"""No false alarms on healthy clusters; every seeded fault found, with its remedy.

``tests/recordings`` has what real, healthy clusters have shown.
Faults are put into them one at a time, by changing what would have been seen.
"""

# ruff: noqa: E501 (a table of faults, a line each)
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustertune import checks
from clustertune.core.model import (
    Finding,
    Run,
    Severity,
    Unknown,
    UnmetRestriction,
    View,
)
from tests import recordings

GIB = 2**30


@pytest.mark.parametrize("name", recordings.NAMES)
def test_healthy_clusters_raise_no_alarm(name: str) -> None:
    """Information and unknown results are no alarms."""
    found = checks.run(recordings.view(name))
    assert [f.message for f in found if f.severity >= Severity.warning] == []


def test_there_are_enough_of_them() -> None:
    """There are a stock cluster, and at least six other kinds."""
    assert len(recordings.NAMES) >= 7
    assert "stock" in recordings.NAMES


@pytest.mark.parametrize("name", recordings.NAMES)
def test_a_recording_is_what_was_seen(name: str) -> None:
    """A recording that is read and written again is the same."""
    view = recordings.view(name)
    again = recordings.loads(recordings.dumps(view))
    assert recordings.dumps(again) == recordings.dumps(view)
    assert again.now == view.now


# --- changes --------------------------------------------------------------------------


def workers(view: View, change: Callable[[Any], Any], which: Any = slice(None)) -> View:
    """Change some workers."""
    every = list(view.now.workers)
    every[which] = [change(w) for w in every[which]]
    return replace(view, snapshots=(replace(view.now, workers=tuple(every)),))


def worker(**changes: Any) -> Callable[[View], View]:
    """Change the first worker; numbers up to 1 are fractions of its limit."""

    def change(w: Any) -> Any:
        scaled = {
            k: int(v * w.memory_limit) if k in ("process", "managed", "counted") else v
            for k, v in changes.items()
        }
        return replace(w, **scaled)

    return lambda view: workers(view, change, slice(0, 1))


def every(**changes: Any) -> Callable[[View], View]:
    return lambda view: workers(view, lambda w: replace(w, **changes))


def thresholds(**changes: Any) -> Callable[[View], View]:
    def change(w: Any) -> Any:
        new = replace(w.facts.thresholds, **changes)
        return replace(w, facts=replace(w.facts, thresholds=new))

    return lambda view: workers(view, change)


def facts(**changes: Any) -> Callable[[View], View]:
    return lambda view: workers(
        view, lambda w: replace(w, facts=replace(w.facts, **changes))
    )


def details(**changes: Any) -> Callable[[View], View]:
    return lambda view: workers(
        view, lambda w: replace(w, details=replace(w.details, **changes))
    )


def survey(**changes: Any) -> Callable[[View], View]:
    def change(view: View) -> View:
        new = replace(view.now.survey, **changes)
        return replace(view, snapshots=(replace(view.now, survey=new),))

    return change


def now(**changes: Any) -> Callable[[View], View]:
    return lambda view: replace(view, snapshots=(replace(view.now, **changes),))


def goal(**changes: Any) -> Callable[[View], View]:
    return lambda view: replace(view, goal=replace(view.goal, **changes))


def profile(**changes: Any) -> Callable[[View], View]:
    def change(view: View) -> View:
        return goal(workload=replace(view.goal.workload, **changes))(view)

    return change


def collection(label: str, **changes: Any) -> Callable[[View], View]:
    def change(view: View) -> View:
        (layout,) = view.layouts
        collections = tuple(
            replace(m, **{k: v(m) if callable(v) else v for k, v in changes.items()})
            if m.label == label
            else m
            for m in layout.collections
        )
        return replace(view, layouts=(replace(layout, collections=collections),))

    return change


def placed_on(where: Callable[[Any], Any]) -> Callable[[View], View]:
    """Move all collections to the given workers, by partition."""

    def change(view: View) -> View:
        (layout,) = view.layouts
        collections = tuple(
            replace(m, holders=(np.arange(len(m.keys)), where(np.arange(len(m.keys)))))
            for m in layout.collections
        )
        return replace(view, layouts=(replace(layout, collections=collections),))

    return change


def replicated(view: View) -> View:
    """Put every partition on two workers."""
    (layout,) = view.layouts
    collections = tuple(
        replace(m, holders=(np.tile(m.holders[0], 2), np.repeat([0, 1], len(m.keys))))
        for m in layout.collections
    )
    return replace(view, layouts=(replace(layout, collections=collections),))


def partitions(rows: list[int]) -> Callable[[View], View]:
    """Give all collections partitions with these rows."""

    def change(view: View) -> View:
        (layout,) = view.layouts
        n = np.array(rows, dtype=np.int64)
        collections = []
        for m in layout.collections:
            width = int(m.nbytes.sum() / m.rows.sum())
            spread = np.arange(len(n)) % len(view.now.workers)
            collections.append(
                replace(
                    m,
                    keys=tuple((m.label, i) for i in range(len(n))),
                    rows=n,
                    nbytes=n * width,
                    holders=(np.arange(len(n)), spread),
                )
            )
        return replace(view, layouts=(replace(layout, collections=tuple(collections)),))

    return change


def grown(view: View) -> View:
    ids = [w.id for w in view.now.workers]
    step = int(0.08 * view.now.workers[0].memory_limit)
    past = tuple(
        Run(
            began=i * 100.0,
            ended=i * 100.0 + 50,
            floors=dict.fromkeys(ids, (i + 1) * step),
            peaks=dict.fromkeys(ids, GIB),
        )
        for i in range(6)
    )
    return replace(view, runs=past)


# (what, in which cluster, change, check, least severity, part of the remedy)
FAULTS = [
    ("at terminate", "stock", worker(process=0.96), "memory_pressure", 3, "clustertune.trim_memory("),
    ("at pause", "stock", worker(process=0.85), "memory_pressure", 3, "clustertune.restart_workers("),
    ("at spill", "stock", worker(process=0.72), "memory_pressure", 2, "clustertune.restart_workers("),
    ("at target", "stock", worker(counted=0.65, managed=0.65, process=0.66), "memory_pressure", 2, "del"),
    ("on disk", "stock", worker(spilled=GIB), "memory_pressure", 2, "clustertune.trim_memory("),
    ("close to pause", "stock", worker(process=0.65), "memory_pressure", 1, "clustertune.trim_memory("),
    ("leaves much", "stock", worker(process=0.6), "unmanaged_memory", 2, "clustertune.trim_memory("),
    ("leaks", "stock", grown, "memory_growth", 2, "restart"),
    ("spill above pause", "stock", thresholds(spill=0.9), "memory_settings", 2, "0.60"),
    ("target above spill", "stock", thresholds(target=0.75), "memory_settings", 2, "0.60"),
    ("pause above kill", "stock", thresholds(pause=0.99), "memory_settings", 2, "0.95"),
    ("no limit", "stock", every(memory_limit=0), "memory_settings", 1, "memory_limit="),
    ("limits too high", "stock", facts(host_memory=2 * GIB), "memory_settings", 2, 'memory_limit="'),
    ("disk full", "stock", details(disk_free=10**6), "spill_space", 2, "--local-directory"),
    ("pools", "stock", details(thread_pools=(64,)), "thread_pools", 2, "OMP_NUM_THREADS"),
    ("threads above CPUs", "stock", every(nthreads=64), "thread_count", 2, "nthreads="),
    ("paused", "stock", worker(status="paused"), "paused_workers", 3, "clustertune.trim_memory("),
    ("closing", "stock", worker(status="closing_gracefully"), "paused_workers", 2, "clustertune.scale(client, "),
    ("silent", "stock", worker(heartbeat_age=90.0), "unresponsive_workers", 2, "memory of host"),
    ("nearly lost", "stock", worker(heartbeat_age=290.0), "unresponsive_workers", 3, "log"),
    ("blocked", "stock", worker(loop_delay=3.0), "blocked_event_loops", 2, "memory of the host"),
    ("scheduler blocked", "stock", survey(loop_delay=3.0), "blocked_event_loops", 2, "fewer"),
    ("ends soon", "stock", details(expires=0.0), "worker_lifetime", 2, "--lifetime"),
    ("not waited for", "stock", details(cancelled=90.0), "stuck_tasks", 2, "restart"),
    ("may scale", "adaptive", now(adaptive=(1, math.inf)), "adaptive_scaling", 1, "clustertune.hold("),
    ("other release", "stock", survey(packages={"client": {"numpy": "1.0"}, "scheduler": {}}), "software_versions", 2, "one environment"),
    ("no xgboost", "stock", profile(packages=("no-such",)), "software_versions", 3, 'PipInstall(["no-such"])'),
    ("worker gone", "stock", survey(unmet_restrictions=(UnmetRestriction(kind="worker", names=("tcp://10.0.0.1:9",), tasks=3),)), "unrunnable_tasks", 3, "Submit them again"),
    ("no GPU", "stock", survey(unmet_restrictions=(UnmetRestriction(kind="resources", names=("GPU: 1",), tasks=3),)), "unrunnable_tasks", 2, "--resources"),
    ("scattered", "after_a_fit", collection("X", scattered=8), "data_from_client", 1, "read_parquet"),
    ("embedded", "after_a_fit", collection("X", embedded=GIB), "data_from_client", 1, "scatter"),
    ("all on one", "after_a_fit", placed_on(lambda i: i * 0), "uneven_rows", 2, "prepare"),
    ("one is empty", "after_a_fit", placed_on(lambda i: i * 0), "empty_workers", 2, "prepare"),
    ("pairs apart", "after_a_fit", collection("y", holders=lambda m: (m.holders[0], 1 - m.holders[1])), "separated_pairs", 2, "prepare"),
    ("other boundaries", "after_a_fit", collection("y", rows=lambda m: np.roll(m.rows + np.arange(8) - 3.5 .__int__(), 1)), "misaligned_partitions", 3, "Find the step"),
    ("one partition", "after_a_fit", partitions([20_000]), "too_few_partitions", 2, "clustertune.prepare("),
    ("tiny partitions", "after_a_fit", partitions([10] * 2000), "too_many_partitions", 1, "prepare"),
    ("blocks of columns", "after_a_fit", collection("X", column_blocks=2, keys=lambda m: m.keys * 2), "column_chunks", 3, "rechunk"),
    ("text", "after_a_fit", collection("X", types={"object": ("city",)}), "non_numeric_columns", 2, "Make numbers"),
    ("replicas", "after_a_fit", replicated, "separated_pairs", 1, "prepare"),
    ("workers not there", "stock", goal(n_workers=9), "missing_workers", 2, "clustertune.scale(client, 9)"),
    ("no answer", "stock", every(facts=Unknown("no answer")), "memory_pressure", 0, ""),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f[0])
def test_seeded_faults_are_found(fault: tuple[Any, ...]) -> None:
    """Each fault is found by its check, with its severity and a remedy."""
    _, cluster, change, name, least, remedy = fault
    healthy = recordings.view(cluster)
    before = {f.check for f in checks.run(healthy)}
    found = [f for f in checks.run(change(healthy)) if f.check == name]
    assert found, f"{name} found nothing; without the fault: {before}"
    worst: Finding = max(found, key=lambda f: f.severity)
    assert worst.severity >= least
    assert remedy in worst.remedy if remedy else not worst.remedy


def test_there_are_enough_faults() -> None:
    """There are at least forty faults, for most checks."""
    assert len(FAULTS) >= 40
