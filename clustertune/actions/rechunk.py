"""Cut and join pieces, so that X_i and y_i have the same rows and all workers a share.

The pieces of X stay where they suit the workers; y and companions are cut to them. Else
all are cut at one shared list of rows, near the boundaries that there are. Parts are
taken where their bytes lie and joined where the new piece will train, so what travels
is what has to. Rows keep their order. Query groups (``qid``) are not cut: such data is
only joined.

Nothing is at risk: the new pieces are computed from the old ones, which stay in memory
as long as somebody holds them, and workers must have room for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from clustertune import chunking, layouts
from clustertune.checks import large_pieces, too_few_pieces, too_many_pieces
from clustertune.errors import CapacityError
from clustertune.memory import room
from clustertune.model import (
    Cluster,
    Cut,
    Finding,
    Int64s,
    Layout,
    Member,
    Notify,
    Price,
    Recut,
    Result,
    Severity,
    Step,
    View,
)
from clustertune.placement import Placement, place
from clustertune.sizes import held_bytes
from clustertune.wording import bytes_text, names_text, plural

AIM = 0.2  # of the tolerance, as where whole pieces are placed
COPYING = 1e9  # bytes per second: what one thread copied here, page faults included
OVERHEAD = 0.1  # seconds that any graph takes
_ROUNDING = 1e-9
_FREEING = (
    "; or free the old pieces while they are cut, which makes the collections that you "
    "gave unusable: release_inputs=True"
)


def propose(findings: tuple[Finding, ...], view: View) -> Iterator[Step]:
    """One step for each loaded layout with findings that cutting puts right.

    Raises
    ------
    CapacityError
        Pieces that must be cut do not fit below the lines at which workers spill
        beside the old ones.
    """
    wrong = [f for f in findings if f.fixed_by == "rechunk"]
    if not view.eligible_workers:
        return
    for layout in view.layouts:
        labels = {m.label for m in layout.members}
        about = [f for f in wrong if not labels.isdisjoint(f.subject)]
        if not about or not _is_known(layout):
            continue
        rows = _new_rows(layout, view)
        changed = [m for m in layout.members if _changes(m, rows)]
        if changed:
            must = any(f.severity is Severity.critical for f in about)
            yield _step(layout, view, rows, changed, about, must=must)


def _is_known(layout: Layout) -> bool:
    """Whether all is in memory and counted, with as many rows in every member."""
    totals = {-1 if m.rows is None else int(m.rows.sum()) for m in layout.members}
    return layout.loaded and len(totals) == 1 and totals.isdisjoint((-1, 0))


def _rows(member: Member) -> Int64s:
    assert member.rows is not None
    return member.rows


def _changes(member: Member, rows: Int64s) -> bool:
    return (
        member.column_blocks > 1
        or member.conversion is not None
        or not np.array_equal(_rows(member), rows)
    )


# --- where to cut ---------------------------------------------------------------------


def _new_rows(layout: Layout, view: View) -> Int64s:
    """Rows of the new pieces: those of X where they suit."""
    old, total = _rows(layout.members[0]), int(_rows(layout.members[0]).sum())
    if view.goal.rechunk is False:
        return old  # only what the pieces are made of changes
    if any(m.label == "qid" for m in layout.members):
        return old if _suits(layout, old, view) else _joined(layout, view)
    if not isinstance(view.goal.rechunk, bool) and layout is view.layouts[0]:
        return chunking.even(total, min(total, view.goal.rechunk))
    if _suits(layout, old, view):
        return old
    most = _most_rows(layout, view)
    closest = chunking.near(old, most)
    if layout is not view.layouts[0]:
        return closest  # is scored only, and need not lie evenly
    finer = chunking.near(old, max(1, most // 2))
    return _most_even(
        layout, [closest, finer, chunking.even(total, -(-total // most))], view
    )


def _most_even(layout: Layout, tries: list[Int64s], view: View) -> Int64s:
    """The first rows that can lie evenly enough, else those that can best."""
    weights = layouts.weights(view)
    spread = []
    for rows in tries:
        spread.append(chunking.fullest(rows, weights))
        if spread[-1] <= 1 + view.goal.tolerance + _ROUNDING:
            return rows
    old = _rows(layout.members[0])
    best = int(np.argmin(spread))
    # what cannot be better stays as it is
    stays = chunking.fullest(old, weights) <= spread[best] + _ROUNDING
    return old if stays and layout.aligned else tries[best]


def _joined(layout: Layout, view: View) -> Int64s:
    old = _rows(layout.members[0])
    return chunking.joined(old, _most_rows(layout, view))


def _most_rows(layout: Layout, view: View) -> int:
    """Rows of a piece: so that each thread has some, and none is too large."""
    profile = view.goal.workload
    total = int(_rows(layout.members[0]).sum())
    threads = sum(w.nthreads for w in view.eligible_workers)
    limits = [w.memory_limit for w in view.eligible_workers if w.memory_limit]
    largest = min([profile.max_piece_bytes, *(n // 10 for n in limits)])
    n_pieces = max(
        threads * profile.pieces_per_thread, math.ceil(layout.nbytes / max(1, largest))
    )
    return max(1, -(-total // n_pieces))


def _suits(layout: Layout, rows: Int64s, view: View) -> bool:
    """Whether pieces of these rows are neither too few, too many nor too large."""
    bare = _bare(layout, rows)
    only = replace(view, layouts=(bare,))
    if layout.members[0].column_blocks > 1:
        n_bytes = layout.nbytes / max(1, len(rows))
        if n_bytes > view.goal.workload.max_piece_bytes:
            return False
    if any(large_pieces.find(only)) or any(too_many_pieces.find(only)):
        return False
    return layout is not view.layouts[0] or not any(too_few_pieces.find(only))


def _bare(layout: Layout, rows: Int64s) -> Layout:
    """The layout as if its pieces had these rows: one member, held by nobody."""
    total = int(rows.sum())
    nbytes = (rows * (layout.nbytes / max(1, total))).astype(np.int64)
    none = np.zeros(0, dtype=np.int64)
    member = replace(
        layout.members[0],
        keys=tuple(range(len(rows))),
        rows=rows,
        nbytes=nbytes,
        holders=(none, none),
        column_blocks=1,
    )
    return Layout(label=layout.label, members=(member,))


# --- where to put ---------------------------------------------------------------------


def _step(
    layout: Layout,
    view: View,
    rows: Int64s,
    changed: list[Member],
    about: list[Finding],
    *,
    must: bool,
) -> Step:
    drafts = [_draft(m, rows, view) for m in changed]
    target, shortage = _targets(layout, view, rows, drafts)
    if shortage and must:
        raise CapacityError(shortage)
    cuts = tuple(
        _owned(d, m, target, view) for d, m in zip(drafts, changed, strict=True)
    )
    recut = Recut(
        workers=tuple(w.address for w in view.now.workers),
        rows=rows,
        targets=target,
        cuts=cuts,
        freed=tuple(m.label for m in changed if _is_freed(m, view.goal.release_inputs)),
        shortage=shortage,
    )
    return Step(
        action="rechunk",
        summary=_summary(changed, rows),
        price=_price(recut, changed, view),
        gain=_gain(layout, rows, about),
        args=recut,
    )


def _summary(changed: list[Member], rows: Int64s) -> str:
    """What is cut, and what only becomes of another kind or number type."""
    cut = [m for m in changed if _changes(replace(m, conversion=None), rows)]
    texts = []
    if cut:
        texts.append(
            f"cut {names_text([m.label for m in cut])} into "
            f"{plural(len(rows), 'piece')} of up to {int(rows.max()):,} rows"
        )
    texts += [f"make {m.label} {m.conversion}" for m in changed if m.conversion]
    return ", ".join(texts)


def _draft(member: Member, rows: Int64s, view: View) -> Cut:
    """The parts of a member's new pieces, their owners not chosen yet."""
    found, blocks = chunking.parts(_rows(member), rows), member.column_blocks
    repeated = chunking.Parts(*(np.repeat(x, blocks) for x in found))
    key = repeated.old * blocks + np.tile(np.arange(blocks), len(found.new))
    return Cut(
        label=member.label,
        keys=member.keys,
        new=repeated.new,
        key=key,
        start=repeated.start,
        stop=repeated.stop,
        owner=np.full(len(key), -1, dtype=np.int64),
        conversion=member.conversion,
    )


