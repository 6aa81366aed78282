"""Fewer workers run than were asked for, or none at all.

``n_workers`` says how many workers a fit is meant to have. Workers that are still
starting, paused or gone do not count: they get no data, so they would not train.

Remedy: ``clustertune.prepare(client, X, y, n_workers=8)`` scales the cluster and waits;
where the client cannot scale it, start workers by the means with which the cluster was
started, for example ``dask worker tcp://scheduler:8786``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import plural, printable
from clustertune.planner.forecast import wanted_workers


def find(view: View) -> Iterator[Finding]:
    """Find that fewer workers run than the goal asks for."""
    wanted = wanted_workers(view)
    have = sum(w.running for w in view.now.workers)
    if have >= (wanted or 1):
        return
    obstacle = view.now.can_scale
    reason = f"; this client cannot scale it: {printable(obstacle)}" if obstacle else ""
    what = f"{have:,} of {plural(wanted, 'wanted worker')} running" if wanted else ""
    yield Finding(
        severity=Severity.warning if have else Severity.critical,
        message=f"{what or _none(view)}{reason}",
        evidence={"have": have, "wanted": wanted, "can_scale": not obstacle},
    )


def _none(view: View) -> str:
    states = Counter(w.status for w in view.now.workers)
    shown = ", ".join(f"{n:,} {printable(s)}" for s, n in sorted(states.items()))
    return f"no worker is running (workers: {shown or 'none'})"
