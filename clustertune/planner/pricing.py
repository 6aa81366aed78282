"""What it takes to move and to cut, from the bytes and how fast workers are (pure).

A step says what travels and is copied on each worker, its :class:`Flow`. Seconds follow
from that and the speeds of workers, which are measured only once a step is planned; so
a plan is priced again then, and not made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clustertune.core.model import Flow, Int64s, Layout, Member, Plan, Recut, Step, View
from clustertune.planner.layouts import Targets, list_bytes, part_bytes, travelling

#: bytes per second that one thread copies where none was timed, page faults included
COPYING = 1e9
MOVE = 0.04  # seconds that any move takes: cycles of the mover, and questions to it
GRAPH = 0.035  # seconds that any graph takes, and the questions about it
#: seconds for each part of an old piece, beside its bytes: the scheduler's, which has a
#: dependency more, and a worker's, which cuts it; as many tiny pieces took to be joined
ARRAY_PART, FRAME_PART = 1.6e-4, 3.5e-4
#: bytes on the busiest links below which workers are not asked how fast they are
ASKING = 2**20
#: and below which nothing is sent to time a link: that would take longer
SENDING = 2**24


def seconds(flow: Flow, view: View) -> float | None:
    """Until the last worker has what it gets; None: no transfer was measured yet."""
    speeds = np.array([w.bandwidth for w in view.now.workers], dtype=np.float64)
    copying = np.array([w.copying or COPYING for w in view.now.workers])
    if not speeds.all():
        return None
    links = np.maximum(flow.into, flow.out) / speeds
    return flow.seconds + float((links + flow.made / copying).max(initial=0.0))


def again(plan: Plan, view: View) -> Plan:
    """The plan with what its steps take on the same workers, now timed."""
    return replace(plan, steps=tuple(_priced(step, view) for step in plan.steps))


def _priced(step: Step, view: View) -> Step:
    flow = step.price.flow
    if flow is None:
        return step
    return replace(step, price=replace(step.price, seconds=seconds(flow, view)))


def worth_timing(plan: Plan) -> list[Flow]:
    """What the steps of a plan send, where that takes longer than asking workers."""
    flows = [s.price.flow for s in plan.steps if s.price.flow is not None]
    return flows if _busiest(flows) >= ASKING else []


def worth_sending(flows: Sequence[Flow]) -> bool:
    """Whether a link is timed with bytes, if workers have nothing to tell."""
    return _busiest(flows) >= SENDING


def _busiest(flows: Sequence[Flow]) -> int:
    """Bytes that the busiest worker of each step receives or sends, in all."""
    return sum(int(np.maximum(f.into, f.out).max(initial=0)) for f in flows)


def of_moves(layout: Layout, view: View, target: Targets) -> Flow:
    """What travels so that the pieces of a layout lie on their targets."""
    into, out = travelling(layout, view, target)
    return Flow(into=into, out=out, made=np.zeros_like(into), seconds=MOVE)


def both(first: Flow, then: Flow) -> Flow:
    """One after the other."""
    return Flow(
        into=first.into + then.into,
        out=first.out + then.out,
        made=first.made + then.made,
        seconds=first.seconds + then.seconds,
    )


def of_recut(recut: Recut, members: Sequence[Member], view: View) -> Flow:
    """What the cuts of ``members``, in this order, send and copy."""
    n_workers, n_tasks = len(view.now.workers), 0
    parts = 0.0
    into, out, made = (np.zeros(n_workers, dtype=np.int64) for _ in range(3))
    for cut, member in zip(recut.cuts, members, strict=True):
        amount = part_bytes(member, cut.key, cut.stop - cut.start)
        target = recut.targets[cut.new]
        away = cut.owner != target
        np.add.at(into, target[away], amount[away])
        np.add.at(out, cut.owner[away], amount[away])
        np.add.at(made, target, amount)
        n_tasks += len(recut.rows)
        parts += len(amount) * (ARRAY_PART if member.kind == "array" else FRAME_PART)
        sent, receiver, more = _bundles(cut.new[away], cut.owner[away], recut.targets)
        np.add.at(into, receiver, more)
        np.add.at(out, sent, more)
        n_tasks += len(more)
    besides = GRAPH + n_tasks * (view.now.overhead or 0.0) + parts
    return Flow(into=into, out=out, made=made, seconds=besides)


def _bundles(
    new: Int64s, owner: Int64s, targets: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """Sender, receiver and bytes of the lists in which parts travel.

    One for each new piece and each worker that sends for it.
    """
    pairs, lengths = np.unique(np.stack((new, owner)), axis=1, return_counts=True)
    return pairs[1], targets[pairs[0]], list_bytes(lengths)
