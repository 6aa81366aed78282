"""From findings to a plan: the first phase that has something to do, and its guards.

Pure. A plan covers one phase only, because what a phase does changes what the next one
should: after each the cluster is looked at again. Actions propose, guards decide, and
every refusal keeps its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clustertune import actions
from clustertune.model import (
    Action,
    Finding,
    Moves,
    Plan,
    Refusal,
    Step,
    Unknown,
    View,
)
from clustertune.wording import names_text

PHASES: tuple[tuple[str, str], ...] = (
    # workers first: everything after depends on how many there are
    ("scale", "scale"),
    # then the data must be there, for its rows to be counted and its pieces moved
    ("persist", "persist"),
    # placing comes last: nothing after it may disturb the place of a piece
    ("place", "rebalance"),
)


def make_plan(
    findings: tuple[Finding, ...],
    view: View,
    available: Mapping[str, Action] | None = None,
) -> Plan:
    """The steps of the first phase that has any, allowed or refused.

    Raises
    ------
    CapacityError, NoWorkersError
        What a phase needs does not fit the workers' memory, or no worker runs.
    """
    known = actions.available() if available is None else available
    for phase, name in PHASES:
        proposed = list(known[name].propose(findings, view))
        if proposed:
            return _judge(phase, proposed, view)
    return Plan(needs=_needs(view))


def _judge(phase: str, proposed: list[Step], view: View) -> Plan:
    refused = [r for step in proposed if (r := refusal(step, view)) is not None]
    rejected = [r.step for r in refused]
    return Plan(
        phase=phase,
        steps=tuple(s for s in proposed if s not in rejected),
        refused=tuple(refused),
        needs=_needs(view),
    )


def _needs(view: View) -> tuple[str, ...]:
    """What a dry run would have to learn to plan further."""
    lazy = [m.label for x in view.layouts for m in x.members if not m.loaded]
    if not lazy:
        return ()
    return (f"rows, bytes and places of {', '.join(lazy)}: known once loaded",)


def refusal(step: Step, view: View) -> Refusal | None:
    """The first guard that forbids the step, asked again just before it is enacted."""
    for guard in GUARDS:
        reason = guard(step, view)
        if reason is not None:
            return Refusal(step=step, guard=guard.__name__, reason=reason)
    return None


# --- guards: (step, view) -> why not, or None -----------------------------------------


def targets_still_run(step: Step, view: View) -> str | None:
    """A piece sent to a worker that is gone or paused would lie idle, or be lost."""
    if not isinstance(step.args, Moves):
        return None
    workers = {w.address: w for w in view.now.workers}
    used = {i for m in step.args.moves for i in m.targets.tolist()}
    addresses = [step.args.workers[i] for i in sorted(used)]
    away = [a for a in addresses if a not in workers or not view.eligible(workers[a])]
    return f"{names_text(away)} no longer runs" if away else None


def pieces_are_in_memory(step: Step, view: View) -> str | None:
    """A plan that was made while a piece is being computed again would be wrong."""
    if not isinstance(step.args, Moves):
        return None
    for layout in view.layouts:
        for m in layout.members:
            there = set() if m.holders is None else set(m.holders[0].tolist())
            if m.loaded and len(there) < len(m.keys):
                return f"{len(m.keys) - len(there)} pieces of {m.label} are not there"
    return None


def thresholds_are_known(step: Step, view: View) -> str | None:
    """Filling a worker whose limits are not known might make it spill or pause."""
    if not isinstance(step.args, Moves):
        return None
    by_address = {w.address: w for w in view.now.workers}
    used = {i for m in step.args.moves for i in m.targets.tolist()}
    for address in (step.args.workers[i] for i in sorted(used)):
        worker = by_address.get(address)
        if worker is not None and isinstance(worker.thresholds, Unknown):
            return f"thresholds of {names_text([worker.id])}: {worker.thresholds}"
    return None


GUARDS: tuple[Callable[[Step, View], str | None], ...] = (
    targets_still_run,
    pieces_are_in_memory,
    thresholds_are_known,
)
