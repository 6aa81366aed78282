"""Collections that are of another kind or number type than was asked for.

``to="array"`` asks for arrays in place of frames, ``dtype="float32"`` for features of
that type. Both change while pieces are loaded or cut, which takes no pass of its own.

Remedy: ``X, y = clustertune.prepare(client, X, y, to="array", dtype="float32")``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.model import Finding, Severity, View


def find(view: View) -> Iterator[Finding]:
    """Find members that have to become something else."""
    for member in (m for layout in view.layouts for m in layout.members):
        wanted = member.conversion
        if wanted is not None:
            yield Finding(
                severity=Severity.info,
                message=f"{member.label} is not {wanted}, which was asked for",
                subject=(member.label,),
                evidence={
                    "kind": member.kind,
                    "wanted": wanted.kind,
                    "dtype": wanted.dtype,
                },
                fixed_by="rechunk",
            )
