"""Playbooks: what to do before, between or after training runs, as a YAML file.

What one may say, and how each value is read. The language is what :class:`Playbook`
holds: data, and no expressions. Files become playbooks in
:mod:`clustertune.operations.playbooks.reading`;
:mod:`clustertune.operations.playbooks.playing` carries one out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dask.utils import parse_timedelta

from clustertune import actions, checks
from clustertune.core import arguments
from clustertune.core.model import Severity
from clustertune.core.wording import bytes_text, names_text, printable, seconds_text

VERSION = 1
MOST_STEPS = 50
NAMED = "named"  # of ``workers``: those that the condition names
GIVEN = "given"  # of ``keep``: the collections with which the playbook is run
SEVERITIES = ("info", "warning", "critical")
ON_FAILURE = ("stop", "continue")

TOP_KEYS = ("version", "name", "description", "steps", "limits", "on_failure")
STEP_KEYS = ("check", "when", "at_least", "holds", "do", "with")
LIMIT_KEYS = ("disrupted_workers", "minimum_workers", "settle")


# --- what a playbook says -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Look at the conditions ``check``; or do something, if a condition holds."""

    line: str  # where it stands: file and line
    check: tuple[str, ...] = ()  # as written: names of checks, or words of them
    when: str = ""  # the check whose finding is the condition; "": always
    at_least: Severity = Severity.warning
    holds: float = 0.0  # seconds for which the condition must last
    do: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # of what is done

    def __str__(self) -> str:
        if self.check:
            return f"check {', '.join(self.check)}"
        text = self.do
        if self.options:
            shown = (f"{k}: {_value_text(k, v)}" for k, v in self.options.items())
            text += f" ({', '.join(shown)})"
        if self.when:
            text += f", when {self.when} is at least {self.at_least}"
        return text + (f" for {seconds_text(self.holds)}" if self.holds else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What no step may do, whatever it says."""

    disrupted_workers: float = 1  # away at the same time: a number, or below 1 a part
    minimum_workers: int = 0  # that must run meanwhile
    settle: float = 5.0  # seconds after a step, before the cluster is looked at again


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """A playbook, checked."""

    name: str
    source: str  # the file
    steps: tuple[Step, ...]
    description: str = ""
    limits: Limits = field(default_factory=Limits)
    on_failure: str = "stop"

    @property
    def acts(self) -> bool:
        """Whether a step may change anything."""
        return any(step.do for step in self.steps)


def _value_text(key: str, value: Any) -> str:
    if key in ("timeout", "wait"):
        return seconds_text(value)
    if key == "memory_limit":
        return bytes_text(value)
    if isinstance(value, list | tuple):
        return names_text([str(v) for v in value], most=8)
    return printable(str(value), longest=60)


# --- what may be written --------------------------------------------------------------

Reader = Callable[[str, Any], Any]


def present(read: Reader) -> Reader:
    """Where None is no answer."""

    def call(name: str, value: Any) -> Any:
        if value is None:
            raise ValueError(f"{name} has no value")
        return read(name, value)

    return call


def _workers(name: str, value: Any) -> Any:
    return NAMED if value == NAMED else arguments.names(name, value)


def _prefixes(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and value:
        return arguments.texts(name, value)
    raise ValueError(f"{name}={value!r} must be a list of prefixes of keys")


def _keep(name: str, value: Any) -> str:
    if value == GIVEN:
        return GIVEN
    raise ValueError(
        f"{name}={value!r} must be {GIVEN}: the collections with which the playbook "
        "is run"
    )


def pause(name: str, value: Any) -> float:
    """Seconds, 0 among them."""
    text = f'{name}={value!r} must be a duration, like "30s", or 0'
    try:
        seconds = math.nan if isinstance(value, bool) else float(parse_timedelta(value))
    except (*arguments.UNREADABLE, AssertionError) as error:
        raise ValueError(text) from error
    if not 0 <= seconds < math.inf:
        raise ValueError(text)
    return seconds


def _minimum(name: str, value: Any) -> int:
    if type(value) is int and value >= 0:
        return value
    raise ValueError(f"{name}={value!r} must be a whole number, 0 or more")


#: by key of ``with``, how its value is read; the names are those of the functions
KEYS: Mapping[str, Reader] = {
    "dtype": arguments.number_type,
    "env": arguments.variables,
    "if_needed": arguments.flag,
    "include_other_clients": arguments.flag,
    "keep": _keep,
    "memory_fraction": arguments.fraction,
    "memory_limit": arguments.nbytes,
    "n_workers": arguments.count,
    "nthreads": arguments.count,
    "prefixes": _prefixes,
    "rechunk": arguments.cutting,
    "release_inputs": arguments.flag,
    "timeout": arguments.duration,
    "to": arguments.kind,
    "tolerance": lambda name, value: arguments.fraction(name, value, zero=True),
    "wait": arguments.duration,
    "workers": _workers,
}
#: by action, the keys that it takes: arguments of the function of that name, of
#: ``prepare`` where it acts on data. None of them lets a playbook lose data unseen, or
#: go beyond its limits.
ACTIONS: Mapping[str, tuple[str, ...]] = {
    "persist": ("memory_fraction", "timeout"),
    "rebalance": ("memory_fraction", "timeout", "tolerance"),
    "rechunk": (
        "dtype",
        "memory_fraction",
        "rechunk",
        "release_inputs",
        "timeout",
        "to",
        "tolerance",
    ),
    "release": ("include_other_clients", "keep", "prefixes", "timeout"),
    "resize": ("env", "memory_limit", "nthreads", "timeout", "wait", "workers"),
    "restart": ("if_needed", "timeout", "wait", "workers"),
    "scale": ("n_workers", "timeout", "wait"),
    "trim": ("timeout", "workers"),
}
ON_DATA = frozenset(("persist", "rebalance", "rechunk"))
OF_OTHERS = ("timeout",)  # keys that an action of another package takes

LIMIT_READERS: Mapping[str, Reader] = {
    "disrupted_workers": arguments.part,
    "minimum_workers": _minimum,
    "settle": pause,
}


def actions_known() -> Mapping[str, tuple[str, ...]]:
    """By action, the keys that it takes; those of other packages among them."""
    return {**ACTIONS, **dict.fromkeys(actions.others(), OF_OTHERS)}


def checks_named(word: str) -> tuple[str, ...]:
    """Names of checks: that name, or all with that word in their names, or ``all``."""
    known = checks.available()
    if word in known:
        return (word,)
    return tuple(n for n in known if word == "all" or word in n.split("_"))


def lacking(
    do: str, written: Collection[str], found: Mapping[str, Any], limits: Limits
) -> Iterator[str]:
    """What keys of one action need of each other, and of the limits."""
    if do == "scale" and "n_workers" not in written:
        yield "scale needs n_workers"
    if found.get("n_workers", math.inf) < limits.minimum_workers:
        yield (
            f"n_workers={found['n_workers']} is less than limits.minimum_workers="
            f"{limits.minimum_workers}"
        )
    if do == "resize" and not {"env", "memory_limit", "nthreads"} & set(written):
        yield "resize needs nthreads, memory_limit or env"
    if {"keep", "prefixes"} <= set(written):
        yield "keep and prefixes exclude each other"
    if "include_other_clients" in written and "prefixes" not in written:
        yield "include_other_clients needs prefixes"
