"""Place partitions: load lazy ones, move whole ones, copy eval sets to every worker.

Lazy collections are loaded in one graph, each partition on the worker that will use it.
This needs known rows of partitions: arrays of known chunks, or Parquet files by their
footers. Companions are placed with X. Dask places other data, which is moved
afterwards. No data is at risk: it can be loaded again.

Partitions in memory move whole: rows in proportion to threads, companions together. As
few bytes as possible move, and keys keep their names. Each key is copied to its target
before the old replica is dropped, so no data is at risk. Dask's ``rebalance`` balances
bytes of process memory. It moves nothing while workers are less than 30 % full, and it
separates X from y.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustertune.core.model import (
    Bools,
    CollectionInfo,
    Cut,
    Finding,
    Float64s,
    Int64s,
    Key,
    Layout,
    Load,
    Moves,
    Price,
    Rechunk,
    Step,
    Unknown,
    View,
)
from clustertune.core.wording import bytes_text, plural
from clustertune.errors import CapacityError, NoWorkersError
from clustertune.planner import chunking, contents, layouts, memory
from clustertune.planner.hosts import place_on_hosts
from clustertune.planner.layouts import held_bytes
from clustertune.planner.memory import free_memory, too_little
from clustertune.planner.placement import AIM, Placement, place, placed

#: checks, in addition to findings with fixed_by="rebalance"
REMEDIES = frozenset(("empty_workers", "separated_pairs", "uneven_rows"))


# --- load -----------------------------------------------------------------------------


def propose_load(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose one step for all lazy collections.

    Raises ``CapacityError`` if the data is, by its metadata, larger than the free
    memory of the workers.
    """
    lazy = [m for m in view.collections if not m.loaded]
    if not lazy or not view.loads_data:
        return
    labels = [m.label for m in lazy]
    size = layouts.sum_bytes(lazy)
    amount, most = _amount(size, labels, view)
    targets: dict[str, Int64s] = {}
    room, loaded = _room(view), np.zeros(len(view.now.workers))
    for layout in view.layouts:
        found = _targets(layout, view, np.maximum(0.0, room - loaded))
        for collection in layout.collections:
            sized = isinstance(layouts.collection_bytes(collection), int)
            if collection.label in found and sized:
                np.add.at(loaded, found[collection.label], _key_bytes(collection))
        targets |= found
    bound = [m.label for m in lazy if m.label in targets]
    peak = None if isinstance(size, Unknown) else size
    if peak is not None and len(bound) == len(lazy):
        peak = int(loaded.max())
    yield Step(
        action="load",
        summary=f"load {', '.join(labels)} ({amount}) in one call",
        price=Price(nbytes=None, peak=peak),
        args=Load(
            workers=tuple(w.address for w in view.now.workers),
            targets=targets,
            free_memory=most,
        ),
    )


def _amount(
    size: int | Unknown, labels: list[str], view: View
) -> tuple[str, Float64s | None]:
    """Return the size of the data as text, and the free memory if it is unknown."""
    may = layouts.weights(view) > 0
    may = may if may.any() else ~may  # paused workers may run again
    free, known = _room(view)[may], memory.thresholds_known(view)[may].all()
    if not isinstance(size, Unknown):
        if known:
            memory.refuse_too_much(labels, size, free)
        return bytes_text(size), None
    if not len(free) or not known:
        return "of unknown size", None
    return f"of unknown size; no more than {bytes_text(free.sum())}", free


def _key_bytes(collection: CollectionInfo) -> Int64s:
    """Return the bytes of every key, in proportion to its rows."""
    total = layouts.collection_bytes(collection)
    assert collection.rows is not None
    assert isinstance(total, int)
    blocks = collection.column_blocks
    rows = np.repeat(collection.rows, blocks)
    return (rows * (total / max(1, int(rows.sum())))).astype(np.int64)


def _room(view: View) -> Float64s:
    """Return the free bytes of every worker, minus loaded data that may move there."""
    held = held_bytes(view.layouts, len(view.now.workers))
    return np.maximum(0.0, free_memory(view) - held)


def _targets(layout: Layout, view: View, free: Float64s) -> dict[str, Int64s]:
    """Return by label the worker of every key of collections with known rows."""
    open_ = {
        m: m.rows
        for m in layout.collections
        if m.rows is not None and m.rows.sum() and not m.loaded and not m.derived
    }
    if not open_ or not view.eligible_workers:
        return {}
    rows, home = _anchor(layout, next(iter(open_.values())), view, free)
    return {
        m.label: np.repeat(_follow(rows, home, own), m.column_blocks)
        for m, own in open_.items()
        if own.sum() == rows.sum()
    }


