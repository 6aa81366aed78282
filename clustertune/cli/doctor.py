"""What of clustertune will work on this cluster, and what is in the way of the rest.

The versions of all sides are read first, through calls that carry no code; only if they
agree is code sent, to ask workers and nannies what they know of themselves.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from distributed import Client
from tabulate import tabulate

from clustertune.core.model import Unknown, WorkerSnapshot
from clustertune.core.wording import names_text, plural, printable
from clustertune.errors import ClustertuneError
from clustertune.integrations import managers
from clustertune.monitor import monitor
from clustertune.remote import versions

SCHEMA_VERSION = 1
PACKAGES = (  # names of distributions
    "xgboost",
    "xgboost-cpu",  # the same modules under another name
    "lightgbm",
    "scikit-learn",
    "dask-ml",
    "torch",
    "tensorflow",
    "pyarrow",
    "bokeh",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that was examined."""

    subject: str
    works: bool | None  # None: neither, or not known
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was found."""

    address: str
    rows: tuple[Row, ...]

    @property
    def healthy(self) -> bool:
        """Whether ``prepare`` will work."""
        return all(r.works is not False for r in self.rows if r.subject in _NEEDED)

    def __str__(self) -> str:
        title = f"clustertune on {printable(self.address)}"
        return f"{title}\n{tabulate(self._table(), maxcolwidths=[24, 4, 80])}"

    def _repr_html_(self) -> str:
        table = tabulate(self._table(), tablefmt="html")
        return f"<p>clustertune on {escape(printable(self.address))}</p>{table}"

    def _table(self) -> list[list[str]]:
        marks = {True: "yes", False: "NO", None: ""}
        return [[r.subject, marks[r.works], printable(r.detail)] for r in self.rows]

    def to_json(self) -> str:
        return json.dumps({"schema_version": SCHEMA_VERSION} | asdict(self))


_NEEDED = frozenset(("workers", "code can be sent", "placing data"))


async def examine(client: Client) -> Examination:
    """Look at a cluster; nothing is changed on it but that the resident is installed.

    Parameters
    ----------
    client
        A connected client.
    """
    identity = await monitor.identify(client)
    sides = await versions.read(client, packages=PACKAGES)
    rows = [_workers(identity), *_versions(sides)]
    rows += await _shipping(client, identity, sides)
    rows += [
        _nannies(identity),
        _scaling(client, identity),
        _dashboard(identity, sides),
    ]
    return Examination(address=identity["address"], rows=tuple(rows))


def _workers(identity: Mapping[str, Any]) -> Row:
    states = Counter(w["status"] for w in identity["workers"].values())
    threads = sum(w["nthreads"] for w in identity["workers"].values())
    parts = ", ".join(f"{n} {status}" for status, n in sorted(states.items()))
    return Row(
        subject="workers",
        works=states["running"] > 0,
        detail=f"{parts or 'none'}; {plural(threads, 'thread')}",
    )


def _versions(sides: versions.Sides) -> Iterator[Row]:
    """One row a package that any side has; same everywhere, or what differs."""
    for name in ("python", "dask", "distributed", "cloudpickle", "numpy", *PACKAGES):
        found = {"client": sides.client.get(name)}
        found["scheduler"] = sides.scheduler.get(name)
        workers = {a: p.get(name) for a, p in sides.workers.items()}
        if not any([*found.values(), *workers.values()]):
            continue
        counts = Counter(workers.values())
        same = len({*found.values(), *counts}) == 1
        text = ", ".join(f"{side} {v or 'without'}" for side, v in found.items())
        text += "".join(
            f", {plural(n, 'worker')} {v or 'without'}" for v, n in counts.items()
        )
        yield Row(
            subject=name,
            works=True if same else None,
            detail=str(sides.client.get(name)) if same else f"differs: {text}",
        )
    if sides.silent:
        detail = f"{names_text(sides.silent)} did not say their versions"
        yield Row(subject="silent workers", works=None, detail=detail)


async def _shipping(
    client: Client, identity: Mapping[str, Any], sides: versions.Sides
) -> list[Row]:
    """Only this asks with code, and only if every side may be sent it."""
    objections = sides.objections()
    sending = Row(
        subject="code can be sent",
        works=not objections,
        detail="; ".join(objections[:3]) or "all sides run what this client runs",
    )
    if objections:
        return [sending]
    try:
        await monitor.open_door(client, identity)
        snapshot, _ = await monitor.look(client, [])
    except ClustertuneError as error:
        return [sending, Row(subject="placing data", works=False, detail=str(error))]
    return [sending, _placing(snapshot.workers), _limits(snapshot.workers)]


def _placing(workers: tuple[WorkerSnapshot, ...]) -> Row:
    silent = [w.id for w in workers if isinstance(w.facts, Unknown)]
    detail = (
        f"{names_text(silent)}: thresholds are not known"
        if silent
        else ("the resident is installed; thresholds of all workers are known")
    )
    return Row(subject="placing data", works=not silent, detail=detail)


def _limits(workers: tuple[WorkerSnapshot, ...]) -> Row:
    unlimited = [w.id for w in workers if not w.memory_limit]
    known = [w.facts for w in workers if not isinstance(w.facts, Unknown)]
    kept = [f for f in known if f.thresholds.spill is None]
    detail = "every worker has a memory limit and spills to disk"
    if unlimited:
        detail = f"no memory limit: {names_text(unlimited)}"
    elif kept:
        detail = f"{plural(len(kept), 'worker')} cannot spill to disk"
    return Row(subject="memory limits", works=None, detail=detail)


def _nannies(identity: Mapping[str, Any]) -> Row:
    without = [a for a, w in identity["workers"].items() if w["nanny"] is None]
    return Row(
        subject="restarting workers",
        works=not without,
        detail=f"no nanny: {names_text(without)}; started with --no-nanny or "
        "processes=False"
        if without
        else "every worker has a nanny",
    )


def _scaling(client: Client, identity: Mapping[str, Any]) -> Row:
    reason = managers.obstacle(client.cluster, len(identity["workers"]) + 1)
    kind = type(client.cluster).__name__
    return Row(
        subject="scaling (n_workers=)",
        works=reason is None,
        detail=reason or f"through {kind}",
    )


def _dashboard(identity: Mapping[str, Any], sides: versions.Sides) -> Row:
    port = identity["services"].get("dashboard")
    bokeh = sides.scheduler.get("bokeh")
    detail = f"port {port}" if port else "the scheduler serves none"
    if not bokeh:
        detail += "; bokeh is not installed on the scheduler"
    return Row(subject="dashboard", works=bool(port and bokeh), detail=detail)
