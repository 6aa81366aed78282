"""What it costs to look at a large cluster: time, bytes, the scheduler's event loop.

A scheduler in a process of its own has real workers, all of them in one other process
(so their own answers are slow; a look asks them nothing). Pieces of the given data are
real keys on the workers; foreign keys are entered in the scheduler only.

Longest block: a task in the scheduler's event loop that wakes every 2 ms notes the
longest gap, while looks go on and while they do not. CPU: seconds of the scheduler's
process, with one look a second and without, in turn. The records are views of 10,000
workers that never were; what checks and reports take for them.

Run: ``python benchmarks/monitor.py [--rounds 3]``, about ten minutes. The aims, and
whether they are met, are printed at the end.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import measure
import numpy as np
import psutil
from tabulate import tabulate

WORKERS, PIECES, FOREIGN = 1000, 100_000, 1_000_000
RECORDS = 10_000
LOOKS = 11
SPAN = 6.0  # seconds of each measurement of CPU
PAIRS = 4  # of such measurements
QUIET = {  # a thousand workers in one process would do nothing else
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "30s",
    "distributed.admin.system-monitor.interval": "30s",
    "distributed.admin.tick.interval": "5s",
}


# --- the cluster ----------------------------------------------------------------------


def workers(address, count):
    """Run workers until this process is ended."""
    import dask
    from distributed import Worker

    async def start():
        options = {"nthreads": 1, "memory_limit": "1 GiB", "dashboard": False}
        every = [Worker(address, name=i, **options) for i in range(count)]
        for some in range(0, count, 50):
            await asyncio.gather(*every[some : some + 50])
        await asyncio.Event().wait()

    with dask.config.set(QUIET):
        asyncio.run(start())


def start_ticking(dask_scheduler):
    """A task that notes the longest gap between two of its turns."""
    import asyncio
    from time import perf_counter

    async def tick():
        last = perf_counter()
        while True:
            await asyncio.sleep(0.002)
            now = perf_counter()
            dask_scheduler.longest = max(dask_scheduler.longest, now - last)
            last = now

    dask_scheduler.longest = 0.0
    dask_scheduler.ticking = asyncio.ensure_future(tick())


def take_longest(dask_scheduler):
    longest, dask_scheduler.longest = dask_scheduler.longest, 0.0
    return longest


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


# --- live -----------------------------------------------------------------------------


def live(n_workers, n_pieces, n_foreign):
    from distributed import Client

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scheduler.json"
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        command = [sys.executable, "-m", "dask", "scheduler", *options]
        scheduler = subprocess.Popen(
            [*command, "--scheduler-file", str(file)], stderr=subprocess.DEVNULL
        )
        crew = None
        try:
            while not file.exists():
                sleep(0.05)
            address = json.loads(file.read_text())["address"]
            command = [sys.executable, __file__, "--crew", address, str(n_workers)]
            crew = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=folder)
            with Client(address) as client:
                client.wait_for_workers(n_workers, timeout=300)
                process = psutil.Process(scheduler.pid)
                return looked(client, process, n_pieces, n_foreign)
        finally:
            for started in filter(None, [crew, scheduler]):
                started.terminate()
                started.wait()


def pieces(client, count):
    """An array of so many small pieces, spread over all workers."""
    import dask.array as da

    name, futures = "given", {}
    for first in range(0, count, 10_000):
        some = {(name, i): np.ones(4) for i in range(first, first + 10_000)}
        futures |= client.scatter(some, hash=False)
    return da.Array(futures, name, ((4,) * count,), dtype="f8")


def looked(client, process, n_pieces, n_foreign):
    from distributed.protocol import dumps

    import clustertune
    from clustertune import monitor
    from clustertune.remote import keys

    figures = {}
    start = perf_counter()
    with clustertune.Monitor(client, interval=3600):
        figures["first"] = perf_counter() - start
    client.run_on_scheduler(start_ticking)

    def timed(members):
        times = []
        for _ in range(LOOKS):
            start = perf_counter()
            client.sync(monitor.look, client, members)
            times.append(perf_counter() - start)
        return median(times)

    def longest(work):
        client.run_on_scheduler(take_longest)
        work()
        return client.run_on_scheduler(take_longest)

    figures["block_idle"] = longest(lambda: sleep(LOOKS * 0.3))
    figures["look"] = timed([])
    figures["block"] = longest(lambda: timed([]))

    X = pieces(client, n_pieces)
    packed = [keys.pack([(X.name, i) for i in range(n_pieces)])]

    async def ask(packed):
        return await monitor.ask(client, "look", collections=packed)

    identity = client.sync(monitor.identify, client)
    answer = client.sync(ask, packed)
    figures["identity_mb"] = sum(map(len, dumps(dict(identity)))) / 1e6
    figures["answer_mb"] = sum(map(len, dumps(client.sync(ask, [])))) / 1e6
    figures["pieces_mb"] = sum(map(len, dumps(answer))) / 1e6

    def holders():
        times = []
        for _ in range(LOOKS):
            start = perf_counter()
            client.sync(ask, packed)
            times.append(perf_counter() - start)
        return median(times)

    figures["cpu"], figures["cpu_idle"] = cpu(client, process)
    figures["holders"] = holders()
    figures["block_pieces"] = longest(holders)
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
    from clustertune.report import Report, summarize

    rows, where = [1000] * PIECES, [i % RECORDS for i in range(PIECES)]
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
        report = Report(status="looked", seconds=1.0, found=found, before=before)
        str(report), report._repr_html_(), report.to_json()
        times["report"].append(perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


# --- all ------------------------------------------------------------------------------

AIMS = {  # figure: (what it is, most, unit)
    "large.look": ("look at 1,000 workers", 0.5, "s"),
    "large.block": ("longest block of the scheduler by looks", 0.05, "s"),
    "large.block_pieces": ("the same, with 1e5 pieces asked for", 0.05, "s"),
    "large.block_foreign": ("the same, with 1e6 foreign keys", 0.05, "s"),
    "large.cpu": ("of a core more, at a look a second", 0.01, ""),
    "large.cpu_foreign": ("the same, with 1e6 foreign keys", 0.01, ""),
    "large.foreign_ratio": ("look with 1e6 foreign keys / without", 1.25, ""),
}
OTHERS = {
    "large.first": "first look: versions, resident, what workers know, s",
    "large.block_idle": "longest block without looks, s",
    "large.holders": "holders of 1e5 pieces, s",
    "large.holders_foreign": "the same with 1e6 foreign keys, s",
    "large.identity_mb": "identity of 1,000 workers, MB",
    "large.answer_mb": "the resident's answer, MB",
    "large.pieces_mb": "the same with 1e5 pieces, MB",
    "large.cpu_idle": "share of a core that the scheduler uses without looks",
    "large.check": "check of 1,000 workers (in one process), s",
    "small.look": "look at 100 workers, s",
    "small.first": "first look at 100 workers, s",
    "records.checks": "checks of 10,000 workers and 1e5 pieces, s",
    "records.report": "summary and report of it in three forms, s",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", choices=["small", "large", "records"])
    parser.add_argument("--crew", nargs=2, metavar=("ADDRESS", "COUNT"))
    given = parser.parse_args()
    if given.crew:
        workers(given.crew[0], int(given.crew[1]))
    elif given.variant:
        figures = {
            "small": lambda: live(100, 10_000, 0),
            "large": lambda: live(WORKERS, PIECES, FOREIGN),
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
