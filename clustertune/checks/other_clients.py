"""Other clients that work on this cluster.

Their data takes memory and their tasks take threads. ``clustertune.restart`` keeps what
they hold and waits for what they run; Dask's own ``client.restart()`` takes both from
them. A published data set counts as nobody's in particular and is not meant here.

Remedy: ask whose they are before you drop data or take workers away; a client that has
been silent for long may be a notebook that somebody forgot to close.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import plural, seconds_text

NOBODY = ("published-", "fire-and-forget")


def find(view: View) -> Iterator[Finding]:
    """Find clients with keys beside the one that asks."""
    survey = view.now.survey
    if survey is None:
        return
    others = [
        c
        for c in survey.clients
        if c.keys and c.id != survey.me and not c.id.startswith(NOBODY)
    ]
    if not others:
        return
    longest = max(c.silent for c in others)
    keys = sum(c.keys for c in others)
    silent = f"; one is silent for {seconds_text(longest)}" if longest > 60 else ""
    yield Finding(
        severity=Severity.info,
        message=f"{plural(len(others), 'other client')} of this cluster "
        f"{'keeps' if len(others) == 1 else 'keep'} {plural(keys, 'key')}{silent}",
        evidence={"clients": len(others), "keys": keys},
    )
