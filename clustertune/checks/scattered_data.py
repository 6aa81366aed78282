"""Given data that nobody could compute again.

Pieces that were scattered, or sent inside a graph and persisted from it, have no
recipe: when their worker dies they are gone, and everything made of them
(distributed#3149). ``prepare`` keeps them safe while it moves them; a worker that dies
in between does not.

Remedy: load the data from where it is stored, with ``dask.dataframe.read_parquet``,
``dask.array.from_zarr`` and the like, rather than through the client.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import are, names_text, plural


def find(view: View) -> Iterator[Finding]:
    """Find collections with pieces that have no recipe."""
    found = [m for x in view.layouts for m in x.members if m.scattered]
    if found:
        pieces = sum(m.scattered for m in found)
        labels = [m.label for m in found]
        yield Finding(
            severity=Severity.info,
            message=f"{plural(pieces, 'piece')} of {names_text(labels)} "
            f"{are(range(pieces))} lost if the worker dies: they were sent there and "
            "cannot be computed again",
            subject=tuple(labels),
            evidence={"pieces": pieces},
        )
