"""`prepare` on data that is already well placed.

Four workers hold X and y in 100 partitions with even rows. After a first call,
`prepare` must move nothing and return at once.

Options: `--calls 50`, `--partitions 100`.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import dask.array as da
from distributed import Client, wait
from measure import cluster, compare, interval, machine

import clustertune


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=100)
    chosen = parser.parse_args()
    with cluster(4, memory_limit="auto") as client:
        n = 1000 * chosen.partitions
        X = da.random.random((n, 20), chunks=(1000, 20))
        X, y = client.persist([X, X[:, 0] > 0.5])
        wait([X, y])
        start = perf_counter()
        clustertune.prepare(client, X, y, progress=False)
        first = perf_counter() - start
        moved_before = incoming(client)
        seconds = []
        for _ in range(chosen.calls):
            start = perf_counter()
            prepared = clustertune.prepare(client, X, y, progress=False)
            seconds.append(perf_counter() - start)
            assert prepared.report.status == "fine"
        moved = incoming(client) - moved_before
    found = interval([s * 1000 for s in seconds])
    print(f"4 workers, {chosen.partitions} partitions; {machine()}")
    print(f"first call, which placed the data: {first * 1000:.0f} ms")
    compare("a call that moves nothing", found, at_most=150, unit=" ms", headline=True)
    compare("partitions moved by these calls", float(moved), at_most=0)


def incoming(client: Client) -> int:
    """Number of transfers that workers received so far."""
    counts = client.run(
        lambda dask_worker: dask_worker.state.transfer_incoming_count_total
    )
    return sum(counts.values())


if __name__ == "__main__":
    main()