def _part_bytes(cut: Cut, member: Member) -> Int64s:
    """Bytes of every part as it will be."""
    assert member.nbytes is not None
    rows = np.repeat(_rows(member), member.column_blocks)[cut.key]
    share = (cut.stop - cut.start) / np.maximum(1, rows) * _growth(member)
    return (member.nbytes[cut.key] * share).astype(np.int64)


def _growth(member: Member) -> float:
    """Bytes of a converted member over those that it has."""
    assert member.nbytes is not None
    conversion, now = member.conversion, int(member.nbytes.sum())
    if conversion is None or conversion.row_bytes is None or not now:
        return 1.0
    return conversion.row_bytes * int(_rows(member).sum()) / now


def _targets(
    layout: Layout, view: View, rows: Int64s, drafts: list[Cut]
) -> tuple[Int64s, str]:
    """Workers of the new pieces, and why they do not fit, if they do not."""
    members = {m.label: m for m in layout.members}
    held: list[tuple[Int64s, Int64s, Int64s]] = []
    nbytes = np.zeros(len(rows), dtype=np.int64)
    for cut in drafts:
        member = members.pop(cut.label)
        amount = _part_bytes(cut, member)
        np.add.at(nbytes, cut.new, amount)
        held.append(_where(cut, member, amount))
    for member in members.values():  # these stay as they are, and move later
        assert member.holders is not None
        assert member.nbytes is not None
        nbytes += member.nbytes
        held.append((*member.holders, member.nbytes[member.holders[0]]))
    coordinates = tuple(np.concatenate(x) for x in zip(*held, strict=True))
    cut_labels = [c.label for c in drafts]

    def placed(budget: npt.NDArray[np.float64] | None) -> Placement | None:
        try:
            return place(
                rows,
                (coordinates[0], coordinates[1], coordinates[2]),
                layouts.weights(view),
                nbytes=nbytes,
                budget=budget,
                tolerance=AIM * view.goal.tolerance,
            )
        except CapacityError:
            return None

    release = view.goal.release_inputs
    budget = _budget(layout, view, cut_labels, release=release)
    found = placed(budget)
    if found is not None:
        target = found.target.astype(np.int64)
        cut_members = [m for m in layout.members if m.label in cut_labels]
        if any(_is_freed(m, release) for m in cut_members):
            target = _by_neighbours(target, rows, nbytes, coordinates)
        return target, ""
    freeing = _budget(layout, view, cut_labels, release=True)
    hint = "" if release or placed(freeing) is None else _FREEING
    found = placed(None)
    assert found is not None
    return found.target.astype(np.int64), _too_much(layout, view, nbytes, budget) + hint


