"""From findings to a plan: the first phase that has something to do.

Pure. A plan covers one phase only, because what a phase does changes what the next one
should: after each the cluster is looked at again. Actions propose, guards decide, and
every refusal keeps its reason.
"""

from __future__ import annotations

from clustertune import actions
from clustertune.model import Finding, Plan, Refusal, Step, View
from clustertune.plans import guards

PHASES: tuple[tuple[str, str], ...] = (
    # processes that have to be new are so before anything is given to them
    ("restart", "restart"),
    # a cluster that scales by itself would take workers away again
    ("adapt", "adapt"),
    # everything after depends on how many workers there are
    ("scale", "scale"),
    # then the data must be there, for its rows to be counted and its pieces moved
    ("persist", "persist"),
    # whatever is cut and placed then is so in the order that rows are to have
    ("reorder", "reorder"),
    # pieces are cut and joined on the workers that will train on them
    ("cut", "rechunk"),
    # nothing after it may disturb the place of a piece
    ("place", "rebalance"),
    # copies of eval sets lie beside the training data
    ("replicate", "replicate"),
)


def make_plan(findings: tuple[Finding, ...], view: View) -> Plan:
    """The steps of the first phase that has any that is allowed.

    What was refused in the phases before it is kept, with the reasons.

    Raises
    ------
    CapacityError, NoWorkersError
        What a phase needs does not fit the workers' memory, or no worker runs.
    """
    known = actions.available()
    refused: list[Refusal] = []
    last = ""
    for phase, name in PHASES:
        if not view.goal.allows(name):
            continue
        steps: list[Step] = []
        proposed = known[name].propose(findings, view)
        for step, no in guards.sort_out(proposed, view):
            last = phase
            if no is None:
                steps.append(step)
            else:
                refused.append(no)
        if steps:
            break
    return Plan(
        phase=last, steps=tuple(steps), refused=tuple(refused), needs=_needs(view)
    )


def _needs(view: View) -> tuple[str, ...]:
    """What a dry run would have to learn to plan further."""
    lazy = [m.label for x in view.layouts for m in x.members if not m.loaded]
    if not lazy:
        return ()
    return (f"rows, bytes and places of {', '.join(lazy)}: known once loaded",)
