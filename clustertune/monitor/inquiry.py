"""Request or measure facts that a snapshot does not have.

Diagnoses and operations need them; watching a cluster does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from distributed import Client

from clustertune.core.model import (
    Details,
    HeldData,
    Key,
    KeyGroup,
    ParkingSpace,
    Run,
    RunningTask,
    Snapshot,
    Survey,
    Unknown,
    UnmetRestriction,
    WorkerSnapshot,
)
from clustertune.core.report import Report
from clustertune.core.wording import seconds_text
from clustertune.errors import TimedOutError, VersionMismatchError
from clustertune.monitor import monitor
from clustertune.remote import keys, ship
from clustertune.remote.ending import within
from clustertune.remote.scheduler import survey
from clustertune.remote.worker import park, probe, process

T = TypeVar("T")

ANSWER_SECONDS = 60.0  # for one request

PACKAGES = (  # distributions whose versions are compared
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

NO_DETAILS = Unknown("the worker is silent, or did not report its versions")
SILENT = 5.0  # seconds without a heartbeat, on a small cluster


# --- diagnosis ------------------------------------------------------------------------


async def with_details(client: Client, snapshot: Snapshot) -> Snapshot:
    """Add the details of workers, and the survey of the scheduler."""
    # a worker without heartbeats does not answer; Dask's heartbeat interval grows with
    # the number of workers
    patience = SILENT + len(snapshot.workers) / 50
    alive = [w for w in snapshot.workers if w.heartbeat_age < patience]
    packages = list(PACKAGES)
    answers, survey = await asyncio.gather(
        monitor.ask_workers(client, alive, probe.worker_details, packages=packages),
        monitor.ask(client, "survey", packages=packages),
    )
    parse = partial(_details, now=snapshot.time)
    details = {a: monitor.read_answer(answer, parse) for a, answer in answers.items()}
    snapshot = monitor.with_values(snapshot, "details", details, NO_DETAILS)
    return replace(snapshot, survey=_read_survey(survey))


async def with_running_tasks(client: Client) -> Snapshot:
    """Take a snapshot with the scheduler's survey, which has the running tasks."""
    snapshot, _ = await monitor.look(client, [])
    survey = await monitor.ask(client, "survey", packages=[])
    return replace(snapshot, survey=_read_survey(survey))


def _details(answer: Mapping[str, Any], now: float) -> Details:
    left, pools = answer["lifetime"], answer["pools"]
    return Details(
        thread_pools=None if pools is None else tuple(pools),
        disk_free=int(answer["disk_free"]),
        expires=None if left is None else now + left,
        packages=dict(answer["packages"]),
        cancelled=answer["cancelled"],
    )


def _read_rows(
    kind: Callable[..., T], names: Sequence[str], rows: Iterable[Sequence[Any]]
) -> tuple[T, ...]:
    """Make one value of each row, whose columns have these names."""
    return tuple(kind(**dict(zip(names, row, strict=True))) for row in rows)


def _read_survey(answer: Mapping[str, Any]) -> Survey:
    running = ("worker", "name", "seconds", "usual", "training", "lost_member")
    return Survey(
        worker_ttl=answer["worker_ttl"],
        loop_delay=answer["loop_delay"],
        unmet_restrictions=read_unmet(answer["unmet"]),
        running=_read_rows(RunningTask, running, answer["running"]),
        packages={
            "client": probe.installed(PACKAGES),
            "scheduler": dict(answer["packages"]),
        },
    )


def read_unmet(answer: Sequence[Sequence[Any]]) -> tuple[UnmetRestriction, ...]:
    """Read the scheduler's list of unmet restrictions."""
    return tuple(
        UnmetRestriction(kind=k, names=tuple(names), tasks=n) for k, names, n in answer
    )


async def past_runs(client: Client) -> tuple[Run, ...]:
    """Return the runs that the plugin has seen, oldest first."""
    pairs = ("floors", "peaks", "managed")
    return tuple(
        Run(**run | {name: dict(run[name]) for name in pairs})
        for run in await monitor.ask(client, "past_runs")
    )


# --- memory ---------------------------------------------------------------------------


async def refresh_memory(client: Client) -> None:
    """Have all workers send their memory to the scheduler.

    Unresponsive workers keep the values of their last heartbeat.
    """
    workers = (await monitor.identify(client))["workers"]
    there = sorted(monitor.approved(client, workers))
    await ship.on_workers(
        client, process.send_memory, there, timeout=monitor.SOON, again=False
    )


async def with_least_memory(client: Client, snapshot: Snapshot) -> Snapshot:
    """Add the least memory that each worker's process has had."""
    answers = await monitor.ask_workers(client, snapshot.workers, process.least_memory)
    least = {a: n for a, n in answers.items() if isinstance(n, int)}
    return monitor.with_values(snapshot, "least_memory", least)


