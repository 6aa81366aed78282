"""The longest turn of a scheduler's event loop, in every request and in the mover.

A real scheduler has simulated workers, and X and y in memory on them. The requests name
all keys of X and y. `scale.py` runs this for several sizes. A turn is measured in CPU
time of the scheduler's thread, so other processes of the machine do not count.
"""

import asyncio
import gc
import sys
from functools import partial
from time import monotonic, thread_time, time

import numpy as np

GIB = 2**30
KEYS = 1_000_000  # of X and y together, at most
EACH = 1000  # keys for each worker
NBYTES = 2**17  # of a key
WAITING = 200_000  # tasks that wait for a worker that has left, at most
BOUND = 20_000  # those of them that a plan has bound
LOOSE = 200  # those of them that may run elsewhere; Dask takes 3 ms to start one
CYCLES = 30  # of the mover


class Worker:
    """The connection to a simulated worker; it keeps the keys that it shall fetch."""

    def __init__(self):
        self.wanted = []

    def send(self, *messages):
        for message in messages:
            if message["op"] == "acquire-replicas":
                self.wanted += message["who_has"]


async def add_workers(scheduler, n_workers):
    from distributed.core import Status
    from distributed.scheduler import WorkerState

    for i in range(n_workers):
        ws = WorkerState(
            address=f"tcp://10.0.{i // 250}.{i % 250}:4000",
            status=Status.running,
            pid=i,
            name=f"w-{i}",
            nthreads=1,
            memory_limit=16 * GIB,
            local_directory="/tmp",
            nanny=f"tcp://10.0.{i // 250}.{i % 250}:5000",
            server_id=f"id-{i}",
            scheduler=scheduler,
        )
        spilled = {"memory": 0, "disk": 0}
        ws.metrics = {"memory": 4 * GIB, "spilled_bytes": spilled}
        scheduler.workers[ws.address] = ws
        scheduler.aliases[ws.name] = ws.address
        scheduler.running.add(ws)
        scheduler.stream_comms[ws.address] = Worker()


async def add_keys(scheduler, n_keys):
    """Add the keys of X and y, which the client "me" wants."""
    addresses = list(scheduler.workers)
    for name in "Xy":
        for first in range(0, n_keys, 10_000):
            names = [(name, i) for i in range(first, min(first + 10_000, n_keys))]
            where = {k: [addresses[k[1] % len(addresses)]] for k in names}
            scheduler.update_data(
                who_has=where, nbytes=dict.fromkeys(names, NBYTES), client="me"
            )
            await asyncio.sleep(0)


def add_waiting_tasks(scheduler, plugin, n_tasks, n_bound):
    """Add tasks that wait for a worker that has left; a plan has bound the first."""
    names = [("waiting", i) for i in range(n_tasks)]
    for key in names:
        ts = scheduler.new_task(key, None, "no-worker")
        ts.worker_restrictions = {"tcp://10.9.9.9:1"}
        ts.priority = (0, key[1])
        ts.loose_restrictions = key[1] >= n_tasks - LOOSE
        scheduler.unrunnable[ts] = 0.0
    scheduler.client_desires_keys(names, "me")
    plugin.bindings.kept["ours"] = set(names[:n_bound])
    for key in names:
        plugin.transition(key, "waiting", "no-worker")


async def turns_of(n_workers):
    from distributed import Scheduler

    n_keys = min(EACH * n_workers, KEYS) // 2
    async with Scheduler(
        host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0"
    ) as scheduler:
        await add_workers(scheduler, n_workers)
        await add_keys(scheduler, n_keys)
        # collections of garbage take time that grows with all keys, with any plugin
        gc.collect()
        gc.freeze()
        try:
            return await requests(scheduler, n_keys)
        finally:
            scheduler.stream_comms.clear()
            scheduler.running.clear()
            scheduler.workers.clear()


