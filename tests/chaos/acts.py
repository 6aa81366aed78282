"""What is done in a live round: clustertune's calls, with drawn arguments.

The same in this process and in one of its own, which can be killed.
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
LONGEST = 170.0  # seconds: a worker whose nanny is gone is waited for, for 120
Notify = Callable[[str, "float | None"], None]


@dataclass(frozen=True, kw_only=True)
class Done:
    """What an act has come to."""

    status: str
    collections: tuple[Any, ...] = ()  # X, y and rows now; none: as they were
    remainder: tuple[Any, ...] = ()  # of these, rows that were set aside
    ordered: bool = True  # rows are in the order in which they were given
    separated: int = 0  # pairs that the report says are apart
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Act:
    """A call, and what it is given."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def draw(rng: Random) -> Act:
    name = rng.choice((*ACTS, "prepare", "prepare", "restart"))
    return Act(name=name, options=_OPTIONS.get(name, lambda _: {})(rng))


def takes_workers_away(act: Act) -> bool:
    """Whether it may be asked to: data that is bound to these cannot follow."""
    return act.name == "scale" or "n_workers" in act.options


def carry_out(act: Act, client: Client, data: Data, notify: Notify) -> Done:
    """Make the call; errors of it come out."""
    notify(act.name, None)
    return ACTS[act.name](client, data, dict(act.options), notify)


# --- prepare --------------------------------------------------------------------------


def _some(rng: Random, chances: Mapping[str, tuple[float, tuple[Any, ...]]]) -> Any:
    return {
        name: rng.choice(values)
        for name, (chance, values) in chances.items()
        if rng.random() < chance
    }


def _of_prepare(rng: Random) -> dict[str, Any]:
    workloads = ("xgboost", "lightgbm", "torch_ddp", "xgboost_rank")
    return _some(
        rng,
        {
            "estimator": (0.5, workloads),
            "restart": (0.15, (True, "auto")),
            "to": (0.15, ("array",)),
            "dtype": (0.1, ("float32",)),
            "n_workers": (0.1, (1, 2, 3)),
        },
    )


def _of_cut(rng: Random) -> dict[str, Any]:
    return {"rechunk": rng.randint(3, 40), "release_inputs": rng.random() < 0.4}


def _of_order(rng: Random) -> dict[str, Any]:
    if rng.random() < 0.4:
        return {"sort": True}
    return {
        "shuffle": rng.choice(("rows", "rows", "partitions")),
        "random_state": rng.randrange(9),
    }


def _prepare(client: Client, data: Data, options: Any, notify: Notify) -> Done:
    qid = None
    if options.get("sort"):
        qid = _groups(data, scattered=True)
    elif options.get("estimator") == "xgboost_rank":
        qid = _groups(data, scattered=False)
    found = clustertune.prepare(
        client, *data, qid=qid, progress=notify, timeout=TIMEOUT, **options
    )
    after = found.report.after
    return Done(
        status=found.report.status,
        collections=tuple(found)[:3],
        remainder=tuple(found.remainder or ())[:3],
        ordered=not (options.get("sort") or options.get("shuffle")),
        separated=sum(x.separated or 0 for x in after),
    )


