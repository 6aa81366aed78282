"""Findings of checks, and remedies: text with calls, as Python code or as commands.

A call in a remedy is data. ``str`` makes Python code of it, and :func:`command` a
command line.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial

from clustertune.core.wording import printable

Literal = str | int | bool | tuple[str | int, ...] | dict[str, str]

#: the commands of public functions; other functions have none
VERBS = {
    "check": "check",
    "merge_workers": "merge",
    "prepare": "prepare",
    "resize_workers": "resize",
    "restart_workers": "restart",
    "scale": "scale",
    "trim_memory": "trim",
}
#: arguments whose options have another name
OPTIONS = {"workers": "worker", "estimator": "workload"}
#: arguments by position, in Python and in commands
POSITIONAL = {"scale": "n_workers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a public function in a remedy."""

    function: str
    names: tuple[str, ...] = ()  # of variables by position, after the client
    variables: Mapping[str, str] = field(default_factory=dict)  # names, by keyword
    arguments: Mapping[str, Literal] = field(default_factory=dict)  # other values
    omitted: Mapping[str, Literal] = field(default_factory=dict)  # to leave out
    results: tuple[str, ...] = ()  # names of variables that get the results
    starts_workers: bool = False  # which needs a cluster object
    repeats: bool = False  # it has no other arguments than the call that advises it
    command: str = ""  # the command line, if the remedy is for a shell

    def __str__(self) -> str:
        return self.command or python(self)

    @property
    def text(self) -> str:
        """The code of the call, and the arguments to leave out."""
        omitted = [
            shlex.join(_words(self.function, name, value))
            if self.command
            else f"{name}={code(value)}"
            for name, value in self.omitted.items()
        ]
        return " without ".join(f"`{text}`" for text in (str(self), *omitted))


Parts = tuple[str | Call, ...]


class Remedy(str):
    """The text of a remedy, which keeps the calls in it; calls are in backticks."""

    __slots__ = ("parts",)
    parts: Parts

    def __new__(cls, *parts: str | Call) -> Remedy:
        flat = [x for p in parts for x in (p.parts if isinstance(p, Remedy) else [p])]
        joined: list[str | Call] = []  # text that is joined has all ends of sentences
        for part in flat:
            if joined and isinstance(part, str) and isinstance(joined[-1], str):
                joined[-1] += part
            else:
                joined.append(part)
        self = super().__new__(cls, text_of(joined))
        self.parts = tuple(joined)
        return self


def join(parts: Sequence[str | Call], between: str) -> Remedy:
    """Return the parts as one text."""
    return Remedy(*[x for part in parts for x in (between, part)][1:])


def text_of(parts: Sequence[str | Call]) -> str:
    """Return the text of a remedy."""
    return "".join(p.text if isinstance(p, Call) else p for p in parts)


def sentences(parts: Parts) -> Iterator[Parts]:
    """Split the parts of a remedy at the ends of sentences."""
    sentence: list[str | Call] = []
    for part in parts:
        first, *others = [part] if isinstance(part, Call) else _split(part)
        sentence.append(first)
        for other in others:
            yield tuple(sentence)
            sentence = [other]
    yield tuple(sentence)


def _split(text: str) -> list[str]:
    return re.split(r"(?<=[.;]) ", text)


# --- Python ---------------------------------------------------------------------------


def python(call: Call) -> str:
    """Return the call as Python code."""
    first = POSITIONAL.get(call.function)
    texts = [f"{name}={variable}" for name, variable in call.variables.items()]
    for name, value in call.arguments.items():
        texts.append(code(value) if name == first else f"{name}={code(value)}")
    arguments = ", ".join(["client", *call.names, *texts])
    line = f"clustertune.{call.function}({arguments})"
    if len(call.results) == 1:
        return f"{call.results[0]} = {line}.{call.results[0]}"
    return f"{', '.join(call.results)} = {line}" if call.results else line


def code(value: Literal) -> str:
    """Return the Python code of a value, which may have untrusted text."""
    if isinstance(value, str):
        return printable(json.dumps(value))
    if isinstance(value, dict):
        return f"{{{', '.join(f'{code(k)}: {code(v)}' for k, v in value.items())}}}"
    if isinstance(value, bool | int):
        return str(value)
    return f"[{', '.join(map(code, value))}]"


# --- commands -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shell:
    """The words of a command that its remedies repeat."""

    cluster: tuple[str, ...] = ()  # the words that name the cluster
    variables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def translate(self, parts: Parts) -> Parts:
        """Add its command line to each call that has one."""
        return tuple(
            p if isinstance(p, str) else replace(p, command=command(p, self))
            for p in parts
        )


def command(call: Call, shell: Shell) -> str:
    """Return the command line of a call; empty if no command does the same.

    Commands name data by the words for the variables of the call. So a call has no
    command if the user has not named its data.
    """
    verb = VERBS.get(call.function, "")
    used = [*call.names, *call.variables.values()]
    if not verb or any(name not in shell.variables for name in used):
        return ""
    if call.function == "check" and "--cluster" in shell.cluster:
        return ""  # it has no such option
    if call.starts_workers and "--cluster" not in shell.cluster:
        return ""  # an address cannot start workers
    words = [word for name in used for word in shell.variables[name]]
    for name, value in call.arguments.items():
        words += _words(call.function, name, value)
    line = ["clustertune", verb, *words, *shell.cluster]
    # an escaped name would be another name
    return shlex.join(line) if all(map(str.isprintable, line)) else ""


def _words(function: str, name: str, value: Literal) -> list[str]:
    if POSITIONAL.get(function) == name:
        return [str(value)]
    option = f"--{OPTIONS.get(name, name).replace('_', '-')}"
    if isinstance(value, bool):
        return [option if value else option.replace("--", "--no-", 1)]
    if isinstance(value, str | int):
        return [option, str(value)]
    if isinstance(value, dict):
        value = tuple(f"{k}={v}" for k, v in value.items())
    each = map(str, value)
    return [word for text in each for word in (option, text)]


# --- findings -------------------------------------------------------------------------

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
