"""Child processes of workers, whose memory no limit of Dask counts.

joblib's ``loky``, PyTorch's ``DataLoader`` and others start processes below a worker.
Worker and nanny look at the worker's own process only: with its children it can exceed
its limit, and the host's memory, before anything pauses or is killed. Processes that
were left behind by a call that failed keep their memory until the worker ends.

Remedy: fewer of them (``n_jobs=1``, ``DataLoader(num_workers=0)``), workers with a
lower ``--memory-limit`` so that there is room beside them, or a restart of the worker
if they were left behind.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Details, Finding, Severity, View, WorkerSnapshot
from clustertune.core.wording import bytes_text, plural, workers_text
from clustertune.planner.machines import details_of


def find(view: View, *, share: float = 0.05) -> Iterator[Finding]:
    """Find workers whose children hold memory.

    Parameters
    ----------
    view
        What is seen.
    share
        Memory of children that counts, as a fraction of the worker's limit.
    """
    found = [
        (w, d)
        for w, d in details_of(view)
        if w.memory_limit
        and not w.address.startswith("inproc://")
        and d.child_memory > share * w.memory_limit
    ]
    if not found:
        return
    worker, details = max(found, key=lambda x: _together(*x) / x[0].memory_limit)
    over = _together(worker, details) > worker.memory_limit
    yield Finding(
        severity=Severity.warning if over else Severity.info,
        message=f"{plural(details.child_count, 'child process', 'child processes')} of "
        f"{workers_text([worker.id])} {'hold' if details.child_count > 1 else 'holds'} "
        f"{bytes_text(details.child_memory)} that no limit counts; with the worker's "
        f"own {bytes_text(worker.process)} that is "
        f"{_together(worker, details) / worker.memory_limit:.0%} of its limit",
        subject=tuple(w.id for w, _ in found),
        evidence={
            "children": details.child_count,
            "child_bytes": details.child_memory,
            "process_bytes": worker.process,
            "limit_bytes": worker.memory_limit,
        },
    )


def _together(worker: WorkerSnapshot, details: Details) -> int:
    return worker.process + details.child_memory
