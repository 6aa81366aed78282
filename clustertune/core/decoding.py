"""Read JSON into frozen dataclasses with msgspec, and name the first field that is bad.

The standard library parses the text, because it accepts NaN, which reports may contain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec

from clustertune.core.wording import printable

LAST = 1e11  # epoch seconds, thousands of years from now: dates up to it can be printed
MAX_DIGITS = 300  # larger whole numbers overflow when they become floats

T = TypeVar("T")

_MESSAGE = re.compile(r"(?P<problem>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON into lists, dictionaries, text and numbers.

    Raises ``ValueError`` if the text is not JSON, is nested too deeply, or has a huge
    whole number.
    """
    try:
        return json.loads(text, parse_int=_parse_int)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def convert(data: Any, kind: type[T], *, forbid_unknown: bool = False) -> T:
    """Convert parsed JSON into a dataclass, a msgspec Struct or a tuple of these.

    Values are not coerced: ``"1"`` is not a number. Unknown fields are ignored unless
    ``forbid_unknown`` is set, so that a later release can add fields. Raises
    ``ValueError`` if a field is missing, unknown or of another type. The text starts
    with its path.
    """
    try:
        found = msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        raise ValueError(_one_line(str(error))) from error
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    if forbid_unknown and (unknown := next(_unknown_fields(data, found), None)):
        raise ValueError(printable(unknown, longest=400))
    return found


def read_json(text: str | bytes, kind: type[T]) -> T:
    """Parse JSON and convert it: see :func:`parse_json` and :func:`convert`."""
    return convert(parse_json(text), kind)


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number has more than {MAX_DIGITS} digits")
    return int(digits)


def _one_line(message: str) -> str:
    """Put the path first: ``seen.workers[2].nthreads: Expected int, got str``."""
    found = _MESSAGE.fullmatch(message)
    assert found is not None
    path, problem = found["path"], found["problem"].replace("`", "")
    return printable(f"{path}: {problem}" if path else problem, longest=400)


def _unknown_fields(data: Any, found: Any, where: str = "") -> Iterator[str]:
    if is_dataclass(found):
        known = [f.name for f in fields(found)]
        for name, value in data.items():
            path = f"{where}.{name}" if where else name
            if name in known:
                yield from _unknown_fields(value, getattr(found, name), path)
            else:
                yield f"{path}: unknown field; known fields are {', '.join(known)}"
    elif isinstance(found, tuple):
        for i, (value, item) in enumerate(zip(data, found, strict=True)):
            yield from _unknown_fields(value, item, f"{where}[{i}]")
