"""A plan as a file: what is to be called, what was seen, what would be done, how long.

JSON with ``schema_version``, of which every field is read strictly: one that is
missing, unknown or of another type is named in an error of one line. A digest tells
whether the file was changed since; it is no signature, as whoever may write the file
may write that, too.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from datetime import datetime
from enum import IntEnum
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from clustertune.calls import Call
from clustertune.errors import RefusedError
from clustertune.fingerprint import Fingerprint
from clustertune.report import Done, Report
from clustertune.wording import plural, printable, seconds_text

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class StoredPlan:
    """A call that was planned and not carried out; printable.

    Attributes
    ----------
    made, expires : float
        When it was made, and until when it may be carried out; epoch seconds.
    by : str
        Who made it: user, host and process.
    reason : str
        Why, in the words of whoever made it; may be empty.
    call : Call
        What is called to carry it out.
    seen : Fingerprint
        What it was made from.
    report : Report
        Of the dry run: what was found, and the steps.
    """

    made: float
    expires: float
    by: str
    reason: str
    call: Call
    seen: Fingerprint
    report: Report

    @property
    def steps(self) -> tuple[Done, ...]:
        """What would be done, as far as it is known beforehand, and what is refused."""
        return self.report.steps

    @property
    def refused(self) -> bool:
        """Whether carrying it out would be refused as a whole, or do nothing of it."""
        states = {step.status for step in self.steps}
        return "refused" in states and (
            self.call.verb != "prepare" or "planned" not in states
        )

    def __str__(self) -> str:
        until = datetime.fromtimestamp(self.expires).astimezone()
        lines = [
            f"plan: {self.call}",
            f"for {printable(self.seen.address)}, "
            f"{plural(len(self.seen.workers), 'worker')}; may be carried out until "
            f"{until:%Y-%m-%d %H:%M:%S %Z}",
        ]
        return "\n".join(lines) + f"\n\n{self.report}"

    def refuse_expired(self, now: float) -> None:
        """Raise if it is too old at this moment (epoch seconds).

        Raises
        ------
        RefusedError
            It is.
        """
        if now > self.expires:
            raise RefusedError(
                f"the plan was made {seconds_text(max(0.0, now - self.made))} ago and "
                f"held for {seconds_text(self.expires - self.made)}; plan again, with "
                "a longer --expires (expires=) if need be"
            )

    # --- file -------------------------------------------------------------------------

    def dumps(self) -> str:
        """The plan as JSON."""
        data = _plain(self)
        data["digest"] = _digest(data)
        return json.dumps(data, indent=1) + "\n"

    @classmethod
    def loads(cls, text: str) -> StoredPlan:
        """Read what :meth:`dumps` wrote.

        Raises
        ------
        ValueError
            It is no plan; the text says which field is not what it must be.
        RefusedError
            It was edited.
        """
        data = _parsed(text)
        digest = data.pop("digest", None)
        if not isinstance(digest, str):
            raise ValueError("digest: is missing, or is no text; plan again")  # noqa: TRY004
        plan = _read(cls, data | {"schema_version": SCHEMA_VERSION}, "")
        assert isinstance(plan, StoredPlan)
        plan.call.refuse_unknown()
        if digest != _digest(data):
            raise RefusedError(
                "the plan was edited after it was made; what is to be done otherwise "
                "has to be planned again"
            )
        return plan

    def save(self, path: str | Path) -> None:
        """Write it to a file, which is replaced if it is there."""
        Path(path).write_text(self.dumps(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> StoredPlan:
        """Read it from a file.

        Raises
        ------
        OSError
            The file cannot be read.
        ValueError
            It is no plan; the text names the file and the field.
        RefusedError
            It was edited.
        """
        try:
            return cls.loads(Path(path).read_bytes().decode("utf-8"))
        except RefusedError as error:
            raise RefusedError(f"{path}: {error}") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _plain(plan: StoredPlan) -> dict[str, Any]:
    """Plain data, as JSON gives it back."""
    # by worker, and so no object of JSON; it is told anew when the plan is carried out
    lasting = replace(plan, report=replace(plan.report, forecast={}))
    data = {"schema_version": SCHEMA_VERSION} | asdict(lasting)
    plain: dict[str, Any] = json.loads(json.dumps(data, default=_number))
    return plain


def _number(value: Any) -> Any:
    if hasattr(value, "item"):  # a NumPy number
        return value.item()
    raise TypeError(f"{type(value).__name__} in a plan")


def _digest(data: Mapping[str, Any]) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _parsed(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("this is no plan: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"this is no JSON: {error}") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(data, dict) or "schema_version" not in data:
        raise ValueError(
            "this is no plan; one is made by `clustertune plan -o plan.json ...`"
        )
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ValueError(
            f"schema_version: {_shown(version)} is not known here, only "
            f"{SCHEMA_VERSION} is; plan again with this clustertune"
        )
    return data


# --- reading strictly -----------------------------------------------------------------

_NOUNS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _read(kind: Any, data: Any, where: str) -> Any:
    """What JSON has made of a value of some type, as it was.

    Raises
    ------
    ValueError
        It is none.
    """
    if kind is Any:
        return data
    if is_dataclass(kind):
        return _read_fields(kind, data, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _read_one_of(get_args(kind), data, where)
    if origin is tuple:
        (item, _) = get_args(kind)
        _refuse_other(list, data, where, "a list")
        return tuple(_read(item, x, f"{where}[{i}]") for i, x in enumerate(data))
    if origin is Mapping:
        _, item = get_args(kind)
        _refuse_other(dict, data, where, "an object")
        return {k: _read(item, v, f"{where}.{k}") for k, v in data.items()}
    if issubclass(kind, IntEnum):
        known = {int(x): x for x in kind}
        if type(data) is not int or data not in known:
            listed = ", ".join(map(str, known))
            raise ValueError(f"{_at(where)} {_shown(data)} must be one of {listed}")
        return known[data]
    if kind is float and type(data) is int:
        return float(data)
    _refuse_other(kind, data, where, _NOUNS[kind])
    return data


def _read_fields(kind: Any, data: Any, where: str) -> Any:
    _refuse_other(dict, data, where, "an object")
    types_of = _types(kind)
    path = f"{where}." if where else ""
    given = {k: v for k, v in data.items() if where or k != "schema_version"}
    if unknown := [k for k in given if k not in types_of]:
        listed = ", ".join(types_of)
        raise ValueError(f"{_at(path + unknown[0])} is unknown; there are {listed}")
    if missing := [k for k in types_of if k not in given]:
        raise ValueError(f"{_at(path + missing[0])} is missing")
    return kind(**{k: _read(types_of[k], v, path + k) for k, v in given.items()})


@cache
def _types(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def _read_one_of(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    for kind in kinds:
        try:
            return _read(kind, data, where)
        except ValueError:
            continue
    nouns = " or ".join(_NOUNS[kind] for kind in kinds)
    raise ValueError(f"{_at(where)} {_shown(data)} must be {nouns}")


def _refuse_other(kind: type, data: Any, where: str, noun: str) -> None:
    if type(data) is not kind:  # True is an int, too
        raise ValueError(f"{_at(where)} {_shown(data)} must be {noun}")


def _at(where: str) -> str:
    return f"{printable(where, longest=200) or 'the plan'}:"


def _shown(data: Any) -> str:
    return printable(json.dumps(data), longest=60)
