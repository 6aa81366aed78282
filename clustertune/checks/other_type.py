"""Collections that are of another kind or number type than was asked for.

``to="array"`` asks for arrays in place of frames, ``dtype="float32"`` for features of
that type. Both change while pieces are loaded or cut, which takes no pass of its own.
Libraries that train on the codes of categories need the same list of them everywhere;
LightGBM makes one array of all columns, which one of int64 among float32 would make
float64: it is cast where no number changes.

Remedy: ``X, y = clustertune.prepare(client, X, y, to="array", dtype="float32")``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View


def find(view: View) -> Iterator[Finding]:
    """Find members that have to become something else."""
    for member in (m for layout in view.layouts for m in layout.members):
        wanted = member.conversion
        if wanted is not None:
            yield Finding(
                severity=Severity.info,
                message=f"{member.label} is not {wanted}",
                subject=(member.label,),
                evidence={
                    "kind": member.kind,
                    "wanted": wanted.kind,
                    "dtype": wanted.dtype,
                },
                fixed_by="rechunk",
            )
