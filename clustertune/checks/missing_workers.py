"""Fewer workers run than were asked for.

``n_workers`` says how many workers a fit is meant to have. Workers that are still
starting, paused or gone do not count: they get no data, so they would not train.

Remedy: ``clustertune.prepare(client, X, y, n_workers=8)`` scales the cluster and waits;
where the client cannot scale it, start workers by the means with which the cluster was
started, for example ``dask worker tcp://scheduler:8786``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.model import Finding, Severity, View
from clustertune.wording import plural, printable


def find(view: View) -> Iterator[Finding]:
    """Find that fewer workers run than the goal asks for."""
    wanted = view.goal.n_workers
    have = sum(w.running for w in view.now.workers)
    if wanted is None or have >= wanted:
        return
    obstacle = view.now.can_scale
    reason = f"; this client cannot scale it: {printable(obstacle)}" if obstacle else ""
    yield Finding(
        severity=Severity.warning,
        message=f"{have:,} of {plural(wanted, 'wanted worker')} running{reason}",
        evidence={"have": have, "wanted": wanted, "can_scale": not obstacle},
    )
