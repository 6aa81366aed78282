"""Rows and functions of fits, for processes that would import all of a test module."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from distributed import Event

ROWS, PARTITIONS = 3000, 6


def block(number: int, seed: int | None = 0) -> Any:
    """Rows of one partition: features, and the label in the last column."""
    random = np.random.default_rng(None if seed is None else [seed, number])
    values = random.random((ROWS, 9), dtype="f4")
    signal = values[:, 0] + values[:, 1] * values[:, 2] + (values[:, 8] - 0.5)
    values[:, 8] = signal > 0.8
    return values


def has_fit(dask_scheduler: Any) -> bool:
    plugin = dask_scheduler.plugins.get("clustertune")
    return plugin is not None and bool(plugin.fits.running)


def busy(dask_scheduler: Any) -> list[str]:
    """Addresses of the workers that have tasks."""
    return [a for a, ws in dask_scheduler.workers.items() if ws.processing]


def train_until(name: str) -> int:
    """Stand in for the training of another client; return the process."""
    Event(name).wait()
    return os.getpid()


def is_training(dask_worker: Any) -> bool:
    keys = [str(ts.key) for ts in dask_worker.state.executing]
    return any(key.startswith(("fn-", "_train_part-")) for key in keys)
