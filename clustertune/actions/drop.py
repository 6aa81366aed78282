"""Restart all workers at once and lose what they hold; only where that is asked for.

The quick way to clean processes when the data is not needed, or can be loaded again.
All clients lose what they have on the cluster, and published names are removed with
their data. Both are listed first. Data of other clients needs the caller's consent.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.actions.release import nbytes_text, whose
from clustertune.actions.restart import WAIT, start_seconds
from clustertune.model import (
    Cluster,
    Drop,
    Finding,
    Holding,
    Notify,
    Price,
    Result,
    Step,
    View,
)
from clustertune.wording import names_text, plural


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """None: nothing that is found is worth all data."""
    yield from ()


def steps(
    view: View,
    *,
    wait: float = WAIT,
    include_other_clients: bool = False,
) -> Iterator[Step]:
    """One step for all workers."""
    workers = {w.address: w.id for w in view.now.workers}
    if not workers:
        return
    holdings = view.now.holdings or ()
    yield Step(
        action="drop",
        summary=f"restart all {plural(len(workers), 'worker')} at once",
        price=Price(
            nbytes=0, seconds=start_seconds(view.now), at_risk=at_risk(holdings)
        ),
        gain="processes that are new",
        args=Drop(
            workers=workers,
            wait=wait,
            include_other_clients=include_other_clients,
        ),
    )


def at_risk(holdings: tuple[Holding, ...]) -> str:
    """What will be lost, in words."""
    holdings = tuple(h for h in holdings if h.keys)
    if not holdings:
        return "nothing: no data is in memory"
    most = sorted(holdings, key=lambda h: -h.nbytes)
    prefixes = list(dict.fromkeys(h.prefix for h in most if h.prefix))
    text = (
        f"{plural(sum(h.keys for h in holdings), 'key')} ({nbytes_text(holdings)}), "
        f"named {names_text(prefixes, most=5)}"
    )
    scattered = sum(h.scattered for h in holdings)
    text += f"; {scattered:,} of them were scattered" if scattered else ""
    others = [h for h in holdings if not h.alone]
    text += f"; {nbytes_text(others)} are those which {whose(others)}" if others else ""
    names = sorted({n for h in holdings for n in h.published})
    if names:
        text += f"; the published {names_text(names, most=5)} will be unpublished"
    return text


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Restart them, as the resident carries it out."""
    assert isinstance(step.args, Drop)
    return await cluster.drop(step.args, notify)