async def requests(scheduler, n_keys):
    """Measure every request."""
    from clustertune.remote.keys import pack
    from clustertune.remote.scheduler import lease
    from clustertune.remote.scheduler.plugin import ClustertunePlugin

    plugin = ClustertunePlugin(scheduler)
    scheduler.plugins[plugin.name] = plugin
    figures = {}

    async def measured(name, begin):
        figures[name], answer = await turn(begin)
        print(f"  {name}: {figures[name]}", file=sys.stderr, flush=True)
        return answer

    async def ask(method, title="", **arguments):
        call = partial(plugin.handle, method, client="me", **arguments)
        return (await measured(title or method, call))["result"]

    async def now(function, *arguments):
        return function(*arguments)

    packed = [pack([(name, i) for i in range(n_keys)]) for name in "Xy"]
    every = [run for runs in packed for run in runs]
    listed = [[("list", [(name, i) for i in range(n_keys)])] for name in "Xy"]
    addresses = list(scheduler.workers)
    ceilings = [15 * GIB] * len(addresses)
    await ask("look", collections=[], title="look at workers")
    await ask("look", collections=packed)
    await ask("look_at_workers", workers=addresses)
    await ask("survey", packages=[])
    await ask("look_at_keys", owner="me", keys=every)
    await ask("holdings", owner="me", kept=every)
    await ask("holdings", owner="me", kept=listed[0] + listed[1],
              title="holdings, listed keys")  # fmt: skip
    await measured("watch of runs", partial(
        now, plugin.runs.note, time(), False, lease.measured(scheduler)
    ))  # fmt: skip
    await ask("report", facts=facts_of(scheduler, packed, n_keys))
    await ask("page")
    if plugin.page_data.keys:
        await measured("count rows for the page", plugin.page_data._count)  # noqa: SLF001
    await scheduled(plugin, packed, measured)

    await ask("acquire", owner="me", label="turns", token="t")
    homes = (np.arange(n_keys) % len(addresses)).astype(np.int64)
    await ask("move", token="t", workers=addresses, ceilings=ceilings, deadline=0,
              moves=[(keys, homes.tobytes()) for keys in packed],
              title="keep prepared keys")  # fmt: skip
    await evacuation(plugin, packed, addresses, measured)
    limits = dict(zip(addresses, ceilings, strict=True))
    terms = {"process_limits": limits, "wait": 1, "timeout": 1}
    await ask("restart", token="t", address="none", collections=packed, **terms)
    await ask("restart", token="t", address="none", collections=listed, **terms,
              title="restart, listed keys")  # fmt: skip
    targets = ((homes + 1) % len(addresses)).tobytes()
    job = await ask("move", token="t", workers=addresses, ceilings=ceilings,
                    moves=[(keys, targets) for keys in packed],
                    deadline=1000)  # fmt: skip
    plugin.jobs.kept[job].task.cancel()
    await ask("progress", job=job, token="t", wait=0, stop=True)
    await mover(scheduler, plugin, packed, addresses, targets, measured, figures)

    await bindings(scheduler, plugin, n_keys, ask, measured)
    await ask("release_keys", token="t", owner="me", prefix="X", kept=packed[1])
    await ask("release", token="t")
    await plugin.close()
    return figures


async def mover(scheduler, plugin, packed, addresses, targets, measured, figures):
    """Measure cycles of the mover with as many keys in flight as it allows."""
    from clustertune.remote.keys import unpack
    from clustertune.remote.scheduler import mover as module

    to = np.frombuffer(targets, np.int64).tolist()
    wanted = [
        (key, addresses[i])
        for keys in packed
        for key, i in zip(unpack(keys), to, strict=True)
    ]
    policy = module.MovePolicy(wanted, {})
    manager = getattr(module, "Mover", module.ActiveMemoryManagerExtension)(
        scheduler, policies={policy}, register=False, start=False
    )
    seconds = []

    async def cycles():
        for number in range(CYCLES):
            await asyncio.sleep(0)
            start = thread_time()
            manager.run_once()
            seconds.append(thread_time() - start)
            if number % 3 == 2:  # copies arrive later
                for address, comm in scheduler.stream_comms.items():
                    some, comm.wanted = comm.wanted, []
                    if some:
                        scheduler.add_keys(worker=address, keys=some)
                await asyncio.sleep(0)

    await measured("cycles of the mover", cycles)
    pause = getattr(module, "pause", lambda _seconds: module.CYCLE)
    busy, paused = sum(seconds), sum(map(pause, seconds))
    figures["cycles of the mover"] |= {
        "ms a cycle": busy / CYCLES * 1e3,
        "% of the loop": 100 * busy / (busy + paused),
        "longest turn, ms": max(seconds) * 1e3,
    }
    print(f"  {figures['cycles of the mover']}, {policy.done} keys", file=sys.stderr)


