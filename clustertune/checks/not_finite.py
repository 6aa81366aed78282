"""Labels that are lacking, and values that are infinite.

XGBoost stops at an infinite feature or label, LightGBM and the linear models train on
it, to a model of NaN. A label that is lacking is never right, and LightGBM's regressor
trains on those of frames without a word. Features that are lacking are right: XGBoost
and LightGBM treat them as such. Looked for with ``deep=True``, as it reads all data,
and in labels where ``prepare`` reads them anyway, as for LightGBM.

Remedy: drop rows without a label from X, y and all companions together. Infinite
features: ``X = X.replace([np.inf, -np.inf], np.nan)`` for frames, ``da.where`` for
arrays.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Member, Severity, View
from clustertune.core.wording import plural


def find(view: View) -> Iterator[Finding]:
    """Find values that no fit can use."""
    for member in (m for x in view.layouts for m in x.members):
        lacking, infinite = _count(member)
        is_label = member.label.rpartition(".")[2] == "y"
        if lacking and is_label:
            yield _finding(member, Severity.critical, lacking, "lacking label")
        if infinite:
            yield _finding(member, Severity.warning, infinite, "infinite value")


def _count(member: Member) -> tuple[int, int]:
    found = [
        piece["not_finite"]
        for piece in (member.contents.pieces if member.contents else ())
        if "not_finite" in piece
    ]
    return sum(n for n, _ in found), sum(n for _, n in found)


def _finding(member: Member, severity: Severity, count: int, what: str) -> Finding:
    return Finding(
        severity=severity,
        message=f"{member.label} has {plural(count, what)}",
        subject=(member.label,),
        evidence={"count": count},
    )
