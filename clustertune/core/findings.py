"""Findings of checks. A remedy is text with Python code, and text with a command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial

from clustertune.core.wording import printable

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
