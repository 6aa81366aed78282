"""Rounds on simulated clusters, and the invariants that hold after each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from clustertune import checks
from clustertune.actions import release, restart, scale
from clustertune.core.model import Severity, View, WorkerSize
from clustertune.operations import call
from clustertune.operations.call import Procedure
from clustertune.operations.journal import Journal
from clustertune.operations.prepare import tune
from clustertune.planner import layouts
from clustertune.planner import plan as planner
from clustertune.planner.layouts import is_copied
from clustertune.planner.suitability import attainable
from tests.builders import broken_promises
from tests.chaos.rounds import Round, failure
from tests.chaos.simulated import MIB, Case, FaultyCluster, Interrupted, draw

UNFORESEEN = {"kill", "pause", "fill memory", "add worker", "move partition"}


def play(seed: int) -> Round:
    """Play the case of a seed, and check the invariants."""
    case = draw(seed)
    cluster, journal, start = FaultyCluster(case), Journal(), perf_counter()
    before = _now(cluster)
    cluster.phase = "before"
    outcome, broken = _call(case, cluster, journal)
    injected = tuple(cluster.injected)
    cluster.stop_faults()
    broken += list(_violations(case, cluster, journal, before, outcome))
    if case.action == "prepare" and not case.dry_run and not broken:
        if journal.views:
            # a second call requests only what the first one has not finished
            cluster.goal = journal.continued(before).goal
        broken += _second_call(case, cluster, before, outcome)
    return Round(
        seed=seed,
        action=f"{case.action}{' (dry run)' * case.dry_run}",
        outcome=outcome,
        seconds=perf_counter() - start,
        faults=injected,
        broken=tuple(broken),
    )


def _now(cluster: FaultyCluster) -> View:
    """The cluster as it is now, without faults."""
    faults, cluster.faults, moment = cluster.faults, {}, cluster.moment
    try:
        return asyncio.run(cluster.look(lambda *_: None))
    finally:
        cluster.faults, cluster.moment = faults, moment


def _call(
    case: Case, cluster: FaultyCluster, journal: Journal
) -> tuple[str, list[str]]:
    """The outcome of the call, and unexpected errors."""
    try:
        if case.action == "prepare":
            work = tune(cluster, journal, notify=lambda *_: None, dry_run=case.dry_run)
            asyncio.run(work)
            return journal.status(case.dry_run), []
        return asyncio.run(_operate(case, cluster, journal)), []
    except Interrupted:
        return "interrupted", []
    except Exception as error:
        return failure(error)


async def _operate(case: Case, cluster: FaultyCluster, journal: Journal) -> str:
    """Plan an operation on workers, and refuse or execute it."""
    order: Any = Procedure(
        client=None,  # type: ignore[arg-type]
        name=case.action,
        steps=lambda view, ids, _: _steps(case, view, ids),
        timeout=1.0,
        dry_run=case.dry_run,
        progress=None,
    )
    port: Any = cluster
    view = journal.continued(await port.look(lambda *_: None))
    journal.add(view, checks.run(view, checks.configured()))
    ids = {w.id for w in view.now.workers}
    plan = call._plan(order, journal, ids, order.steps)
    if case.dry_run:
        return "planned"
    if plan.refused:
        return "refused"
    await call._act(plan, port, journal, lambda *_: None)
    return call._status(journal, case.dry_run)


def _steps(case: Case, view: View, ids: Any) -> Iterator[Any]:
    n = len(view.now.workers)
    if case.action == "restart":
        yield from restart.steps(view, ids, most=(1, 2, 0.5)[case.seed % 3])
    elif case.action == "resize":
        size = WorkerSize(nthreads=2, memory_limit=(256 * MIB, 2**34)[case.seed % 2])
        yield from restart.resizes(view, ids, size)
    elif case.action == "trim":
        yield from restart.trims(view, ids)
    elif case.action == "release":
        yield from release.steps(view, named=False)
    elif case.seed % 3:
        yield from scale.exact_bounds(view, 1 + case.seed % n)
        yield from scale.retirements(view, 1 + case.seed % n)
    else:
        yield scale.step(n, n + 1 + case.seed % 5)


# --- invariants -----------------------------------------------------------------------


def _violations(
    case: Case, cluster: FaultyCluster, journal: Journal, before: View, outcome: str
) -> Iterator[str]:
    now = _now(cluster)
    yield from planner.lost_rows(before, now)
    yield from planner.uncounted_rows(before, now)
    yield from _rows(case, cluster)
    if case.dry_run:
        if cluster.calls:
            yield f"a dry run called {cluster.calls}"
        return
    if case.action != "prepare" or outcome not in ("fine", "done"):
        return
    yield from _broken_promises(cluster, journal)
    for f in journal.findings[-1]:
        if f.severity is Severity.critical and f.fixed_by:
            yield f"{outcome}, but {f.check} remains: {f.message}"


def _rows(case: Case, cluster: FaultyCluster) -> Iterator[str]:
    """Each row exists once, with its label, in its order."""
    for number, (old, new) in enumerate(
        zip(case.start.layouts, cluster.layouts, strict=True)
    ):
        copied = is_copied(new)
        for was in old.collections:
            if was.rows is None:
                continue
            partitions = cluster.contents[was.label]
            there = [row for partition in partitions for row in partition]
            once = sorted(set(there)) if copied else sorted(there)
            if once != list(range(int(was.rows.sum()))):
                yield f"{was.label} has rows {there}"
            elif not copied and there != once:
                yield f"{was.label} has its rows in another order: {there}"
        if new.loaded and new.aligned:
            first, *others = (cluster.contents[m.label] for m in new.collections)
            if any(other != first for other in others):
                yield f"layout {number}: rows have the labels of other rows"


def _broken_promises(cluster: FaultyCluster, journal: Journal) -> Iterator[str]:
    """Problems after a report with status fine or done."""
    first, last = journal.views[0], journal.views[-1]
    injected = {kind for kind, _ in cluster.injected}
    # faults after the last look are not in the report
    for text in broken_promises(first, last):
        foreseen = not ("bytes" in text and injected & UNFORESEEN)
        if foreseen:
            yield text
    for x in last.layouts:
        if not (x.loaded and x.aligned):
            continue
        apart = int(layouts.separated(x, len(last.now.workers)).sum())
        if apart:
            yield f"{x.label}: {apart} pairs are still separated"
    yield from _worse(injected, first, last)


def _worse(injected: set[str], first: View, last: View) -> Iterator[str]:
    """Rows are less even than before and than possible."""
    was, now = first.layouts[0], last.layouts[0]
    known = was.loaded and was.aligned and now.loaded and now.aligned
    same = {w.id for w in first.eligible_workers} == {
        w.id for w in last.eligible_workers
    }
    if injected or not known or not same or len(was.rows) != len(now.rows):
        return
    before, after = layouts.imbalance(was, first), layouts.imbalance(now, last)
    bound = max(before, 1 + last.goal.tolerance, attainable(now, last)) + 1e-9
    if after > bound:
        yield f"the fullest worker had {before:.3f} of its share, has {after:.3f}"


def _second_call(
    case: Case, cluster: FaultyCluster, before: View, outcome: str
) -> list[str]:
    """Problems of a second call without faults; it changes nothing after a success."""
    done = len(cluster.calls)
    journal = Journal()
    ended, broken = _call(case, cluster, journal)
    now = _now(cluster)
    broken += [*planner.lost_rows(before, now), *planner.uncounted_rows(before, now)]
    broken += _rows(case, cluster)
    if (
        outcome in ("fine", "done")
        and ended in ("fine", "done")
        and not cluster.injected
    ):
        more = [c for c in cluster.calls[done:] if not c.startswith("restart")]
        if more:
            broken.append(f"a second call did {more}")
    if ended in ("fine", "done"):
        broken += _broken_promises(cluster, journal)
    return [f"second call: {text}" for text in broken]
