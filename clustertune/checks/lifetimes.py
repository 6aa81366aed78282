"""Workers whose lifetime ends.

``--lifetime`` closes a worker after a time, so that a batch system does not kill it. It
hands its keys to others first, if there is room; a task that runs does not count
(distributed#3141), so a fit that is going on fails or hangs. Workers that were started
together end together, unless ``--lifetime-stagger`` is set.

Remedy: train when the workers are new, or start them with a longer ``--lifetime`` and a
``--lifetime-stagger``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import seconds_text, workers_text
from clustertune.planner.machines import details_of


def find(view: View, *, within: float = 3600.0) -> Iterator[Finding]:
    """Find workers that are going to end.

    Parameters
    ----------
    view
        What is seen.
    within
        Seconds that are left for it to be a warning.
    """
    ending = [(d.expires, w) for w, d in details_of(view) if d.expires is not None]
    if not ending:
        return
    first = max(0.0, min(at for at, _ in ending) - view.now.time)
    ids = tuple(w.id for _, w in ending)
    yield Finding(
        severity=Severity.warning if first < within else Severity.info,
        message=f"{workers_text(ids)} will close when the lifetime that was set ends, "
        f"the first in about {seconds_text(first)}",
        subject=ids,
        evidence={"seconds": first, "workers": len(ids)},
    )
