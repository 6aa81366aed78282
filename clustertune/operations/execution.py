"""Carry out a plan step by step: look again, check the guards, act, note the outcome.

Outcomes list what a step could not do. Only another look shows whether the cluster is
fine afterwards.

A plan that was made earlier is carried out by the same code as a direct call. Its
:class:`Approval` compares: :func:`approve_plan` and :func:`approve_step` pass it what
was seen and planned, and it raises where that differs. It applies to one task only,
because a call may make further calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from clustertune import actions
from clustertune.core.model import (
    Cluster,
    Finding,
    Notify,
    Outcome,
    Plan,
    Result,
    Step,
    View,
    landed,
)
from clustertune.operations.journal import error_text
from clustertune.planner import guards

Clock = Callable[[], float]
Record = Callable[[Outcome], None]


# --- approval -------------------------------------------------------------------------


class Approval(Protocol):
    """Compares a call with a plan that was made earlier; raises where they differ."""

    def plan(self, view: View, found: tuple[Finding, ...], plan: Plan) -> None:
        """Check a plan before its first step; further plans may follow."""

    def step(self, view: View, step: Step) -> None:
        """Check a step against the last view, just before it is carried out."""


_approval: ContextVar[Approval | None] = ContextVar("approval", default=None)


@contextmanager
def asking(approval: Approval) -> Iterator[None]:
    """Have this approval check all plans and steps of calls in the block."""
    token = _approval.set(approval)
    try:
        yield
    finally:
        _approval.reset(token)


def approve_plan(view: View, found: tuple[Finding, ...], plan: Plan) -> None:
    """Pass a plan to the approval of this task, if there is one."""
    approval = _approval.get()
    if approval is not None:
        approval.plan(view, found, plan)


def _approve_step(view: View, step: Step) -> None:
    approval = _approval.get()
    if approval is not None:
        approval.step(view, step)


# --- execution ------------------------------------------------------------------------


async def execute(
    plan: Plan,
    view: View,
    cluster: Cluster,
    *,
    notify: Notify,
    clock: Clock,
    record: Record,
) -> None:
    """Carry out the steps of a plan in order.

    Parameters
    ----------
    plan, view
        The plan, and the view from which it was made.
    cluster
        The port.
    notify, clock
        Shows progress; returns seconds, to time each step.
    record
        Called with the outcome of each step as soon as it is known, also before the
        error of a step that fails or is interrupted is raised.
    """
    for number, step in enumerate(plan.steps):
        if number:
            view = await cluster.look(notify)
        needless = actions.needless(step, view)
        if needless:
            record(Outcome(step=step, status="not needed", reason=needless))
            continue
        _approve_step(view, step)
        refused = guards.refusal(step, view)
        if refused is not None:
            record(Outcome(step=step, status="skipped", reason=refused.reason))
            continue
        await _enact(step, cluster, notify, clock, record)


async def _enact(
    step: Step, cluster: Cluster, notify: Notify, clock: Clock, record: Record
) -> None:
    start = clock()
    notify(step.summary, None)
    try:
        result = await actions.available()[step.action].enact(step, cluster, notify)
    except BaseException as error:
        known = landed(error)
        seconds, text = clock() - start, error_text(error)
        if known is None:
            record(Outcome(step=step, status="failed", seconds=seconds, reason=text))
        else:
            record(_outcome(step, known, seconds, text))
        raise
    record(_outcome(step, result, clock() - start))


def _outcome(step: Step, result: Result, seconds: float, error: str = "") -> Outcome:
    """The outcome of a step; ``error`` has interrupted it."""
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
