"""Workers that hold no row of some class.

LightGBM's classifier counts classes on each worker by itself: one that lacks a class
builds another model and fails, or hangs. Other libraries train, but rounds in which a
worker has one class only teach it little. Data that is sorted by label is the usual
cause. Looked for with ``deep=True`` only, as it reads all labels.

Remedy: shuffle rows before they are loaded, or ``X.shuffle`` of the frame with its
labels; with fewer rows of a class than workers name fewer workers in ``workers=``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.layouts import homes
from clustertune.model import Finding, Layout, Member, Severity, View
from clustertune.wording import plural, printable, workers_text


def find(view: View) -> Iterator[Finding]:
    """Find classes that are not on all workers which hold rows."""
    layout = view.layouts[0] if view.layouts else None
    if layout is None or not (layout.loaded and layout.aligned):
        return
    for member in layout.members:
        if member.label == "y" and member.contents is not None:
            yield from _missing(layout, member, view)


def _missing(layout: Layout, member: Member, view: View) -> Iterator[Finding]:
    held: dict[int, set[object]] = {}
    where = homes(layout, len(view.now.workers)).tolist()
    assert member.contents is not None
    for home, piece in zip(where, member.contents.pieces, strict=True):
        if piece.get("classes") is None:
            return  # these are no classes
        held.setdefault(home, set()).update(value for value, _ in piece["classes"])
    every = set().union(*held.values())
    lacking = {home: every - found for home, found in held.items() if found < every}
    if not lacking:
        return
    home, classes = max(lacking.items(), key=lambda x: len(x[1]))
    ids = tuple(view.now.workers[i].id for i in sorted(lacking) if i >= 0)
    example = printable(min(map(str, classes)), longest=40)
    severe = view.goal.workload.needs_all_classes
    yield Finding(
        severity=Severity.critical if severe else Severity.info,
        message=f"of {plural(len(every), 'class', 'classes')} in {member.label}, "
        f"{workers_text(ids)} hold not all; "
        f"{workers_text([view.now.workers[home].id])} lacks {len(classes):,}, for "
        f"example {example}",
        subject=ids,
        evidence={"classes": len(every), "workers": len(ids)},
    )