def _anchor(
    layout: Layout, first: Int64s, view: View, free: Float64s
) -> tuple[Int64s, Int64s]:
    """Rows and workers of partitions: of loaded data, otherwise as placed here."""
    for collection in layout.collections:
        rows = collection.rows
        if collection.loaded and rows is not None and collection.column_blocks == 1:
            home, _ = layouts.largest(layouts.held_of(collection), len(rows))
            if (home >= 0).all():
                may = layouts.weights(view) > 0
                if not may[home].all():  # these partitions will be moved
                    chosen = _chosen_homes(layout, rows, view, free)
                    home = np.where(may[home], home, chosen)
                return rows, home
    return first, _chosen_homes(layout, first, view, free)


def _chosen_homes(layout: Layout, rows: Int64s, view: View, free: Float64s) -> Int64s:
    size = layouts.sum_bytes(layout.collections)
    total = 0 if isinstance(size, Unknown) else size
    nbytes = (rows * (total / int(rows.sum()))).astype(np.int64)
    for budget in (free, None):
        try:
            found = place(
                rows,
                None,
                layouts.weights(view),
                nbytes=nbytes,
                budget=budget,
                tolerance=AIM * view.goal.tolerance,
            )
        except CapacityError:
            continue  # partitions that are too large fit after they are cut
        return found.target
    raise AssertionError("without budgets all data can be placed")


