"""Workers without a nanny.

A nanny starts a worker again when it dies, kills it before it takes the host's memory,
and sets the thread pools of native libraries. Without one a worker that dies is gone,
``terminate`` does not act, and the worker cannot be restarted from here.

Remedy: start workers without ``--no-nanny``, and a ``LocalCluster`` with
``processes=True``; with worker processes below a batch system or Kubernetes, let that
start them again.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import workers_text


def find(view: View) -> Iterator[Finding]:
    """Find workers without a nanny."""
    ids = tuple(w.id for w in view.now.workers if w.nanny is None and not w.parking)
    if ids:
        have = "has" if len(ids) == 1 else "have"
        yield Finding(
            severity=Severity.info,
            message=f"{workers_text(ids)} {have} no nanny: nothing starts them again "
            "or kills them before memory ends",
            subject=ids,
            evidence={"workers": len(ids)},
        )
