"""Memory thresholds of workers that make no sense together.

They act in this order as memory rises: ``target`` and ``spill`` write keys to disk,
``pause`` starts no more tasks, ``terminate`` kills the worker. In another order the
gentler ones never act: with ``spill`` above ``pause`` a worker pauses before it has
written anything, and does not come back; with ``pause`` above ``terminate`` it is
killed at full work. Without a limit none of them acts, and the host's memory is the
limit.

Remedy: leave ``distributed.worker.memory`` at Dask's own 0.60, 0.70, 0.80 and 0.95, or
set them in this order, where the workers are started: what is set in the client's
configuration does not reach workers that run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from clustertune.core.model import Finding, Severity, Thresholds, Unknown, View
from clustertune.core.wording import plural, workers_text

ORDER = ("target", "spill", "pause", "terminate")


def find(view: View) -> Iterator[Finding]:
    """Find workers whose thresholds are in another order, or that have no limit."""
    wrong: dict[str, list[str | int]] = {}
    for worker in view.now.workers:
        thresholds = worker.thresholds
        if worker.memory_limit and not isinstance(thresholds, Unknown):
            for text in _disorder(thresholds):
                wrong.setdefault(text, []).append(worker.id)
    for text, ids in wrong.items():
        yield Finding(
            severity=Severity.warning,
            message=f"memory thresholds of {workers_text(ids)}: {text}",
            subject=tuple(ids),
            evidence={"workers": len(ids)},
        )
    free = tuple(w.id for w in view.now.workers if not w.memory_limit and not w.parking)
    if free:
        yield Finding(
            severity=Severity.info,
            message=f"{plural(len(free), 'worker has', 'workers have')} no memory "
            "limit: nothing is spilled, paused or killed before the host's memory ends",
            subject=free,
        )


def _disorder(thresholds: Thresholds) -> Iterator[str]:
    """Neighbours in the wrong order, of those that are on and known."""
    there = [
        (name, value)
        for name in ORDER
        if isinstance(value := getattr(thresholds, name), float | int)
    ]
    for (low, a), (high, b) in pairwise(there):
        if a > b:
            yield f"{low} ({a:.0%}) is above {high} ({b:.0%}), which acts first"
    for name, value in there:
        if not 0 < value <= 1:
            yield f"{name} is {value:.0%} of the limit"
