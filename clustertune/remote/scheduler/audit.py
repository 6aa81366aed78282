"""The audit trail: every operation of every client as one JSON line.

The scheduler plugin logs each event of the topic ``clustertune`` through Python's
logger ``clustertune.audit``, in the scheduler's process. Add a handler there to keep
the lines, or set ``clustertune.audit`` for ``clustertune.preload``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from clustertune.remote.scheduler.lease import TOPIC

audit_logger = logging.getLogger("clustertune.audit")
MAX_LINE = 100_000  # characters
MAX_SHORT = 100  # fields of a line that was too long


def audit(topic: str, event: Any) -> None:
    """Log one event as a line of JSON; clients may send any event."""
    wanted = topic == TOPIC and audit_logger.isEnabledFor(logging.INFO)
    if wanted and isinstance(event, Mapping):
        audit_logger.info("%s", line(event))


def line(event: Mapping[str, Any]) -> str:
    """Return an event as one line of JSON with its time in UTC."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    # json escapes line breaks and control characters in texts
    text = json.dumps({"time": now, **_plain(event)}, default=repr)
    if len(text) <= MAX_LINE:
        return text
    short = {
        str(k)[:200]: v[:200] if isinstance(v, str) else v
        for k, v in list(event.items())[:MAX_SHORT]
        if isinstance(v, str | int | float)
    }
    return json.dumps({"time": now, "shortened": True, **short})


def _plain(value: Any) -> Any:
    """The value with texts as keys, as JSON has them."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