def _groups(data: Data, *, scattered: bool) -> Any:
    """Of each row; scattered ones have to be sorted."""
    count = max(1, data.spec.rows // GROUP)

    def group(rows: Any) -> Any:
        return rows * 7919 % count if scattered else rows // GROUP

    made = group(data.rows)
    return made if isinstance(made, da.Array) else made.rename("qid")


def _held(client: Client, data: Data, options: Any, notify: Notify) -> Done:
    with clustertune.prepare(
        client, *data, progress=notify, timeout=TIMEOUT, **options
    ) as (X, y, rows):
        notify("holding", None)
        total = int(client.compute(rows.sum()).result(timeout=TIMEOUT))
    return Done(status="done", collections=(X, y, rows), wrong=_of_total(total, data))


def _of_total(total: int, data: Data) -> tuple[str, ...]:
    n = data.spec.rows
    return () if total == n * (n - 1) // 2 else (f"the rows' numbers sum to {total}",)


# --- workers --------------------------------------------------------------------------


def _restart(client: Client, data: Data, options: Any, notify: Notify) -> Done:
    report = clustertune.restart_workers(
        client, *_loaded(data), progress=notify, timeout=TIMEOUT, **options
    )
    return Done(status=report.status)


def _loaded(data: Data) -> tuple[Any, ...]:
    """What may be given as row-aligned."""
    return tuple(data) if data.spec.partitions == data.spec.other_partitions else ()


def _resize(client: Client, data: Data, options: Any, notify: Notify) -> Done:
    report = clustertune.resize_workers(
        client, *_loaded(data), progress=notify, timeout=TIMEOUT, **options
    )
    return Done(status=report.status)


def _scale(client: Client, data: Data, options: Any, notify: Notify) -> Done:
    n_workers = max(1, len(client.nthreads()) + options["by"])
    report = clustertune.scale(
        client, n_workers, *_loaded(data), progress=notify, timeout=TIMEOUT
    )
    return Done(status=report.status)


def _trim(client: Client, data: Data, options: Any, notify: Notify) -> Done:
    return Done(status=clustertune.trim_memory(client, progress=notify).status)


def _release(client: Client, data: Data, options: Any, notify: Notify) -> Done:
    """Of what this client has besides, everything."""
    kept = list(data)
    if data.spec.place == "lazy":
        kept = client.persist(kept)
    more = client.persist(da.ones(1000, chunks=100))
    report = clustertune.release_data(client, keep=kept, progress=notify)
    del more
    return Done(status=report.status)


# --- runs -----------------------------------------------------------------------------


def _hold(client: Client, data: Data, options: Any, notify: Notify) -> Done:
    with clustertune.hold(client, label="chaos"):
        notify("holding", None)
        total = int(client.compute(data.rows.sum()).result(timeout=TIMEOUT))
    return Done(status="done", wrong=_of_total(total, data))


def _map_reduce(client: Client, data: Data, options: Any, notify: Notify) -> Done:
    def sums(rows: Any) -> dict[str, Any]:
        import numpy as np

        values = np.asarray(rows)
        return {"count": len(values), "total": int(values.sum())}

    found = training.map_reduce(client, sums, data.rows)
    wrong = _of_total(found["total"], data)
    if found["count"] != data.spec.rows:
        wrong += (f"map_reduce has seen {found['count']} rows",)
    return Done(status="done", wrong=wrong)


def _schedule(client: Client, data: Data, options: Any, notify: Notify) -> Done:
    made = clustertune.schedule_restart(
        client, *_loaded(data), idle_for="300ms", expires="40s", wait="5s"
    )
    end = monotonic() + LONGEST
    try:
        while True:
            now = next(s for s in clustertune.schedules(client) if s.id == made.id)
            notify(f"schedule {now.state}", None)
            if now.ended:
                return Done(status=f"schedule {now.state}")
            if monotonic() > end:
                return Done(status="late", wrong=(f"a schedule never ended: {now}",))
            sleep(0.1)
    except BaseException:
        made.cancel()
        raise


_OPTIONS: Mapping[str, Callable[[Random], dict[str, Any]]] = {
    "prepare": _of_prepare,
    "prepare and hold": lambda rng: _some(rng, {"estimator": (0.5, ("xgboost",))}),
    "rechunk": _of_cut,
    "shuffle": _of_order,
    "rebalance": lambda _: {"only": ["rebalance"]},
    "restart": lambda rng: {"max_unavailable": rng.choice((1, 1, 2, "50%"))},
    "resize": lambda rng: rng.choice(
        (
            {"nthreads": 2},
            {"memory_limit": "800 MiB"},
            {"env": {"CHAOS_NUM_THREADS": "1"}},
        )
    ),
    "scale": lambda rng: {"by": rng.choice((-1, 1))},
}
ACTS: Mapping[str, Callable[[Client, Data, Any, Notify], Done]] = {
    "prepare": _prepare,
    "prepare and hold": _held,
    "rechunk": _prepare,
    "shuffle": _prepare,
    "rebalance": _prepare,
    "restart": _restart,
    "resize": _resize,
    "scale": _scale,
    "trim": _trim,
    "release": _release,
    "hold": _hold,
    "map_reduce": _map_reduce,
    "schedule": _schedule,
}
