"""Seconds that moves and cuts take, from bytes and measured bandwidths (pure).

A :class:`Flow` has the bytes that each worker receives, sends and copies in a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustertune.core.model import Flow, Int64s, Layout, Member, Recut, View
from clustertune.planner.moving import Targets, travelling
from clustertune.planner.sizes import list_bytes, part_bytes

#: bytes per second that one thread copies, page faults included
COPYING = 1e9
MOVE = 0.04  # seconds that any move takes: cycles of the mover, and questions to it
GRAPH = 0.035  # seconds that any graph takes, and the questions about it
#: seconds for each part of an old piece, beside its bytes: the scheduler's, which has a
#: dependency more, and a worker's, which cuts it; as many tiny pieces took to be joined
ARRAY_PART, FRAME_PART = 1.6e-4, 3.5e-4


def seconds(flow: Flow, view: View) -> float | None:
    """Return the seconds of the busiest worker; None: no bandwidth is known."""
    bandwidth = np.array([w.bandwidth for w in view.now.workers], dtype=np.float64)
    travels = np.maximum(flow.into, flow.out)
    if travels[bandwidth == 0].any():
        return None
    transfers = travels / np.where(bandwidth == 0, 1.0, bandwidth)
    return flow.seconds + float((transfers + flow.made / COPYING).max(initial=0.0))


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
