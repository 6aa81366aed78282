"""What was done to a cluster, in Dask's own event log: topic ``clustertune``.

Whoever looks after the cluster reads there, with Dask alone, who has changed what, why,
and what it was before and after: ``client.get_events("clustertune")``. What the
resident does is noted there, too, as it begins and ends; these are the calls.
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
from clustertune.operations.journal import Journal

logger = logging.getLogger("clustertune")

TOPIC = "clustertune"
PATIENCE = 5.0  # seconds in which the scheduler takes a note
MOST = 50  # steps, and characters of texts times ten: the log is kept in memory


async def log_call(client: Client, action: str, status: str, journal: Journal) -> None:
    """Note what a call has done, if it has done anything."""
    if not journal.outcomes:
        return
    steps = [
        {
            "action": o.step.action,
            "summary": _short(o.step.summary),
            "status": o.status,
            "seconds": o.seconds,
            "nbytes": None if o.nbytes is None else int(o.nbytes),
            "reason": _short(o.reason),
        }
        for o in journal.outcomes[:MOST]
    ]
    await log_done(
        client,
        action,
        status=status,
        before=_state_in(journal, 0),
        after=_state_in(journal, -1),
        steps=steps,
        more_steps=len(journal.outcomes) - len(steps),
    )


async def log_done(
    client: Client,
    action: str,
    *,
    status: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    **more: Any,
) -> None:
    """Note that something was done; a scheduler that is gone is none the worse for it.

    Parameters
    ----------
    client
        Whose cluster it was done to.
    action
        What was called, like ``"restart"``.
    status
        As of a report: ``"done"``, ``"left"``, ``"failed"``.
    before, after
        What there was to see then: text, numbers, lists and mappings with text keys.
    **more
        The same, about what was done.
    """
    event = {
        "action": action,
        "status": status,
        "by": who(),
        "pid": os.getpid(),
        "client": client.id,
        "reason": why(),
        "before": dict(before),
        "after": dict(after),
        **more,
    }
    scheduler: Any = client.scheduler
    if client.status != "running" or scheduler is None:
        return
    try:
        noted = scheduler.log_event(topic=TOPIC, msg=event)
        await asyncio.wait_for(noted, PATIENCE)
    # whatever it is, what was done is done, and its caller is to learn of that
    except Exception as error:  # noqa: BLE001
        logger.warning("clustertune could not note in Dask's event log: %r", error)


def who() -> str:
    """The user of this process and its host: ``ada@node7``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may run as a user that has no name
        user = f"uid {os.getuid()}"
    return printable(f"{user}@{socket.gethostname()}", longest=200)


_reason: ContextVar[str | None] = ContextVar("reason", default=None)


@contextmanager
def because(reason: str | None) -> Iterator[None]:
    """Log this reason for what the task that runs the block does, and no other task.

    None leaves the reason of Dask's configuration.
    """
    token = _reason.set(reason)
    try:
        yield
    finally:
        _reason.reset(token)


def reason() -> Any:
    """The reason for changes: of this call, else the setting ``clustertune.reason``."""
    own = _reason.get()
    return dask.config.get("clustertune.reason", None) if own is None else own


def why() -> str | None:
    """The reason for changes, as it is logged."""
    given = reason()
    return None if given is None else printable(str(given), longest=1000)


def state(view: View, found: Sequence[Finding] = ()) -> dict[str, Any]:
    """What there is to see, as short plain data (pure)."""
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
                "pieces": m.n_pieces,
                "nbytes": None if m.nbytes is None else int(m.nbytes.sum()),
            }
            for x in view.layouts
            for m in x.members
        ],
    }


def _state_in(journal: Journal, place: int) -> dict[str, Any]:
    """Of its first look, or its last."""
    # a last look may have been interrupted before anything was found in it
    seen = zip(journal.views, journal.findings, strict=False)
    return state(*list(seen)[place])


def _short(text: str) -> str:
    return printable(text, longest=10 * MOST)