async def with_held_data(client: Client, snapshot: Snapshot) -> Snapshot:
    """Add the data of each worker that its restart has to save.

    Also the parking space of workers with such data.
    """
    addresses = [w.address for w in snapshot.workers]
    found = await monitor.ask(client, "look_at_workers", workers=addresses)
    names = ("keys", "unique", "nbytes", "scattered", "actors", "copied")
    held = dict(zip(found, _read_rows(HeldData, names, found.values()), strict=True))
    snapshot = monitor.with_values(snapshot, "held_data", held)
    spaces = await _parking_spaces(client, snapshot.workers)
    return monitor.with_values(snapshot, "parking_space", spaces)


async def _parking_spaces(
    client: Client, workers: Sequence[WorkerSnapshot]
) -> dict[str, ParkingSpace | Unknown]:
    """Return the space in nannies by address of workers with unique keys."""
    there = [w for w in workers if w.nanny and w.held_data and w.held_data.nbytes]
    answers = await monitor.ask_workers(client, there, park.prospects, nanny=True)
    found: dict[str, ParkingSpace | Unknown] = {}
    for address in (w.address for w in there):
        answer = answers.get(address, monitor.NO_VERSIONS)
        if isinstance(answer, BaseException):
            answer = Unknown(f"its nanny did not answer: {answer!r}")
        elif not isinstance(answer, Unknown):
            answer = ParkingSpace(**answer)
        found[address] = answer
    return found


# --- data -----------------------------------------------------------------------------


async def held(client: Client, packed: Sequence[Any]) -> tuple[int, int]:
    """Return the number of packed keys in memory, and their bytes."""
    found = await monitor.ask(client, "look", collections=[packed])
    (raw,) = found["collections"]
    there = np.unique(np.frombuffer(raw["partitions"], dtype=np.int64))
    return len(there), int(np.frombuffer(raw["nbytes"], dtype=np.int64).sum())


async def look_at_keys(client: Client, names: Sequence[Key]) -> dict[str, Any]:
    """Return which keys are gone, wanted or restricted, as the scheduler has them."""
    packed = await asyncio.to_thread(keys.pack, names)
    found: dict[str, Any] = await monitor.ask(
        client, "look_at_keys", owner=client.id, keys=packed
    )
    return found


async def holdings(client: Client, kept: Sequence[Key]) -> tuple[KeyGroup, ...]:
    """Return the keys in memory except for ``kept``, and the clients that want them."""
    names = ("prefix", "keys", "nbytes", "scattered", "mine")
    groups = await monitor.ask(
        client, "holdings", owner=client.id, kept=keys.pack(kept)
    )
    found = []
    for *counts, others in groups:
        known: dict[str, Any] = dict(zip(names, counts, strict=True))
        found.append(KeyGroup(**known, others=tuple(others)))
    return tuple(found)


async def last_transfers(client: Client) -> Mapping[str, float] | None:
    """Return the end of the last transfer to each worker by address, if known."""
    return await _from_all(client, probe.last_transfer)


async def received(
    client: Client, names: Sequence[str], since: Mapping[str, float] | None
) -> int | None:
    """Return the bytes of keys with these names that workers received, if known.

    ``since`` is the answer of :func:`last_transfers` from before.
    """
    if since is None:
        return None
    known = {"names": list(names), "since": since}
    found = await _from_all(client, probe.received_bytes, **known)
    return None if found is None else sum(found.values())


async def _from_all(
    client: Client, function: Callable[..., Any], **arguments: Any
) -> dict[str, Any] | None:
    """Return a number from each worker by address; None: some have none."""
    workers = (await monitor.identify(client))["workers"]
    approved = sorted(monitor.approved(client, workers))
    if len(approved) < len(workers):
        return None
    answers = await ship.on_workers(
        client, function, approved, timeout=monitor.PATIENCE, **arguments
    )
    complete = all(isinstance(n, int | float) for n in answers.values())
    return answers if complete else None


async def chunk_types(
    client: Client, arrays: Mapping[str, Sequence[Key]]
) -> dict[str, list[str]]:
    """Return the names of the types of chunks by label, if the scheduler has them."""
    if not arrays:
        return {}
    packed = {label: keys.pack(chunks) for label, chunks in arrays.items()}
    found: dict[str, list[str]] = await ship.on_scheduler(
        client, survey.chunk_types, chunks=packed
    )
    return found


async def last_report(client: Client) -> Report | None:
    """Return the report that the plugin keeps; refuse one of another release."""
    text: str = await request(client, "report")
    try:
        return Report.from_json(text) if text else None
    except ValueError as error:
        raise VersionMismatchError(
            f"the last report on this scheduler cannot be read here: {error}; use the "
            "release of clustertune that wrote it"
        ) from error


async def request(client: Client, method: str, **arguments: Any) -> Any:
    """Install the plugin if needed, and send it one request.

    Raise TimedOutError if there is no answer within a minute.
    """

    async def answer() -> Any:
        await monitor.install_plugin(client, await monitor.identify(client))
        return await monitor.ask(client, method, **arguments)

    try:
        return await within(answer(), ANSWER_SECONDS)
    except asyncio.TimeoutError:
        raise TimedOutError(
            f"the scheduler did not answer within {seconds_text(ANSWER_SECONDS)}; see "
            "what blocks the scheduler"
        ) from None
