"""Data that is prepared for any library, where some need more.

Without ``estimator=`` or ``workload=`` rows lie evenly and pairs together, which is all
that most libraries need. LightGBM's classifier needs every class on every worker, and a
ranking needs groups that are whole and in order; where they are not, those libraries
train a wrong model and say nothing.

Remedy: ``clustertune.prepare(client, X, y, estimator=model)``, or the name of one, as
``workload="lightgbm"``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View


def find(view: View) -> Iterator[Finding]:
    """Find that nothing says what will train, where that matters."""
    if view.goal.chosen or not view.layouts:
        return
    groups = any(m.label == "qid" for m in view.layouts[0].members)
    if not groups and "lightgbm" not in view.goal.imported:
        return
    why = "LightGBM's classifier needs every class on every worker"
    if groups:
        why = "a ranking needs query groups that are whole and in order"
    yield Finding(
        severity=Severity.warning if groups else Severity.info,
        message=f"prepared for any library, and {why}: pass estimator=",
    )
