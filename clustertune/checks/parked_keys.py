"""Keys that a parking worker keeps in a nanny while that one's worker is restarted.

``restart`` and ``resize`` park what a worker holds where no other could take it, for
the seconds that a restart takes. A parking worker that is there for longer was left by
a restart that did not end well: the worker did not come back, and only the parking
worker has these keys. It lives in the process of that nanny and ends with it.

Remedy: if no restart is going on, see that a worker runs and call
``clustertune.restart(client)``: it brings the keys back first.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import bytes_text, workers_text


def find(view: View) -> Iterator[Finding]:
    """Find parking workers."""
    for worker in view.now.workers:
        if worker.parking:
            yield Finding(
                severity=Severity.warning,
                message=f"{workers_text([worker.id])} keeps "
                f"{bytes_text(worker.counted)} of keys for a worker that is being "
                "restarted, or did not come back from it",
                subject=(worker.id,),
                evidence={"bytes": worker.counted},
            )
