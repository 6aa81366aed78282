"""Predict the seconds of moves and cuts from speeds measured on this cluster (pure).

A :class:`Flow` has the bytes that each worker receives, sends and copies in a step, and
the numbers of requests, tasks and parts. Every speed was measured on this cluster. The
seconds are unknown if a speed is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustertune.core.model import CollectionInfo, Flow, Layout, Rechunk, View
from clustertune.core.rules import CYCLE, KEYS_PER_CYCLE
from clustertune.planner.layouts import (
    Targets,
    home_workers,
    list_bytes,
    part_bytes,
    transfers,
)

AIM = 1.5  # largest ratio of measured and predicted seconds
#: requests, one after the other: start the move, replicate, read the result
MOVE_REQUESTS = 3
MOVE_CYCLES = 2  # between the three cycles that copy a key, drop it, and see the end
#: requests: holders, types, bindings, the graph, its end, bindings, transfer logs
CUT_REQUESTS = 7


def seconds(flow: Flow, view: View) -> float | None:
    """Return the seconds of a step; None: a speed is unknown.

    This is the time of requests and tasks, plus that of the busiest worker. Transfers
    of a cut compete with its tasks, so they have their own bandwidth.
    """
    now, cuts = view.now, flow.tasks > 0
    if now.round_trip is None or (cuts and now.overhead is None):
        return None
    fixed = flow.cycles * CYCLE + flow.requests * now.round_trip
    fixed += flow.tasks * (now.overhead or 0.0)
    speeds = [
        (w.cut_bandwidth if cuts else w.bandwidth, w.copying) for w in now.workers
    ]
    bandwidth, copying = np.array(speeds, dtype=np.float64).reshape(-1, 2).T
    travels = np.maximum(flow.received, flow.sent)
    # speed 0: a busy host
    unknown = ((travels + flow.produced > 0) & (copying == 0)) | (
        (travels > 0) & (bandwidth == 0)
    )
    if unknown.any():
        return None
    busy = travels / np.maximum(1.0, bandwidth) + flow.produced / np.maximum(
        1.0, copying
    )
    total = fixed + float(busy.max(initial=0.0))
    # the time of a part is not measured: it is less than the overhead of a task
    if flow.parts * (now.overhead or 0.0) > (AIM - 1) * total:
        return None
    return total


def of_moves(layout: Layout, view: View, target: Targets) -> Flow:
    """Return the flow of moving the partitions of a layout to their targets."""
    into, out = transfers(layout, view, target)
    n_moved = int((home_workers(layout, len(into)) != target).sum())
    n_keys = n_moved * len(layout.collections)
    return Flow(
        received=into,
        sent=out,
        produced=np.zeros_like(into),
        cycles=MOVE_CYCLES + n_keys // KEYS_PER_CYCLE,
        requests=MOVE_REQUESTS,
    )


def of_recut(recut: Rechunk, collections: Sequence[CollectionInfo], view: View) -> Flow:
    """Return the flow of the cuts of ``collections``, which are in the same order."""
    n_tasks = n_parts = 0
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
        n_parts += len(amount)
    return Flow(
        received=into,
        sent=out,
        produced=made,
        requests=CUT_REQUESTS,
        tasks=n_tasks,
        parts=n_parts,
    )
