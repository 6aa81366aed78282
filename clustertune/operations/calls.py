"""Which calls can be planned now and carried out later, and with which arguments.

A call that is kept in a file has plain arguments only: data goes by the names under
which it is published.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import Parameter, signature
from typing import Any

from distributed import Client

from clustertune.core import arguments
from clustertune.core.report import Report
from clustertune.core.wording import names_text, printable
from clustertune.operations import publishing, release, workers
from clustertune.operations.prepare import prepare

VERBS: Mapping[str, Any] = {
    "prepare": publishing.prepare_datasets,
    "release": release.release,
    "resize": workers.resize,
    "restart": workers.restart,
    "scale": workers.scale,
    "trim": workers.trim,
}
#: verbs that take names, and of what
NAMED = {"prepare": "published data sets", "release": "prefixes of keys"}
#: what is said when a plan is carried out, and what no file can hold
NEVER = {
    "allow_any_env",  # a file must not set variables that run code
    "client",
    "dry_run",
    "estimator",
    "keep",
    "progress",
    "reason",
    "X",
    "y",
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of one of clustertune's functions, but for the client."""

    verb: str
    names: tuple[str, ...] = ()  # data sets of prepare: X, y, others; or prefixes
    options: Mapping[str, Any] = field(default_factory=dict)  # as of JSON

    def __str__(self) -> str:
        defaults = options_of(self.verb)
        given = [*map(repr, self.names)]
        given += [
            f"{k}={v!r}"
            for k, v in self.options.items()
            if v not in (None, [], defaults[k])
        ]
        return printable(f"{self.verb}({', '.join(given)})")

    def refuse_unknown(self) -> None:
        """Raise unless it can be made; values of options are seen to by what is called.

        Raises
        ------
        ValueError
            There is no such verb or option, or something is given that is needed or
            is not to be.
        """
        if self.verb not in VERBS:
            raise ValueError(
                f"verb: {printable(repr(self.verb), longest=60)} cannot be planned; "
                f"choose from {', '.join(VERBS)}"
            )
        known = options_of(self.verb)
        if unknown := [k for k in self.options if k not in known]:
            raise ValueError(
                f"options: {names_text(unknown)} cannot be given to a plan of "
                f"{self.verb}; there are {', '.join(known)}"
            )
        if bool(self.names) != (self.verb in NAMED):
            needed = NAMED.get(self.verb)
            text = f"give the names of {needed}" if needed else "takes no names"
            raise ValueError(f"names: a plan of {self.verb}: {text}")
        for name, default in known.items():
            if default is Parameter.empty and name not in self.options:
                raise ValueError(f"options: a plan of {self.verb} needs {name}")
        if self.verb == "prepare":
            arguments.distinct("names", self.names)
        arguments.variables("options.env", self.options.get("env"))

    def refused(self, planned: Report) -> bool:
        """Whether nothing would be done of what a dry run has planned.

        Of several steps on workers none is done if one is refused; what is refused of
        ``prepare`` is left, and the rest done.
        """
        states = {step.status for step in planned.steps}
        in_part = self.verb == "prepare" and "planned" in states
        return "refused" in states and not in_part

    async def make(self, client: Client, **how: Any) -> Report:
        """Call it, in the client's event loop."""
        work: Any = VERBS[self.verb](client, *self.names, **self.options, **how)
        report: Report = await work
        return report


@cache
def options_of(verb: str) -> Mapping[str, Any]:
    """Options that a plan of this verb may have, with their defaults."""
    parameters = dict(signature(VERBS[verb]).parameters)
    if verb == "prepare":  # it hands others on
        parameters = dict(signature(prepare).parameters) | parameters
    named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return {
        name: p.default
        for name, p in parameters.items()
        if name not in NEVER and p.kind in named
    }


def checked(verb: str, names: tuple[str, ...], options: Mapping[str, Any]) -> Call:
    """A call whose arguments are what a file gives back.

    Raises
    ------
    TypeError
        An argument cannot be kept in a file.
    ValueError
        As :meth:`Call.refuse_unknown`.
    """
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"{printable(repr(name), longest=60)}: a plan is kept in a file: give "
                "the name under which data is published, not the data itself"
            )
    for name, value in options.items():
        try:
            same = json.loads(json.dumps(value)) == _listed(value)
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            raise TypeError(
                f"{name}={printable(repr(value), longest=60)} cannot be kept in a file;"
                " give text, numbers, or lists of these"
            )
    call = Call(verb=verb, names=names, options=json.loads(json.dumps(dict(options))))
    call.refuse_unknown()
    return call


def _listed(value: Any) -> Any:
    """The value with lists for tuples, as JSON has it."""
    if isinstance(value, list | tuple):
        return [_listed(v) for v in value]
    if isinstance(value, dict):
        return {k: _listed(v) for k, v in value.items()}
    return value
