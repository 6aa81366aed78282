"""Tasks that wait for a worker that is not there.

A task that is bound to a worker (``workers=``), a host or resources waits until there
is one: without an end, and Dask says nothing. A worker that is started again has
another address, so that what was persisted with ``workers=`` cannot be computed again
once it is lost, and LightGBM's task for a worker that died waits for it after the fit
has failed. A misspelt name of a worker is taken for a host.

Remedy: cancel what waits and submit it again; without ``workers=``, or with
``allow_other_workers=True``, it runs on any worker. For a host or resources start a
worker that has them: ``dask worker tcp://scheduler:8786 --resources GPU=1``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View


def find(view: View) -> Iterator[Finding]:
    """Find tasks that no worker may run; what can still come is a warning."""
    survey = view.now.survey
    for unmet in () if survey is None else survey.unmet:
        gone = unmet.kind == "worker"
        yield Finding(
            severity=Severity.critical if gone else Severity.warning,
            message=str(unmet),
            subject=unmet.names,
            evidence={"tasks": unmet.tasks, unmet.kind: ", ".join(unmet.names)},
        )
