"""Restart all workers at once and lose their data, on request only.

This is the fastest way to clean processes. All clients lose their data on the cluster,
and published names are removed. The step lists both first. Data of other clients needs
the caller's consent.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.actions import by_port
from clustertune.actions.restart import WAIT
from clustertune.core.model import Drop, Finding, Price, Step, View
from clustertune.core.wording import plural
from clustertune.planner.guards import at_risk


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose nothing: no finding justifies the loss of all data."""
    yield from ()


def steps(
    view: View, *, wait: float = WAIT, include_other_clients: bool = False
) -> Iterator[Step]:
    """Return one step for all workers."""
    workers = {w.address: w.id for w in view.now.workers}
    if not workers:
        return
    risk = at_risk(view.now.key_groups or ())
    others = include_other_clients
    args = Drop(workers=workers, wait=wait, include_other_clients=others)
    yield Step(
        action="drop",
        summary=f"restart all {plural(len(workers), 'worker')} at once",
        price=Price(nbytes=0, at_risk=risk),
        gain="all processes are new",
        args=args,
    )


enact = by_port("drop")
