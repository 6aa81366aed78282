"""Which workers need a restart: memory that a trim does not give back (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from clustertune.core.model import Finding, Severity, WorkerSnapshot
from clustertune.core.wording import bytes_text
from clustertune.planner.thresholds import ceiling, levels

ENDED = ("abandoned_tasks",)  # findings that a restart ends, whatever the memory is
GROWTH = "memory_growth"
#: findings about memory: after a trim the memory itself decides
MEMORY = ("unmanaged_memory", "memory_pressure", "paused_workers", GROWTH)


def named(
    findings: Sequence[Finding], checks: Sequence[str] = (*MEMORY, *ENDED)
) -> set[str | int]:
    """Workers that warnings of these checks name."""
    return {
        id
        for f in findings
        if f.check in checks and f.severity >= Severity.warning
        for id in f.subject
    }


def growth(findings: Sequence[Finding], worker: WorkerSnapshot) -> int:
    """Bytes that a leak is found to add to a worker's process in the next run."""
    for f in findings:
        if f.check == GROWTH and worker.id in f.subject:
            step = f.evidence.get("bytes_per_run")
            if f.severity >= Severity.warning and isinstance(step, int | float):
                return int(step)
    return 0


def reason(worker: WorkerSnapshot, growth: int = 0) -> str:
    """Why a restart would help a worker, or nothing.

    Its process is above a threshold, or will be after the next run, and a new process
    with the same keys is below. Data that is above by itself would only come back.
    """
    # what a process needs without keys is known for the first hour only
    fresh = (worker.least or 0) + worker.managed
    text = f"its process has {bytes_text(worker.process)}"
    if growth:
        text += f" and grows by {bytes_text(growth)} in a run"
    for level in levels(worker):
        line = level.fraction * worker.memory_limit
        if level.measure == "process" and fresh <= line < worker.process + growth:
            return f"{text}; its {level.name} threshold is {bytes_text(line)}"
    if worker.status == "paused" and worker.unmanaged > worker.managed:
        return f"{text}, and it is paused"
    return ""


def spared(worker: WorkerSnapshot) -> str:
    """Why a worker is not restarted, where :func:`reason` has none."""
    line, text = ceiling(worker), bytes_text(worker.process)
    if not line:
        return f"{text}, and no threshold is known that it could reach"
    if worker.process <= line:
        return f"{text}, below its threshold of {bytes_text(line)}"
    return (
        f"{text}, above its threshold of {bytes_text(line)}, but a new process with "
        f"its {bytes_text(worker.managed)} of data would be, too"
    )
