"""Findings: conditions that checks found, with one builder for each severity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial

from clustertune.core.remedies import Call, Remedy, Shell, text_of

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
    remedy_parts: tuple[str | Call, ...] = ()  # of the remedy; empty: it has no calls

    def __post_init__(self) -> None:
        if isinstance(self.remedy, Remedy):
            object.__setattr__(self, "remedy_parts", self.remedy.parts)
            object.__setattr__(self, "remedy", str(self.remedy))

    def in_shell(self, shell: Shell) -> Finding:
        """Return the finding with command lines in its remedy, where there are any."""
        if not self.remedy_parts:
            return self
        parts = shell.translate(self.remedy_parts)
        return replace(self, remedy=text_of(parts), remedy_parts=parts)


unknown = partial(Finding, severity=Severity.unknown)
info = partial(Finding, severity=Severity.info)
warning = partial(Finding, severity=Severity.warning)
critical = partial(Finding, severity=Severity.critical)