def _by_neighbours(
    target: Int64s,
    rows: Int64s,
    nbytes: Int64s,
    held: tuple[Int64s, ...],
) -> Int64s:
    """Targets exchanged between new pieces that are alike, so that neighbours go alike.

    Whole old pieces then leave a worker, and their memory is free before any part that
    stays is copied. Alike are pieces of as many rows and bytes, all on one worker.
    """
    piece, worker, amount = held
    spread = np.zeros((len(rows), int(worker.max(initial=0)) + 1))
    np.add.at(spread, (piece, worker), amount)
    home, number = spread.argmax(axis=1), np.arange(len(rows))
    others = np.where((spread > 0).sum(axis=1) == 1, -1, number)  # alike to none
    stays = target == home  # these come last: they are copied when others have left
    before = np.lexsort((number, others, home, nbytes, rows))
    after = np.lexsort((target, stays, others, home, nbytes, rows))
    result = target.copy()
    result[before] = target[after]
    return result


def _where(cut: Cut, member: Member, amount: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """(new piece, worker, bytes) for every copy of every part."""
    assert member.holders is not None
    key, worker = member.holders
    order = np.argsort(key, kind="stable")
    key, worker = key[order], worker[order]
    first = np.searchsorted(key, cut.key)
    count = np.searchsorted(key, cut.key, side="right") - first
    part = np.repeat(np.arange(len(cut.key)), count)
    offset = np.arange(len(part)) - np.repeat(np.cumsum(count) - count, count)
    return cut.new[part], worker[first[part] + offset], amount[part]


def _owned(cut: Cut, member: Member, target: Int64s, view: View) -> Cut:
    """Take each part from the target itself where it is there, else from who runs."""
    assert member.holders is not None
    key, worker = member.holders
    running = np.array([w.running for w in view.now.workers], dtype=bool)
    order = np.lexsort((~running[worker], key))
    position = np.searchsorted(key[order], cut.key)
    owner = worker[order][position]
    n_workers = len(view.now.workers)
    wanted = cut.key * n_workers + target[cut.new]
    there = np.isin(wanted, key * n_workers + worker)
    return replace(cut, owner=np.where(there, target[cut.new], owner))


def _is_freed(member: Member, release: bool) -> bool:
    return member.ours or release


def _budget(
    layout: Layout, view: View, cut_labels: list[str], *, release: bool
) -> npt.NDArray[np.float64]:
    """Bytes of new pieces that each worker has room for beside what stays.

    The old pieces stay as long as the caller holds them, which is all the while, unless
    they are released. Then, and if this call has made them, they are freed one by one:
    of them, one is there beside its parts.
    """
    n_workers = len(view.now.workers)
    left = room(view)
    for other in view.layouts:
        for member in other.members:
            if other is layout and member.label not in cut_labels:
                continue  # is a part of the new pieces
            only = Layout(label=other.label, members=(member,))
            held = held_bytes((only,), n_workers)
            if other is layout and _is_freed(member, release):
                held = _largest(member, n_workers)
            left = left - held
    return np.maximum(0.0, left)


def _largest(member: Member, n_workers: int) -> Int64s:
    """Bytes of the largest piece on every worker."""
    assert member.holders is not None
    assert member.nbytes is not None
    result = np.zeros(n_workers, dtype=np.int64)
    np.maximum.at(result, member.holders[1], member.nbytes[member.holders[0]])
    return result


def _too_much(
    layout: Layout, view: View, nbytes: Int64s, budget: npt.NDArray[np.float64]
) -> str:
    rooms = budget[layouts.weights(view) > 0]
    text = (
        f"the new pieces of the {layout.label} ({bytes_text(int(nbytes.sum()))}) do "
        "not fit below the lines at which workers spill while the old ones are in "
        f"memory too: {plural(len(rooms), 'worker')} have {bytes_text(rooms.sum())} of "
        "room beside them"
    )
    if not rooms.any():
        return f"{text}; free memory there, or add workers with n_workers="
    enough = len(rooms) + math.ceil((nbytes.sum() - rooms.sum()) / rooms.mean())
    enough = max(len(rooms) + 1, enough)
    return f"{text}; about {enough} workers of this size would do: n_workers={enough}"


# --- what it costs and is good for ----------------------------------------------------


def _price(recut: Recut, changed: list[Member], view: View) -> Price:
    n_workers = len(view.now.workers)
    into, out, made = (np.zeros(n_workers) for _ in range(3))
    for cut, member in zip(recut.cuts, changed, strict=True):
        amount, target = _part_bytes(cut, member), recut.targets[cut.new]
        away = cut.owner != target
        np.add.at(into, target[away], amount[away])
        np.add.at(out, cut.owner[away], amount[away])
        np.add.at(made, target, amount)
    speeds = np.array([w.bandwidth for w in view.now.workers], dtype=np.float64)
    seconds = None
    if speeds.all():
        links = np.maximum(into, out) / speeds
        seconds = OVERHEAD + float((links + made / COPYING).max(initial=0.0))
    return Price(nbytes=int(into.sum()), seconds=seconds, peak=int(made.max(initial=0)))


def _gain(layout: Layout, rows: Int64s, about: list[Finding]) -> str:
    checks = {f.check for f in about}
    gains = []
    if "differing_boundaries" in checks:
        gains.append("every piece has the rows of its labels and companions")
    if "other_type" in checks:
        gains.append("kind and number type are those asked for")
    if "column_chunks" in checks:
        gains.append("every piece has all columns")
    old = layout.members[0].n_pieces
    if old != len(rows):
        gains.append(f"{plural(len(rows), 'piece')} instead of {old:,}")
    return "; ".join(gains)


async def enact(step: Step, cluster: Cluster, notify: Notify) -> Result:
    """Cut and join, as the port does it."""
    assert isinstance(step.args, Recut)
    return await cluster.recut(step.args, notify)
