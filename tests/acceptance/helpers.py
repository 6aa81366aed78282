"""Data whose rows are known, looks at a cluster with Dask only, and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, futures_of, wait

from tests.processes import workers_of

ROWS, PARTITIONS = 24_000, 12
FEATURES = np.random.default_rng(0).integers(0, 8, (ROWS, 4)).astype("f4")
FEATURES[:, 0] = np.arange(ROWS)  # the number of the row
LABELS = (FEATURES[:, 1] > FEATURES[:, 2]).astype("f4")


def lazy(rows_of_X: int = 2000, rows_of_y: int = 2000) -> tuple[Any, Any]:
    """X and y in partitions of so many rows."""
    X = da.from_array(FEATURES, chunks=(rows_of_X, -1))
    return X, da.from_array(LABELS, chunks=rows_of_y)


def load(client: Client, **options: Any) -> tuple[Any, Any]:
    """X and y in the memory of the workers."""
    X, y = client.persist(lazy(), **options)
    wait([X, y])
    return X, y


def assert_intact(X: Any, y: Any) -> None:
    """Every row is at its place, and has its own label."""
    np.testing.assert_array_equal(X.compute(), FEATURES)
    np.testing.assert_array_equal(y.compute(), LABELS)


def keys(collection: Any) -> list[Any]:
    """Keys of the partitions, in the order of the rows."""
    return [future.key for future in futures_of(collection)]


def holders(client: Client, collection: Any) -> list[tuple[str, ...]]:
    """Workers that have each partition, in the order of the rows."""
    found = client.who_has(futures_of(collection))
    return [tuple(found[key]) for key in keys(collection)]


def partitions_by_worker(client: Client, collection: Any) -> Counter[str]:
    return Counter(worker for held in holders(client, collection) for worker in held)


def pids(client: Client) -> set[int]:
    """Process ids of the workers."""
    return set(client.run(os.getpid).values())


def clustertune(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in another process, without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "clustertune", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def clustertune_json(*arguments: str) -> Any:
    """Run the command, which must succeed, and return what it printed."""
    done = clustertune(*arguments, "-f", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def process_memory(client: Client) -> list[int]:
    """Bytes of each worker process, by its last heartbeat."""
    return [worker["metrics"]["memory"] for worker in workers_of(client).values()]
