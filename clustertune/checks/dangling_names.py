"""Published data sets that point to nothing.

``client.restart()`` frees all keys and leaves the names of published data sets; workers
that die take scattered data with them. Who asks for such a name gets a collection that
fails when it is used (distributed#1823).

Remedy: ``client.unpublish_dataset(name)``, load the data, and publish it again.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import names_text, plural


def find(view: View) -> Iterator[Finding]:
    """Find published names of which keys are gone."""
    survey = view.now.survey
    gone = [] if survey is None else [p for p in survey.published if p.missing]
    if gone:
        missing = sum(p.missing for p in gone)
        yield Finding(
            severity=Severity.critical,
            message=f"published {'name' if len(gone) == 1 else 'names'} "
            f"{names_text([p.name for p in gone])}: {plural(missing, 'key')} of "
            f"{sum(p.keys for p in gone):,} {'is' if missing == 1 else 'are'} gone",
            subject=tuple(p.name for p in gone),
            evidence={"names": len(gone), "missing": missing},
        )
