"""What it costs to look at a large cluster: time, bytes, the scheduler's event loop.

The workers are real, and of one process (so their own answers are slow; a look asks
them nothing). Partitions of the given data are real keys on the workers; foreign keys
are entered in the scheduler only.

Longest block: a task in the scheduler's event loop that wakes every 2 ms notes the
longest gap, while looks go on and while they do not. CPU: seconds of the scheduler's
process, with one look a second and without, in turn. The records are views of 10,000
workers that never were; what checks and reports take for them.

Run: ``python benchmarks/monitor.py [--rounds 3]``, about ten minutes. The aims, and
whether they are met, are printed at the end.
"""

import argparse
import json
from statistics import median
from time import perf_counter, sleep

import measure
import numpy as np
from crowd import crowd, longest_turn
from tabulate import tabulate

WORKERS, PARTITIONS, FOREIGN = 1000, 100_000, 1_000_000
RECORDS = 10_000
LOOKS = 11
SPAN = 6.0  # seconds of each measurement of CPU
PAIRS = 4  # of such measurements

# --- live -----------------------------------------------------------------------------


async def enter_foreign(dask_scheduler, count):
    """Keys of another client, of which only the scheduler knows."""
    import asyncio

    addresses = list(dask_scheduler.workers)
    for first in range(0, count, 10_000):
        keys = [("foreign", i) for i in range(first, min(count, first + 10_000))]
        who_has = {k: [addresses[k[1] % len(addresses)]] for k in keys}
        dask_scheduler.update_data(
            who_has=who_has, nbytes=dict.fromkeys(keys, 1000), client=None
        )
        await asyncio.sleep(0)
    return len(dask_scheduler.tasks)


def live(n_workers, n_partitions, n_foreign):
    with crowd(n_workers) as (client, processes):
        return looked(client, processes[0], n_partitions, n_foreign)


def partitions(client, count):
    """An array of so many small partitions, spread over all workers."""
    import dask.array as da

    name, futures = "given", {}
    for first in range(0, count, 10_000):
        some = {(name, i): np.ones(4) for i in range(first, first + 10_000)}
        futures |= client.scatter(some, hash=False)
    return da.Array(futures, name, ((4,) * count,), dtype="f8")


def looked(client, process, n_partitions, n_foreign):
    from distributed.protocol import dumps

    import clustertune
    from clustertune.monitor import monitor
    from clustertune.remote import keys

    figures = {}
    start = perf_counter()
    with clustertune.Monitor(client, interval=3600):
        figures["first"] = perf_counter() - start

    def timed(collections):
        times = []
        for _ in range(LOOKS):
            start = perf_counter()
            client.sync(monitor.look, client, collections)
            times.append(perf_counter() - start)
        return median(times)

    def longest(work):
        longest_turn(client)
        work()
        return longest_turn(client)

    figures["block_idle"] = longest(lambda: sleep(LOOKS * 0.3))
    figures["look"] = timed([])
    figures["block"] = longest(lambda: timed([]))

    X = partitions(client, n_partitions)
    packed = [keys.pack([(X.name, i) for i in range(n_partitions)])]

    async def ask(packed):
        return await monitor.ask(client, "look", collections=packed)

    identity = client.sync(monitor.identify, client)
    answer = client.sync(ask, packed)
    figures["identity_mb"] = sum(map(len, dumps(dict(identity)))) / 1e6
    figures["answer_mb"] = sum(map(len, dumps(client.sync(ask, [])))) / 1e6
    figures["partitions_mb"] = sum(map(len, dumps(answer))) / 1e6

    def holders():
        times = []
        for _ in range(LOOKS):
            start = perf_counter()
            client.sync(ask, packed)
            times.append(perf_counter() - start)
        return median(times)

    figures["cpu"], figures["cpu_idle"] = cpu(client, process)
    figures["holders"] = holders()
    figures["block_partitions"] = longest(holders)
    before = figures["look"]
    if n_foreign:
        client.run_on_scheduler(enter_foreign, count=n_foreign)
        figures["look_foreign"] = timed([])
        figures["foreign_ratio"] = figures["look_foreign"] / before
        figures["holders_foreign"] = holders()
        figures["block_foreign"] = longest(lambda: timed([]))
        figures["cpu_foreign"], _ = cpu(client, process)
    start = perf_counter()
    clustertune.check(client, timeout="5 minutes")
    figures["check"] = perf_counter() - start
    return figures


