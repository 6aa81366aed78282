"""What workers and scheduler are asked for a diagnosis, beyond what a look shows.

One call on every worker and one of the resident; nothing of it is needed to watch a
cluster or to prepare data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from distributed import Client

from clustertune.core.model import (
    ClientFacts,
    Details,
    Holder,
    Pool,
    Prefix,
    Published,
    Run,
    Snapshot,
    Survey,
    Unknown,
    Unmet,
)
from clustertune.monitor import monitor
from clustertune.remote import ship
from clustertune.remote.worker import probe

PACKAGES = (  # of which versions are compared, by names of distributions
    "dask",
    "distributed",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "scikit-learn",
    "dask-ml",
    "dask-glm",
    "xgboost",
    "xgboost-cpu",
    "lightgbm",
    "torch",
    "tensorflow",
    "joblib",
    "threadpoolctl",
)


SILENT = 5.0  # seconds without a heartbeat; on a large cluster they come less often


async def with_details(client: Client, snapshot: Snapshot) -> Snapshot:
    """The snapshot with what workers and scheduler say when they are asked for more."""
    approved = monitor.known(client).addresses
    # who has not even told the scheduler of itself will not answer either
    patience = SILENT + len(snapshot.workers) / 50
    asked = [
        w.address
        for w in snapshot.workers
        if w.address in approved and w.silent < patience
    ]
    answers, survey = await asyncio.gather(
        ship.on_workers(
            client,
            probe.worker_details,
            asked,
            timeout=monitor.PATIENCE,
            packages=list(PACKAGES),
        ),
        monitor.ask(client, "survey", owner=client.id, packages=list(PACKAGES)),
    )
    silent = Unknown("the worker is silent, or has not said its versions")
    workers = tuple(
        replace(
            w,
            details=_read_details(answers[w.address], snapshot.time)
            if w.address in answers
            else silent,
        )
        for w in snapshot.workers
    )
    return replace(snapshot, workers=workers, survey=_read_survey(survey))


def _read_details(answer: Any, now: float) -> Details | Unknown:
    if isinstance(answer, BaseException):
        return Unknown(f"the worker did not answer: {answer!r}")
    try:
        return _details(answer, now)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return Unknown(f"what the worker answered cannot be read: {error!r}")


def _details(answer: Mapping[str, Any], now: float) -> Details:
    kind, total, free = answer["disk"]
    left, returns = answer["lifetime"]
    count, memory = answer["children"]
    pools = answer["pools"]
    return Details(
        pid=answer["pid"],
        daemon=answer["daemon"],
        child_count=count,
        child_memory=memory,
        pools=None
        if pools is None
        else tuple(Pool(api=a, library=name, threads=n) for a, name, n in pools),
        variables=dict(answer["variables"]),
        disk=kind,
        disk_total=total,
        disk_free=free,
        expires=None if left is None else now + left,
        returns=bool(returns),
        packages=dict(answer["packages"]),
        paused=answer["paused"],
    )


def _read_survey(answer: Mapping[str, Any]) -> Survey:
    names = ("name", "memory", "waiting", "processing", "erred", "finished")
    columns = (*names, "seconds", "nbytes", "inputs")
    return Survey(
        me=answer["me"],
        worker_ttl=answer["worker_ttl"],
        loop_delay=answer["loop_delay"],
        queued=answer["queued"],
        unrunnable=answer["unrunnable"],
        unmet=read_unmet(answer["unmet"]),
        actors=answer["actors"],
        clients=tuple(
            ClientFacts(id=i, keys=n, silent=s) for i, n, s in answer["clients"]
        ),
        published=tuple(
            Published(name=name, keys=n, missing=m)
            for name, n, m in answer["published"]
        ),
        prefixes=tuple(
            Prefix(**dict(zip(columns, row, strict=True))) for row in answer["prefixes"]
        ),
        complete=answer["complete"],
        packages={
            "client": probe.installed(PACKAGES),
            "scheduler": dict(answer["packages"]),
        },
    )


def read_unmet(answer: Sequence[Sequence[Any]]) -> tuple[Unmet, ...]:
    """As the scheduler tells it."""
    return tuple(Unmet(kind=k, names=tuple(names), tasks=n) for k, names, n in answer)


async def with_work(client: Client, snapshot: Snapshot) -> Snapshot:
    """The snapshot with what workers run, and who else holds the cluster."""
    addresses = [w.address for w in snapshot.workers]
    found = await monitor.ask(client, "work", owner=client.id, workers=addresses)
    tasks = {a: tuple((prefix, n) for prefix, n in some) for a, some in found["tasks"]}
    holder = found["holder"]
    return replace(
        snapshot,
        workers=tuple(replace(w, tasks=tasks.get(w.address)) for w in snapshot.workers),
        holder=holder
        and Holder(
            label=holder["label"],
            client=holder["client"],
            seconds=max(0.0, snapshot.time - holder["since"]),
        ),
    )


async def past_runs(client: Client) -> tuple[Run, ...]:
    """The runs that the resident has seen, oldest first."""
    return tuple(
        Run(
            began=run["began"],
            ended=run["ended"],
            floors=dict(run["floors"]),
            peaks=dict(run["peaks"]),
            # runs that an older plugin has seen have neither
            managed=dict(run.get("managed", ())),
            ended_by=run.get("ended_by", "gap"),
        )
        for run in await monitor.ask(client, "past")
    )
