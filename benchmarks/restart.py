"""Restart all workers without losing data.

Four workers hold persisted data, and 40 scattered values that no task can compute
again. Ours is `clustertune.restart_workers(client, X)`; `pairs` is the same with
`max_unavailable=2`. `reload` is `client.restart()`, after which the data is
loaded again. `workers` calls `client.restart_workers` for one worker after the other.
`lifetime` uses Dask's `--lifetime-restart` with 8 s. Each variant ends when all workers
are new and the data is complete, except for lost scattered values.

Options: `--rounds 6`, `--mb 500`, `--variants ours,pairs,reload,workers,lifetime`.
"""

import argparse
import json
import os
from time import perf_counter, sleep

import measure
import numpy as np
import psutil
from measure import workers_of

WORKERS = 4
SCATTERED = 40
VARIANTS = ("ours", "pairs", "reload", "workers", "lifetime")
LIFETIME = 8  # seconds


def source(mb):
    import dask.array as da

    rows = mb * 10**6 // 800
    return da.random.default_rng(1).random((rows, 100), chunks=(rows // 80, 100))


def lost(dask_scheduler, since):
    """Keys that were lost with workers, from the scheduler's events."""
    computed = scattered = 0
    for when, event in dask_scheduler.get_events("all"):
        if (
            when > since
            and isinstance(event, dict)
            and event.get("action") == "remove-worker"
        ):
            computed += len(event["lost-computed-tasks"])
            scattered += len(event["lost-scattered-tasks"])
    return computed, scattered


def variant(name, mb):
    import time

    import dask
    from distributed import wait

    import clustertune

    options = {
        "memory_limit": f"{max(1.0, mb / 1000):.2f} GiB",
        "dashboard_address": None,
    }
    if name == "lifetime":
        options |= {"lifetime": f"{LIFETIME} s", "lifetime_restart": True}
    dask.config.set({"distributed.logging.distributed": "critical"})
    with measure.cluster(WORKERS, **options) as client:
        X = client.persist(source(mb))
        wait(X)
        values = [np.full(1000, i) for i in range(SCATTERED)]
        kept = client.scatter(values, hash=False)
        clustertune.check(client)
        before = set(client.run(os.getpid).values())
        traffic = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        since, start = time.time(), perf_counter()
        moved = None
        if name in ("ours", "pairs"):
            unavailable = {"max_unavailable": 2 if name == "pairs" else 1}
            report = clustertune.restart_workers(
                client, X, progress=False, **unavailable
            )
            assert report.status == "done", str(report)
            moved = sum(step.nbytes for step in report.steps) / (
                X.nbytes + sum(value.nbytes for value in values)
            )
        elif name == "reload":
            client.restart()
            X = client.persist(source(mb))
        elif name == "workers":
            for address in list(workers_of(client)):
                client.restart_workers([address])
        else:
            while before & set(client.run(os.getpid, on_error="ignore").values()):
                sleep(0.2)
        wait(X)
        seconds = perf_counter() - start
        traffic = psutil.net_io_counters(pernic=True)["lo"].bytes_sent - traffic
        assert not before & set(client.run(os.getpid).values())
        computed, scattered = client.run_on_scheduler(lost, since=since)
        there = sum(f.status == "finished" for f in kept)
    return {
        "seconds": seconds,
        "mb": traffic / 1e6,
        **({} if moved is None else {"moved": moved}),
        "computed": computed if name != "reload" else 80,
        "scattered": max(scattered, SCATTERED - there),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--variant", choices=VARIANTS)
    given = parser.parse_args()
    if given.variant:
        print(json.dumps(variant(given.variant, given.mb)))
        return
    names = given.variants.split(",")
    if unknown := {*names} - {*VARIANTS}:
        parser.error(f"--variants {', '.join(unknown)}: choose from {VARIANTS}")
    rounds = measure.run(__file__, names, given.rounds, "--mb", str(given.mb))
    print(measure.machine())
    figures = {"seconds": "s", "mb": "MB sent", "computed": "lost keys, computed again",
               "scattered": "lost keys, gone"}  # fmt: skip
    measure.show(
        rounds,
        {f"{n}.{k}": f"{n}: {what}" for n in names for k, what in figures.items()}
        | {
            f"{n}.moved": f"{n}: bytes moved / data"
            for n in names
            if f"{n}.moved" in rounds[0]
        },
    )
    measure.compare(
        "bytes moved / data",
        measure.interval([r["ours.moved"] for r in rounds]),
        at_most=1.01,
    )
    for name in names[1:]:
        ratio = measure.ratios(rounds, "ours.seconds", f"{name}.seconds")
        measure.compare(
            f"seconds, ours / {name}",
            ratio,
            headline=name == "reload",
        )
    for name in names:
        lost_keys = measure.interval([r[f"{name}.scattered"] for r in rounds])
        measure.compare(
            f"keys that {name} lost for good",
            lost_keys,
            at_most=0 if name == "ours" else None,
            headline=name == "ours",
        )


if __name__ == "__main__":
    main()
