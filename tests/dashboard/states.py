"""Page states for tests, healthy by default."""

from __future__ import annotations

from typing import Any

from clustertune.dashboard import state as states

GIB = 2**30


def of(n: int = 4, *, rows: list[int] | None = None, **parts: Any) -> states.State:
    """Return the state of workers with 4 GiB and prepared rows."""
    workers = [worker(i) for i in range(n)]
    held = [100] * n if rows is None else rows
    shares = [
        {"id": w["id"], "rows": r, "partitions": r // 10, "due": sum(held) / n}
        for w, r in zip(workers, held, strict=True)
    ]
    return (
        states.make(
            scheduler="tcp://10.0.0.1:8786",
            workers=workers,
            collections=[layout(shares)] if n else [],
            findings={"time": 0.0, "command": "clustertune check", "found": []},
        )
        | parts
    )


def worker(i: int) -> dict[str, Any]:
    return {
        "id": f"worker-{i}",
        "address": f"tcp://10.0.0.{i}:4000",
        "host": f"10.0.0.{i % 2}",
        "status": "running",
        "silent": 0.5,
        "threads": 2,
        "limit": 4 * GIB,
        "process": GIB,
        "managed": GIB // 2,
        "spilled": 0,
        "thresholds": [int(x * 4 * GIB) for x in (0.6, 0.7, 0.8, 0.95)],
    }


def layout(shares: list[dict[str, Any]], **parts: Any) -> dict[str, Any]:
    partitions = sum(share["partitions"] for share in shares)
    data = {"label": "training data", "partitions": partitions}
    data |= {"rows": sum(share["rows"] for share in shares)}
    data |= {"apart": 0, "missing": 0}
    return data | {"workers": shares} | parts


def finding(**parts: Any) -> dict[str, Any]:
    data = {"severity": "warning", "check": "thread_count", "message": "too few"}
    return data | {"remedy": "`clustertune check`", "processes": []} | parts
