"""Other releases of Dask or of training libraries on client, scheduler and workers.

What one side pickles another unpickles: other releases fail with errors that name
neither, or train with other defaults. Dask compares its own packages when a client
connects, and warns once; training libraries are not among them. Packages are told by
the names of their distributions.

Remedy: the same environment everywhere: one container image, one lock file, or
``distributed.diagnostics.plugin.PipInstall`` for what is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import plural, printable
from clustertune.planner.machines import details_of


def find(view: View) -> Iterator[Finding]:
    """Find packages of which sides have other releases, or lack the one that trains."""
    survey = view.now.survey
    if survey is None:
        return
    workers = [d.packages for _, d in details_of(view)]
    sides = dict(survey.packages)
    for name in sorted({n for p in [*sides.values(), *workers] for n in p}):
        found = {
            side: packages[name] for side, packages in sides.items() if name in packages
        }
        there = Counter(p[name] for p in workers if name in p)
        if len({*found.values(), *there}) > 1:
            yield _differing(name, found, there)
    needed = view.goal.workload.packages
    lacking = [w.id for w, d in details_of(view) if not d.packages.keys() & needed]
    if needed and lacking:
        yield Finding(
            severity=Severity.critical,
            message=f"{needed[0]} is not installed on "
            f"{plural(len(lacking), 'worker')} of {len(workers)}: the fit cannot run "
            "there",
            subject=tuple(lacking),
            evidence={"package": needed[0], "workers": len(lacking)},
        )


def _differing(
    name: str, found: Mapping[str, str], there: Mapping[str, int]
) -> Finding:
    texts = [f"{side} {printable(v, longest=40)}" for side, v in found.items()]
    texts += [
        f"{plural(n, 'worker')} {printable(v, longest=40)}" for v, n in there.items()
    ]
    return Finding(
        severity=Severity.warning,
        message=f"{name} differs: {', '.join(texts)}",
        subject=(name,),
        evidence={"package": name, "releases": len({*found.values(), *there})},
    )
