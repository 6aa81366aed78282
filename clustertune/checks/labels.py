"""Checks of labels, the order of rows, query groups, and the model for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from clustertune.core.model import (
    Bools,
    CollectionInfo,
    Finding,
    Float64s,
    Int64s,
    Layout,
    Severity,
    View,
    critical,
    info,
)
from clustertune.core.wording import (
    bytes_text,
    plural,
    printable,
    variable,
    verb,
    workers_text,
)
from clustertune.planner import contents, remedies
from clustertune.planner.contents import Classes
from clustertune.planner.layouts import home_workers, weights
from clustertune.planner.memory import free_memory, thresholds_known

CERTAIN = 6.0  # standard errors: more than chance explains
FAR = 0.3  # standard deviations: less does not change a model much


def _placed_training(view: View) -> Layout | None:
    """The training data, if it is in memory and its rows are known."""
    layout = view.layouts[0] if view.layouts else None
    return layout if layout is not None and layout.loaded and layout.aligned else None


# --- classes --------------------------------------------------------------------------


def missing_classes(view: View) -> Iterator[Finding]:
    """Find workers that hold no row of some class.

    LightGBM's classifier counts the classes on each worker separately. If one is
    missing there, the model lacks classes, without an error. Data that is sorted by
    label is the usual cause. The check reads all labels, so it runs only if the
    workload needs all classes. It stops ``prepare`` only if the estimator is a
    classifier; for the name ``lightgbm``, which may mean another one, it warns.

    Remedy: Run ``X, y = clustertune.prepare(client, X, y, estimator=model)``, which
    spreads the rows of each class over all workers. If a class has fewer rows than
    there are workers, leave its rows out, or name fewer workers in ``workers=``. If the
    labels are numbers and no classes, pass a regressor.
    """
    layout, needed = _placed_training(view), view.goal.workload.needs_all_classes
    if layout is None or needed is False:
        return
    classes = contents.classes_of(layout)
    if classes is None or len(classes.names) < 2:
        return
    rare = int(classes.totals.argmin())
    if classes.totals[rare] < len(view.eligible_workers):
        yield _too_rare(classes, rare, view)
        return
    home, may = home_workers(layout, len(view.now.workers)), weights(view) > 0
    lacking = contents.missing_classes(classes.counts > 0, home, may)
    if lacking.any():
        yield _lacking_classes(layout, classes, lacking, view)


def _too_rare(classes: Classes, number: int, view: View) -> Finding:
    rows, n_workers = int(classes.totals[number]), len(view.eligible_workers)
    name = printable(str(classes.names[number]), longest=40)
    workload = view.goal.workload
    known = workload.needs_all_classes is not None
    few = remedies.sort_ids([w.id for w in view.eligible_workers][:rows])
    return Finding(
        severity=Severity.critical if known else Severity.info,
        message=f"{'class' if known else 'label'} {name} of {classes.label} has "
        f"{plural(rows, 'row')}, too few for {n_workers:,} workers: {workload.title} "
        f"needs every class on each worker{'' if known else ', if it is a classifier'}",
        subject=(classes.label,),
        evidence={"rows": rows, "workers": n_workers},
        remedy=remedies.run(
            remedies.prepare(view, workers=few),
            f", which trains on {plural(rows, 'worker')}, or leave out the rows of "
            f"that class. If {classes.label} has numbers and no classes, pass a "
            "regressor as estimator=",
        )
        if known
        else "Pass the model, `estimator=model`, which shows whether it is a "
        "classifier.",
    )


def _lacking_classes(
    layout: Layout, classes: Classes, lacking: Bools, view: View
) -> Finding:
    worst = int(lacking.sum(axis=1).argmax())
    workers = view.now.workers
    ids = tuple(workers[i].id for i in np.flatnonzero(lacking.any(axis=1)).tolist())
    example = str(classes.names[int(np.flatnonzero(lacking[worst])[0])])
    names = len(classes.names)
    whole = contents.whole_partitions_suffice(layout, classes, view)
    known = view.goal.workload.needs_all_classes
    return Finding(
        severity=Severity.critical if known else Severity.warning,
        message=f"{workers_text(ids)} {verb(ids, 'has')} no rows of some of "
        f"{plural(names, 'class', 'classes')} in {classes.label}; on "
        f"{workers_text([workers[worst].id])} {int(lacking[worst].sum()):,} are "
        f"missing, for example {printable(example, longest=40)}",
        subject=layout.labels,
        evidence={"classes": names, "workers": len(ids)},
        remedy=remedies.cut(view),
        fixed_by="rebalance" if whole else view.goal.cutting_action,
    )


def class_labels(view: View) -> Iterator[Finding]:
    """Find numbers of classes that do not begin at 0, or have a gap.

    XGBoost's classifier takes the integers 0 to n - 1 for n classes, and its fit fails
    for others, such as 1 and 2. LightGBM takes any labels. ``prepare`` reads the
    labels, and such a label stops it; ``check`` reads them with ``deep=True``.

    Remedy: Number the classes: ``classes = sorted(y.dropna().unique().compute());
    y = y.astype(object).map({name: i for i, name in enumerate(classes)}, meta=(y.name,
    "int64"))``. Then class ``i`` is ``classes[i]``. Number labels of eval sets with the
    same list.
    """
    if not view.goal.workload.numbered_classes:
        return
    labels = {
        collection.label: (collection, found)
        for collection in view.collections
        if variable(collection.label) == "y"
        and (found := contents.distinct_labels(collection)) is not None
    }
    if "y" not in labels:  # it is unknown which numbers an eval set may have
        return
    classes = set(range(len(labels["y"][1])))
    for label, (collection, found) in labels.items():
        if wrong := found - classes:
            one = printable(repr(min(wrong, key=str)), longest=40)
            yield critical(
                message=f"{label} has the label {one}, but {view.goal.workload.title} "
                "takes the numbers from 0 as labels of classes, so the fit fails",
                subject=(label,),
                evidence={"labels": len(found)},
                remedy=remedies.number_classes(collection, training=label == "y"),
            )


# --- order ----------------------------------------------------------------------------


def unshuffled_rows(view: View) -> Iterator[Finding]:
    """Find workers whose labels differ from all labels, as rows are not shuffled.

    Data in order of label, source or date gives each worker another mixture of labels.
    Libraries with stochastic gradients, or with means over workers, then train worse
    without an error; trees of XGBoost are not affected. The check reports a mean label
    that differs by more than 0.3 standard deviations, if labels are numbers. It reads
    the labels, so it runs only with ``deep=True``, or if the workload needs random
    order.

    Remedy: Put the rows in random order before you prepare them. For Arrays run ``order
    = numpy.random.default_rng(0).permutation(len(X)); X, y = X[order], y[order]``. Sort
    a frame by a column of random numbers, before you take X and y of it.
    """
    layout = _placed_training(view)
    if layout is None or view.goal.workload.random_order is False:
        return
    for collection in layout.collections:
        if collection.label == "y" and collection.contents is not None:
            found = [p.get("moments") for p in collection.contents.partitions]
            if found and None not in found:
                yield from _differing(layout, np.array(found, np.float64).T, view)


def _differing(layout: Layout, sums: Float64s, view: View) -> Iterator[Finding]:
    """Compare means; ``sums`` has rows, sum and sum of squares of each partition."""
    workers = view.now.workers
    shift = _shifts(home_workers(layout, len(workers)), sums, len(workers))
    far = np.flatnonzero(shift > FAR)
    if not len(far):
        return
    ids = tuple(workers[i].id for i in far)
    worst = int(shift.argmax())
    yield Finding(
        severity=Severity(1 + bool(view.goal.workload.random_order)),
        message=f"labels on {workers_text(ids)} differ from the labels of all workers: "
        f"the mean on {workers_text([workers[worst].id])} differs by "
        f"{shift[worst]:.2g} standard deviations; the order of the rows is not random",
        subject=ids,
        evidence={
            "standard_deviations": round(float(shift[worst]), 3),
            "workers": len(far),
        },
        remedy=remedies.random_order(layout),
    )


def _shifts(home: Int64s, sums: Float64s, n_workers: int) -> Float64s:
    """By worker, by how much its mean differs from that of all; 0 if by chance."""
    held = home >= 0
    n, total, squares = sums[:, held]
    own = [np.bincount(home[held], x, n_workers) for x in (n, total)]
    mean = total.sum() / max(1.0, n.sum())
    deviation = np.sqrt(max(0.0, squares.sum() / max(1.0, n.sum()) - mean**2))
    if not deviation:
        return np.zeros(n_workers)
    shift = np.abs(own[1] / np.maximum(own[0], 1) - mean) / deviation
    return np.where(shift * np.sqrt(own[0]) > CERTAIN, shift, 0.0)


def differing_index(view: View) -> Iterator[Finding]:
    """Find frames whose indexes have the same values in another order than X.

    Training libraries pair rows by their position, not by the index. For example,
    ``from_pandas`` sorts X by its index, and with ``sort=False`` it does not sort y.
    The check compares the indexes of frames, partition by partition. Arrays have none,
    so their order cannot be checked.

    Remedy: Make X and y of one frame. Or join them by the index, if it says which rows
    belong together and no value of it repeats: ``frame = X.join(y.to_frame("_y")); X, y
    = frame[list(X.columns)], frame["_y"]``. If the rows match by position, as after
    ``pandas.Series(labels)``, drop the indexes: ``X, y = X.reset_index(drop=True),
    y.reset_index(drop=True)``.
    """
    for layout in view.layouts:
        known = {m.label: _indexes(m) for m in layout.collections}
        known = {label: found for label, found in known.items() if found}
        for label, found in list(known.items())[1:]:
            first = next(iter(known))
            partition = _other_order(known[first], found)
            if partition is not None:
                yield critical(
                    message=f"the rows of {label} have another order than those of "
                    f"{first}: their indexes have the same values, and the first "
                    f"partition that differs is number {partition}",
                    subject=(first, label),
                    evidence={"partition": partition},
                    remedy=remedies.join(layout, first, label),
                )


def _indexes(collection: CollectionInfo) -> list[Sequence[Any]]:
    """Return rows, digest and sum of the index of each partition; empty: unknown."""
    partitions = collection.contents.partitions if collection.contents else ()
    found = [p.get("index") for p in partitions]
    return [] if any(x is None for x in found) else [x for x in found if x]


def _other_order(
    first: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]]
) -> int | None:
    """Return the first partition with another order of the same index values."""
    if [x[0] for x in first] != [x[0] for x in other]:
        return None  # cut at other rows
    if sum(x[2] for x in first) % 2**64 != sum(x[2] for x in other) % 2**64:
        return None  # other values
    pairs = zip(first, other, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a[1] != b[1]), None)


# --- query groups ---------------------------------------------------------------------


def query_groups(view: View) -> Iterator[Finding]:
    """Find query groups that a ranking would split, or that fit on no worker.

    A ranking needs all rows of a group on one worker, and LightGBM's ranker needs them
    together in one partition. Otherwise it ranks the parts of a group separately,
    without an error. XGBoost's ranker sorts the rows itself, unless
    ``allow_group_split=True`` is set. Rows without a group (NaN, NA or masked) cannot
    be ranked. The check reads ``qid``, so it runs only with ``deep=True``, or if the
    workload ranks. It looks for split groups only if the workload ranks.

    Remedy: Sort the rows by group before you take X, y and qid of their frame: ``frame
    = frame.sort_values("qid")``. For Arrays run ``order =
    numpy.argsort(qid.compute(), kind="stable"); X, y, qid = X[order], y[order],
    qid[order]``. Then ``clustertune.prepare(client, X, y, qid=qid, estimator=ranker)``
    cuts the data where groups end. For a group that is too large, use workers with more
    memory, or leave out rows of the group.
    """
    for layout in view.layouts:
        yield from _without_group(layout)
        groups = contents.groups_of(layout)
        if groups is None or not view.goal.workload.whole_groups:
            continue
        if groups.together:
            yield from _cut_through(layout, groups, view)
        else:
            yield _out_of_order(layout, groups, view)
        yield from _too_large(layout, groups, view)


def _without_group(layout: Layout) -> Iterator[Finding]:
    """Find rows without a group; no order of the rows can fix that."""
    for collection in layout.collections:
        read = collection.contents if variable(collection.label) == "qid" else None
        count = sum(p.get("missing", 0) for p in read.partitions) if read else 0
        if count:
            yield critical(
                message=f"{collection.label} has {plural(count, 'row')} without a "
                "group (NaN, NA or masked), so these rows cannot be ranked",
                subject=(collection.label,),
                evidence={"missing": count},
                remedy=remedies.drop_rows(layout, collection),
            )


def _out_of_order(layout: Layout, groups: contents.Groups, view: View) -> Finding:
    return critical(
        message=f"groups in {groups.label} come back after another group; "
        f"{view.goal.workload.title} would split them",
        subject=layout.labels,
        evidence={"together": groups.together},
        remedy=remedies.sort_rows(layout, groups.label),
    )


def _cut_through(
    layout: Layout, groups: contents.Groups, view: View
) -> Iterator[Finding]:
    """Find partitions that end within a group."""
    count = len(contents.cuts_in_groups(layout, groups))
    if count:
        yield critical(
            message=f"{plural(count, 'group')} of {groups.label} would be split, as a "
            "partition ends within it",
            subject=layout.labels,
            evidence={"groups": count},
            remedy=remedies.cut(view, ", which cuts the data where groups end"),
            fixed_by=view.goal.cutting_action,
        )


def _too_large(
    layout: Layout, groups: contents.Groups, view: View
) -> Iterator[Finding]:
    """Find groups for which no worker has enough memory."""
    may = weights(view) > 0
    rooms = free_memory(view)[may]
    if not layout.loaded or not len(rooms) or not thresholds_known(view)[may].all():
        return
    rows = np.unique(groups.values, return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(rows, groups.counts)
    nbytes = sizes.max() * layout.nbytes / max(1, groups.counts.sum())
    if nbytes > rooms.max():
        name = printable(str(groups.values[rows == sizes.argmax()][0]), longest=40)
        yield critical(
            message=f"the group {name} of {groups.label} has {int(sizes.max()):,} rows "
            f"({bytes_text(nbytes)}), and no worker has more than "
            f"{bytes_text(rooms.max())} free below the thresholds at which it spills",
            subject=(groups.label,),
            evidence={"rows": int(sizes.max()), "bytes": round(nbytes)},
            remedy="Use workers with more memory, or leave out rows of that group.",
        )


# --- the model ------------------------------------------------------------------------


def missing_estimator(view: View) -> Iterator[Finding]:
    """Find data that is prepared for any library, while some libraries need more.

    LightGBM's classifier needs every class on every worker. Otherwise it trains a wrong
    model without an error. Without ``estimator=`` clustertune only makes rows even and
    keeps pairs together. The check has a finding if LightGBM is imported.

    Remedy: Pass the model, ``clustertune.prepare(client, X, y, estimator=model)``, or
    the name of a workload, as ``estimator="lightgbm"``.
    """
    chosen = view.goal.workload_chosen or not view.layouts
    if not chosen and "lightgbm" in view.goal.imported:
        yield info(
            message="the data is prepared for any library, but LightGBM's classifier "
            "needs every class on every worker",
            remedy=remedies.run(remedies.prepare(view, model="model")),
        )
