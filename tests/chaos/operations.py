"""The calls of a round on a real cluster, with random arguments.

They run in this process, or in another one that can be killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from time import monotonic, sleep
from typing import Any

import dask.array as da
from distributed import Client

import clustertune
from clustertune import training
from tests.chaos.data import GROUP, Data

TIMEOUT = 60.0  # seconds for each call
LONGEST = 170.0  # seconds of a schedule; it waits 120 for a worker without nanny
Notify = Callable[[str, "float | None"], None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of an operation."""

    status: str
    collections: tuple[Any, ...] = ()  # X, y and rows afterwards; empty: unchanged
    separated: int = 0  # separated pairs in the report
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A call and its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def draw(rng: Random) -> Operation:
    name = rng.choice((*OPERATIONS, "prepare", "prepare", "restart"))
    return Operation(name=name, options=_OPTIONS.get(name, lambda _: {})(rng))


def removes_workers(operation: Operation) -> bool:
    """Whether it may remove workers, which data bound to them cannot follow."""
    return operation.name == "scale" or "n_workers" in operation.options


def run(operation: Operation, client: Client, data: Data, notify: Notify) -> Result:
    """Make the call, and pass its errors on."""
    notify(operation.name, None)
    return OPERATIONS[operation.name](client, data, dict(operation.options), notify)


# --- prepare --------------------------------------------------------------------------


def _draw_options(
    rng: Random, chances: Mapping[str, tuple[float, tuple[Any, ...]]]
) -> Any:
    return {
        name: rng.choice(values)
        for name, (chance, values) in chances.items()
        if rng.random() < chance
    }


def _prepare_options(rng: Random) -> dict[str, Any]:
    workloads = ("xgboost", "lightgbm", "torch_ddp", "xgboost_rank")
    return _draw_options(
        rng,
        {
            "estimator": (0.5, workloads),
            "restart": (0.15, (True, "auto")),
            "n_workers": (0.1, (1, 2, 3)),
        },
    )


def _rechunk_options(rng: Random) -> dict[str, Any]:
    return {"rechunk": rng.randint(3, 40), "release_inputs": rng.random() < 0.4}


def _prepare(client: Client, data: Data, options: Any, notify: Notify) -> Result:
    qid = None
    if options.get("estimator") == "xgboost_rank":
        qid = _groups(data)
    found = clustertune.prepare(
        client, *data, qid=qid, progress=notify, timeout=TIMEOUT, **options
    )
    after = found.report.after
    return Result(
        status=found.report.status,
        collections=tuple(found)[:3],
        separated=sum(x.separated or 0 for x in after),
    )


def _groups(data: Data) -> Any:
    """The group of each row."""
    made = data.rows // GROUP
    return made if isinstance(made, da.Array) else made.rename("qid")


def _prepare_and_hold(
    client: Client, data: Data, options: Any, notify: Notify
) -> Result:
    with clustertune.prepare(
        client, *data, progress=notify, timeout=TIMEOUT, **options
    ) as (X, y, rows):
        notify("holding", None)
        total = int(client.compute(rows.sum()).result(timeout=TIMEOUT))
    return Result(
        status="done", collections=(X, y, rows), wrong=_check_total(total, data)
    )


def _check_total(total: int, data: Data) -> tuple[str, ...]:
    n = data.spec.rows
    return () if total == n * (n - 1) // 2 else (f"the row numbers sum to {total}",)


# --- workers --------------------------------------------------------------------------


def _restart(client: Client, data: Data, options: Any, notify: Notify) -> Result:
    report = clustertune.restart_workers(
        client, *_aligned(data), progress=notify, timeout=TIMEOUT, **options
    )
    return Result(status=report.status)


def _aligned(data: Data) -> tuple[Any, ...]:
    """The collections, if their partitions match."""
    return tuple(data) if data.spec.partitions == data.spec.other_partitions else ()


def _resize(client: Client, data: Data, options: Any, notify: Notify) -> Result:
    report = clustertune.resize_workers(
        client, *_aligned(data), progress=notify, timeout=TIMEOUT, **options
    )
    return Result(status=report.status)


def _scale(client: Client, data: Data, options: Any, notify: Notify) -> Result:
    n_workers = max(1, len(client.nthreads()) + options["by"])
    report = clustertune.scale(
        client, n_workers, *_aligned(data), progress=notify, timeout=TIMEOUT
    )
    return Result(status=report.status)


def _trim(client: Client, data: Data, options: Any, notify: Notify) -> Result:
    return Result(status=clustertune.trim_memory(client, progress=notify).status)


def _release(client: Client, data: Data, options: Any, notify: Notify) -> Result:
    """Release the other data of this client."""
    kept = list(data)
    if data.spec.place == "lazy":
        kept = client.persist(kept)
    more = client.persist(da.ones(1000, chunks=100))
    report = clustertune.release_data(client, keep=kept, progress=notify)
    del more
    return Result(status=report.status)


# --- runs -----------------------------------------------------------------------------


def _hold(client: Client, data: Data, options: Any, notify: Notify) -> Result:
    with clustertune.hold(client, label="chaos"):
        notify("holding", None)
        total = int(client.compute(data.rows.sum()).result(timeout=TIMEOUT))
    return Result(status="done", wrong=_check_total(total, data))


def _map_reduce(client: Client, data: Data, options: Any, notify: Notify) -> Result:
    def sums(rows: Any) -> dict[str, Any]:
        import numpy as np

        values = np.asarray(rows)
        return {"count": len(values), "total": int(values.sum())}

    rows = data.rows
    if data.spec.place == "lazy":
        rows = client.persist(rows)
    found = training.map_reduce(client, sums, rows)
    wrong = _check_total(found["total"], data)
    if found["count"] != data.spec.rows:
        wrong += (f"map_reduce saw {found['count']} rows",)
    return Result(status="done", wrong=wrong)


def _schedule(client: Client, data: Data, options: Any, notify: Notify) -> Result:
    made = clustertune.schedule_restart(
        client, *_aligned(data), idle_for="300ms", expires="40s"
    )
    end = monotonic() + LONGEST
    try:
        while True:
            now = next(s for s in clustertune.schedules(client) if s.id == made.id)
            notify(f"schedule {now.state}", None)
            if now.ended:
                return Result(status=f"schedule {now.state}")
            if monotonic() > end:
                return Result(status="late", wrong=(f"a schedule did not end: {now}",))
            sleep(0.1)
    except BaseException:
        made.cancel()
        raise


_OPTIONS: Mapping[str, Callable[[Random], dict[str, Any]]] = {
    "prepare": _prepare_options,
    "prepare and hold": lambda rng: _draw_options(
        rng, {"estimator": (0.5, ("xgboost",))}
    ),
    "rechunk": _rechunk_options,
    "restart": lambda rng: {"max_unavailable": rng.choice((1, 1, 2, "50%"))},
    "resize": lambda rng: rng.choice(({"nthreads": 2}, {"memory_limit": "800 MiB"})),
    "scale": lambda rng: {"by": rng.choice((-1, 1))},
}
OPERATIONS: Mapping[str, Callable[[Client, Data, Any, Notify], Result]] = {
    "prepare": _prepare,
    "prepare and hold": _prepare_and_hold,
    "rechunk": _prepare,
    "restart": _restart,
    "resize": _resize,
    "scale": _scale,
    "trim": _trim,
    "release": _release,
    "hold": _hold,
    "map_reduce": _map_reduce,
    "schedule": _schedule,
}
