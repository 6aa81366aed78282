"""Memory of workers that grows from run to run.

A run ends with a ``clustertune.hold``, with the training tasks of XGBoost or LightGBM,
or after 5 s without tasks. The scheduler plugin then notes the least unmanaged memory
that each worker reports until the end of the next run. If that grows by at least 1 % of
the memory limit with nearly every run, something leaks or fragments the heap. Only runs
that ended alike are compared, and memory that arrives together with data does not
count. Three runs are enough, however close together they are.

The median step is the growth per run. The finding predicts in which run the worker
reaches each of its thresholds (spill, pause, terminate). For this it adds the
growth to the memory that the worker has now, and to what a run needs beyond that.

Remedy: ``clustertune.restart(client)`` between two runs, before a worker reaches its
first threshold. The data on the workers is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clustertune.core.growth import ENDS, ENOUGH, alike
from clustertune.core.model import Finding, Run, Severity, View
from clustertune.core.wording import bytes_text, names_text, plural, workers_text
from clustertune.planner.memory import Leak, leak, levels

VERBS = {"spill": "spill", "pause": "pause", "terminate": "be killed by its nanny"}


def find(view: View, *, least: float = 0.01, soon: int = 10) -> Iterator[Finding]:
    """Find workers that lose memory with every run.

    Parameters
    ----------
    view
        What is seen.
    least
        Growth in a run that counts, as a fraction of the memory limit.
    soon
        Runs within which a worker would reach a threshold for it to be a warning.
    """
    if view.runs is None:
        return
    groups = [[view.runs[i] for i in g] for g in alike([r.ended_by for r in view.runs])]
    if not groups:
        yield _unknown(view.runs)
        return
    growing = [g for w in view.now.workers if (g := leak(w, groups, least))]
    if not growing:
        return
    worst = min(growing, key=lambda g: (g.first, -g.step))
    ids = tuple(g.worker.id for g in growing)
    reached = {f"runs_until_{name}": n for name, n in worst.reached.items()}
    yield Finding(
        severity=Severity.warning if worst.first <= soon else Severity.info,
        message=f"unmanaged memory of {workers_text(ids)} grows from run to run: "
        f"{workers_text([worst.worker.id])} keeps {bytes_text(worst.step)} more after "
        f"each of the last {worst.seen} runs. {_forecast(worst)}",
        subject=ids,
        evidence={"bytes_per_run": round(worst.step), "runs": worst.seen} | reached,
        remedy=f"run ``clustertune.restart(client)`` {_when(worst.first)}. The data on "
        "the workers is kept",
    )


def _unknown(runs: Sequence[Run]) -> Finding:
    most = max(sum(run.ended_by == way for run in runs) for way in ENDS)
    seen = "no run was seen yet" if not most else f"{plural(most, 'run')} seen so far"
    return Finding(
        severity=Severity.unknown,
        message=f"whether memory grows from run to run is unknown: {seen}, "
        f"{ENOUGH} are needed",
        remedy=f"run ``clustertune.check(client)`` after "
        f"{plural(ENOUGH - most, 'more fit')} on these workers",
    )


def _forecast(growth: Leak) -> str:
    worker = growth.worker
    limits = {level.name: level.fraction for level in levels(worker)}
    texts = [
        f"{VERBS[name]} (at {bytes_text(limits[name] * worker.memory_limit)}) "
        + ("in the next run" if n <= 1 else f"in run {n} from now")
        for name, n in growth.reached.items()
    ]
    return f"It will {names_text(texts)}"


def _when(first: int) -> str:
    if first <= 1:
        return "before the next run"
    return f"between two runs, after at most {plural(first - 1, 'more run')}"
