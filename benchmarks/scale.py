"""Growth of seconds and memory with the number of workers and partitions.

`records` runs checks, plans and reports in the client's process, on simulated clusters
of up to 10,000 workers and one million partitions. `turns` runs a real scheduler with
simulated workers, sends every request with all of up to one million keys, and measures
the longest turn of its event loop, and the share of the mover, in CPU time. `live` has
real workers in one process and the scheduler in another. `restarts` restarts real
workers with nannies. Growth is the exponent e of seconds ~ size^e between the last two
sizes: 1 is linear. Memory is what Python and NumPy allocate in a stage. Without PART,
`records` and `turns` run.

Usage: `python benchmarks/scale.py [PART ...] [--sizes 10 100]`. `--most` is the number
of seconds after which a part has no larger size.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter, process_time

import numpy as np
import psutil
from crowd import crowd, longest_turn
from measure import cluster, compare, machine, workers_of
from tabulate import tabulate
from turns import turns

EACH = 100  # partitions for each worker
LIVE_EACH = 20  # partitions for each worker in live
ON_HOST = 16  # workers on a host
GIB = 2**30
SIZES = {
    "records": [100, 1000, 10_000],
    "turns": [100, 1000, 10_000],
    "live": [10, 100],
    "restarts": [2, 4, 8],
}
CHECKED = 100  # most workers of one process that answer a check in time
FIRST = 0.001  # seconds below which growth is not computed
LINEAR = 1.25  # exponent that still counts as linear: n log n, and caches
TURN, AT = 50, 1000  # milliseconds allowed for a turn, number of workers
SHARE, MOST = 10, 10_000  # percent of the loop allowed for the mover, number of workers


# --- records --------------------------------------------------------------------------


class Records:
    """Views of a simulated cluster with data on half of its workers."""

    def __init__(self, n_workers):
        from tests import builders as testing

        n_partitions = n_workers * EACH
        rng = np.random.default_rng(1)
        self.rows = np.ceil(rng.lognormal(9, 0.3, n_partitions)).astype(int).tolist()
        self.old = [i * (n_workers // 2) // n_partitions for i in range(n_partitions)]
        self.new = [i * n_workers // n_partitions for i in range(n_partitions)]
        held = np.bincount(self.old, self.rows, n_workers) * 88
        self.workers = [
            testing.worker(
                f"w-{i}",
                host=f"10.0.{i // ON_HOST // 250}.{i // ON_HOST % 250}",
                address=f"tcp://10.0.{i // 250}.{i % 250}:4000",
                affinity=frozenset(range(ON_HOST)),
                memory_limit=16 * GIB,
                host_memory=16 * ON_HOST * GIB,
                managed=int(n),
                process=int(n) + GIB // 4,
                held_data=burden(int(n)),
                details=testing.details(),
            )
            for i, n in enumerate(held)
        ]
        floors = [{w.id: GIB // 4 + run * 2**20 for w in self.workers}
                  for run in range(5)]  # fmt: skip
        self.runs = testing.runs(*floors)
        self.layout = testing.layout(self.rows, self.old)
        self.view = self.view_of(self.layout)
        self.after = self.view_of(testing.layout(self.rows, self.new))
        X, y = self.layout.collections
        shifted = np.roll(y.rows, 1)
        other = replace(y, rows=shifted, nbytes=shifted * 8)
        self.misaligned = self.view_of(replace(self.layout, collections=(X, other)))

    def view_of(self, *layouts):
        from tests import builders as testing

        return testing.view(
            self.workers, layouts, survey=testing.survey(), runs=self.runs
        )


def burden(nbytes):
    from clustertune.core.model import HeldData

    return HeldData(keys=200, unique=200, nbytes=nbytes, scattered=0, actors=0)


def stages(case):
    """The timed functions by name."""
    from clustertune import checks
    from clustertune.actions import ACTIONS, restart
    from clustertune.core.model import Outcome, Plan
    from clustertune.dashboard.page import Page
    from clustertune.dashboard.state import make
    from clustertune.monitor import monitor
    from clustertune.operations import journal as journals
    from clustertune.operations.journal import Journal
    from clustertune.planner import forecast, guards, layouts
    from clustertune.planner import (
        plan as planner,
    )
    from clustertune.remote import keys
    from tests.builders import broken_promises

    view, found = case.view, checks.run(case.view)
    unlimited = replace(
        view,
        snapshots=(
            replace(
                view.now,
                workers=tuple(replace(w, memory_limit=0) for w in view.now.workers),
            ),
        ),
    )
    wrong = checks.run(case.misaligned)
    known = ACTIONS
    raw = answers(case)
    steps = list(restart.steps(view, {w.id for w in view.now.workers}))
    state = make(**entries(case))
    page = Page()
    page.update(state)
    more = [w | {"process": w["process"] + 2**20} for w in state["workers"]]
    other = state | {"workers": more}

    def restarts():
        some = list(restart.steps(view, {w.id for w in view.now.workers}))
        return [guards.refusal(step, view) for step in some]

    def reported(outcomes=()):
        journal = Journal(
            views=[view, case.after],
            findings=[found, ()],
            plans=[Plan()],
            outcomes=list(outcomes),
        )
        made = journal.report("done", 1.0)
        return len(str(made)), len(made._repr_html_()), len(made.to_json())

    def update_page():
        page.update(other)
        page.update(state)

    return {
        "read a snapshot": lambda: monitor.read(*raw),
        "checks": lambda: checks.run(view),
        "checks, no memory limits": lambda: checks.run(unlimited),
        "plan a move": lambda: planner.make_plan(found, view, known),
        "plan a rechunk": lambda: planner.make_plan(wrong, case.misaligned, ACTIONS),
        "plan and guard restarts of all": restarts,
        "forecast": lambda: (forecast.peaks(view), forecast.ways(view)),
        "compare before and after": lambda: broken_promises(view, case.after),
        "pack keys": lambda: [keys.pack(m.keys) for m in case.layout.collections],
        "report: text, HTML, JSON": reported,
        "report of restarts of all": partial(
            reported, [Outcome(step=s, status="done", seconds=1.0) for s in steps]
        ),
        "summary": lambda: layouts.summarize(case.layout, view),
        "facts for the page": lambda: journals.page_facts(view, found),
        "page: two updates": update_page,
    }


def answers(case):
    """Raw answers of scheduler, plugin and workers."""
    workers = {
        w.address: {
            "name": w.id,
            "host": w.host,
            "nanny": w.nanny,
            "nthreads": w.nthreads,
            "resources": {},
            "status": w.status,
            "memory_limit": w.memory_limit,
            "last_seen": 0.0,
            "metrics": {
                "task_counts": {"executing": 0, "memory": 20},
                "bandwidth": {"total": 1e8},
                "event_loop_interval": 0.02,
                "cpu": 1.0,
            },
        }
        for w in case.workers
    }
    memory = np.array(
        [[w.process, w.managed, 0, 0, w.managed] for w in case.workers], dtype=np.int64
    )
    found = {"workers": list(workers), "memory": memory.tobytes(), "time": 0.0}
    return {"workers": workers}, found, {w.address: w.facts for w in case.workers}


def entries(case):
    """Workers and rows of a page state."""
    from clustertune.operations.journal import worker_facts
    from clustertune.planner.layouts import shares

    thresholds = worker_facts(case.view)["workers"]
    workers = [
        {"id": w.id, "address": w.address, "host": w.host, "status": "running",
         "silent": 0.5, "threads": w.nthreads, "limit": w.memory_limit,
         "process": w.process, "managed": w.managed, "spilled": 0,
         "thresholds": thresholds[w.address]}
        for w in case.workers
    ]  # fmt: skip
    due = sum(case.rows) / len(case.workers)
    held = [
        {"id": s.worker, "rows": s.rows, "partitions": s.partitions, "due": due}
        for s in shares(case.layout, case.view)
    ]
    layout = {
        "label": "training data", "partitions": len(case.rows), "rows": sum(case.rows),
        "apart": 0, "missing": 0, "workers": held,
    }  # fmt: skip
    return {"workers": workers, "collections": [layout]}


def records(n_workers):
    """Seconds (least of three runs) and MiB of each stage."""
    figures = {}
    for name, run in stages(Records(n_workers)).items():
        seconds = math.inf
        for _ in range(3):
            start = process_time()
            run()
            seconds = min(seconds, process_time() - start)
            if seconds > 2:
                break
        tracemalloc.start()
        run()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        figures[name] = {"s": seconds, "MiB": peak / 2**20}
        print(f"  {name}: {seconds:.3g} s, {peak / 2**20:.0f} MiB", file=sys.stderr)
    return figures


# --- live -----------------------------------------------------------------------------


def given(client, n_workers):
    """X and y in small partitions on half of the workers."""
    import dask.array as da

    addresses = list(workers_of(client))
    half, count = addresses[: max(1, n_workers // 2)], n_workers * LIVE_EACH
    made = []
    for name, shape in (("X", (4, 2)), ("y", (4,))):
        blocks = {(name, i, *([0] * (len(shape) - 1))): np.ones(shape)
                  for i in range(count)}  # fmt: skip
        futures = client.scatter(blocks, workers=half, hash=False)
        chunks = ((4,) * count, *((n,) for n in shape[1:]))
        made.append(da.Array(futures, name, chunks, dtype="f8"))
    return made


def live(n_workers):
    import clustertune
    from clustertune.monitor import monitor

    figures = {}
    with crowd(n_workers) as (client, processes):

        def timed(name, work):
            longest_turn(client)
            start = perf_counter()
            result = work()
            seconds = perf_counter() - start
            longest = longest_turn(client)
            figures[name] = {"s": seconds, "longest turn, ms": longest * 1e3}
            print(f"  {name}: {figures[name]}", file=sys.stderr)
            return result

        quietly = {"progress": False, "timeout": "20 minutes"}
        long = {"timeout": "10 minutes"}
        checked = n_workers <= CHECKED
        if checked:
            timed("first check", lambda: clustertune.check(client, **long))
            timed("check", lambda: clustertune.check(client, **long))
        X, y = given(client, n_workers)
        if checked:
            timed("check with data", lambda: clustertune.check(client, X, y, **long))
        dry = partial(clustertune.prepare, client, X, y, dry_run=True, **quietly)
        timed("first prepare, dry run", dry)
        timed("look", lambda: client.sync(monitor.look, client, []))
        timed("prepare, dry run", dry)
        ready = timed(
            "prepare: move half of the partitions",
            lambda: clustertune.prepare(client, X, y, rechunk=False, **quietly),
        )
        assert ready.report.status == "done", str(ready.report)
        X, y = ready
        again = partial(clustertune.prepare, client, X, y, rechunk=False, **quietly)
        assert timed("prepare again", again).report.status == "fine"
        # without nannies only a dry run is possible
        rest = partial(
            clustertune.restart_workers, client, X, y, dry_run=True, progress=False
        )
        timed("restart, dry run", rest)
        for name, process in zip(("scheduler", "workers"), processes, strict=True):
            figures[f"memory: {name}"] = {"MiB": process.memory_info().rss / 2**20}
        own = psutil.Process().memory_info().rss
        figures["memory: client"] = {"MiB": own / 2**20}
    return figures


# --- restarts -------------------------------------------------------------------------


def restarts(n_workers):
    import dask
    import dask.array as da
    from distributed import wait

    import clustertune

    dask.config.set({"distributed.logging.distributed": "critical"})
    options = {"memory_limit": "1 GiB", "dashboard_address": None}
    with cluster(n_workers, **options) as client:
        partitions = n_workers * LIVE_EACH
        X = client.persist(da.random.random((1000 * partitions, 10), chunks=(1000, 10)))
        wait(X)
        clustertune.check(client)
        start = perf_counter()
        report = clustertune.restart_workers(client, X, progress=False)
        seconds = perf_counter() - start
        assert report.status == "done", str(report)
    return {"restart of all": {"s": seconds, "s a worker": seconds / n_workers}}


# --- all ------------------------------------------------------------------------------

PARTS: dict[str, Callable[[int], dict[str, dict[str, float]]]] = {
    "records": records,
    "turns": turns,
    "live": live,
    "restarts": restarts,
}
USUAL = ("records", "turns")  # they have aims


def growth(sizes, values):
    """The exponent between the last two sizes; empty if they are too short."""
    known = [(n, v) for n, v in zip(sizes, values, strict=True) if v is not None]
    if len(known) < 2 or known[-2][1] < FIRST:
        return ""
    (n, a), (m, b) = known[-2:]
    return f"{math.log(b / a) / math.log(m / n):.2f}"


def aims(part, results):
    """Aims of a part: title, value and largest allowed value."""
    sizes = list(results)
    slopes = {
        name: growth(sizes, [results[n].get(name, {}).get("s") for n in sizes])
        for name in results[sizes[-1]]
    }
    known = {name: float(slope) for name, slope in slopes.items() if slope}
    if part in ("records", "turns") and known:
        worst = max(known, key=known.__getitem__)
        yield f"{part}: largest exponent of growth ({worst})", known[worst], LINEAR
    turned = {
        name: figures["longest turn, ms"]
        for name, figures in results.get(AT, {}).items()
        if part == "turns"
    }
    if turned:
        worst = max(turned, key=turned.__getitem__)
        yield f"longest turn at {AT:,} workers, ms ({worst})", turned[worst], TURN
    moved = results.get(MOST, {}).get("cycles of the mover")
    if moved:
        title = f"percent of the event loop for the mover at {MOST:,} workers"
        yield title, moved["% of the loop"], SHARE


def show(part, results):
    """Print a table: a row for each stage and unit, a column for each size."""
    sizes = list(results)
    rows = []
    for name in results[sizes[0]]:
        for unit in results[sizes[0]][name]:
            values = [results[n].get(name, {}).get(unit) for n in sizes]
            shown = ["" if v is None else f"{v:.3g}" for v in values]
            rows.append([name, unit, *shown, growth(sizes, values)])
    header = [part, "", *(f"{n:,}" for n in sizes), "growth"]
    print(tabulate(rows, header, disable_numparse=True), end="\n\n", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--sizes", type=int, nargs="+", help="workers")
    parser.add_argument("--most", type=float, default=600, help="seconds of a size")
    parser.add_argument("--one", nargs=2, metavar=("PART", "SIZE"), help="as JSON")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(PARTS[chosen.one[0]](int(chosen.one[1]))), flush=True)
        # exit at once: remaining threads can abort the interpreter's exit
        os._exit(0)
    if wrong := set(chosen.parts) - PARTS.keys():
        parser.error(
            f"unknown parts {', '.join(wrong)}: choose from {', '.join(PARTS)}"
        )
    print(machine())
    wanted = []
    for part in chosen.parts or USUAL:
        results = {}
        for size in chosen.sizes or SIZES[part]:
            print(f"{part}, {size:,} workers", file=sys.stderr)
            start = perf_counter()
            # in its own process, without memory of earlier sizes
            done = subprocess.run(
                [sys.executable, __file__, "--one", part, str(size)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            results[size] = json.loads(done.stdout.strip().splitlines()[-1])
            if perf_counter() - start > chosen.most:
                break
        show(part, results)
        wanted += aims(part, results)
    for what, value, most in wanted:
        compare(what, float(value), at_most=most, headline="turns" not in what)


if __name__ == "__main__":
    main()
