"""Turn findings into a plan for the first phase that has a step (pure).

A plan covers one phase only, because each phase changes what the next one should do.
After each phase the cluster is inspected again. Actions propose steps, guards refuse
some of them, and every refusal keeps its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clustertune.core.model import Action, Finding, Plan, Refusal, Restart, Step, View
from clustertune.core.wording import workers_text
from clustertune.planner import guards

#: phases in their order; each is named after its action
PHASES = (
    # later phases depend on the number of workers and their memory
    "merge",
    # only after a trim is it known which processes need a restart
    "trim",
    # workers are restarted before they receive data
    "restart",
    # adaptive scaling would remove new workers
    "adapt",
    # all later phases depend on the number of workers
    "scale",
    # data must be in memory before rows are counted and partitions are moved
    "load",
    # partitions are cut and joined on the workers that will train on them
    "rechunk",
    # no later phase moves a partition of the training data
    "rebalance",
    # replicas of eval sets are placed with the training data
    "replicate",
)


def make_plan(
    findings: tuple[Finding, ...], view: View, actions: Mapping[str, Action]
) -> Plan:
    """Plan the first phase that has a step which the guards allow.

    The plan keeps the refused steps of the phases before it, with the reasons.
    ``actions`` are by name, and each phase calls ``propose`` of its action.

    Raises
    ------
    CapacityError, NoWorkersError
        The data of a phase does not fit the workers' memory, or no worker runs.
    """
    refused: list[Refusal] = []
    last = ""
    for name in PHASES:
        steps: list[Step] = []
        proposed = actions[name].propose(findings, view)
        for step, refusal in guards.sort_out(proposed, view):
            last = name
            if refusal is None:
                steps.append(step)
            else:
                refused.append(refusal)
        if steps:
            break
    needs = _needs(view)
    if last == "trim":
        needs = (known_after_trim(actions["restart"].propose(findings, view)), *needs)
    return Plan(
        phase=last,
        steps=tuple(steps),
        refused=tuple(refused),
        needs=needs,
        notes=guards.notes(steps, view),
    )


def known_after_trim(restarts: Iterable[Step]) -> str:
    """Return the note of a dry run about restarts that follow a trim."""
    ids = [s.args.id for s in restarts if isinstance(s.args, Restart)]
    now = f"{workers_text(ids)} now" if ids else "none now"
    return (
        f"memory after the trim: only workers that need it then are restarted ({now})"
    )


def _needs(view: View) -> tuple[str, ...]:
    """Return what a dry run must know to plan further."""
    lazy = [m.label for x in view.layouts for m in x.collections if not m.loaded]
    if not lazy:
        return ()
    return (f"rows, bytes and holders of {', '.join(lazy)}: known once loaded",)
