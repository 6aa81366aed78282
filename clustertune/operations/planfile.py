"""A plan as a file: the call, what the plan was made from, its steps, its expiry.

A call in a file has plain arguments only: it names published data sets instead of
holding collections. The file is JSON with ``schema_version``. A digest reveals edits.
It is not a signature: a person who can write the file can also write the digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from hashlib import sha256
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from distributed import Client

from clustertune.core import arguments, decoding
from clustertune.core.counts import Done
from clustertune.core.report import Report
from clustertune.core.wording import (
    names_text,
    plural,
    printable,
    seconds_text,
    time_text,
)
from clustertune.errors import RefusedError
from clustertune.operations import publishing, release, workers
from clustertune.operations.prepare import prepare
from clustertune.planner.verification import Fingerprint

SCHEMA_VERSION = 1
LONGEST = 366 * 86400.0  # seconds until a plan expires, at most
_AROUND = ("schema_version", "digest")  # fields that the digest does not cover

VERBS: Mapping[str, Any] = {
    "merge": workers.merge_workers,
    "prepare": publishing.prepare_datasets,
    "release": release.release_data,
    "resize": workers.resize_workers,
    "restart": workers.restart_workers,
    "scale": workers.scale,
    "trim": workers.trim_memory,
}
#: verbs that take names, and the kind of these names
NAMED = {"prepare": "published data sets", "release": "prefixes of keys"}
#: arguments that `apply` sets itself, or that a file cannot contain
NEVER = {
    "allow_any_env",  # a file must not set variables that run code
    "client",
    "dry_run",
    "keep",
    "progress",
    "X",
    "y",
}


# --- calls ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlannedCall:
    """One call of a function that changes a cluster, without the client."""

    verb: str
    names: tuple[str, ...] = ()  # data sets of prepare: X, y, others; or prefixes
    options: Mapping[str, Any] = field(default_factory=dict)  # JSON, if it is stored

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
        """Check verb, names and option names; the called function checks the values."""
        if self.verb not in VERBS:
            raise ValueError(
                f"verb: {printable(repr(self.verb), longest=60)} cannot be planned; "
                f"choose from {', '.join(VERBS)}"
            )
        known = options_of(self.verb)
        if unknown := [k for k in self.options if k not in known]:
            raise ValueError(
                f"options: a plan of {self.verb} cannot have {names_text(unknown)}; "
                f"its options are {', '.join(known)}"
            )
        needed = NAMED.get(self.verb)
        if bool(self.names) != bool(needed) and not self.options.get("rows"):
            text = f"give the names of {needed}" if needed else "takes no names"
            raise ValueError(f"names: a plan of {self.verb}: {text}")
        for name, default in known.items():
            if default is Parameter.empty and name not in self.options:
                raise ValueError(f"options: a plan of {self.verb} needs {name}")
        if self.verb == "prepare":
            arguments.distinct("names", self.names)
        arguments.variables("options.env", self.options.get("env"))

    def refused(self, planned: Report) -> bool:
        """Whether the call would refuse to do what a dry run has planned."""
        return is_refused(planned, in_part=self.verb == "prepare")

    async def make(self, client: Client, **how: Any) -> Report:
        """Call the function in the client's event loop."""
        work: Any = VERBS[self.verb](client, *self.names, **self.options, **how)
        report: Report = await work
        return report


def is_refused(planned: Report, *, in_part: bool = False) -> bool:
    """Whether a call would refuse to do what a dry run has planned.

    ``in_part``: as ``prepare``, which skips refused steps and does the others. Other
    calls do no step if one is refused.
    """
    states = {step.status for step in planned.steps}
    return "refused" in states and not (in_part and "planned" in states)


@cache
def options_of(verb: str) -> Mapping[str, Any]:
    """Options that a plan of this verb can have, with their defaults."""
    parameters = dict(signature(VERBS[verb]).parameters)
    if verb == "prepare":  # prepare_datasets passes further options to prepare
        parameters = dict(signature(prepare).parameters) | parameters
    named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return {
        name: p.default
        for name, p in parameters.items()
        if name not in NEVER and p.kind in named
    }


def checked(
    verb: str, names: tuple[str, ...], options: Mapping[str, Any]
) -> PlannedCall:
    """Make a call whose arguments are equal after a file was written and read."""
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"{printable(repr(name), longest=60)} cannot be saved in a plan file; "
                "publish the data and give its name"
            )
    plain = {name: _as_json(name, value) for name, value in options.items()}
    call = PlannedCall(verb=verb, names=names, options=plain)
    call.refuse_unknown()
    return call


