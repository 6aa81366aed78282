"""Restart workers whose memory is full or that are paused.

Three workers each hold 20 MiB of keys: scattered values, and partitions that can be
computed again. A leak in each process then fills it above the spill threshold (`full`)
or above the pause threshold (`paused`). Ours is `clustertune.restart_workers(client)`.
`restart` is `client.restart()`. `workers` calls `client.restart_workers` for one worker
after the other. A lost key was in memory before the restart and on no worker
afterwards.

Options: `--rounds 6`, `--state paused` (or `full`).
"""

import argparse
import json
import os
from time import perf_counter, sleep, time

import measure
import numpy as np
from measure import workers_of
from restart import lost

WORKERS = 3
MIB = 2**20
LIMIT = 1024 * MIB  # memory limit of a worker
SCATTERED = 30  # values of 1 MiB
PARTITIONS = 30  # of 1 MiB
FILLED = {"full": 0.75, "paused": 0.85}  # of the limit
NAMES = ("ours", "restart", "workers")
DEADLINE = 60  # seconds for a state of the cluster


def leak(fraction):
    """Fill this process with unmanaged memory up to a fraction of the limit."""
    import builtins

    import psutil

    missing = int(fraction * LIMIT) - psutil.Process().memory_info().rss
    builtins.leaked = b"x" * max(0, missing)


def memory(dask_scheduler):
    """Process memory and status of each worker on the scheduler."""
    return [(w.memory.process, w.status.name) for w in dask_scheduler.workers.values()]


def wait_for(client, state):
    end = perf_counter() + DEADLINE
    while perf_counter() < end:
        seen = client.run_on_scheduler(memory)
        if state == "paused" and all(status == "paused" for _, status in seen):
            return
        if state == "full" and all(nbytes > 0.7 * LIMIT for nbytes, _ in seen):
            return
        sleep(0.1)
    raise TimeoutError(f"workers are not {state}: {seen}")


def variant(name, state):
    import dask
    import dask.array as da
    from distributed import wait

    import clustertune

    dask.config.set({"distributed.logging.distributed": "critical"})
    with measure.cluster(WORKERS, memory_limit=LIMIT) as client:
        X = client.persist(da.ones((PARTITIONS * MIB // 8,), chunks=MIB // 8))
        wait(X)
        values = [np.full(MIB // 8, i) for i in range(SCATTERED)]
        kept = client.scatter(values, hash=False)
        clustertune.check(client)
        before = set(client.run(os.getpid).values())
        client.run(leak, FILLED[state])
        wait_for(client, state)
        since, start = time(), perf_counter()
        if name == "ours":
            report = clustertune.restart_workers(client, progress=False)
            assert report.status == "done", str(report)
        elif name == "restart":
            client.restart()
        else:
            for address in list(workers_of(client)):
                client.restart_workers([address])
        seconds = perf_counter() - start
        assert not before & set(client.run(os.getpid).values())
        computed, scattered = client.run_on_scheduler(lost, since=since)
        if name == "restart":  # Dask's events do not count these keys
            computed = PARTITIONS
            scattered = sum(f.status != "finished" for f in kept)
        most = max(nbytes for nbytes, _ in client.run_on_scheduler(memory))
    return {
        "seconds": seconds,
        "computed": computed,
        "scattered": scattered,
        "fullest": most / LIMIT,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--state", choices=[*FILLED], default="paused")
    parser.add_argument("--variant")
    given = parser.parse_args()
    if given.variant:
        print(json.dumps(variant(given.variant, given.state)))
        return
    print(measure.machine())
    show(
        given.state, measure.run(__file__, NAMES, given.rounds, "--state", given.state)
    )


def show(state, rounds):
    figures = {
        "seconds": "s",
        "computed": "lost keys, computed again",
        "scattered": "lost keys, gone",
        "fullest": "fullest worker afterwards, of its limit",
    }
    measure.show(
        rounds,
        {f"{n}.{k}": f"{n}: {what}" for n in NAMES for k, what in figures.items()},
    )
    for name in NAMES[1:]:
        ratio = measure.ratios(rounds, "ours.seconds", f"{name}.seconds")
        measure.compare(f"{state} workers: seconds, ours / {name}", ratio)
    for name in NAMES:
        lost_keys = measure.interval([r[f"{name}.scattered"] for r in rounds])
        measure.compare(
            f"{state} workers: keys that {name} lost for good",
            lost_keys,
            at_most=0 if name == "ours" else None,
            headline=name == "ours",
        )


if __name__ == "__main__":
    main()