def _follow(rows: Int64s, home: Int64s, own: Int64s) -> Int64s:
    """Return for each partition the worker with most of the matching rows."""
    parts = chunking.parts(rows, own)
    n_workers = int(home.max()) + 1
    code, part = np.unique(parts.new * n_workers + home[parts.old], return_inverse=True)
    # a partition without rows goes to the worker of its neighbour
    shared = np.bincount(part.reshape(-1), np.maximum(1, parts.stop - parts.start))
    order = np.lexsort((-code, shared))  # the last entry of a partition has most
    result = np.zeros(len(own), dtype=np.int64)
    result[code[order] // n_workers] = code[order] % n_workers
    return result


# --- move -----------------------------------------------------------------------------


def propose_moves(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose one step for each layout with uneven or separated partitions.

    Raises ``CapacityError`` if the partitions do not fit below the thresholds at which
    workers spill, unless each worker has some and none has to move;
    ``NoWorkersError`` if no running worker may hold them.
    """
    needed = any(f.check in REMEDIES or f.fixed_by == "rebalance" for f in findings)
    if not needed and not view.goal.placement:
        return
    if not view.eligible_workers:
        raise NoWorkersError(
            f"none of {plural(len(view.now.workers), 'worker')} may hold the data: "
            "they are paused, closing or not named in workers=. Free memory there, "
            "start other workers, or name others"
        )
    budget, found = free_memory(view), view.layouts
    if view.goal.workload.eval_copies:  # replicate places eval sets; replicas stay
        budget = np.maximum(0.0, budget - held_bytes(found[1:], len(budget)))
        found = found[:1]
    placed: set[Key] = set()
    for layout in found:
        keys = {key for m in layout.collections for key in m.keys}
        # partitions that an eval set shares with the training data are placed with it
        if not (layout.loaded and layout.aligned and keys.isdisjoint(placed)):
            continue
        placed |= keys
        placement = _place(layout, view, budget)
        taken = layouts.partition_bytes(layout)
        used = np.bincount(placement.target, taken, minlength=len(budget))
        budget = np.maximum(0.0, budget - used)
        step = _step(layout, view, placement)
        if isinstance(step.args, Moves) and step.args.count:
            yield step


def _place(layout: Layout, view: View, budget: Float64s) -> Placement:
    held = layouts.held_bytes_by_worker(layout, len(view.now.workers))
    tolerance = view.goal.tolerance
    # 0 means that all rows are on workers that may not train
    even = 0 < layouts.imbalance(layout, view) <= 1 + tolerance
    nbytes, weights = layouts.partition_bytes(layout), layouts.weights(view)
    former = layouts.former_homes(layout, view)
    if former is not None:
        return placed(layout.rows, held, weights, nbytes=nbytes, target=former)
    try:
        found = place_on_hosts(
            layout.rows,
            held,
            weights,
            hosts=layouts.hosts(view),
            nbytes=nbytes,
            budget=budget,
            tolerance=tolerance,
            aim=1.0 if even else AIM,
        )
    except CapacityError as error:
        home = layouts.home_workers(layout, len(budget))
        if not _may_stay(layout, home, weights > 0):
            raise CapacityError(_too_much(layout, view, budget)) from error
        found = placed(layout.rows, held, weights, nbytes=nbytes, target=home)
        if found.moved:
            raise CapacityError(_too_much(layout, view, budget)) from error
        return found
    classes = contents.needed_classes(layout, view)
    if classes is None:
        return found
    covering = contents.place_all(
        found,
        classes.counts > 0,
        layout.rows,
        held,
        weights,
        nbytes=nbytes,
        budget=budget,
        tolerance=tolerance,
    )
    if covering is None:
        return found
    if (np.bincount(covering.target, nbytes, len(budget)) > budget).any():
        raise CapacityError(_too_much(layout, view, budget))
    return covering


def _may_stay(layout: Layout, home: Int64s, eligible: Bools) -> bool:
    """Whether these workers may hold the partitions, and each has some of its rows."""
    if (home < 0).any() or not eligible[home].all():
        return False
    return bool((np.bincount(home, layout.rows, len(eligible)) > 0)[eligible].all())


def _too_much(layout: Layout, view: View, budget: Float64s) -> str:
    rooms = budget[layouts.weights(view) > 0]
    return (
        f"the {layout.label} ({bytes_text(layout.nbytes)} in partitions of up to "
        f"{bytes_text(int(layouts.partition_bytes(layout).max()))}) does not fit below "
        "the thresholds at which workers spill: "
        + too_little(rooms, layout.nbytes, rooms.mean())
    )


def _step(layout: Layout, view: View, placement: Placement) -> Step:
    moves = layouts.moves(layout, view, placement.target)
    how = "move"
    if moves.count and _are_lent(layout, view):
        moves, how = layouts.moves_of_copies(layout, view, placement.target), "copy"
    received = layouts.received_bytes(layout, view, placement.target)
    return Step(
        action="rebalance",
        summary=f"{how} {bytes_text(placement.moved)} of {layout.label} "
        f"({plural(moves.count, 'key')})",
        price=Price(
            nbytes=placement.moved,
            # received bytes may arrive before sent bytes have left
            peak=int(received.max(initial=0)),
        ),
        args=moves,
    )


def _are_lent(layout: Layout, view: View) -> bool:
    """Whether a fit gathers partitions of the caller on one worker of each host.

    The caller's partitions stay where they are, for the next call.
    """
    gathers = view.goal.one_per_host and view.trainers is not None
    return gathers and any(not m.made_here or m.shared for m in layout.collections)


# --- eval sets on every worker --------------------------------------------------------


def propose_replicas(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose one step for each eval set that is not on every worker.

    Raises ``CapacityError`` if the replicas do not fit below the thresholds at which
    workers spill.
    """
    wrong = [f for f in findings if f.fixed_by == "replicate"]
    n_workers = len(view.now.workers)
    left = free_memory(view) - held_bytes(view.layouts, n_workers)
    for layout in view.layouts[1:]:
        labels = set(layout.labels)
        if all(labels.isdisjoint(f.subject) for f in wrong):
            continue
        first = layouts.first_partitions(view)
        home = layouts.home_workers(view.layouts[0], n_workers)
        nbytes = layout.nbytes // layouts.copies(layout)
        lacking = [i for i in home[first].tolist() if left[i] < nbytes]
        if lacking:
            raise CapacityError(
                f"{view.goal.workload.title} needs {layout.label} "
                f"({bytes_text(nbytes)}) on every worker, but it does not fit below "
                f"the thresholds at which {plural(len(lacking), 'worker')} would "
                "spill. Give fewer rows, or workers with more memory"
            )
        left[home[first]] -= nbytes
        yield _replica_step(layout, view, first, home)


def _replica_step(layout: Layout, view: View, first: Int64s, home: Int64s) -> Step:
    one = layouts.original(layout)
    rows = np.zeros(len(home), dtype=np.int64)
    rows[first] = sum(stop - start for _, start, stop in one)
    nothing = ((one[0][0], 0, 0),)
    parts = [
        (new, key, start, stop)
        for new, n in enumerate(rows.tolist())
        for key, start, stop in (one if n else nothing)
    ]
    new, key, start, stop = np.array(parts, dtype=np.int64).T
    cuts = tuple(
        Cut(
            label=m.label,
            keys=m.keys,
            new=new,
            key=key,
            start=start,
            stop=stop,
            owner=layouts.owners(m, view)[key],
        )
        for m in layout.collections
    )
    nbytes = layout.nbytes // layouts.copies(layout)
    recut = Rechunk(
        workers=tuple(w.address for w in view.now.workers),
        rows=rows,
        targets=home,
        cuts=cuts,
        copies=len(first),
    )
    received, _ = layouts.recut_bytes(recut, layout.collections)
    return Step(
        action="replicate",
        summary=f"copy all of {layout.label} ({bytes_text(nbytes)}) to each of "
        f"{plural(len(first), 'worker')}",
        price=Price(
            nbytes=int(received.sum()),
            peak=nbytes,
        ),
        args=recut,
    )
