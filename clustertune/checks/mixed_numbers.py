"""Frames in which a few columns of wide numbers widen all others.

Training libraries make one array of all columns of a piece. Among columns of float32
one of int64 or float64 makes that array float64: twice the memory, at the moment when
memory is shortest.

Remedy: ``X, y = clustertune.prepare(client, X, y, dtype="float32")``, or cast those
columns, ``X = X.astype({"column": "float32"})``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Member, Severity, View
from clustertune.core.wording import plural, printable

WIDE = frozenset(("int32", "int64", "uint32", "uint64", "float64"))  # with float32


def find(view: View) -> Iterator[Finding]:
    """Find frames of mostly float32 with some wide columns."""
    for member in (m for x in view.layouts for m in x.members):
        wide = [(name, *found) for name, found in member.types.items() if name in WIDE]
        count = sum(n for _, n, _ in wide)
        narrow = _count(member, "float32")
        if member.kind == "dataframe" and 0 < count < narrow:
            dtype, _, column = wide[0]
            yield Finding(
                severity=Severity.info,
                message=f"{member.label} has {plural(narrow, 'column')} of float32 and "
                f"{count:,} of wider numbers ({printable(column, longest=40)}: "
                f"{dtype}): as one array all of them are float64",
                subject=(member.label,),
                evidence={"float32": narrow, "wider": count},
            )


def _count(member: Member, name: str) -> int:
    return member.types[name][0] if name in member.types else 0
