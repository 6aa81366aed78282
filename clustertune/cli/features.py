"""``check``: the findings of all checks, and the features that work on a cluster."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from distributed import Client

from clustertune.core import tables
from clustertune.core.model import Severity, Unknown, WorkerSnapshot
from clustertune.core.report import Report
from clustertune.core.tables import Item, Section
from clustertune.core.wording import names_text, plural, printable
from clustertune.errors import TimedOutError, VersionMismatchError
from clustertune.integrations import managers
from clustertune.monitor import monitor
from clustertune.operations import check as checking
from clustertune.remote import versions

TIMEOUT = 60.0  # seconds to read versions
#: compared on all sides, by the names of distributions
PACKAGES = (
    "xgboost",
    "xgboost-cpu",  # the modules of xgboost under another name
    "lightgbm",
    "scikit-learn",
    "dask-ml",
    "torch",
    "tensorflow",
    "pyarrow",
    "bokeh",
)
_PACKAGES = ("python", "dask", "distributed", "cloudpickle", "numpy", *PACKAGES)
_REQUIRED = frozenset(("workers", "sending code", "placing data"))


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of clustertune, and whether it works on a cluster."""

    subject: str
    works: bool | None  # None: does not apply, or unknown
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The findings of all checks, and the features that work on a cluster."""

    address: str
    report: Report
    features: tuple[Feature, ...]

    @property
    def usable(self) -> bool:
        """Whether ``prepare`` works on this cluster."""
        return all(
            f.works is not False for f in self.features if f.subject in _REQUIRED
        )

    def exit_code(self, fail_on: Severity | None) -> int:
        """Return 1 if ``prepare`` would not work, or for findings of a severity."""
        if not self.usable:
            return 1
        found = (f.severity for f in self.report.found)
        return int(fail_on is not None and any(s >= fail_on for s in found))

    def __str__(self) -> str:
        return f"{self.report}\n\n{tables.to_text([self._section()])}"

    @property
    def details(self) -> str:
        """The report with its details, and the features."""
        return f"{self.report.details}\n\n{tables.to_text([self._section()])}"

    def _repr_html_(self) -> str:
        return f"{self.report._repr_html_()}{tables.to_html([self._section()])}"

    def to_json(self) -> str:
        """Return the report as JSON, with ``address`` and ``features``."""
        features = [asdict(f) for f in self.features]
        report = json.loads(self.report.to_json())
        return json.dumps(report | {"address": self.address, "features": features})

    def _section(self) -> Section:
        """Return one line for all working features, and one for each other feature."""
        versions = [f for f in self.features if f.subject in _PACKAGES]
        same = [f"{f.subject} {f.detail}" for f in versions if f.works]
        working = [f for f in self.features if f.works and f not in versions]
        items = [
            Item("no" if f.works is False else "note", f"{f.subject}: {f.detail}")
            for f in self.features
            if not f.works
        ]
        names = [
            f"{f.subject} ({f.detail})" if f.subject == "workers" else f.subject
            for f in working
        ]
        items.append(Item("yes", ", ".join(names) or "none"))
        if same:
            items.append(Item("same", f"versions of {names_text(same)}"))
        return Section(
            f"Features of clustertune on {printable(self.address)}", tuple(items)
        )


async def inspect(client: Client, estimator: str | None = None) -> Inspection:
    """Read versions without sending code; if they allow it, run all checks.

    Parameters
    ----------
    client
        A connected asynchronous client.
    estimator
        The library that will train.

    Raises
    ------
    TimedOutError
        The scheduler did not answer in time.
    """
    try:
        reading = _read(client)
        identity, sides = await asyncio.wait_for(reading, TIMEOUT)
    except asyncio.TimeoutError:
        raise TimedOutError(
            f"the scheduler did not answer within {TIMEOUT:.0f} s; see its log, or "
            "check again when it is less busy"
        ) from None
    objection, others = sides.scheduler_objection(), sides.worker_objections()
    features = [*_cluster_features(client, identity, sides), *_version_features(sides)]
    named = [f"worker {address} {text}" for address, text in others.items()]
    texts = [objection] * bool(objection) + named
    detail = "; ".join(texts[:3]) or "all sides have suitable versions"
    features.append(Feature("sending code", not texts, detail))
    try:
        diagnosed: Any = checking.check(client, estimator=estimator)
        report: Report = await diagnosed
        snapshot, _ = await monitor.look(client, [])
        features += _memory_features(snapshot.workers)
    except VersionMismatchError as error:
        report = Report(status="failed", seconds=0.0, error=str(error))
        features.append(Feature("placing data", False, str(error)))
    return Inspection(
        address=identity["address"],
        report=report,
        features=tuple(features),
    )


async def _read(client: Client) -> tuple[Any, versions.Sides]:
    """Read the cluster and versions; send no code."""
    identity = await monitor.identify(client)
    return identity, await versions.read(client, packages=PACKAGES)


def _cluster_features(
    client: Client, identity: Mapping[str, Any], sides: versions.Sides
) -> Iterator[Feature]:
    workers = identity["workers"]
    states = Counter(w["status"] for w in workers.values())
    counts = ", ".join(f"{n} {status}" for status, n in sorted(states.items()))
    threads = plural(sum(w["nthreads"] for w in workers.values()), "thread")
    yield Feature("workers", states["running"] > 0, f"{counts or 'none'}; {threads}")
    bare = [address for address, w in workers.items() if w["nanny"] is None]
    why = "they were started with --no-nanny or processes=False"
    detail = f"no nanny: {names_text(bare)}; {why}" if bare else "all have a nanny"
    yield Feature("restarting workers", not bare, detail)
    reason = managers.obstacle(client.cluster, len(workers) + 1)
    detail = reason or f"with {type(client.cluster).__name__}"
    yield Feature("scaling (n_workers=)", reason is None, detail)
    port, bokeh = identity["services"].get("dashboard"), sides.scheduler.get("bokeh")
    detail = f"port {port}" if port else "the scheduler serves none"
    if not bokeh:
        detail += "; the scheduler has no Bokeh"
    yield Feature("dashboard", bool(port and bokeh), detail)


def _version_features(sides: versions.Sides) -> Iterator[Feature]:
    """Return a feature for each package that some side has."""
    for name in _PACKAGES:
        found = {"client": sides.client.get(name)}
        found["scheduler"] = sides.scheduler.get(name)
        counts = Counter(p.get(name) for p in sides.workers.values())
        different = {*found.values(), *counts}
        if different == {None}:
            continue
        texts = [f"{side} {v or 'without'}" for side, v in found.items()]
        texts += [f"{plural(n, 'worker')} {v or 'without'}" for v, n in counts.items()]
        same = len(different) == 1
        detail = str(sides.client.get(name)) if same else f"differs: {', '.join(texts)}"
        yield Feature(name, True if same else None, detail)
    if sides.silent:
        detail = f"{names_text(sides.silent)} did not report their versions"
        yield Feature("silent workers", None, detail)


def _memory_features(workers: tuple[WorkerSnapshot, ...]) -> Iterator[Feature]:
    silent = [w.id for w in workers if isinstance(w.facts, Unknown)]
    detail = "the memory thresholds of all workers are known"
    if silent:
        detail = f"the memory thresholds of {names_text(silent)} are unknown"
    yield Feature("placing data", not silent, detail)
    unlimited = [w.id for w in workers if not w.memory_limit]
    known = [w.facts for w in workers if not isinstance(w.facts, Unknown)]
    kept = [f for f in known if f.thresholds.spill is None]
    detail = "all workers have a memory limit and spill to disk"
    if unlimited:
        detail = f"no memory limit: {names_text(unlimited)}"
    elif kept:
        detail = f"{plural(len(kept), 'worker')} cannot spill to disk"
    yield Feature("memory limits", None if unlimited or kept else True, detail)
