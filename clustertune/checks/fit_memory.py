"""Workers that lack the memory which the fit needs beside the data.

A fit keeps the data and makes copies of it that Dask neither sees nor can spill. How
much that is depends on library and number type and was measured: XGBoost's ``hist``
needs 1.8 times the bytes of its data for float32 and 1.4 times for float64, LightGBM up
to 2.7 times, the data included. A worker without this room spills, pauses (XGBoost then
hangs) or is killed, which shows as ``Invalid worker address`` or ``Socket recv error``.

Each worker is counted with what else its process holds, and with its even share of all
data, eval sets too, wherever the data is now. It is compared with ``memory_fraction``
(0.7) of the worker's limit, or, if it has none, of its part of the host's memory. It is
an estimate: a warning, and an error only if ``strict`` was asked for.

Remedy: train on more workers, ``clustertune.prepare(client, X, y, n_workers=8)``; or on
workers with a higher ``--memory-limit``; or make the data smaller, for example with
``X = X.astype("float32")``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from clustertune.errors import CapacityError
from clustertune.layouts import weights
from clustertune.machines import expected_workers, unknown_findings
from clustertune.memory import fixed_bytes, limit
from clustertune.model import Finding, Severity, Unknown, View, WorkerSnapshot
from clustertune.sizes import data_bytes
from clustertune.wording import bytes_text, plural, workers_text

ERROR = CapacityError


class _Need(NamedTuple):
    """Bytes on one worker."""

    lacking: float  # that the fit needs beyond what it may fill
    total: float  # that the process would have
    free: float  # for the data and its copies
    worker: WorkerSnapshot


def find(view: View) -> Iterator[Finding]:
    """Find eligible workers on which the fit needs more memory than it may fill."""
    workers = view.eligible_workers
    if not view.layouts or not workers:
        return
    size = data_bytes(view.layouts)
    if isinstance(size, Unknown):
        text = f"whether the fit has enough memory is {size}"
        yield Finding(severity=Severity.unknown, message=text)
        return
    needed = size * view.goal.workload.multiple(view.layouts[0].members[0].itemsize)
    short = [need for need in _needs(view, needed) if need.lacking > 0]
    if short:
        yield _finding(view, short, needed)
    yield from unknown_findings("usable memory", [(w, limit(w, view)) for w in workers])


def _needs(view: View, needed: float) -> Iterator[_Need]:
    """Tell what each eligible worker needs for its even share."""
    claim, fixed = weights(view), fixed_bytes(view)
    now = len(view.eligible_workers) / expected_workers(view)
    shares = needed * now * claim / max(1.0, claim.sum())
    for worker, share, other in zip(view.now.workers, shares, fixed, strict=True):
        most = limit(worker, view)
        if view.eligible(worker) and not isinstance(most, Unknown):
            free = most * view.goal.memory_fraction - other
            yield _Need(share - free, share + other, free, worker)


def _finding(view: View, short: list[_Need], needed: float) -> Finding:
    worst = max(short, key=lambda need: need.lacking)
    enough = math.ceil(needed / worst.free) if worst.free > 0 else None
    count = "no number of workers" if enough is None else plural(enough, "worker")
    return Finding(
        severity=Severity.critical if view.goal.strict else Severity.warning,
        message=f"the fit needs about {bytes_text(worst.total)} on "
        f"{workers_text([worst.worker.id])}, {bytes_text(worst.lacking)} more than it "
        f"may fill; {len(short):,} of {plural(len(view.eligible_workers), 'worker')} "
        f"lack memory; {count} of this size would do",
        subject=tuple(need.worker.id for need in short),
        evidence={
            "needed_bytes": round(worst.total),
            "lacking_bytes": round(worst.lacking),
            "workers_needed": enough,
        },
    )
