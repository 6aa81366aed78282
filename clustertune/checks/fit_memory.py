"""Workers that lack the memory which the fit needs beside the data.

A fit keeps the data and makes copies of it that Dask neither sees nor can spill. How
much that is depends on library and number type and was measured: XGBoost's ``hist``
needs 1.8 times the bytes of its data for float32 and 1.4 times for float64, LightGBM up
to 2.7 times, the data included. A worker without this room spills, pauses (XGBoost then
hangs) or is killed, which shows as ``Invalid worker address`` or ``Socket recv error``.

Each worker is counted with what else its process holds, which is at least what one has
that has imported the library; and with its even share of all data, wherever that is
now. Eval sets take as many times their bytes as training data; where the library needs
all of their rows everywhere, each worker has all of them. The sum is compared with
``memory_fraction`` (0.7) of the worker's limit, or, if it has none, of its part of the
host's memory. It is an estimate: a warning, and an error only if ``strict`` was asked
for. What is said to do was put through the same rule; ``dtype="float32"`` and released
keys count as if no name kept the old ones.

Remedy: any one of what the finding names, cheapest first:
``clustertune.prepare(client, X, y, dtype="float32")``, a workload that copies less,
other keys released, more workers (``n_workers=8``), or a higher ``--memory-limit``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Scalar, Severity, Unknown, View
from clustertune.core.wording import bytes_text, plural, workers_text
from clustertune.errors import CapacityError
from clustertune.planner import forecast
from clustertune.planner.forecast import Need
from clustertune.planner.machines import unknown_findings
from clustertune.planner.memory import limit

ERROR = CapacityError

UNKNOWN = (
    "``prepare`` loads the data, looks again, and says then whether it is enough; of "
    "Parquet files ``clustertune.size`` says it before"
)


def find(view: View) -> Iterator[Finding]:
    """Find eligible workers on which the fit needs more memory than it may fill."""
    workers = view.eligible_workers
    if not view.layouts or not workers:
        return
    needs = forecast.needs(view)
    if isinstance(needs, Unknown):
        text = f"whether the fit has enough memory is {needs}"
        yield Finding(severity=Severity.unknown, message=text, remedy=UNKNOWN)
        return
    if short := forecast.short(needs):
        yield _finding(view, short)
    yield from unknown_findings("usable memory", [(w, limit(w, view)) for w in workers])


def _finding(view: View, short: list[Need]) -> Finding:
    worst = max(short, key=lambda need: need.lacking)
    ways, enough = forecast.ways(view), forecast.workers_needed(view)
    alone = "" if enough else "more workers alone would not do; "
    return Finding(
        severity=Severity.critical if view.goal.strict else Severity.warning,
        message=f"the fit needs about {bytes_text(worst.total)} on "
        f"{workers_text([worst.worker.id])}, {bytes_text(worst.lacking)} more than it "
        f"may fill; {len(short):,} of {plural(len(view.eligible_workers), 'worker')} "
        f"lack memory; {alone}cheapest way out: {ways[0].text}",
        subject=tuple(need.worker.id for need in short),
        evidence=_evidence(view, worst),
        remedy=f"any one of these would do: {'; '.join(way.text for way in ways)}",
    )


def _evidence(view: View, worst: Need) -> dict[str, Scalar]:
    """What is needed now, after each change alone, and how much of other things."""
    enough = forecast.workers_needed(view)
    return {
        "needed_bytes": round(worst.total),
        "lacking_bytes": round(worst.lacking),
        **{
            f"{name}_bytes": forecast.fullest(view, change)
            for name, change in forecast.options(view).items()
        },
        "workers_needed": enough if isinstance(enough, int) else None,
        "limit_needed": round(forecast.larger_workers(view).memory_limit),
    }
