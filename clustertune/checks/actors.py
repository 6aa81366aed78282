"""Actors on the workers.

An actor's state lives in one worker's memory and nowhere else: Dask neither moves nor
recomputes it. A worker that has one cannot be retired, and a restart ends it.

Remedy: ``del`` the actors before workers are restarted or the cluster is scaled down.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import plural


def find(view: View) -> Iterator[Finding]:
    """Find that there are actors."""
    survey = view.now.survey
    if survey is not None and survey.actors:
        yield Finding(
            severity=Severity.info,
            message=f"{plural(survey.actors, 'actor lives', 'actors live')} on the "
            "workers, and cannot be moved",
            evidence={"actors": survey.actors},
        )
