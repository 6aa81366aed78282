"""Query groups that are larger than any worker has room for.

The rows of a group are needed on one worker, so the largest group decides how much
memory a worker must have, however many workers there are.

Remedy: workers with more memory, ``clustertune.resize(client, memory_limit="16 GiB")``;
or make the data smaller, for example with ``dtype="float32"``; or leave rows of that
group out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import bytes_text, printable
from clustertune.errors import GroupSplitError
from clustertune.planner import grouping, layouts
from clustertune.planner.memory import room

ERROR = GroupSplitError


def find(view: View) -> Iterator[Finding]:
    """Find that the largest group fits no worker."""
    rooms = room(view)[layouts.weights(view) > 0]
    for layout in view.layouts if view.goal.workload.groups else ():
        groups = grouping.of(layout)
        if groups is None or not layout.loaded or not len(rooms):
            continue
        rows = np.unique(groups.values, return_inverse=True)[1].reshape(-1)
        sizes = np.bincount(rows, groups.counts)
        nbytes = sizes.max() * layout.nbytes / max(1, groups.counts.sum())
        if nbytes <= rooms.max():
            continue
        name = printable(str(groups.values[rows == sizes.argmax()][0]), longest=40)
        yield Finding(
            severity=Severity.critical,
            message=f"the group {name} of {groups.label} has {int(sizes.max()):,} rows "
            f"({bytes_text(nbytes)}), and no worker has more room than "
            f"{bytes_text(rooms.max())} below the lines at which it spills",
            subject=(groups.label,),
            evidence={"rows": int(sizes.max()), "bytes": round(nbytes)},
        )
