"""Large results that come together in one place.

``compute()`` of a collection joins its pieces in one task (``finalize``) on one worker
and sends the result to the client, through both memories. What is larger than a
worker's room makes it pause or die there, and a scheduler that is asked to gather it as
well (distributed#7964).

Remedy: ``persist()`` keeps pieces where they are; compute what is small (sums,
samples); write what is large from the workers, ``X.to_parquet(...)`` or
``X.to_zarr(...)``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.model import Finding, Severity, View
from clustertune.wording import bytes_text, plural

JOINING = ("finalize", "finalize-compute", "finalizecompute", "concatenate-finalize")


def find(view: View, *, most: float = 2**30) -> Iterator[Finding]:
    """Find results that are large, or that are being put together.

    Parameters
    ----------
    view
        What is seen.
    most
        Bytes of one result up to which nothing is said.
    """
    survey = view.now.survey
    if survey is None:
        return
    joining = [p for p in survey.prefixes if p.name.lower() in JOINING]
    there = sum(p.memory for p in joining)
    nbytes = sum(p.nbytes for p in joining)
    if there and nbytes / there > most:
        yield Finding(
            severity=Severity.warning,
            message=f"{plural(there, 'result')} of {bytes_text(nbytes)} in all came "
            "together on one worker each, to be sent to a client",
            evidence={"results": there, "bytes": nbytes},
        )
