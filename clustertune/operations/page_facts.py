"""Facts that a client sends to the scheduler plugin for the dashboard page (pure).

The scheduler itself has memory, threads and holders. Only a client reads thresholds,
rows of partitions and findings; the plugin keeps them with their age.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clustertune.core.model import Finding, Layout, Unknown, View, WorkerSnapshot
from clustertune.remote import keys
from clustertune.remote.scheduler.page import MOST_KEYS, THRESHOLDS

#: checks of worker processes; a restart makes their findings obsolete
OF_PROCESSES = frozenset(
    ("blocked_event_loops", "child_processes", "memory_growth", "unmanaged_memory")
)


def facts(view: View, found: Iterable[Finding]) -> dict[str, Any]:
    """Return all facts of a view and its findings.

    Without collections in the view, those of an earlier call stay on the page.
    """
    addresses = {w.id: w.address for w in view.now.workers}
    result = of_workers(view)
    result["findings"] = {
        "time": view.now.time,
        "command": f"clustertune check {view.now.scheduler}",
        "found": [_finding(f, addresses) for f in found],
    }
    known = [x for x in view.layouts if x.loaded and x.aligned]
    if sum(len(m.keys) for x in known for m in x.collections) > MOST_KEYS:
        known = []
    if view.layouts:
        result["collections"] = [_layout(x, view) for x in known]
    return result


def of_workers(view: View) -> dict[str, Any]:
    """Return the facts of workers only; findings of an earlier call stay."""
    return {"workers": {w.address: _thresholds(w) for w in view.now.workers}}


def _finding(finding: Finding, addresses: Mapping[Any, str]) -> dict[str, Any]:
    """A finding as in the state of the page; ``addresses`` of workers by id."""
    processes = finding.subject if finding.check in OF_PROCESSES else ()
    return {
        "severity": str(finding.severity),
        "check": finding.check,
        "message": finding.message,
        "remedy": finding.remedy,
        "processes": [addresses[id] for id in processes if id in addresses],
    }


def _thresholds(worker: WorkerSnapshot) -> list[int | None]:
    """Thresholds in bytes, in the order of ``THRESHOLDS``; None: unknown or not set."""
    own, limit = worker.thresholds, worker.memory_limit
    if isinstance(own, Unknown) or not limit:
        return [None] * len(THRESHOLDS)
    fractions = [getattr(own, name) for name in THRESHOLDS]
    return [int(f * limit) if isinstance(f, float | int) else None for f in fractions]


def _layout(layout: Layout, view: View) -> dict[str, Any]:
    return {
        "label": layout.label,
        "names": list(layout.labels),
        "members": [keys.pack(m.keys) for m in layout.collections],
        "rows": layout.rows.tolist(),
        "alike": view.goal.workload.equal_shares,
    }