def _as_json(name: str, value: Any) -> Any:
    """The value as JSON returns it: with lists for tuples."""
    if isinstance(value, list | tuple):
        return [_as_json(name, v) for v in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _as_json(name, v) for key, v in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(
        f"{name}: {printable(repr(value), longest=60)} cannot be saved in a plan file; "
        "give text, numbers, or lists of these"
    )


# --- plans ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StoredPlan:
    """A planned call; printable.

    Attributes
    ----------
    made, expires : float
        When it was made and when it expires; epoch seconds of the scheduler's clock.
    by : str
        User, host and process that made it.
    reason : str
        Why it was made; may be empty.
    call : PlannedCall
        The call that carries it out.
    seen : Fingerprint
        The cluster and the data when it was made.
    report : Report
        The report of the dry run: findings and steps.
    """

    made: float
    expires: float
    by: str
    reason: str
    call: PlannedCall
    seen: Fingerprint
    report: Report

    @property
    def steps(self) -> tuple[Done, ...]:
        """The planned and the refused steps, as far as they are known in advance."""
        return self.report.steps

    @property
    def refused(self) -> bool:
        """Whether the call would refuse this plan."""
        return self.call.refused(self.report)

    def __str__(self) -> str:
        return (
            f"plan: {self.call}\n"
            f"for {printable(self.seen.address)}, "
            f"{plural(len(self.seen.workers), 'worker')}; expires at "
            f"{time_text(self.expires)}\n\n{self.report}"
        )

    def refuse_expired(self, now: float) -> None:
        """Raise if the plan has expired at this time (epoch seconds)."""
        if now > self.expires:
            raise RefusedError(
                f"the plan was made {seconds_text(max(0.0, now - self.made))} ago and "
                f"expired after {seconds_text(self.expires - self.made)}; plan again, "
                "if necessary with a longer --expires (expires=)"
            )

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def to_json(self) -> str:
        """The plan as JSON."""
        own = _plain(self)
        around = {"schema_version": SCHEMA_VERSION, "digest": _digest(own)}
        return json.dumps(around | own, indent=1)

    @classmethod
    def from_json(cls, text: str) -> StoredPlan:
        """Read the text that :meth:`to_json` wrote.

        Raises
        ------
        ValueError
            The text is not a plan; the error names the bad field.
        RefusedError
            The plan was edited.
        """
        try:
            data = decoding.parse_json(text)
        except ValueError as error:
            raise ValueError(f"this is not JSON: {error}") from error
        try:
            return _read(data)
        except RecursionError as error:
            raise ValueError("this is not a plan: it is nested too deeply") from error

    def save(self, path: str | Path) -> None:
        """Write the plan to a file; an existing file is replaced."""
        Path(path).write_text(f"{self.to_json()}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> StoredPlan:
        """Read a plan from a file.

        Raises
        ------
        OSError
            The file cannot be read.
        ValueError
            The file is not a plan; the error names the file and the bad field.
        RefusedError
            The plan was edited.
        """
        try:
            return cls.from_json(Path(path).read_bytes().decode("utf-8"))
        except RefusedError as error:
            raise RefusedError(f"{path}: {error}") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _plain(plan: StoredPlan) -> dict[str, Any]:
    # JSON has no objects with numbers as keys; `apply` makes a new forecast
    lasting = replace(plan, report=replace(plan.report, forecast={}))
    text = json.dumps(asdict(lasting), default=_number)
    plain: dict[str, Any] = decoding.parse_json(text)
    return plain


def _number(value: Any) -> Any:
    if hasattr(value, "item"):  # a NumPy number
        return value.item()
    raise TypeError(f"{type(value).__name__} in a plan")


def _digest(data: Mapping[str, Any]) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _read(data: Any) -> StoredPlan:
    if not isinstance(data, dict) or "schema_version" not in data:
        raise ValueError(
            "this is not a plan; `clustertune plan -o plan.json ...` makes one"
        )
    version = data["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        shown = printable(json.dumps(version), longest=60)
        raise ValueError(
            f"schema_version: {shown} is unknown; this clustertune reads "
            f"{SCHEMA_VERSION}: plan again"
        )
    own = {k: v for k, v in data.items() if k not in _AROUND}
    plan = decoding.convert(own, StoredPlan, forbid_unknown=True)
    if not (0 < plan.made < decoding.LAST and 0 < plan.expires - plan.made <= LONGEST):
        raise ValueError(
            f"expires: {plan.expires:g} must be at most {LONGEST:g} s after made "
            f"({plan.made:g})"
        )
    plan.call.refuse_unknown()
    if data.get("digest") != _digest(own):
        raise RefusedError("the plan was edited after it was made; plan again")
    return plan
