"""Check and convert arguments; errors name the argument and the allowed values."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any, TypeVar

import numpy as np
from dask.utils import parse_bytes, parse_timedelta

LARGEST = 10**9  # of any count that the caller gives, except rows
# errors of Dask's parsers for text that they cannot read, and for infinite amounts
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError)

T = TypeVar("T")

MAX_SHOWN = 200  # characters of a wrong value


def _wrong(name: str, value: object, allowed: str) -> ValueError:
    shown = repr(value)
    if len(shown) > MAX_SHOWN:
        shown = f"{shown[:MAX_SHOWN]}..."
    return ValueError(f"{name}={shown} must be {allowed}")


def _is_whole(value: object, least: int) -> bool:
    """Whether this is a whole number, from ``least`` on; True and False are none."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole and int(value) >= least  # type: ignore[call-overload]


def _one_of(name: str, value: object, choices: Sequence[T], allowed: str) -> T:
    """Return the choice that equals the value; 1 is not True."""
    for choice in choices:
        if isinstance(value, type(choice)) and value == choice:
            return choice
    raise _wrong(name, value, allowed)


def fraction(name: str, value: object, *, zero: bool = False) -> float:
    """Return a number from 0 to 1; 0 only if ``zero`` is set."""
    # an integer may be too large for a float, so compare before converting
    real = isinstance(value, Real) and not isinstance(value, bool)
    if real and 0 <= value <= 1 and (zero or value > 0):  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    least = "from 0" if zero else "above 0 and"
    raise _wrong(name, value, f"a number {least} up to 1, like 0.05")


def number(name: str, value: Any, others: str = "", most: int = LARGEST) -> int:
    """Return a whole number of at least 1; errors list ``others`` as allowed, too."""
    if _is_whole(value, 1) and value <= most:
        return int(value)
    limit = f" and at most {most:,}" if _is_whole(value, 1) else ""
    raise _wrong(name, value, f"a whole number of at least 1{limit}{others}")


def count(name: str, value: object, most: int = LARGEST) -> int | None:
    """Return a whole number of at least 1, or None."""
    return None if value is None else number(name, value, ", or None", most)


def workers_wanted(name: str, value: object) -> int | str | None:
    """Return a whole number of at least 1, ``"fit"``, or None."""
    if value is None or _is_whole(value, 1):
        return count(name, value)
    fit = '"fit" (as many as the memory that the fit needs)'
    allowed = f"a whole number of at least 1, {fit}, or None"
    return _one_of(name, value, ("fit",), allowed)


def flag(name: str, value: object) -> bool:
    """Return True or False; refuse other truthy or falsy values."""
    return _one_of(name, value, (True, False), "True or False")


def cutting(name: str, value: Any) -> bool | int:
    """Return True, False, or a whole number of at least 1."""
    if _is_whole(value, 1):
        return int(value)
    numbers = "a number of partitions of at least 1"
    allowed = f"True (cut where needed), False (never), or {numbers}"
    return _one_of(name, value, (True, False), allowed)


def restarting(name: str, value: object) -> bool | str:
    """Return True, False or ``"auto"``."""
    choices: Sequence[bool | str] = (True, False, "auto")
    allowed = 'False (none), "auto" (workers that leak), or True (all)'
    return _one_of(name, value, choices, allowed)


def more_than_report(name: str, value: object, other: str) -> bool:
    """Return whether the other choice is given instead of ``"report"``."""
    return _one_of(name, value, ("report", other), f'"report" or "{other}"') == other


def failures(name: str, value: Any) -> float:
    """Return how many failures are allowed: infinity for -1."""
    if _is_whole(value, -1):
        return inf if value == -1 else float(value)
    raise _wrong(name, value, "an integer from -1 (no limit) on")


def maybe(name: str, value: object) -> bool | None:
    """Return True, False or None."""
    return None if value is None else flag(name, value)


def number_size(name: str, value: Any) -> int:
    """Return the bytes of a NumPy type of real numbers; None is float64.

    Half precision is not allowed: it cannot hold numbers above 65,504.
    """
    wrong = _wrong(name, value, "float32, float64, a type of integers, or None")
    try:
        found = np.dtype(value)
    # NumPy raises SyntaxError for malformed lists of types; warnings may be errors
    except (TypeError, ValueError, SyntaxError, Warning) as error:
        raise wrong from error
    if found.kind in "iu" or found in (np.float32, np.float64):
        return int(found.itemsize)
    raise wrong


def names(name: str, value: Any) -> tuple[str | int, ...] | None:
    """Return names or addresses of workers as a tuple, or None."""
    if value is None:
        return None
    if isinstance(value, Sequence | set | frozenset) and value:
        one = isinstance(value, str | bytes)
        if not one and all(type(v) in (str, int) for v in value):
            return tuple(value)
    example = f'{name}=["tcp://10.0.0.5:41234"]'
    listed = "a list of names or addresses of workers"
    raise _wrong(name, value, f"{listed}, like {example}, or None for all")


def text(name: str, value: object) -> str:
    """Return a text."""
    if isinstance(value, str):
        return value
    raise _wrong(name, value, "a text")


def file(name: str, value: object) -> str | None:
    """Return the path of a file as text, or None."""
    if value is None:
        return None
    path = fspath(value) if isinstance(value, str | PathLike) else None
    if path and isinstance(path, str):
        return path
    raise _wrong(name, value, "the path of a file, or None")


def part(name: str, value: Any) -> int | float:
    """Return a number of at least 1, or a fraction below 1, which may be ``"25%"``."""
    wrong = _wrong(name, value, 'a number of at least 1, or a part like "25%"')
    if isinstance(value, bool):
        raise wrong
    try:
        percent = isinstance(value, str) and value.rstrip().endswith("%")
        found = float(value.rstrip().rstrip("%")) / 100 if percent else float(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise wrong from error
    if percent and found == 1:
        return LARGEST  # all; 1.0 is the number 1
    if not percent and found >= 1 and found.is_integer():
        return int(found)
    if 0 < found < 1:
        return found
    raise wrong


def duration(name: str, value: Any) -> float:
    """Return the seconds of a number or of text such as ``"10 minutes"``; above 0."""
    wrong = _wrong(name, value, 'a duration, like "10 minutes", "30s" or 90')
    # Dask reads ".5s" as 1.5 seconds
    if isinstance(value, str) and value.lstrip().startswith("."):
        value = f"0{value.lstrip()}"
    try:
        seconds = float(parse_timedelta(value))
    except UNREADABLE as error:
        raise wrong from error
    # Dask reads "s" as one second
    has_number = not isinstance(value, str) or value.lstrip()[0] in "0123456789"
    if has_number and 0 < seconds < inf:
        return seconds
    raise wrong


def nbytes(name: str, value: Any) -> int | None:
    """Return the bytes of a number or of text such as ``"4 GiB"``, or None."""
    if value is None:
        return None
    wrong = _wrong(name, value, 'a size of at least 1 MiB, like "4 GiB", or None')
    if isinstance(value, bool):
        raise wrong
    try:
        found = int(parse_bytes(value))
    except UNREADABLE as error:
        raise wrong from error
    if found >= 2**20:
        return found
    raise wrong
