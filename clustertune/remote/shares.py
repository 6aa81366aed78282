"""What the page shows of a layout in a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_KEYS = 200_000  # of collections of which a client hands over where rows are


def by_name(name: object) -> tuple[int, str]:
    """Order of workers: ``worker-2`` before ``worker-10``."""
    return len(str(name)), str(name)


def summary(layout: Mapping[str, Any]) -> dict[str, Any]:
    """A layout of a report, with the share that each worker should have."""
    shares = sorted(layout["workers"], key=lambda w: by_name(w["worker"]))
    due = [w["rows"] / w["share"] if w["share"] else 0.0 for w in shares]
    # those that have no rows, but should: what is left of all rows is theirs
    empty = [i for i, w in enumerate(shares) if not w["rows"]]
    rest = (layout["rows"] or 0) - sum(due)
    for i in empty if rest >= 1 else ():
        due[i] = rest / len(empty)
    named = ("label", "pieces", "rows", "separated", "imbalance")
    return {name: layout[name] for name in named} | {
        "workers": {
            "id": [w["worker"] for w in shares],
            "rows": [w["rows"] for w in shares],
            "pieces": [w["pieces"] for w in shares],
            "due": due,
        }
    }
