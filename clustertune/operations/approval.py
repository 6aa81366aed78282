"""Who is asked before anything is done, where a plan was made earlier.

What was planned is carried out by the same code as the call that it stands for. That
code says here what it has seen and means to do: as soon as it has a plan, and before
each step. Whoever is asked raises where it is not what was planned, which stops the
call as any other error does.

It is asked for the time of a block and in the task that runs it, as one call may make
others (that for published data calls ``prepare``), and none of them has anything to do
with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from clustertune.core.model import Finding, Plan, Step, View


class Approval(Protocol):
    """Whoever is asked."""

    def plan(self, view: View, found: tuple[Finding, ...], plan: Plan) -> None:
        """Nothing of this plan was done yet; more may follow from what it does."""

    def step(self, view: View, step: Step) -> None:
        """It is about to be done to what was seen just now."""


_asked: ContextVar[Approval | None] = ContextVar("approval", default=None)


@contextmanager
def asking(approval: Approval) -> Iterator[None]:
    """Have this one asked by what is called in the block."""
    token = _asked.set(approval)
    try:
        yield
    finally:
        _asked.reset(token)


def of_plan(view: View, found: tuple[Finding, ...], plan: Plan) -> None:
    """Ask for a plan; raises what whoever is asked raises."""
    asked = _asked.get()
    if asked is not None:
        asked.plan(view, found, plan)


def of_step(view: View, step: Step) -> None:
    """Ask for a step; raises what whoever is asked raises."""
    asked = _asked.get()
    if asked is not None:
        asked.step(view, step)
