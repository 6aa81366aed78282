"""Carries out a plan, step by step: look again, act, say what it took.

Besides the resident, which acts for it, the executor is the only part that changes
workers or the place of data; ``reset`` alone makes another cluster. What a step could
not do is in its outcome, not hidden in a log; whether the cluster is now as it should
be is seen by looking again.
"""

from __future__ import annotations

from collections.abc import Callable

from clustertune import actions
from clustertune.actions import restart
from clustertune.core.model import (
    Cluster,
    Notify,
    Outcome,
    Plan,
    Result,
    Step,
    View,
    landed,
)
from clustertune.operations import approval
from clustertune.operations.journal import error_text
from clustertune.planner import guards

Clock = Callable[[], float]


async def execute(
    plan: Plan,
    view: View,
    cluster: Cluster,
    *,
    notify: Notify,
    clock: Clock,
    record: Callable[[Outcome], None],
) -> None:
    """Enact the steps of a plan in order.

    Parameters
    ----------
    plan, view
        The plan, and the view that it was made from.
    cluster
        The port.
    notify, clock
        Told of progress; seconds, for what a step took.
    record
        Given the outcome of each step as soon as it is known, also of one that fails
        or is interrupted, before its error goes on.
    """
    for number, step in enumerate(plan.steps):
        if number:
            view = await cluster.look(notify)
        needless = restart.needless(step, view)
        if needless:
            record(Outcome(step=step, status="not needed", reason=needless))
            continue
        approval.of_step(view, step)
        refused = guards.refusal(step, view)
        if refused is not None:
            record(Outcome(step=step, status="skipped", reason=refused.reason))
            continue
        await _enact(step, cluster, notify, clock, record)


async def _enact(
    step: Step,
    cluster: Cluster,
    notify: Notify,
    clock: Clock,
    record: Callable[[Outcome], None],
) -> None:
    start = clock()
    notify(step.summary, None)
    try:
        result = await actions.available()[step.action].enact(step, cluster, notify)
    except BaseException as error:
        known = landed(error)
        took, text = clock() - start, error_text(error)
        if known is None:
            record(Outcome(step=step, status="failed", seconds=took, reason=text))
        else:
            record(_outcome(step, known, took, text))
        raise
    record(_outcome(step, result, clock() - start))


def _outcome(step: Step, result: Result, seconds: float, error: str = "") -> Outcome:
    """What became of a step; ``error`` has interrupted it."""
    status = "partly" if result.undone else "done"
    reason = result.undone or result.said
    if result.undone and result.unchanged:
        status, reason = "skipped", f"{error}, and undone" if error else reason
    return Outcome(
        step=step,
        status=status,
        seconds=seconds,
        nbytes=result.nbytes,
        reason=reason,
        count=result.count,
        lost=result.lost,
        measured=result.measured,
    )
