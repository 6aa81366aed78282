"""Collections that are not in memory yet.

A training library loads what is not loaded inside the fit, every time, and the place of
the data is not decided before. Loaded one after the other, X and y of one Parquet data
set came out in 8 and 3 pieces: Dask joins small column reads. Loaded in one call they
have the same pieces.

Remedy: ``X, y = clustertune.prepare(client, X, y)`` loads all of them in one call; by
hand ``X, y = client.persist([X, y])``, never one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.model import Finding, Severity, View
from clustertune.wording import are, names_text


def find(view: View) -> Iterator[Finding]:
    """Find members that are not loaded."""
    labels = tuple(
        m.label for layout in view.layouts for m in layout.members if not m.loaded
    )
    if labels:
        yield Finding(
            severity=Severity.info,
            message=f"{names_text(labels)} {are(labels)} not in memory; all that is "
            "not will be persisted together in one call",
            subject=labels,
            evidence={"collections": len(labels)},
        )
