"""X, y and their companions that are not cut at the same rows.

Training libraries join X_i with y_i by the number of the partition. With equal numbers
but other rows, XGBoost off the ``hist`` path and LightGBM can train on labels of other
rows without an error. An XGBoost model so trained had an error of 2.47, not 0.13.

Rows of data that is not loaded are mostly unknown, and Dask's count of its partitions
may change when it is loaded. Such data is compared after loading.

Remedy: ``X, y = clustertune.prepare(client, X, y)`` cuts y and companions where X is;
by hand, for arrays, ``y = y.rechunk({0: X.chunks[0]})``. Where the numbers of rows
differ no cut is right: make X and y from the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.core.model import Finding, Layout, Member, Severity, View
from clustertune.core.wording import names_text, plural, variable
from clustertune.errors import AlignmentError

ERROR = AlignmentError


def find(view: View) -> Iterator[Finding]:
    """Find members whose rows are cut, or counted, otherwise than the first's."""
    for layout in view.layouts:
        known = [m for m in layout.members if m.rows is not None]
        first, *_ = known or layout.members
        for other in layout.members:
            if first.rows is not None and other.rows is not None:
                yield from _compare(first, other, view.goal.cutting)
            elif first.loaded and other.loaded and first.n_pieces != other.n_pieces:
                yield _uncounted(first, other)
        if len(known) < len(layout.members) > 1:
            yield _unknown(layout)


def _compare(a: Member, b: Member, cutting: str) -> Iterator[Finding]:
    """Compare piece by piece and in total."""
    rows, others = a.rows, b.rows
    if rows is None or others is None or np.array_equal(rows, others):
        return
    total, total_b = int(rows.sum()), int(others.sum())
    cut, cut_b = rows.tolist(), others.tolist()
    longest = max(len(cut), len(cut_b))
    piece = next(i for i in range(longest) if cut[i : i + 1] != cut_b[i : i + 1])
    same = f"{a.label} and {b.label} have {total:,} rows each, cut at other places"
    differ = f"{a.label} has {plural(total, 'row')}, {b.label} has {total_b:,}"
    first = [f"{c[piece]:,} rows" if piece < len(c) else "none" for c in (cut, cut_b)]
    yield Finding(
        severity=Severity.critical,
        message=f"{same if total == total_b else differ}; the first piece that differs "
        f"is number {piece}: {first[0]} in {a.label}, {first[1]} in {b.label}",
        subject=(a.label, b.label),
        evidence={
            "piece": piece,
            "rows": total,
            "other_rows": total_b,
            "same_total": total == total_b,
            "pieces": len(cut),
            "other_pieces": len(cut_b),
        },
        remedy=_remedy(a, b)
        if total == total_b
        else f"no cut is right: make {a.label} and {b.label} from the same rows",
        fixed_by=cutting if total == total_b else "",
    )


def _uncounted(a: Member, b: Member) -> Finding:
    return Finding(
        severity=Severity.critical,
        message=f"pieces: {a.n_pieces:,} of {a.label}, {b.n_pieces:,} of {b.label}",
        subject=(a.label, b.label),
        evidence={"pieces": a.n_pieces, "other_pieces": b.n_pieces},
        remedy=_remedy(a, b),
    )


def _unknown(layout: Layout) -> Finding:
    labels = tuple(m.label for m in layout.members if m.rows is None)
    when = "could not be counted" if layout.loaded else "are learned after loading"
    return Finding(
        severity=Severity.unknown,
        message=f"whether the {layout.label} is cut at the same rows is unknown: "
        f"rows of {names_text(labels)} {when}",
        subject=labels,
    )


def _remedy(a: Member, b: Member) -> str:
    """What to type for these kinds; empty: the remedy of the page."""
    x, y = variable(a.label), variable(b.label)
    lengths = f"tuple({x}.map_partitions(len).compute())"
    chunks = f"{x}.chunks[0]" if a.kind == "array" else lengths
    return f"{y} = {y}.rechunk({{0: {chunks}}})" if b.kind == "array" else ""
