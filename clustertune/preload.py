"""Preload module for schedulers: ``dask scheduler --preload clustertune.preload``.

It installs the scheduler plugin, so that the scheduler has the dashboard page, the
Prometheus metrics and the audit trail before a client connects. It also schedules the
restarts in Dask's configuration: a scheduler that is started again schedules them
again. clustertune must be installed in the scheduler's environment.

Settings in Dask's configuration:

``clustertune.schedules``
    A list of arguments of :func:`clustertune.schedule_restart`, each with ``cron``.
``clustertune.audit``
    A file for the audit trail, or ``syslog``.
"""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from time import time
from typing import Any

import dask
from distributed import Client, Scheduler

from clustertune.dashboard.mount import mount
from clustertune.errors import ClustertuneError
from clustertune.operations.scheduling.request import schedule_restart
from clustertune.remote.scheduler.plugin import install
from clustertune.remote.scheduler.telemetry import audit_logger
from clustertune.remote.versions import own_release

logger = logging.getLogger("distributed.clustertune")

EXPIRES = "30 days"  # of a schedule, unless it has its own; then it is renewed
RETRY = 60.0  # seconds after a schedule was refused
#: of a request that the scheduler refuses, or does not answer
ERRORS = (ClustertuneError, ValueError, TypeError, OSError, asyncio.TimeoutError)
#: tasks that schedule restarts, by id of the scheduler
_tasks: dict[str, list[asyncio.Task[None]]] = {}
REASON = "clustertune.schedules of the scheduler's configuration"


async def dask_setup(scheduler: Scheduler) -> None:
    """Prepare a scheduler; Dask calls this when the scheduler starts.

    Raises
    ------
    ValueError
        A setting is wrong; the scheduler does not start.
    """
    schedules = configured_schedules()
    _add_audit_handler(dask.config.get("clustertune.audit", None))
    await install(scheduler, own_release(), preloaded=True)
    answer = mount(scheduler)
    if "error" in answer:
        logger.info("no dashboard page: the scheduler %s", answer["error"])
    # workers must have connected before their restarts are scheduled
    _tasks[scheduler.id] = [
        asyncio.ensure_future(_keep_scheduled(scheduler, one)) for one in schedules
    ]


async def dask_teardown(scheduler: Scheduler) -> None:
    """End the tasks that wait for workers; Dask calls this at the scheduler's end."""
    tasks = _tasks.pop(scheduler.id, [])
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def configured_schedules() -> list[dict[str, Any]]:
    """Return the arguments of each schedule in Dask's configuration.

    Raises
    ------
    ValueError
        The setting is no list of mappings, or an argument is unknown, or ``cron`` is
        missing.
    """
    given = dask.config.get("clustertune.schedules", None) or []
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ValueError(  # noqa: TRY004, wrong settings are ValueErrors
            f"clustertune.schedules={given!r} must be a list of mappings"
        )
    known = [n for n in signature(schedule_restart).parameters if n not in _NOT_HERE]
    for place, one in enumerate(given):
        name = f"clustertune.schedules[{place}]"
        if not isinstance(one, Mapping) or "cron" not in one:
            raise ValueError(f"{name}={one!r} must be a mapping with cron")
        for argument in one:
            if argument not in known:
                raise ValueError(
                    f"{name} has no argument {argument!r}; it has {', '.join(known)}"
                )
    return [{"expires": EXPIRES, "reason": REASON, **one} for one in given]


_NOT_HERE = ("client", "collections", "dry_run", "timeout")


def _add_audit_handler(target: Any) -> None:
    if target is None:
        return
    if not isinstance(target, str) or not target:
        raise ValueError(
            f"clustertune.audit={target!r} must be the path of a file, or 'syslog'"
        )
    handler: logging.Handler
    if target == "syslog":
        handler = logging.handlers.SysLogHandler("/dev/log")
    else:
        handler = logging.FileHandler(Path(target).expanduser(), delay=True)
    handler.setFormatter(logging.Formatter("%(message)s"))
    audit_logger.addHandler(handler)
    audit_logger.setLevel(logging.INFO)
    audit_logger.propagate = False


async def _keep_scheduled(scheduler: Scheduler, arguments: Mapping[str, Any]) -> None:
    """Schedule a restart once workers are there, and again when it expires."""
    while True:
        seconds = await _schedule(scheduler, arguments)
        await asyncio.sleep(seconds)


async def _schedule(scheduler: Scheduler, arguments: Mapping[str, Any]) -> float:
    """Schedule a restart; return the seconds until it expires.

    If it is refused, or the scheduler does not answer, log the reason and return the
    seconds until the next attempt.
    """
    made: Any = None
    try:
        async with Client(
            scheduler.address,
            asynchronous=True,
            security=scheduler.security,
            set_as_default=False,
            name="clustertune-preload",
        ) as client:
            await client.wait_for_workers(1)
            scheduled: Any = schedule_restart(client, **arguments)
            made = await scheduled
    except ERRORS as error:
        logger.warning("clustertune.schedules: %s", str(error) or type(error).__name__)
        if made is None:  # else the client failed to close
            return RETRY
    logger.info("clustertune scheduled a restart: %s", made.id)
    seconds: float = made.expires - time()
    return max(RETRY, seconds)
