"""The cost of a `Monitor` on a large cluster.

Many real workers run in one process. The given data has 100,000 real keys. One million
keys of another client exist only on the scheduler. A task in the scheduler's event loop
wakes every 2 ms and measures the longest turn, with and without looks, in CPU time of
the scheduler's thread. CPU is measured with one look a second and without, in turns.

Options: `--rounds 1`, `--workers 300` (1,000 workers take about ten minutes).
"""

import argparse
import json
from statistics import median
from time import perf_counter, sleep

import measure
import numpy as np
from crowd import crowd, longest_turn

WORKERS, PARTITIONS, FOREIGN = 300, 100_000, 1_000_000
LOOKS = 11
SPAN = 6.0  # seconds of a CPU measurement
PAIRS = 4  # CPU measurements

# --- live -----------------------------------------------------------------------------


async def enter_foreign(dask_scheduler, count):
    """Add keys of another client that exist only on the scheduler."""
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
        return measure_looks(client, processes[0], n_partitions, n_foreign)


def partitions(client, count):
    """An array of small partitions on all workers."""
    import dask.array as da

    name, futures = "given", {}
    for first in range(0, count, 10_000):
        some = {(name, i): np.ones(4) for i in range(first, first + 10_000)}
        futures |= client.scatter(some, hash=False)
    return da.Array(futures, name, ((4,) * count,), dtype="f8")


def measure_looks(client, process, n_partitions, n_foreign):
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
    """Additional fraction of a core of one look a second, and the fraction without."""
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
        with clustertune.Monitor(client, interval=1):  # without its first look
            watched = used(lambda: sleep(SPAN))
        idle.append(used(lambda: sleep(SPAN)))
        more.append(watched - (idle[-2] + idle[-1]) / 2)
    return median(more), median(idle)


# --- all ------------------------------------------------------------------------------

AIMS = {  # by figure: title, largest value, unit
    "live.look": ("look at all workers", 0.5, " s"),
    "live.block": ("longest turn of the scheduler's event loop with looks", 0.05, " s"),
    "live.block_partitions": ("the same, with holders of 100,000 keys", 0.05, " s"),
    "live.block_foreign": ("the same, with 1,000,000 other keys", 0.05, " s"),
    "live.cpu": ("fraction of a core for one look a second", 0.01, ""),
    "live.cpu_foreign": ("the same, with 1,000,000 other keys", 0.01, ""),
    "live.foreign_ratio": ("look with / without 1,000,000 other keys", 1.25, ""),
}
OTHERS = {
    "live.first": "first look, s",
    "live.block_idle": "longest turn without looks, s",
    "live.holders": "holders of 100,000 keys, s",
    "live.holders_foreign": "the same, with 1,000,000 other keys, s",
    "live.identity_mb": "identity of all workers, MB",
    "live.answer_mb": "answer of the scheduler plugin, MB",
    "live.partitions_mb": "the same with holders of 100,000 keys, MB",
    "live.cpu_idle": "fraction of a core that the scheduler uses without looks",
    "live.check": "check of all workers, s",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--variant", choices=["live"])
    given = parser.parse_args()
    if given.variant:
        print(json.dumps(live(given.workers, PARTITIONS, FOREIGN)))
        return
    workers = f"--workers={given.workers}"
    rounds = measure.run(__file__, ["live"], given.rounds, workers)
    print(f"{given.workers:,} workers; {measure.machine()}")
    measure.show(rounds, OTHERS)
    for name, (what, most, unit) in AIMS.items():
        found = measure.interval([r[name] for r in rounds])
        headline = name in ("live.look", "live.block")
        title = what.replace("all workers", f"all {given.workers:,} workers")
        measure.compare(title, found, at_most=most, unit=unit, headline=headline)


if __name__ == "__main__":
    main()
