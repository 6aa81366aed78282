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
from collections.abc import Sequence
from typing import Any

import dask
from distributed import Client

from clustertune.core.model import Finding, Outcome, Severity, View
from clustertune.core.report import Report
from clustertune.core.sections import headlines
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
    client: Client,
    action: str,
    report: Report,
    journal: Journal,
    refused: str = "",
) -> None:
    """Log a call that has begun a step, or why it was ``refused`` before.

    Do nothing if the scheduler is gone.
    """
    scheduler: Any = client.scheduler
    begun = bool(journal.outcomes)
    if not (begun or refused) or client.status != "running" or scheduler is None:
        return
    # the last look may have been interrupted before the checks ran
    looks = list(zip(journal.views, journal.findings, strict=False))
    event = {
        "action": action,
        "status": report.status if begun else "refused",
        "summary": printable(headlines(report)[0], longest=MAX_TEXT),
        "seconds": report.seconds,
        "by": user(),
        "pid": os.getpid(),
        "client": client.id,
        "reason": change_reason(),
        "before": summarize(*looks[0]) if looks else None,
        "after": summarize(*looks[-1]) if looks else None,
        "lost": sum(o.lost or 0 for o in journal.outcomes)
        + sum(x.keys for x in journal.losses or ()),
        "steps": [_step(outcome) for outcome in journal.outcomes[:MAX_STEPS]],
        "more_steps": max(0, len(journal.outcomes) - MAX_STEPS),
    }
    if not begun:
        event["problem"] = printable(refused, longest=MAX_TEXT)
    try:
        logging_event = scheduler.log_event(topic=TOPIC, msg=event)
        await asyncio.wait_for(logging_event, LOG_TIMEOUT)
    # any error: the operation has ended, and the caller must get its result
    except Exception as error:  # noqa: BLE001
        gone = connection.lost(client, error) is not None
        level = logging.INFO if gone else logging.WARNING
        text = "clustertune could not write to Dask's event log: %r"
        logger.log(level, text, error)


def _step(outcome: Outcome) -> dict[str, Any]:
    return {
        "action": outcome.step.action,
        "summary": printable(outcome.step.summary, longest=MAX_TEXT),
        "status": outcome.status,
        "seconds": outcome.seconds,
        "nbytes": None if outcome.nbytes is None else int(outcome.nbytes),
        "reason": printable(outcome.reason or outcome.details, longest=MAX_TEXT),
    }


def user() -> str:
    """Return the user of this process and its host: ``ada@node7``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may run as a user without a name
        user = f"uid {os.getuid()}"
    return printable(f"{user}@{socket.gethostname()}", longest=200)


def configured_reason() -> Any:
    """Return the setting ``clustertune.reason``."""
    return dask.config.get("clustertune.reason", None)


def change_reason() -> str | None:
    """Return the reason for changes as text for the log."""
    reason = configured_reason()
    return None if reason is None else printable(str(reason), longest=1000)


def summarize(view: View, found: Sequence[Finding]) -> dict[str, Any]:
    """Return the state of a view as short plain data."""
    workers = [w for w in view.now.workers if not w.parking]
    severities = Counter(str(f.severity) for f in found if f.severity > Severity.info)
    known = [x for x in view.layouts[:1] if x.loaded and x.aligned]
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
            for m in view.collections
        ],
        # of the training data; None: there is none, or its rows are unknown
        "imbalance": float(layouts.imbalance(known[0], view)) if known else None,
    }
