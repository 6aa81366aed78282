"""Plan the first phase that has a step, from findings and goals, and verify the result.

All functions are pure. A plan covers one phase only, because each phase changes what
the next one should do. After each phase the cluster is inspected again. Actions propose
steps, guards refuse some of them, and every refusal keeps its reason. A goal of a call
is a function of the view, such as ``rechunk=80``. Its findings make the planner act;
the function's name is the ``check`` of its findings in reports. At the end both views
are compared: data must not be worse than before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from clustertune.core.model import (
    Action,
    CollectionInfo,
    Finding,
    Goal,
    Layout,
    Plan,
    Refusal,
    Restart,
    Step,
    View,
    critical,
    info,
)
from clustertune.core.wording import are, names_text, plural, workers_text
from clustertune.planner import guards, layouts, remedies
from clustertune.planner.chunking import even

# --- goals ----------------------------------------------------------------------------


def unloaded_data(view: View) -> Iterator[Finding]:
    """Find collections that are not in memory yet.

    A training library loads lazy data inside every fit, on any worker. X and y of one
    Parquet data set can get different partitions if they are loaded one after the
    other. A library that reads its data once (``Incremental``, predictions) takes lazy
    data partition by partition, so ``prepare`` leaves it lazy unless ``persist=True``
    is set.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y)``, which loads them in one
    call. By hand run ``rows = client.persist(rows)``, and take X and y as columns of
    that frame.
    """
    labels = tuple(m.label for m in view.collections if not m.loaded)
    if labels:
        what = "so every fit would load them again"
        if not view.loads_data:
            what = f"and stay lazy, since {view.goal.workload.title} reads data once"
        yield info(
            message=f"{names_text(labels)} {are(labels)} not in memory, {what}",
            subject=labels,
            evidence={"collections": len(labels)},
            remedy=remedies.run(remedies.prepare(view)) if view.loads_data else "",
            fixed_by="load" if view.loads_data else "",
        )


def requested_partitions(view: View) -> Iterator[Finding]:
    """Find training data in another number of partitions than ``rechunk=`` requests.

    ``rechunk=80`` requests 80 partitions of the training data, whose rows differ by at
    most one. Without a number ``prepare`` chooses it to suit the workers.
    """
    wanted = view.goal.rechunk
    layout = view.layouts[0] if view.layouts else None
    if isinstance(wanted, bool) or layout is None or layout.collections[0].rows is None:
        return
    rows = layout.collections[0].rows
    total = int(rows.sum())
    if np.array_equal(rows, even(total, min(wanted, max(1, total)))):
        return
    yield info(
        message=f"the {layout.label} has {plural(len(rows), 'partition')} of up to "
        f"{int(rows.max(initial=0)):,} rows, and not {wanted:,} even ones yet",
        subject=layout.labels,
        evidence={"partitions": len(rows), "requested_partitions": wanted},
        fixed_by=view.goal.cutting_action,
    )


def unread_data(view: View) -> Iterator[Finding]:
    """Find data that a check could not read, or not within its time limit.

    A worker that does not answer, or whose task never ends, keeps its partitions.
    Others are lost, or failed. The checks of the data cannot run without them.

    Remedy: Restart the worker that the finding names, load the data again, or give
    ``clustertune.check`` a longer ``timeout``.
    """
    if view.unread is not None:
        why, remedy = view.unread
        yield critical(message=f"the data was not read {why}", remedy=remedy)


#: by name
GOALS: Mapping[str, Callable[[View], Iterator[Finding]]] = {
    goal.__name__: goal for goal in (requested_partitions, unloaded_data, unread_data)
}


def unmet_goals(view: View) -> tuple[Finding, ...]:
    """Findings of every goal that the given data does not meet."""
    return tuple(
        replace(finding, check=name)
        for name, goal in GOALS.items()
        for finding in goal(view)
    )


# --- plan -----------------------------------------------------------------------------

#: phases in their order, each named after its action, and whether the goal requests
#: them; others are due if they fix a finding
PHASES: Mapping[str, Callable[[Goal], object]] = {
    # later phases depend on the number of workers and their memory
    "merge": lambda goal: goal.merge_workers,
    # only after a trim is it known which processes need a restart
    "trim": lambda goal: goal.restart == "auto",
    # workers are restarted before they receive data
    "restart": lambda goal: goal.restart,
    # adaptive scaling would remove new workers
    "adapt": lambda goal: goal.n_workers is not None,
    # all later phases depend on the number of workers
    "scale": lambda goal: goal.n_workers is not None,
    # data must be in memory before rows are counted and partitions are moved
    "load": lambda _: False,
    # partitions are cut and joined on the workers that will train on them
    "rechunk": lambda goal: goal.partitions is not None,
    # no later phase moves a partition of the training data; it also improves what it
    # cannot fix
    "rebalance": lambda _: True,
    # replicas of eval sets are placed with the training data
    "replicate": lambda _: False,
}


def make_plan(
    findings: tuple[Finding, ...], view: View, actions: Mapping[str, Action]
) -> Plan:
    """Plan the first phase that has a step which the guards allow.

    The plan keeps the refused steps of the phases before it, with the reasons.
    ``actions`` are by name. Each phase that is due calls ``propose`` of its action.
    Raises ``CapacityError`` if the data of a phase does not fit the workers' memory,
    ``NoWorkersError`` if no worker runs.
    """
    refused: list[Refusal] = []
    last = ""
    steps: list[Step] = []
    fixing = {f.fixed_by for f in findings}
    for name in (n for n, wanted in PHASES.items() if n in fixing or wanted(view.goal)):
        proposed = actions[name].propose(findings, view)
        for step, refusal in guards.sort_out(proposed, view):
            last = name
            if refusal is None:
                steps.append(step)
            else:
                refused.append(refusal)
        if steps:
            break
    needs: list[str] = []
    if last == "trim":
        needs.append(known_after_trim(actions["restart"].propose(findings, view)))
    if lazy := [m.label for m in view.collections if not m.loaded]:
        needs.append(f"rows, bytes and holders of {', '.join(lazy)}: known once loaded")
    return Plan(
        phase=last,
        steps=tuple(steps),
        refused=tuple(refused),
        needs=tuple(needs),
        notes=guards.notes(steps, view),
    )


def known_after_trim(restarts: Iterable[Step]) -> str:
    """Return the note of a dry run about restarts that follow a trim."""
    ids = [s.args.id for s in restarts if isinstance(s.args, Restart)]
    now = f"{workers_text(ids)} now" if ids else "none now"
    return (
        f"memory after the trim: only workers that need it then are restarted ({now})"
    )


# --- verification ---------------------------------------------------------------------


def lost_rows(before: View, after: View) -> tuple[str, ...]:
    """Return which rows were lost, changed, or paired with other rows."""
    found: list[str] = []
    for old, new in zip(before.layouts, after.layouts, strict=True):
        found += _lost(old, new)
        known = all(m.rows is not None for m in new.collections)
        if known and old.aligned and not new.aligned:
            found.append(f"{new.label}: row boundaries differ, and they agreed before")
    return tuple(found)


def uncounted_rows(before: View, after: View) -> tuple[str, ...]:
    """Return of which collections the rows were known, and are not any more."""
    was = {m.label: m for x in before.layouts for m in x.collections}
    return tuple(
        f"rows of {m.label} were known before and cannot be counted now"
        for x in after.layouts
        for m in x.collections
        if m.rows is None and m.label in was and was[m.label].rows is not None
    )


def separations(before: View, after: View) -> tuple[str, ...]:
    """Return which layouts have more separated pairs than before."""
    found = []
    for old, new in zip(before.layouts, after.layouts, strict=True):
        if new.loaded and new.aligned:
            now, was = _separated(new, after), _separated(old, before)
            if now > was:
                found.append(
                    f"{new.label}: {now} pairs are separated, {was} were before"
                )
    return tuple(found)


def _separated(layout: Layout, view: View) -> int:
    known = layout.loaded and layout.aligned
    return int(layouts.separated(layout, len(view.now.workers)).sum()) if known else 0


def moves(before: View, after: View) -> tuple[str, ...]:
    """Return which partitions left their workers.

    A surplus replica on another worker is not a move.
    """
    found: list[str] = []
    for old, new in zip(before.layouts, after.layouts, strict=True):
        if not (old.loaded and old.aligned and new.loaded and new.aligned):
            continue
        if len(old.rows) != len(new.rows):
            continue
        was, now = _homes(old, before), _homes(new, after)
        whole = _whole(new, after)
        pairs = enumerate(zip(was, now, strict=True))
        moved = [i for i, (a, b) in pairs if a != b and (i, a) not in whole]
        if moved:
            i = moved[0]
            places = f"{workers_text([was[i]])} to {workers_text([now[i]])}"
            found.append(
                f"{plural(len(moved), 'partition')} of the {new.label} moved, for "
                f"example number {i} from {places}"
            )
    return tuple(found)


def _whole(layout: Layout, view: View) -> set[tuple[int, str | int]]:
    """Return pairs of a partition and the id of a worker that holds all of it."""
    there = layouts.held_bytes_by_worker(layout, len(view.now.workers))
    whole = there.nbytes == layouts.partition_bytes(layout)[there.partition]
    ids = [view.now.workers[i].id for i in there.worker[whole].tolist()]
    return set(zip(there.partition[whole].tolist(), ids, strict=True))


def _homes(layout: Layout, view: View) -> list[str | int]:
    homes = layouts.home_ids(layout, view)
    return ["none" if home is None else home for home in homes]


def _lost(old: Layout, new: Layout) -> Iterator[str]:
    before = {m.label: m for m in old.collections}
    for label in before.keys() - {m.label for m in new.collections}:
        yield f"{label} is missing"
    times = Fraction(layouts.copies(new), layouts.copies(old))
    for now in new.collections:
        was = before.get(now.label)
        if was is None:
            continue  # this call has made the collection
        if not now.loaded:
            if was.loaded:
                yield f"{now.label} is not in memory, and it was before"
            continue
        n_held = 0
        if now.holders is not None:  # np.unique takes ten times as long
            n_held = int(np.count_nonzero(np.bincount(now.holders[0])))
        if n_held < len(now.keys):
            lost = plural(len(now.keys) - n_held, "partition")
            yield f"no worker holds {lost} of {now.label}"
        if was.loaded and was.keys != now.keys and not now.made_here:
            yield f"{now.label} has other keys than before"
        yield from _changed_rows(was, now, times)


def _changed_rows(
    was: CollectionInfo, now: CollectionInfo, times: Fraction
) -> Iterator[str]:
    """Yield changes of row counts; a rechunk is no change.

    ``times`` is the expected ratio of row counts, because eval sets may be replicated.
    """
    if was.rows is None or now.rows is None:
        return
    if was.keys == now.keys and not np.array_equal(was.rows, now.rows):
        yield f"partitions of {now.label} have other rows than before"
        return
    had, has = int(int(was.rows.sum()) * times), int(now.rows.sum())
    if had != has:
        yield f"{now.label} had {had:,} rows and has {has:,}"
