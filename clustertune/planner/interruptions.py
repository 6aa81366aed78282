"""What a plan interrupts or waits for: running tasks, holds of other clients (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from clustertune.core.model import Drop, Restart, Step, View, WorkerSnapshot
from clustertune.core.wording import (
    names_text,
    plural,
    printable,
    seconds_text,
    workers_text,
)

LATER = (
    "`clustertune restart --between-runs` restarts in the next gap between runs instead"
)
AFTER = "do it when that work has ended"


def notes(steps: Iterable[Step], view: View) -> tuple[str, ...]:
    """One sentence for tasks, and one for a hold, with what to do instead."""
    waits: dict[str, float] = {}
    restarts = True
    for step in steps:
        args = step.args
        if isinstance(args, Restart):
            waits[args.address] = args.wait
            restarts &= args.size is None and not args.retire
        elif isinstance(args, Drop):
            waits |= dict.fromkeys(args.workers, args.wait)
    if not waits:
        return ()
    instead = LATER if restarts else AFTER
    workers = [w for w in view.now.workers if w.address in waits and w.tasks]
    found = []
    if workers:
        longest = max(waits[w.address] for w in workers)
        found.append(f"{_running(workers, longest)}; {instead}")
    holder = view.now.holder
    if holder is not None:
        found.append(
            f"{printable(holder.label)} (client {printable(holder.client)}) has held "
            f"the cluster for {seconds_text(holder.seconds)}, and this plan waits for "
            f"its end; {instead}"
        )
    return tuple(found)


def _running(workers: list[WorkerSnapshot], seconds: float) -> str:
    counts = Counter[str]()
    for worker in workers:
        counts.update(dict(worker.tasks or ()))
    verb = "runs" if len(workers) == 1 else "run"
    prefixes = [prefix for prefix, _ in counts.most_common()]
    which = f"{workers_text([w.id for w in workers])} {verb}"
    return (
        f"{which} {plural(counts.total(), 'task')} ({names_text(prefixes)}), for which "
        f"the plan waits up to {seconds_text(seconds)} on each worker"
    )
