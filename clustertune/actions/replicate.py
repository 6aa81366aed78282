"""Give every worker the whole of each eval set, beside its training data.

For libraries that score eval sets on each worker by itself and stop when their own
score does: with other rows each would stop at another round, and the fit would wait for
ever. Such a library joins the pieces of an eval set on a worker, and takes the i-th
beside the i-th of the training data; so the eval set gets as many pieces as that, of
which the first on each worker has all rows and the others none.

Nothing is at risk: the pieces that were given stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.core.model import (
    Cluster,
    Cut,
    Finding,
    Int64s,
    Layout,
    Notify,
    Price,
    Recut,
    Result,
    Step,
    View,
)
from clustertune.core.wording import bytes_text, plural
from clustertune.errors import CapacityError
from clustertune.planner import layouts, pricing
from clustertune.planner.layouts import held_bytes
from clustertune.planner.memory import room


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """One step for each eval set that is not on every worker.

    Raises
    ------
    CapacityError
        The copies do not fit below the lines at which workers spill.
    """
    wrong = [f for f in findings if f.fixed_by == "replicate"]
    n_workers = len(view.now.workers)
    left = room(view) - held_bytes(view.layouts, n_workers)
    for layout in view.layouts[1:]:
        labels = {m.label for m in layout.members}
        if all(labels.isdisjoint(f.subject) for f in wrong):
            continue
        first = layouts.first_pieces(view)
        home = layouts.homes(view.layouts[0], n_workers)
        nbytes = layout.nbytes // layouts.copies(layout)
        lacking = [i for i in home[first].tolist() if left[i] < nbytes]
        if lacking:
            raise CapacityError(
                f"{layout.label} ({bytes_text(nbytes)}) has to be on every worker for "
                f"{view.goal.workload.title}, and does not fit below the lines at "
                f"which {plural(len(lacking), 'worker')} would spill; give fewer rows "
                "of it, or workers with more memory"
            )
        left[home[first]] -= nbytes
        yield _step(layout, view, first, home)


def _step(layout: Layout, view: View, first: Int64s, home: Int64s) -> Step:
    one = layouts.original(layout)
    rows = np.zeros(len(home), dtype=np.int64)
    total = sum(stop - start for _, start, stop in one)
    rows[first] = total
    cuts = tuple(
        Cut(
            label=m.label,
            keys=m.keys,
            conversion=m.conversion,
            **_parts(one, rows, owners=_holders(m.holders, len(m.keys))),
        )
        for m in layout.members
    )
    nbytes = layout.nbytes // layouts.copies(layout)
    recut = Recut(
        workers=tuple(w.address for w in view.now.workers),
        rows=rows,
        targets=home,
        cuts=cuts,
        copies=len(first),
    )
    flow = pricing.of_recut(recut, layout.members, view)
    return Step(
        action="replicate",
        summary=f"copy all of {layout.label} ({bytes_text(nbytes)}) to each of "
        f"{plural(len(first), 'worker')}",
        price=Price(
            nbytes=int(flow.into.sum()),
            seconds=pricing.seconds(flow, view),
            peak=nbytes,
            flow=flow,
        ),
        gain="all workers have the same score, and stop at the same round",
        args=recut,
    )


def _parts(
    one: tuple[tuple[int, int, int], ...], rows: Int64s, owners: Int64s
) -> dict[str, Int64s]:
    """All rows of the original for each new piece that has any, none for others."""
    nothing = ((one[0][0], 0, 0),)
    parts = [
        (new, key, start, stop)
        for new, n in enumerate(rows.tolist())
        for key, start, stop in (one if n else nothing)
    ]
    new, key, start, stop = np.array(parts, dtype=np.int64).T
    return {
        "new": new,
        "key": key,
        "start": start,
        "stop": stop,
        "owner": owners[key],
    }


def _holders(holders: tuple[Int64s, Int64s] | None, n_keys: int) -> Int64s:
    """A worker that holds each key."""
    assert holders is not None
    found = np.full(n_keys, -1, dtype=np.int64)
    found[holders[0]] = holders[1]
    return found


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Copy, as the port does it."""
    assert isinstance(step.args, Recut)
    return await cluster.recut(step.args, notify)
