"""A plan as a file: what is to be called, what was seen, what would be done, how long.

JSON with ``schema_version``, of which every field is read strictly: one that is
missing, unknown or of another type is named in an error of one line. A digest tells
whether the file was changed since; it is no signature, as whoever may write the file
may write that, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from clustertune.core import strictly
from clustertune.core.counts import Done
from clustertune.core.report import Report
from clustertune.core.wording import plural, printable, seconds_text
from clustertune.errors import RefusedError
from clustertune.operations.calls import Call
from clustertune.planner.verification import Fingerprint

SCHEMA_VERSION = 1
LONGEST = 366 * 86400.0  # seconds for which a plan may be carried out
_AROUND = ("schema_version", "digest")  # fields beside those of the plan itself


@dataclass(frozen=True, kw_only=True)
class StoredPlan:
    """A call that was planned and not carried out; printable.

    Attributes
    ----------
    made, expires : float
        When it was made, and until when it may be carried out; epoch seconds by the
        scheduler's clock.
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
        return self.call.refused(self.report)

    def __str__(self) -> str:
        until = datetime.fromtimestamp(self.expires).astimezone()
        return (
            f"plan: {self.call}\n"
            f"for {printable(self.seen.address)}, "
            f"{plural(len(self.seen.workers), 'worker')}; may be carried out until "
            f"{until:%Y-%m-%d %H:%M:%S %Z}\n\n{self.report}"
        )

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

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    # --- file -------------------------------------------------------------------------

    def to_json(self) -> str:
        """The plan as JSON."""
        own = _plain(self)
        around = {"schema_version": SCHEMA_VERSION, "digest": _digest(own)}
        return json.dumps(around | own, indent=1)

    @classmethod
    def from_json(cls, text: str) -> StoredPlan:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        ValueError
            It is no plan; the text says which field is not what it must be.
        RefusedError
            It was edited.
        """
        try:
            return _read(text)
        except RecursionError as error:
            raise ValueError("this is no plan: it is nested too deeply") from error

    def save(self, path: str | Path) -> None:
        """Write it to a file, which is replaced if it is there."""
        Path(path).write_text(f"{self.to_json()}\n", encoding="utf-8")

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
            return cls.from_json(Path(path).read_bytes().decode("utf-8"))
        except RefusedError as error:
            raise RefusedError(f"{path}: {error}") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _plain(plan: StoredPlan) -> dict[str, Any]:
    """Plain data, as JSON gives it back."""
    # by worker, and so no object of JSON; it is told anew when the plan is carried out
    lasting = replace(plan, report=replace(plan.report, forecast={}))
    plain: dict[str, Any] = json.loads(json.dumps(asdict(lasting), default=_number))
    return plain


def _number(value: Any) -> Any:
    if hasattr(value, "item"):  # a NumPy number
        return value.item()
    raise TypeError(f"{type(value).__name__} in a plan")


def _digest(data: Mapping[str, Any]) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _read(text: str) -> StoredPlan:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"this is no JSON: {error}") from error
    if not isinstance(data, dict) or "schema_version" not in data:
        raise ValueError(
            "this is no plan; one is made by `clustertune plan -o plan.json ...`"
        )
    version = data["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        shown = printable(json.dumps(version), longest=60)
        raise ValueError(
            f"schema_version: {shown} is not known here, only {SCHEMA_VERSION} is; "
            "plan again with this clustertune"
        )
    own = {k: v for k, v in data.items() if k not in _AROUND}
    plan: StoredPlan = strictly.read(StoredPlan, own)
    if not (0 < plan.made < strictly.LAST and 0 < plan.expires - plan.made <= LONGEST):
        raise ValueError(
            f"expires: {plan.expires:g} must be at most {LONGEST:g} s after made "
            f"({plan.made:g})"
        )
    plan.call.refuse_unknown()
    if data.get("digest") != _digest(own):
        raise RefusedError(
            "the plan was edited after it was made; what is to be done otherwise has "
            "to be planned again"
        )
    return plan
