"""Give every worker all rows of each eval set.

Some libraries score eval sets on each worker separately. With different rows, workers
would stop at different rounds, and the fit would hang. Such a library pairs the i-th
partitions of eval set and training data. So the eval set gets as many partitions as the
training data: the first one on each worker has all rows, the others have none. No data
is at risk: the given partitions stay in place.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.actions import by_port
from clustertune.core.model import (
    Cut,
    Finding,
    Int64s,
    Layout,
    Price,
    Rechunk,
    Step,
    View,
)
from clustertune.core.wording import bytes_text, plural
from clustertune.errors import CapacityError
from clustertune.planner import layouts
from clustertune.planner.layouts import held_bytes
from clustertune.planner.memory import free_memory


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose one step for each eval set that is not on every worker.

    Raises ``CapacityError`` if the replicas do not fit below the thresholds at which
    workers spill.
    """
    wrong = [f for f in findings if f.fixed_by == "replicate"]
    n_workers = len(view.now.workers)
    left = free_memory(view) - held_bytes(view.layouts, n_workers)
    for layout in view.layouts[1:]:
        labels = set(layout.labels)
        if all(labels.isdisjoint(f.subject) for f in wrong):
            continue
        first = layouts.first_partitions(view)
        home = layouts.home_workers(view.layouts[0], n_workers)
        nbytes = layout.nbytes // layouts.copies(layout)
        lacking = [i for i in home[first].tolist() if left[i] < nbytes]
        if lacking:
            raise CapacityError(
                f"{view.goal.workload.title} needs {layout.label} "
                f"({bytes_text(nbytes)}) on every worker, but it does not fit below "
                f"the thresholds at which {plural(len(lacking), 'worker')} would "
                "spill. Give fewer rows, or workers with more memory"
            )
        left[home[first]] -= nbytes
        yield _step(layout, view, first, home)


def _step(layout: Layout, view: View, first: Int64s, home: Int64s) -> Step:
    one = layouts.original(layout)
    rows = np.zeros(len(home), dtype=np.int64)
    rows[first] = sum(stop - start for _, start, stop in one)
    nothing = ((one[0][0], 0, 0),)
    parts = [
        (new, key, start, stop)
        for new, n in enumerate(rows.tolist())
        for key, start, stop in (one if n else nothing)
    ]
    new, key, start, stop = np.array(parts, dtype=np.int64).T
    cuts = tuple(
        Cut(
            label=m.label,
            keys=m.keys,
            new=new,
            key=key,
            start=start,
            stop=stop,
            owner=layouts.owners(m, view)[key],
        )
        for m in layout.collections
    )
    nbytes = layout.nbytes // layouts.copies(layout)
    recut = Rechunk(
        workers=tuple(w.address for w in view.now.workers),
        rows=rows,
        targets=home,
        cuts=cuts,
        copies=len(first),
    )
    received, _ = layouts.recut_bytes(recut, layout.collections)
    return Step(
        action="replicate",
        summary=f"copy all of {layout.label} ({bytes_text(nbytes)}) to each of "
        f"{plural(len(first), 'worker')}",
        price=Price(
            nbytes=int(received.sum()),
            peak=nbytes,
        ),
        gain="all workers have the same score, and stop at the same round",
        args=recut,
    )


enact = by_port("rechunk")
