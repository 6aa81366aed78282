"""Eval sets of which workers have unlike rows, for a library that needs them alike.

LightGBM scores an eval set on each worker by the rows that lie there, and each decides
by its own score when to stop: where they stop at different rounds the longer one waits
for ever, or fails with ``Socket recv error``. A worker without any row of it raises
``For early stopping, at least one dataset is required``, and the others wait for it.
With all rows on every worker all stop at the same round.

An eval set that is the training data stays as it is: each worker scores its own rows,
and the score that is kept is that of one worker. That is no problem without early
stopping. Early stopping that is set in the estimator is refused with such an eval set;
``prepare`` does not see the callbacks that ``fit`` gets.

Remedy: ``prepare`` with ``eval_set=`` and the estimator copies each eval set to every
worker, and hands back ``.eval_set`` and ``.fit_kwargs``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.planner import layouts


def find(view: View) -> Iterator[Finding]:
    """Find eval sets that are not on every worker that trains."""
    if not view.goal.workload.eval_copies or not view.layouts:
        return
    for name in view.goal.evaluated:
        yield Finding(
            severity=Severity.info,
            message=f"{name} is the training data, of which each worker scores its own "
            f"rows: the score of {view.goal.workload.title} is that of one worker, and "
            "with early stopping the fit would hang",
            subject=(name,),
            remedy="fit without the callback early_stopping, or leave it out of "
            "eval_set; for a score of all rows use model.predict",
        )
    training = view.layouts[0]
    for layout in view.layouts[1:]:
        known = all(x.loaded and x.aligned for x in (training, layout))
        if known and not layouts.are_in_place(layout, view):
            yield Finding(
                severity=Severity.warning,
                message=f"{layout.label} is not on every worker as a whole: with early "
                f"stopping {view.goal.workload.title} would wait for ever",
                subject=tuple(m.label for m in layout.members),
                fixed_by="replicate",
            )
