"""Page states for tests, healthy by default."""

from __future__ import annotations

from typing import Any

from clustertune.dashboard import state as states

GIB = 2**30


def of(n: int = 4, *, rows: list[int] | None = None, **parts: Any) -> states.State:
    """Return the state of workers with 4 GiB and prepared rows."""
    workers = states.columns(
        states.WORKER,
        (
            (
                f"worker-{i}", f"tcp://10.0.0.{i}:4000", f"10.0.0.{i % 2}", "running",
                0.5, 2, 4 * GIB, GIB, GIB // 2, 0,
                *(int(fraction * 4 * GIB) for fraction in (0.6, 0.7, 0.8, 0.95)),
            )
            for i in range(n)
        ),
    )  # fmt: skip
    hosts = states.columns(states.HOST, [("10.0.0.0", n, 2 * n, 4.0)] if n else ())
    held = [100] * n if rows is None else rows
    share = {
        "id": list(workers["id"]),
        "rows": held,
        "partitions": [r // 10 for r in held],
        "due": [sum(held) / max(1, n)] * n,
    }
    return (
        states.make(
            scheduler="tcp://10.0.0.1:8786",
            workers=workers,
            hosts=hosts,
            collections=[layout(share)] if n else [],
            findings={"time": 0.0, "command": "clustertune check", "found": []},
        )
        | parts
    )


def layout(share: states.Columns, **parts: Any) -> dict[str, Any]:
    data = {"label": "training data", "partitions": sum(share["partitions"])}
    data |= {"rows": sum(share["rows"]), "apart": 0, "missing": 0, "counted": 0.0}
    return data | {"workers": share} | parts


def finding(**parts: Any) -> dict[str, Any]:
    data = {"severity": "warning", "check": "uneven_rows", "message": "rows are uneven"}
    return data | {"evidence": "", "remedy": "`clustertune check`"} | parts
