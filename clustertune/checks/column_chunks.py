"""Arrays that are cut by columns too.

A training library takes rows: a piece has all columns of its rows. XGBoost and LightGBM
stop at an array with several blocks of columns; dask-ml's ``Incremental`` trains on the
first block alone and says nothing until ``predict``.

Remedy: ``X, y = clustertune.prepare(client, X, y)`` joins the blocks; before loading
``X = X.rechunk({1: -1})`` does: every block then has all columns.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import variable
from clustertune.errors import AlignmentError

ERROR = AlignmentError


def find(view: View) -> Iterator[Finding]:
    """Find arrays with more than one block of columns."""
    for member in (m for layout in view.layouts for m in layout.members):
        if member.column_blocks > 1:
            name = variable(member.label)
            yield Finding(
                severity=Severity.critical,
                message=f"{member.label} is cut into {member.column_blocks} blocks of "
                "columns; its pieces must have all columns of their rows",
                subject=(member.label,),
                evidence={"column_blocks": member.column_blocks},
                remedy=f"{name} = {name}.rechunk({{1: -1}})",
                fixed_by=view.goal.cutting,
            )
