"""Restart workers at once and lose their data and tasks, on request only.

This is the fastest way to clean processes, and ends tasks that never end by themselves.
With all workers all clients lose their data on the cluster, and published names are
removed. The step lists both first. With some workers Dask computes their keys again,
except scattered ones. Data of other clients needs the caller's consent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from clustertune.actions import by_port
from clustertune.core.model import Drop, Finding, Price, Step, View
from clustertune.core.wording import plural, workers_text
from clustertune.planner.guards import at_risk


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose nothing: no finding justifies the loss of all data."""
    yield from ()


def steps(
    view: View,
    ids: Collection[str | int],
    *,
    wait: float = 0.0,
    include_other_clients: bool = False,
) -> Iterator[Step]:
    """Return one step for these workers.

    With all workers it also ends the parking workers that earlier restarts left.
    """
    real = [w for w in view.now.workers if not w.parking]
    workers = {w.address: w.id for w in view.now.workers if w.id in ids}
    every = all(w.address in workers for w in real)
    if every:
        workers = {w.address: w.id for w in real}
    if not workers:
        return
    args = Drop(
        workers=workers,
        all=every,
        wait=wait,
        include_other_clients=include_other_clients,
    )
    which = f"all {plural(len(workers), 'worker')}"
    if every:
        risk = at_risk(view.now.key_groups or ())
    else:
        which = workers_text(list(workers.values()))
        held = [view.now.by_address[a].held_data for a in workers]
        scattered = sum(data.scattered for data in held if data is not None)
        risk = (
            f"{plural(scattered, 'scattered key')}; Dask computes other keys again, "
            "and running tasks are cancelled"
        )
    yield Step(
        action="drop",
        summary=f"restart {which} at once",
        price=Price(nbytes=0, at_risk=risk),
        gain="all processes are new",
        args=args,
    )


enact = by_port("drop")
