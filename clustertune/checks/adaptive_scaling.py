"""A cluster that scales by itself, and may do so in the middle of a fit.

Adaptive scaling counts tasks. A fit is one long task per worker, and between two fits
there is none: workers that seem idle are closed, which moves or loses what they hold,
and new ones come without data (distributed#5080).

Remedy: ``with clustertune.prepare(client, X, y) as (X, y):`` or ``with
clustertune.hold(client):`` around the fit keeps workers from being closed meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, Unknown, View


def find(view: View) -> Iterator[Finding]:
    """Find that scaling may act."""
    bounds = view.now.adaptive
    if bounds is None:
        return
    if isinstance(bounds, Unknown):
        yield Finding(
            severity=Severity.unknown,
            message=f"whether the cluster scales by itself: {bounds.reason}",
        )
        return
    least, most = bounds
    there = len(view.now.workers)
    if least == most:
        return
    above = "any number" if math.isinf(most) else f"{most:g}"
    yield Finding(
        severity=Severity.info,
        message=f"the cluster scales by itself between {least} and {above} workers; "
        f"{there} are there, and may be closed or joined by empty ones during a fit",
        evidence={"least": least, "workers": there},
    )
