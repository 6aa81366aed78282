"""Findings: conditions that checks found, with one builder for each severity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

Scalar = str | int | float | bool | None


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
    fixed_by: str = ""  # the action that can fix it in this call, if there is one


unknown = partial(Finding, severity=Severity.unknown)
info = partial(Finding, severity=Severity.info)
warning = partial(Finding, severity=Severity.warning)
critical = partial(Finding, severity=Severity.critical)
