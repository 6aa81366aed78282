"""Write changes of a cluster to Dask's event log, topic ``clustertune``.

``client.get_events("clustertune")`` shows, with Dask alone, each change with its
author, its reason, and the state before and after. The scheduler plugin also logs its
work there.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import dask
from distributed import Client

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import printable
from clustertune.monitor import connection
from clustertune.operations.journal import Journal
from clustertune.planner import layouts

logger = logging.getLogger("clustertune")

TOPIC = "clustertune"
LOG_TIMEOUT = 5.0  # seconds
# limits, because the scheduler keeps the log in memory
MAX_STEPS = 50
MAX_TEXT = 500  # characters


async def log_call(
    client: Client, action: str, status: str, seconds: float, journal: Journal
) -> None:
    """Log a call, if it has begun any step."""
    if not journal.outcomes:
        return
    steps = [
        {
            "action": o.step.action,
            "summary": printable(o.step.summary, longest=MAX_TEXT),
            "status": o.status,
            "seconds": o.seconds,
            "nbytes": None if o.nbytes is None else int(o.nbytes),
            "reason": printable(o.reason, longest=MAX_TEXT),
        }
        for o in journal.outcomes[:MAX_STEPS]
    ]
    await log_operation(
        client,
        action,
        status=status,
        seconds=seconds,
        lost=sum(o.lost or 0 for o in journal.outcomes),
        before=_state_in(journal, 0),
        after=_state_in(journal, -1),
        steps=steps,
        more_steps=len(journal.outcomes) - len(steps),
    )


async def log_operation(
    client: Client,
    action: str,
    *,
    status: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    **more: Any,
) -> None:
    """Log an operation; do nothing if the scheduler is gone.

    ``before`` and ``after`` describe the state then, as text, numbers, lists and
    mappings with text keys. ``more`` describes the operation in the same way.
    """
    event = {
        "action": action,
        "status": status,
        "by": user(),
        "pid": os.getpid(),
        "client": client.id,
        "reason": change_reason(),
        "before": dict(before),
        "after": dict(after),
        **more,
    }
    scheduler: Any = client.scheduler
    if client.status != "running" or scheduler is None:
        return
    try:
        logging_event = scheduler.log_event(topic=TOPIC, msg=event)
        await asyncio.wait_for(logging_event, LOG_TIMEOUT)
    # any error: the operation has ended, and the caller must get its result
    except Exception as error:  # noqa: BLE001
        gone = connection.lost(client, error) is not None
        level = logging.INFO if gone else logging.WARNING
        text = "clustertune could not write to Dask's event log: %r"
        logger.log(level, text, error)


def user() -> str:
    """Return the user of this process and its host: ``ada@node7``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may run as a user without a name
        user = f"uid {os.getuid()}"
    return printable(f"{user}@{socket.gethostname()}", longest=200)


_reason: ContextVar[str | None] = ContextVar("reason", default=None)


@contextmanager
def use_reason(reason: str | None) -> Iterator[None]:
    """Log this reason for the calls in the block, in this task only.

    None means the reason in Dask's configuration.
    """
    token = _reason.set(reason)
    try:
        yield
    finally:
        _reason.reset(token)


def configured_reason() -> Any:
    """Return the reason of this call, or else the setting ``clustertune.reason``."""
    reason = _reason.get()
    return dask.config.get("clustertune.reason", None) if reason is None else reason


def change_reason() -> str | None:
    """Return the reason for changes as text for the log."""
    reason = configured_reason()
    return None if reason is None else printable(str(reason), longest=1000)


def summarize(view: View, found: Sequence[Finding] = ()) -> dict[str, Any]:
    """Return the state of a view as short plain data."""
    workers = [w for w in view.now.workers if not w.parking]
    severities = Counter(str(f.severity) for f in found if f.severity > Severity.info)
    return {
        "workers": len(workers),
        "threads": sum(w.nthreads for w in workers),
        "process_bytes": sum(w.process for w in workers),
        "managed_bytes": sum(w.managed for w in workers),
        "spilled_bytes": sum(w.spilled for w in workers),
        "findings": dict(severities),
        "data": [
            {
                "label": m.label,
                "partitions": m.n_partitions,
                "nbytes": None if m.nbytes is None else int(m.nbytes.sum()),
            }
            for x in view.layouts
            for m in x.collections
        ],
        # of the training data; None: there is none, or its rows are unknown
        "imbalance": _imbalance(view),
    }


def _imbalance(view: View) -> float | None:
    for layout in view.layouts[:1]:
        if layout.loaded and layout.aligned:
            return float(layouts.imbalance(layout, view))
    return None


def _state_in(journal: Journal, place: int) -> dict[str, Any]:
    """Return the state at the first look (0) or the last (-1)."""
    # the last look may have been interrupted before the checks ran
    looks = zip(journal.views, journal.findings, strict=False)
    return summarize(*list(looks)[place])
