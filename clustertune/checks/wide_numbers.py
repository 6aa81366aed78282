"""Numbers that are wider than what the training library keeps of them.

XGBoost keeps features as float32: float64 pieces take twice the memory on the workers
and twice the time to move, and the model is the same. Said where it would matter.

Remedy: ``X, y = clustertune.prepare(client, X, y, dtype="float32")`` casts while pieces
are loaded or cut; or ``X = X.astype("float32")``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, Unknown, View
from clustertune.core.wording import bytes_text
from clustertune.planner.layouts import member_bytes


def find(view: View, *, least: float = 2**30) -> Iterator[Finding]:
    """Find features in numbers that the library makes narrower.

    Parameters
    ----------
    view
        What is seen.
    least
        Bytes of features below which nothing is said.
    """
    kept = view.goal.workload.feature_bytes
    if kept is None or not view.layouts:
        return
    X = view.layouts[0].members[0]
    size = member_bytes(X)
    if isinstance(size, Unknown) or X.itemsize is None:
        return
    if X.itemsize > kept and size > least:
        spared = size - size * kept // X.itemsize
        yield Finding(
            severity=Severity.info,
            message=f"{X.label} has numbers of {X.itemsize} bytes, of which "
            f"{view.goal.workload.title} keeps {kept}: up to {bytes_text(spared)} less "
            "would do",
            subject=(X.label,),
            evidence={"itemsize": X.itemsize, "kept": kept, "bytes": spared},
        )
