"""The report of scheduled restarts, as a client makes one for its restarts.

``clustertune.core.report`` reads it. The scheduler cannot import that module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA_VERSION = 1
#: what later calls need of the data in the last report; a restart does not change it
SHAPE = ("label", "collections", "partitions", "loaded", "rows", "nbytes")


def report(
    event: Mapping[str, Any], turns: Sequence[Mapping[str, Any]], former: str
) -> str:
    """Return a report as JSON.

    Parameters
    ----------
    event
        The event of the restarts, with a step for each turn.
    turns
        Results of the restarts of single workers.
    former
        The report before. The data in it has the same rows and partitions, unless keys
        were lost.
    """
    steps = [
        {k: v for k, v in step.items() if v is not None}
        | {
            "gain": "",
            "predicted_bytes": None,
            "at_risk": "nothing",
            "verb": "restarted",
            "noun": "worker",
            "count": int(bool(turn["address"])),
            "total": 1,
            "workers": [turn["worker"]],
            "loses": True,
            "lost": turn["lost"],
        }
        for step, turn in zip(event["steps"], turns, strict=True)
    ]
    data = {
        "schema_version": SCHEMA_VERSION,
        "status": event["status"],
        "seconds": event["seconds"],
        "call": "restart",
        "steps": steps,
        "error": event["problem"] if event["status"] == "failed" else "",
        "notes": [f"restart {event['schedule']} was scheduled; no check has run since"],
    }
    return json.dumps(data | ({} if event["lost"] else _data_of(former)))


def _data_of(former: str) -> dict[str, Any]:
    """Return the workload and the layouts of a report; {} if it cannot be read."""
    try:
        known = json.loads(former)
        layouts = [
            {name: x[name] for name in SHAPE} | {"separated": None, "imbalance": None}
            for x in known["after"]
        ]
        return {"workload": known["workload"], "before": layouts, "after": layouts}
    # any client may store any text
    except (LookupError, TypeError, ValueError, RecursionError):
        return {}
