"""Large results that come together in one place.

``compute()`` of a collection joins its pieces in one task on one worker and sends the
result to the client, through both memories. What is larger than a worker's room makes
it pause or die there, and a scheduler that is asked to gather it as well
(distributed#7964). Dask calls that task ``finalize`` for arrays and
``repartitiontofewer`` for frames; it is seen while its pieces are computed, and as long
as its result is held.

Remedy: ``persist()`` keeps pieces where they are; compute what is small (sums,
samples); write what is large from the workers, ``X.to_parquet(...)`` or
``X.to_zarr(...)``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Prefix, Severity, View
from clustertune.core.wording import are, bytes_text, plural

JOINING = ("finalize", "repartitiontofewer")  # how names of such tasks begin


def find(view: View, *, most: float = 2**30) -> Iterator[Finding]:
    """Find results that are large, or that are about to be put together.

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
    joining = [p for p in survey.prefixes if p.name.startswith(JOINING)]
    there = sum(p.memory for p in joining)
    coming = sum(_coming(p) for p in joining)
    if there and (nbytes := sum(p.nbytes for p in joining)) / there > most:
        yield _finding("came", there, nbytes)
    if coming and (nbytes := sum(p.inputs for p in joining)) / coming > most:
        yield _finding(f"{are(range(coming))} about to come", coming, nbytes)


def _coming(prefix: Prefix) -> int:
    return prefix.waiting + prefix.processing


def _finding(come: str, count: int, nbytes: int) -> Finding:
    return Finding(
        severity=Severity.warning,
        message=f"{plural(count, 'result')} of {bytes_text(nbytes)} in all {come} "
        "together on one worker each, as compute() does before it sends them to the "
        "client",
        evidence={"results": count, "bytes": nbytes},
    )
