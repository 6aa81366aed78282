"""Predict the seconds of moves and cuts from bytes and measured bandwidths (pure).

A :class:`Flow` has the bytes that each worker receives, sends and copies in a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustertune.core.model import CollectionInfo, Flow, Layout, Rechunk, View
from clustertune.planner.layouts import Targets, list_bytes, part_bytes, transfers

#: bytes per second that one thread copies, page faults included
COPYING = 1e9
MOVE = 0.04  # seconds that any move takes: cycles of the mover, and requests to it
GRAPH = 0.035  # seconds that any graph takes, with its requests
#: seconds for each part of an old partition, in addition to its bytes: a dependency for
#: the scheduler and a cut on a worker; measured by joining many tiny partitions
ARRAY_PART, FRAME_PART = 1.6e-4, 3.5e-4


def seconds(flow: Flow, view: View) -> float | None:
    """Return the seconds of the busiest worker; None: no bandwidth is known."""
    bandwidth = np.array([w.bandwidth for w in view.now.workers], dtype=np.float64)
    travels = np.maximum(flow.received, flow.sent)
    if travels[bandwidth == 0].any():
        return None
    transfers = travels / np.where(bandwidth == 0, 1.0, bandwidth)
    return flow.seconds + float((transfers + flow.produced / COPYING).max(initial=0.0))


def of_moves(layout: Layout, view: View, target: Targets) -> Flow:
    """Return the flow of moving the partitions of a layout to their targets."""
    into, out = transfers(layout, view, target)
    return Flow(received=into, sent=out, produced=np.zeros_like(into), seconds=MOVE)


def both(first: Flow, then: Flow) -> Flow:
    """Return the sum of two flows."""
    return Flow(
        received=first.received + then.received,
        sent=first.sent + then.sent,
        produced=first.produced + then.produced,
        seconds=first.seconds + then.seconds,
    )


def of_recut(recut: Rechunk, collections: Sequence[CollectionInfo], view: View) -> Flow:
    """Return the flow of the cuts of ``collections``, which are in the same order."""
    n_tasks, fixed = 0, GRAPH
    into, out, made = np.zeros((3, len(view.now.workers)), dtype=np.int64)
    for cut, collection in zip(recut.cuts, collections, strict=True):
        amount = part_bytes(collection, cut.key, cut.stop - cut.start)
        target = recut.targets[cut.new]
        away = cut.owner != target
        np.add.at(into, target[away], amount[away])
        np.add.at(out, cut.owner[away], amount[away])
        np.add.at(made, target, amount)
        # parts travel in one list per new partition and sender
        pairs = np.stack((cut.new[away], cut.owner[away]))
        (new, sender), lengths = np.unique(pairs, axis=1, return_counts=True)
        list_sizes = list_bytes(lengths)
        np.add.at(into, recut.targets[new], list_sizes)
        np.add.at(out, sender, list_sizes)
        n_tasks += len(recut.rows) + len(lengths)
        part = ARRAY_PART if collection.kind == "array" else FRAME_PART
        fixed += len(amount) * part
    fixed += n_tasks * (view.now.overhead or 0.0)
    return Flow(received=into, sent=out, produced=made, seconds=fixed)
