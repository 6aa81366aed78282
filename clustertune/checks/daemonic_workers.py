"""Workers that may have no child processes, where training needs some.

Dask's nanny starts a worker as a daemonic process, which Python forbids to have
children: ``DataLoader(num_workers=2)`` of PyTorch, or ``multiprocessing``, fails there
with ``daemonic processes are not allowed to have children`` (distributed#2142). Said
only where the workload is one that starts processes.

Remedy: set ``distributed.worker.daemon`` to false where the nannies are started (before
they start), or ``DataLoader(num_workers=0)``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import are, workers_text
from clustertune.planner.machines import details_of


def find(view: View) -> Iterator[Finding]:
    """Find workers that may not start processes."""
    if not view.goal.workload.starts_processes:
        return
    ids = tuple(w.id for w, d in details_of(view) if d.daemon)
    if ids:
        yield Finding(
            severity=Severity.warning,
            message=f"{workers_text(ids)} {are(ids)} daemonic and may start no "
            f"processes, as {view.goal.workload.title} does",
            subject=ids,
            evidence={"workers": len(ids)},
        )
