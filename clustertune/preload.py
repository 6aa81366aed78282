"""Preload module for schedulers: ``dask scheduler --preload clustertune.preload``.

It installs the scheduler plugin, so that the scheduler has the dashboard page, the
Prometheus metrics and the audit trail before a client connects. It also schedules the
restarts in Dask's configuration: a scheduler that is started again schedules them
again. clustertune must be installed in the scheduler's environment.

Settings in Dask's configuration:

``clustertune.schedules``
    A list of arguments of :func:`clustertune.schedule_restart` (``idle_for``, ``cron``,
    ``tz``, ``if_needed``, ``expires``, ``workers``), each with ``cron``.
``clustertune.audit``
    A file for the audit trail.

A wrong setting stops ``dask scheduler`` with one line. In other processes the import
raises the error, because Dask only logs the errors of ``dask_setup``.
"""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
from collections.abc import Mapping, Sequence
from copy import copy
from inspect import signature
from pathlib import Path
from time import time
from typing import Any

import click
import dask
from distributed import Client, Scheduler
from distributed.security import Security

from clustertune.collections import inputs
from clustertune.dashboard.mount import mount
from clustertune.operations.call import refuse_wrong_settings
from clustertune.operations.schedules import Schedule, checked_terms, send
from clustertune.remote.ending import end_tasks
from clustertune.remote.scheduler.plugin import NAME, install
from clustertune.remote.scheduler.schedule_runner import CONFIGURED, ScheduleRunner
from clustertune.remote.scheduler.telemetry import audit_logger
from clustertune.remote.ship import own_release

logger = logging.getLogger("distributed.clustertune")

EXPIRES = "30 days"  # of a schedule, unless it has its own; then it is renewed
RETRY = 60.0  # seconds after a schedule could not be added, or has failed
#: tasks that schedule restarts, by id of the scheduler
_tasks: dict[str, list[asyncio.Task[None]]] = {}
REASON = "clustertune.schedules of the scheduler's configuration"


async def dask_setup(scheduler: Scheduler) -> None:
    """Prepare a scheduler; Dask calls this when the scheduler starts."""
    schedules = check_settings()
    await install(scheduler, own_release(), preloaded=True)
    answer = mount(scheduler)
    if "error" in answer:
        logger.info("no dashboard page: the scheduler %s", answer["error"])
    if file := dask.config.get("clustertune.audit", None):
        logger.info("clustertune writes the audit trail to %s", file)
    # workers must have connected before their restarts are scheduled
    _tasks[scheduler.id] = [
        asyncio.ensure_future(_keep_scheduled(scheduler, f"{CONFIGURED}{i}", one))
        for i, one in enumerate(schedules)
    ]


async def dask_teardown(scheduler: Scheduler) -> None:
    """End the tasks that wait for workers; Dask calls this at the scheduler's end."""
    await end_tasks(*_tasks.pop(scheduler.id, []))


# --- settings -------------------------------------------------------------------------


def check_settings() -> list[dict[str, Any]]:
    """Begin the audit trail, and return the configured schedules.

    Raise ValueError if a setting is wrong. ``dask scheduler`` ends instead.
    """
    try:
        refuse_wrong_settings()
        schedules = configured_schedules()
        _add_audit_handler(dask.config.get("clustertune.audit", None))
    except ValueError as error:
        # a process with an own scheduler, such as a notebook, goes on
        if click.get_current_context(silent=True) is None:
            raise
        raise SystemExit(f"clustertune.preload: {error}") from error
    return schedules


def configured_schedules() -> list[dict[str, Any]]:
    """Return the arguments of each schedule in Dask's configuration.

    Raises
    ------
    ValueError
        The setting is no list of mappings, or an argument is unknown or wrong, or
        ``cron`` is missing.
    """
    given = dask.config.get("clustertune.schedules", None) or []
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ValueError(  # noqa: TRY004, wrong settings are ValueErrors
            f"clustertune.schedules={given!r} must be a list of mappings"
        )
    known = [*signature(checked_terms).parameters][1:]  # without the time
    for place, one in enumerate(given):
        name = f"clustertune.schedules[{place}]"
        if not isinstance(one, Mapping) or "cron" not in one:
            raise ValueError(f"{name}={one!r} must be a mapping with cron")
        for argument in one:
            if argument not in known:
                raise ValueError(
                    f"{name} has no argument {argument!r}; it has {', '.join(known)}"
                )
        try:
            checked_terms(time(), **{"expires": EXPIRES, **one})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
    return [{"expires": EXPIRES, **one} for one in given]


def _add_audit_handler(target: Any) -> None:
    """Write the audit trail; a file is opened again after it was rotated."""
    if target is None:
        return
    if not isinstance(target, str) or not target:
        raise ValueError(f"clustertune.audit={target!r} must be the path of a file")
    try:
        file = Path(target).expanduser()
        handler = logging.handlers.WatchedFileHandler(file, encoding="utf-8")
    except OSError as error:
        text = f"clustertune.audit={target!r} cannot be written: {error}"
        raise ValueError(text) from error
    handler.setFormatter(logging.Formatter("%(message)s"))
    for former in [h for h in audit_logger.handlers if h.get_name() == NAME]:
        audit_logger.removeHandler(former)
        former.close()
    handler.set_name(NAME)
    audit_logger.addHandler(handler)
    audit_logger.setLevel(logging.INFO)
    audit_logger.propagate = False


# --- schedules ------------------------------------------------------------------------


async def _keep_scheduled(
    scheduler: Scheduler, name: str, arguments: Mapping[str, Any]
) -> None:
    """Schedule a restart once workers are there, and again when it has ended.

    A restart that a user cancels is not scheduled again. While it cannot be scheduled,
    the scheduler lists it under its ``name`` as failed.
    """
    terms = checked_terms(time(), **arguments) | {"owner": NAME, "reason": REASON}
    while True:
        made = await _schedule(scheduler, arguments)
        plugin: Any = scheduler.plugins.get(NAME)  # a client may remove or replace it
        if plugin is None:
            return
        runner: ScheduleRunner = plugin.schedules
        if isinstance(made, str):
            if runner.refuse(name, terms, made):
                logger.warning("clustertune.schedules: %s", made)
            await asyncio.sleep(RETRY)
            continue
        logger.info("clustertune schedules: %s", str(made).partition("\n")[0])
        runner.kept.pop(name, None)
        added = runner.kept.get(made.id)
        if added is None:  # the plugin was replaced meanwhile
            continue
        await added.is_over.wait()
        if added.cancelled:
            return
        if added.state == "failed":
            await asyncio.sleep(RETRY)


async def _schedule(
    scheduler: Scheduler, arguments: Mapping[str, Any]
) -> Schedule | str:
    """Schedule a restart; return it, or why this was not possible."""
    made: Schedule | str = ""
    try:
        async with Client(
            scheduler.address,
            asynchronous=True,
            security=_of_client(scheduler.security),
            set_as_default=False,
            name="clustertune-preload",
        ) as client:
            await client.wait_for_workers(1)
            made = await send(client, inputs.of_rows(()), arguments, REASON)
    # any error is listed as the reason, and the next attempt follows
    except Exception as error:  # noqa: BLE001
        return made or str(error) or type(error).__name__  # or it failed to close
    return made


def _of_client(security: Any) -> Security:
    """Return the certificates of the scheduler for a client in its process.

    Options of ``dask scheduler`` set the files of the scheduler only.
    """
    found: Any = copy(security)
    if not found.tls_client_cert:
        found.tls_client_cert = found.tls_scheduler_cert
        found.tls_client_key = found.tls_scheduler_key
    own: Security = found
    return own


check_settings()