def cpu(client, process):
    """Share of a core that the scheduler uses more when it is looked at each second."""
    import clustertune

    def used(work):
        start, before = perf_counter(), process.cpu_times()
        work()
        after = process.cpu_times()
        busy = after.user + after.system - before.user - before.system
        return busy / (perf_counter() - start)

    idle = [used(lambda: sleep(SPAN))]
    more = []
    for _ in range(PAIRS):
        with clustertune.Monitor(
            client, interval=1
        ):  # its first look is another matter
            watched = used(lambda: sleep(SPAN))
        idle.append(used(lambda: sleep(SPAN)))
        more.append(watched - (idle[-2] + idle[-1]) / 2)
    return median(more), median(idle)


# --- records --------------------------------------------------------------------------


def records():
    from clustertune import checks, testing
    from clustertune.core.report import Report
    from clustertune.planner.layouts import summarize

    rows, where = [1000] * PARTITIONS, [i % RECORDS for i in range(PARTITIONS)]
    some = [
        testing.worker(i, host=f"10.0.{i // 250}.{i % 250}") for i in range(RECORDS)
    ]
    layout = testing.layout(rows, where)
    view = testing.view(some, [layout], survey=testing.survey())
    times = {"checks": [], "report": []}
    for _ in range(3):
        start = perf_counter()
        found = checks.run(view)
        times["checks"].append(perf_counter() - start)
        start = perf_counter()
        before = (summarize(layout, view),)
        report = Report(status="checked", seconds=1.0, found=found, before=before)
        str(report), report._repr_html_(), report.to_json()
        times["report"].append(perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


# --- all ------------------------------------------------------------------------------

AIMS = {  # figure: (what it is, most, unit)
    "large.look": ("look at 1,000 workers", 0.5, "s"),
    "large.block": ("longest block of the scheduler by looks", 0.05, "s"),
    "large.block_partitions": ("the same, with 1e5 partitions asked for", 0.05, "s"),
    "large.block_foreign": ("the same, with 1e6 foreign keys", 0.05, "s"),
    "large.cpu": ("of a core more, at a look a second", 0.01, ""),
    "large.cpu_foreign": ("the same, with 1e6 foreign keys", 0.01, ""),
    "large.foreign_ratio": ("look with 1e6 foreign keys / without", 1.25, ""),
}
OTHERS = {
    "large.first": "first look: versions, resident, what workers know, s",
    "large.block_idle": "longest block without looks, s",
    "large.holders": "holders of 1e5 partitions, s",
    "large.holders_foreign": "the same with 1e6 foreign keys, s",
    "large.identity_mb": "identity of 1,000 workers, MB",
    "large.answer_mb": "the resident's answer, MB",
    "large.partitions_mb": "the same with 1e5 partitions, MB",
    "large.cpu_idle": "share of a core that the scheduler uses without looks",
    "large.check": "check of 1,000 workers (in one process), s",
    "small.look": "look at 100 workers, s",
    "small.first": "first look at 100 workers, s",
    "records.checks": "checks of 10,000 workers and 1e5 partitions, s",
    "records.report": "summary and report of it in three forms, s",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", choices=["small", "large", "records"])
    given = parser.parse_args()
    if given.variant:
        figures = {
            "small": lambda: live(100, 10_000, 0),
            "large": lambda: live(WORKERS, PARTITIONS, FOREIGN),
            "records": records,
        }[given.variant]()
        print(json.dumps(figures))
    else:
        rounds = measure.run(__file__, ["small", "large", "records"], given.rounds)
        print(measure.machine())
        measure.show(rounds, OTHERS)
        rows = []
        for name, (what, most, unit) in AIMS.items():
            found = measure.interval([r[name] for r in rounds])
            met = "met" if found.high < most else "NOT met"
            rows.append([what, f"{found} {unit}", f"< {most} {unit}", met])
        print(tabulate(rows, headers=["aim", "median [95 %]", "wanted", ""]))


if __name__ == "__main__":
    main()
