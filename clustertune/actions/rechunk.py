"""Cut and join partitions, so that X and y match and every worker has a share.

If the partitions of X suit the workers, y and companions are cut like X. Otherwise all
are cut at one shared list of rows, near existing boundaries. Few bytes are transferred,
and rows keep their order. Query groups (``qid``) that have to be whole are not cut. No
data is at risk: the old partitions stay in memory while anything holds them, so workers
need memory for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from clustertune.core.model import (
    Bools,
    Cluster,
    CollectionInfo,
    Cut,
    Finding,
    Float64s,
    Int64s,
    Layout,
    Notify,
    Price,
    Rechunk,
    Result,
    Severity,
    Step,
    View,
    attach_result,
    attached_result,
)
from clustertune.core.wording import bytes_text, names_text, plural
from clustertune.errors import CapacityError
from clustertune.planner import chunking, contents, layouts
from clustertune.planner.chunking import Division
from clustertune.planner.hosts import place_on_hosts
from clustertune.planner.layouts import HeldBytes, part_bytes
from clustertune.planner.memory import free_memory, too_little
from clustertune.planner.placement import AIM, Placement

REQUESTED = "requested_partitions"  # a check
_FREEING = (
    "; or release the old partitions while they are cut, which makes the given "
    "collections unusable: release_inputs=True"
)


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """Propose one step for each loaded layout with findings that rechunking fixes.

    Raises ``CapacityError`` if required new partitions, together with the old ones, do
    not fit below the thresholds at which workers spill.
    """
    wrong = [f for f in findings if f.fixed_by == "rechunk"]
    if not view.eligible_workers:
        return
    taken = np.zeros(len(view.now.workers))
    for layout in view.layouts:
        labels = set(layout.labels)
        about = [f for f in wrong if not labels.isdisjoint(f.subject)]
        if not about or not _is_known(layout):
            continue
        step = _best_step(layout, view, about, taken)
        if step is None:
            continue
        recut = _rechunk_of(step)
        if not recut.shortage:
            cut = {c.label for c in recut.cuts}
            changed = [m for m in layout.collections if m.label in cut]
            taken = taken + layouts.recut_bytes(recut, changed)[1]
        yield step


def _best_step(
    layout: Layout, view: View, about: list[Finding], taken: Float64s
) -> Step | None:
    """Return the best step; if it does not fit in memory, the required step.

    ``taken`` are bytes that other steps of this plan bring to each worker.
    """
    must = any(f.severity is Severity.critical or f.check == REQUESTED for f in about)
    own = chunking.rows_of(layout.collections[0])
    division = chunking.divide(layout, view, about)
    step = _step(layout, view, division, about, taken)
    if step is None or not must or not (shortage := _rechunk_of(step).shortage):
        return step
    cuts = not np.array_equal(division.rows, own)
    if cuts and layout.collections[0].column_blocks == 1:
        least = _step(layout, view, Division(own), about, taken)
        if least is not None and not _rechunk_of(least).shortage:
            return least
    raise CapacityError(shortage)


def _rechunk_of(step: Step) -> Rechunk:
    assert isinstance(step.args, Rechunk)
    return step.args


def _is_known(layout: Layout) -> bool:
    """Whether all collections are in memory, with the same known number of rows."""
    totals = {-1 if m.rows is None else int(m.rows.sum()) for m in layout.collections}
    return layout.loaded and len(totals) == 1 and totals.isdisjoint((-1, 0))


def _changes(collection: CollectionInfo, rows: Int64s) -> bool:
    same = np.array_equal(chunking.rows_of(collection), rows)
    return collection.column_blocks > 1 or not same


# --- the step -------------------------------------------------------------------------


def _step(
    layout: Layout, view: View, new: Division, about: list[Finding], taken: Float64s
) -> Step | None:
    rows = new.rows
    lacking = any(f.check == "missing_classes" for f in about)
    for alone in (False, True):
        covering = chunking.covering(layout, rows, view, alone=alone)
        rows, present = (rows, None) if covering is None else covering
        changed = [m for m in layout.collections if _changes(m, rows)]
        if not changed:
            if present is not None and lacking:
                continue  # these partitions cannot give every worker all classes
            return None
        drafts = [chunking.parts_of(m, rows) for m in changed]
        target, shortage, found = _targets(
            layout, view, new._replace(rows=rows), drafts, taken, present
        )
        if found:
            break
    pairs = zip(drafts, changed, strict=True)
    release = view.goal.release_inputs
    moves = _unchanged(layout, view, changed, target)
    recut = Rechunk(
        workers=tuple(w.address for w in view.now.workers),
        rows=rows,
        targets=target,
        cuts=tuple(_owned(draft, m, target, view) for draft, m in pairs),
        released=tuple(m.label for m in changed if _is_freed(m, release)),
        copies=layouts.copies(layout),
        shortage=shortage,
        moves=None if moves is None else layouts.moves(moves, view, target),
    )
    return Step(
        action="rechunk",
        summary=_summary(changed, rows, moves),
        price=_price(recut, changed, moves, view),
        args=recut,
    )


def _unchanged(
    layout: Layout, view: View, changed: list[CollectionInfo], target: Int64s
) -> Layout | None:
    """Return the uncut collections, which have to move to the new partitions."""
    rest = tuple(m for m in layout.collections if m not in changed)
    copied = layout is not view.layouts[0] and view.goal.workload.eval_copies
    if not rest or copied or layouts.is_copied(layout):
        return None  # replicate places the replicas
    staying = replace(layout, collections=rest)
    return staying if layouts.moves(staying, view, target).count else None


def _summary(changed: list[CollectionInfo], rows: Int64s, moves: Layout | None) -> str:
    """Describe which collections are cut or move."""
    cut = [m.label for m in changed if _changes(m, rows)]
    texts = []
    if cut:
        texts.append(
            f"cut {names_text(cut)} into {plural(len(rows), 'partition')} of up to "
            f"{int(rows.max()):,} rows"
        )
    if moves is not None:
        texts.append(f"and move {names_text(moves.labels)} to them")
    return ", ".join(texts)


class _Contents(NamedTuple):
    """The bytes of new partitions."""

    nbytes: Int64s  # of each new partition
    largest: dict[str, int]  # of the largest new partition, by label of cut collections
    there: HeldBytes  # bytes that workers hold before the cut


def _contents(layout: Layout, drafts: list[Cut], view: View) -> _Contents:
    collections = {m.label: m for m in layout.collections}
    held, largest, amounts = [], {}, []
    for cut in drafts:
        collection = collections.pop(cut.label)
        amount = part_bytes(collection, cut.key, cut.stop - cut.start)
        amounts.append(np.bincount(cut.new, amount).astype(np.int64))
        largest[cut.label] = int(amounts[-1].max())
        held.append(chunking.held_parts(cut, collection, amount))
    for collection in collections.values():  # these are not cut; they move later
        assert collection.nbytes is not None
        amounts.append(collection.nbytes)
        held.append(layouts.held_of(collection))
    there = layouts.added(held, len(view.now.workers))
    return _Contents(np.sum(amounts, axis=0), largest, there)


def _targets(
    layout: Layout,
    view: View,
    new: Division,
    drafts: list[Cut],
    taken: Float64s,
    present: Bools | None,
) -> tuple[Int64s, str, bool]:
    """Return workers of new partitions, a memory shortage, and if classes fit.

    The second is empty if they fit. The third is whether all workers have all classes;
    ``present`` has the classes of partitions.
    """
    rows, first = new.rows, new.target
    nbytes, largest, there = _contents(layout, drafts, view)
    tolerance = view.goal.tolerance
    weights, release = layouts.weights(view), view.goal.release_inputs
    # if whole partitions are placed evenly, none of them has to move
    rest = tuple(m for m in layout.collections if m.label not in largest)
    staying = replace(layout, collections=rest)
    even = rest and 0 < layouts.imbalance(staying, view) <= 1 + tolerance

    def placed(budget: Float64s | None) -> Placement | None:
        try:
            return place_on_hosts(
                rows,
                there,
                weights,
                hosts=layouts.hosts(view),
                nbytes=nbytes,
                budget=budget,
                tolerance=tolerance,
                aim=1.0 if even else AIM,
                first=first if first is not None and len(first) == len(rows) else None,
            )
        except CapacityError:
            return None

    budget = _budget(layout, view, largest, taken, release=release)
    found = placed(budget) or placed(None)
    assert found is not None
    target = found.target
    if any(_is_freed(m, release) for m in layout.collections if m.label in largest):
        target = _by_neighbours(target, rows, nbytes, there)
    covers = True
    if present is not None:
        covering = contents.place_all(
            replace(found, target=target),
            present,
            rows,
            there,
            weights,
            nbytes=nbytes,
            budget=budget,
            tolerance=tolerance,
        )
        covers = covering is not None
        target = target if covering is None else covering.target
    shortage = ""
    if (np.bincount(target, nbytes, len(budget)) > budget).any():
        freeing = _budget(layout, view, largest, taken, release=True)
        hint = "" if release or placed(freeing) is None else _FREEING
        shortage = _too_much(layout, view, int(nbytes.sum()), budget) + hint
    return target, shortage, covers


def _by_neighbours(
    target: Int64s, rows: Int64s, nbytes: Int64s, there: HeldBytes
) -> Int64s:
    """Exchange the targets of equal partitions, so neighbours have the same target.

    Whole old partitions then leave a worker, and their memory is free before any part
    that stays is copied. Partitions are equal if they have the same rows, bytes and
    single worker.
    """
    held = there.nbytes > 0
    partition, number = there.partition[held], np.arange(len(rows))
    holders = np.bincount(partition, minlength=len(rows))
    home = np.full(len(rows), -1, dtype=np.int64)
    home[partition] = there.worker[held]
    others = np.where(holders == 1, -1, number)  # equal to no other
    stays = target == home  # these come last, after the others have left
    before = np.lexsort((number, others, home, nbytes, rows))
    after = np.lexsort((target, stays, others, home, nbytes, rows))
    result = target.copy()
    result[before] = target[after]
    return result


def _owned(cut: Cut, collection: CollectionInfo, target: Int64s, view: View) -> Cut:
    """Take each part from the target if it holds it, else from a running worker."""
    assert collection.holders is not None
    key, worker = collection.holders
    n_workers = len(view.now.workers)
    wanted = cut.key * n_workers + target[cut.new]
    there = np.isin(wanted, key * n_workers + worker)
    owner = layouts.owners(collection, view)[cut.key]
    return replace(cut, owner=np.where(there, target[cut.new], owner))


def _is_freed(collection: CollectionInfo, release: bool) -> bool:
    return (collection.made_here and not collection.shared) or release


def _budget(
    layout: Layout,
    view: View,
    largest: Mapping[str, int],
    taken: Float64s,
    *,
    release: bool,
) -> Float64s:
    """Return the bytes of new partitions that fit on each worker beyond the old ones.

    Old partitions stay as long as the caller holds them. If they are released, or if
    this call has made them, they leave one by one. Then at most one old partition and
    its parts are in memory, or the parts of one new partition.
    """
    n_workers = len(view.now.workers)
    left = free_memory(view) - taken
    for other in view.layouts:
        for collection in other.collections:
            if other is layout and collection.label not in largest:
                continue  # not cut: counted as part of the new partitions
            there = layouts.held_of(collection)
            if other is layout and _is_freed(collection, release):
                old = layouts.largest_held(there, n_workers)
                left = left - np.maximum(old, largest[collection.label])
            else:
                left = left - np.bincount(there.worker, there.nbytes, n_workers)
    return np.maximum(0.0, left)


def _too_much(layout: Layout, view: View, nbytes: int, budget: Float64s) -> str:
    may = layouts.weights(view) > 0
    return (
        f"the new partitions of the {layout.label} ({bytes_text(nbytes)}) do not fit "
        "below the thresholds at which workers spill, because the old ones are in "
        # a new worker is empty
        f"memory, too: {too_little(budget[may], nbytes, free_memory(view)[may].mean())}"
    )


# --- cost --------------------------------------------------------------------


def _price(
    recut: Rechunk, changed: list[CollectionInfo], moves: Layout | None, view: View
) -> Price:
    received, made = layouts.recut_bytes(recut, changed)
    nbytes, peak = int(received.sum()), made
    if moves is not None:
        moved = layouts.received_bytes(moves, view, recut.targets)
        nbytes, peak = nbytes + int(moved.sum()), peak + moved
    return Price(nbytes=nbytes, peak=int(peak.max(initial=0)))


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Make the new partitions, then move the other collections to them."""
    recut = _rechunk_of(step)
    cut = await cluster.rechunk(recut, notify)
    if recut.moves is None:
        return cut
    try:
        moved = await cluster.move(recut.moves, notify)
    except BaseException as error:
        if (moved_until := attached_result(error)) is not None:
            attach_result(error, _both(cut, moved_until))
        raise
    return _both(cut, moved)


def _both(cut: Result, moved: Result) -> Result:
    """The result of a cut and of the moves after it."""
    known = cut.nbytes is not None and moved.nbytes is not None
    return replace(
        moved,
        nbytes=(cut.nbytes or 0) + (moved.nbytes or 0) if known else None,
        count=cut.count,
        details=cut.details,
    )
