"""Findings of checks, and the data of a report.

A remedy is text with Python code, and text with a command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial

from clustertune.core.wording import printable

# --- findings -------------------------------------------------------------------------

Literal = str | int | bool | tuple[str | int, ...] | dict[str, str]
Scalar = str | int | float | bool | None

#: the end of commands in findings, where commands name their cluster
ADDRESS = " ADDRESS`"


class Severity(IntEnum):
    """The severity of a finding; ``unknown``: the check could not decide."""

    unknown = 0
    info = 1
    warning = 2
    critical = 3

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One condition that a check found; ``checks.run`` adds the name of the check."""

    severity: Severity
    message: str
    subject: tuple[str | int, ...] = ()  # worker ids, or labels of collections
    evidence: Mapping[str, Scalar] = field(default_factory=dict)
    check: str = ""
    remedy: str = ""
    command: str = ""  # the remedy as a command; empty: no command does the same
    fixed_by: str = ""  # the action that can fix it in this call, if there is one

    def as_command(self, cluster: str) -> Finding:
        """Return the finding with the command as its remedy, if it has one.

        ``cluster`` are the words that name the cluster.
        """
        if not self.command:
            return self
        named = self.command.replace(ADDRESS, f" {cluster}".rstrip() + "`")
        return replace(self, remedy=named, command="")


unknown = partial(Finding, severity=Severity.unknown)
info = partial(Finding, severity=Severity.info)
warning = partial(Finding, severity=Severity.warning)
critical = partial(Finding, severity=Severity.critical)


def code(value: Literal) -> str:
    """Return the Python code of a value, which may have untrusted text."""
    if isinstance(value, str):
        return printable(json.dumps(value))
    if isinstance(value, dict):
        return f"{{{', '.join(f'{code(k)}: {code(v)}' for k, v in value.items())}}}"
    if isinstance(value, bool | int):
        return str(value)
    return f"[{', '.join(map(code, value))}]"


# --- results of a call ----------------------------------------------------------------

EXECUTED = ("done", "partly", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One step of a report: the prediction, the measurement, the result."""

    action: str
    summary: str
    status: str  # planned, done, partly, skipped, not needed, failed or refused
    predicted_bytes: int | None  # bytes to transfer; None: unknown
    at_risk: str
    nbytes: int | None = None  # measured; None: not measured
    seconds: float | None = None
    reason: str = ""  # why it was not done, or only in part
    details: str = ""  # how it was done
    verb: str = ""  # of the count, as "restarted"
    noun: str = ""  # of the count, as "worker"
    count: int | None = None  # finished units
    total: int | None = None  # all units
    workers: tuple[str | int, ...] = ()  # ids of the workers that the step is about
    loses: bool = False  # whether such a step can lose keys
    lost: int | None = None  # keys; None: unknown
    predicted_peak: int | None = None  # greatest rise of one worker's memory, in bytes


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
class WorkerState:
    """Memory of a worker in the first and in the last snapshot of a call.

    All values are in bytes. None: the worker was not in that snapshot.
    """

    worker: str | int
    data_before: int | None = None  # managed memory
    data_after: int | None = None
    process_before: int | None = None
    process_after: int | None = None
    limit: int  # memory limit; 0: none is set
    peak: int | None = None  # predicted, of its process in the fit; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Keys that were lost with a worker that ended meanwhile, apart from steps.

    ``coming`` keys are not lost: Dask had not computed them again yet.
    """

    worker: str | int
    keys: int
    coming: int = 0


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
    notes: tuple[str, ...] = ()
    workers: tuple[WorkerState, ...] = ()
    lost: tuple[Loss, ...] | None = ()
    #: threads of each training task, if one worker of each host trains for its host
    host_threads: int | None = None

    @property
    def predicted_peak(self) -> int | None:
        """The greatest predicted peak of a worker's process in the fit, in bytes."""
        return max((w.peak for w in self.workers if w.peak is not None), default=None)

    @property
    def changed(self) -> bool:
        """Whether a step was carried out, at least in part."""
        return any(step.status in EXECUTED for step in self.steps)
