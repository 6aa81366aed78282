"""The data of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clustertune.core.counts import EXECUTED, Done
from clustertune.core.model import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """The part of a layout that one worker holds."""

    worker: str | int  # id
    partitions: int
    rows: int
    nbytes: int
    share: float  # its rows divided by its fair share; 0 if its fair share is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSummary:
    """A layout in a few numbers."""

    label: str
    collections: tuple[str, ...]
    partitions: int
    loaded: bool
    rows: int | None  # None: unknown, or not the same for all collections
    nbytes: int | None
    separated: int | None  # pairs
    imbalance: float | None  # rows of the fullest worker divided by its fair share
    workers: tuple[WorkerShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """Process memory that a worker measured before and after a step; None: unknown."""

    worker: str | int
    before: int | None
    after_trim: int | None
    after_restart: int | None
    threshold: int | None  # the worker spills or pauses above it
    keys: int | None  # that its restart moved
    seconds: float | None  # duration of its restart


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """Memory of a worker in the first and in the last snapshot of a call.

    All values are in bytes. None: the worker was not in that snapshot.
    """

    worker: str | int
    data_before: int | None  # managed memory
    data_after: int | None
    process_before: int | None
    process_after: int | None
    limit: int  # memory limit; 0: none is set


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Findings, steps, layouts and workers of one call: see ``Report``."""

    status: str
    seconds: float
    call: str = ""
    workload: str = ""
    found: tuple[Finding, ...] = ()
    left: tuple[Finding, ...] = ()
    before: tuple[LayoutSummary, ...] = ()
    after: tuple[LayoutSummary, ...] = ()
    steps: tuple[Done, ...] = ()
    needs: tuple[str, ...] = ()
    error: str = ""
    forecast: Mapping[str | int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    memory: tuple[WorkerMemory, ...] = ()
    workers: tuple[WorkerState, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether a step was carried out, at least in part."""
        return any(step.status in EXECUTED for step in self.steps)
