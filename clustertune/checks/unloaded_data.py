"""Collections that are not in memory yet.

A training library loads what is not loaded inside the fit, every time, and the place of
the data is not decided before. Loaded one after the other, X and y of one Parquet data
set came out in 8 and 3 pieces: Dask joins small column reads. Loaded in one call they
have the same pieces.

A library that reads its data once (``Incremental``, predictions) takes what is not
loaded piece by piece, so that it need not fit; it is left unless ``persist=True``.

Remedy: ``X, y = clustertune.prepare(client, X, y)`` loads all of them in one call, each
piece as it is; by hand ``rows = client.persist(rows)``, with X and y columns of that.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import are, names_text


def find(view: View) -> Iterator[Finding]:
    """Find members that are not loaded."""
    labels = tuple(
        m.label for layout in view.layouts for m in layout.members if not m.loaded
    )
    if labels:
        what = "all that is not will be persisted together in one call"
        if not view.loads:
            what = f"{view.goal.workload.title} reads it once, so it stays as it is"
        yield Finding(
            severity=Severity.info,
            message=f"{names_text(labels)} {are(labels)} not in memory; {what}",
            subject=labels,
            evidence={"collections": len(labels)},
        )