async def bindings(scheduler, plugin, n_keys, ask, measured):
    """Measure requests about tasks that are bound to workers."""
    from clustertune.remote.keys import pack

    new = pack([("new", i) for i in range(2 * n_keys)])
    pin = await ask("pin", token="t", keys=new)
    await ask("unpin", token="t", name=pin)
    n_tasks = min(WAITING, n_keys)
    add_waiting_tasks(scheduler, plugin, n_tasks, n_tasks * BOUND // WAITING)
    await ask("survey", packages=[], title="survey, waiting tasks")
    some = pack([("waiting", i) for i in range(1000)])
    await ask("look_at_keys", owner="me", keys=some, title="look_at_keys, waiting")
    await ask("unpin", token="t", name="none", stuck=True, title="unpin stuck tasks")
    await measured("start waiting tasks", plugin.bindings.wake)
    await measured("look for waiting tasks", plugin.bindings.wake)
    await ask("unpin", token="t", name="ours", title="unpin waiting tasks")


def facts_of(scheduler, packed, n_keys):
    thresholds = [int(f * 16 * GIB) for f in (0.6, 0.7, 0.8, 0.95)]
    return {
        "workers": dict.fromkeys(scheduler.workers, thresholds),
        "hosts": {},
        "collections": [
            {"label": "training data", "members": packed, "alike": False,
             "rows": [1000] * n_keys}
        ],
    }  # fmt: skip


async def scheduled(plugin, packed, measured):
    """Measure the looks of a scheduled restart."""
    from clustertune.remote.scheduler.schedule import Schedule

    workers = plugin.scheduler.workers.values()
    terms = {
        "owner": "me", "reason": None, "idle_for": 1.0, "instants": [],
        "expires": time() + 900, "workers": None, "collections": packed,
        "thresholds": [(ws.name, {"spill": 0.7, "pause": 0.8}) for ws in workers],
        "parking": b"", "timeout": 1.0, "if_needed": 0.01, "fresh": 0,
    }  # fmt: skip
    one = Schedule("one", terms, time(), monotonic())
    schedules = plugin.schedules
    everyone = {ws.name: ws for ws in workers}

    async def due():
        return schedules._due(one)  # noqa: SLF001

    await measured("workers that a scheduled restart needs", due)
    await measured(
        "order of a scheduled restart",
        lambda: schedules._ordered(everyone),  # noqa: SLF001
    )


async def evacuation(plugin, packed, addresses, measured):
    """Measure the choice of targets for the keys of a worker."""
    from clustertune.remote.keys import Places
    from clustertune.remote.scheduler.restart import WorkerRestart

    work = WorkerRestart(
        plugin.scheduler, plugin.manager, addresses[0], await Places.of(packed),
        dict.fromkeys(addresses[1:], int(0.7 * 16 * GIB)), 1, 1,
    )  # fmt: skip
    worker = plugin.scheduler.workers[addresses[0]]
    await measured(
        "targets for the keys of a worker", lambda: work.evacuation.assign(worker)
    )


async def turn(begin):
    """CPU seconds of some work and of its longest turn, and its result."""
    longest, going = 0.0, True

    async def tick():
        nonlocal longest
        last = thread_time()
        while going:
            await asyncio.sleep(0)
            now = thread_time()
            longest, last = max(longest, now - last), now

    ticking = asyncio.ensure_future(tick())
    await asyncio.sleep(0)
    start = thread_time()
    answer = await begin()
    seconds = thread_time() - start
    await asyncio.sleep(0)
    going = False
    await ticking
    return {"s": seconds, "longest turn, ms": longest * 1e3}, answer


def turns(n_workers):
    import dask

    # both would contact the simulated workers
    options = {
        "distributed.scheduler.work-stealing": False,
        "distributed.scheduler.worker-ttl": None,
    }
    with dask.config.set(options):
        return asyncio.run(turns_of(n_workers))
