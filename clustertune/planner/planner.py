"""From findings to a plan: the first phase that has something to do.

Pure. A plan covers one phase only, because what a phase does changes what the next one
should: after each the cluster is looked at again. Actions propose, guards decide, and
every refusal keeps its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clustertune.core.model import Action, Finding, Plan, Refusal, Restart, Step, View
from clustertune.core.wording import workers_text
from clustertune.planner import guards, interruptions

PHASES: tuple[tuple[str, str], ...] = (
    # whether a process has to be new is known when it has given back what it can
    ("trim", "trim"),
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


def make_plan(
    findings: tuple[Finding, ...], view: View, actions: Mapping[str, Action]
) -> Plan:
    """Plan the first phase that has a step which the guards allow.

    The plan keeps the refused steps of the phases before it, with the reasons.

    Parameters
    ----------
    findings, view
        What the checks have found in this view.
    actions
        By name; the planner calls ``propose`` of the action of each phase.

    Raises
    ------
    CapacityError, NoWorkersError
        What a phase needs does not fit the workers' memory, or no worker runs.
    """
    refused: list[Refusal] = []
    last = ""
    for phase, name in PHASES:
        if not view.goal.allows(name):
            continue
        steps: list[Step] = []
        proposed = actions[name].propose(findings, view)
        for step, no in guards.sort_out(proposed, view):
            last = phase
            if no is None:
                steps.append(step)
            else:
                refused.append(no)
        if steps:
            break
    needs = _needs(view)
    if last == "trim" and view.goal.allows("restart"):
        needs = (known_after_trim(actions["restart"].propose(findings, view)), *needs)
    return Plan(
        phase=last,
        steps=tuple(steps),
        refused=tuple(refused),
        needs=needs,
        notes=interruptions.notes(steps, view),
    )


def known_after_trim(restarts: Iterable[Step]) -> str:
    """What a dry run says of the restarts by need that follow a trim."""
    ids = [s.args.id for s in restarts if isinstance(s.args, Restart)]
    now = f"{workers_text(ids)} now" if ids else "none now"
    return (
        f"memory after the trim: only workers that need it then are restarted ({now})"
    )


def _needs(view: View) -> tuple[str, ...]:
    """What a dry run would have to learn to plan further."""
    lazy = [m.label for x in view.layouts for m in x.members if not m.loaded]
    if not lazy:
        return ()
    return (f"rows, bytes and places of {', '.join(lazy)}: known once loaded",)
