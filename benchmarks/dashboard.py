"""CPU time of an update of the dashboard page, for one open page.

No cluster runs. A scheduler gets the states of simulated workers, whose memory changes
at each update. The update is encoded as Bokeh's server does.

Usage: `python benchmarks/dashboard.py [WORKERS ...]`.
"""

from __future__ import annotations

import asyncio
import random
import sys
from time import process_time

import dask
from bokeh.document import Document
from bokeh.protocol import Protocol
from distributed import Scheduler
from distributed.core import Status
from distributed.scheduler import WorkerState, heartbeat_interval
from measure import compare

from clustertune.dashboard.page import Page
from clustertune.remote.keys import pack
from clustertune.remote.scheduler.page import PageData
from clustertune.remote.scheduler.plugin import ClustertunePlugin

GIB = 2**30
UPDATES = 60
PARTITIONS = 4000


def add_workers(scheduler, n):
    for i in range(n):
        ws = WorkerState(
            address=f"tcp://10.0.{i // 250}.{i % 250}:4000",
            status=Status.running,
            pid=i,
            name=f"worker-{i}",
            nthreads=4,
            memory_limit=16 * GIB,
            local_directory="/tmp",
            nanny="",
            server_id=f"id-{i}",
        )
        scheduler.workers[ws.address] = ws


def change(scheduler, some, share):
    """Change the workers whose heartbeats arrive within a second."""
    for ws in scheduler.workers.values():
        if some.random() > share:
            continue
        process = int(some.uniform(2, 12) * GIB)
        spilled = {"memory": 0, "disk": 0}
        ws.metrics = {"memory": process, "spilled_bytes": spilled}
        ws.nbytes = process // 2


async def measure(n):
    async with Scheduler(
        host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0"
    ) as scheduler:
        some = random.Random(0)
        add_workers(scheduler, n)
        plugin = ClustertunePlugin(scheduler)
        page_data = PageData(scheduler, plugin)
        facts = {
            "workers": {
                a: [int(f * 16 * GIB) for f in (0.6, 0.7, 0.8, 0.95)]
                for a in scheduler.workers
            },
            "collections": [
                {
                    "label": "training data",
                    "members": [
                        pack([(m, i) for i in range(PARTITIONS)]) for m in "Xy"
                    ],
                    "rows": [1000] * PARTITIONS,
                    "alike": False,
                }
            ],
        }
        page_data.keep(facts)
        page, document, events, protocol = Page(), Document(), [], Protocol()
        document.add_root(page.root)
        document.on_change(events.append)
        making = drawing = sending = sent = 0.0
        for update in range(UPDATES + 2):
            if update == 2:  # the first updates draw the whole page
                making = drawing = sending = sent = 0.0
            change(scheduler, some, 1.0 if update < 2 else 1 / heartbeat_interval(n))
            begin = process_time()
            page_data.made_at = 0.0
            state = await page_data.look()
            made = process_time()
            page.update(state)
            drawn = process_time()
            if events:
                message = protocol.create("PATCH-DOC", events, use_buffers=True)
                sent += len(message.content_json)
            events.clear()
            done = process_time()
            making, drawing = making + made - begin, drawing + drawn - made
            sending += done - drawn
            if page_data.counting is not None:
                await page_data.counting
        begin = process_time()
        await page_data._count()  # noqa: SLF001
        counting = process_time() - begin
        del scheduler.workers
        scheduler.workers = {}
        return [x / UPDATES for x in (making, drawing, sending, sent)] + [counting]


def main(numbers):
    print(f"ms of CPU for an update, mean of {UPDATES}; one open page")
    print("workers  state  page  patch   sum  % of a core at 1 s  KiB   count (10 s)")
    for n in numbers:
        making, drawing, sending, sent, counting = asyncio.run(measure(n))
        total = making + drawing + sending
        print(
            f"{n:7d} {making * 1e3:6.1f} {drawing * 1e3:5.1f} {sending * 1e3:6.1f}"
            f" {total * 1e3:5.1f} {total * 100:19.2f} {sent / 1024:4.0f}"
            f" {counting * 1e3:8.1f} ms of {2 * PARTITIONS} keys"
        )
        what = f"update of the page with {n:,} workers, CPU"
        compare(what, total * 1e3, unit=" ms", headline=n == max(numbers))


if __name__ == "__main__":
    # work stealing would contact the simulated workers
    dask.config.set({"distributed.scheduler.work-stealing": False})
    main([int(x) for x in sys.argv[1:]] or [4, 60, 400, 1000])
