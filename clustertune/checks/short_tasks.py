"""Many tasks that take less time than it takes to schedule them.

Each task costs the scheduler and a worker about 0.2 to 1 ms (Dask's documentation), one
scheduler serves all workers, and so tasks of a few milliseconds leave workers waiting.
Pieces, or batches, should be so large that a task takes at least some hundred times
what its scheduling costs. The figures are sums over all that ran since the scheduler
started.

Remedy: larger pieces, ``X = X.rechunk({0: rows})`` or ``X.repartition(npartitions=n)``;
with ``client.map`` its ``batch_size=``; many small calls in one function.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Prefix, Severity, View
from clustertune.core.wording import plural, printable, seconds_text

COST = 2e-4  # seconds of the scheduler per task: the least that Dask's pages name


def find(
    view: View, *, ratio: float = 100.0, most_waste: float = 10.0
) -> Iterator[Finding]:
    """Find kinds of tasks that are too short, and too many.

    Parameters
    ----------
    view
        What is seen.
    ratio
        How many times its cost a task should take.
    most_waste
        Seconds of scheduling up to which nothing is said.
    """
    survey = view.now.survey
    if survey is None:
        return
    found = [
        p
        for p in survey.prefixes
        if p.finished * COST > most_waste and p.seconds < ratio * COST * p.finished
    ]
    if not found:
        return
    worst = max(found, key=lambda p: p.finished)
    factor = _factor(worst, ratio)
    yield Finding(
        severity=Severity.warning,
        message=f"{plural(worst.finished, 'task')} "
        f"{printable(worst.name, longest=60)!r} took "
        f"{seconds_text(worst.seconds / worst.finished)} each; scheduling them took "
        f"about {seconds_text(worst.finished * COST)}; {factor:,} times larger ones "
        "would do",
        subject=tuple(printable(p.name, longest=60) for p in found),
        evidence={
            "tasks": worst.finished,
            "seconds_each": worst.seconds / worst.finished,
            "factor": factor,
        },
    )


def _factor(prefix: Prefix, ratio: float) -> int:
    mean = max(prefix.seconds / prefix.finished, 1e-6)
    return max(2, round(ratio * COST / mean))
