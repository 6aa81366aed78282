"""Read JSON into frozen dataclasses with msgspec, and name the first field that is bad.

The standard library parses the text, because it accepts NaN, which reports may contain.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from clustertune.core.wording import printable

MAX_DIGITS = 300  # larger whole numbers overflow when they become floats

T = TypeVar("T")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON into lists, dictionaries, text and numbers.

    Raises ``ValueError`` if the text is not JSON, is nested too deeply, or has a huge
    whole number.
    """
    try:
        return json.loads(text, parse_int=_parse_int)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def convert(data: Any, kind: type[T]) -> T:
    """Convert parsed JSON into a dataclass, a msgspec Struct or a tuple of these.

    Values are not coerced: ``"1"`` is not a number. Unknown fields are ignored, so
    that a later release can add fields. Raises ``ValueError`` if a field is missing or
    of another type. The text has its path.
    """
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        raise ValueError(printable(str(error), longest=400)) from error
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number has more than {MAX_DIGITS} digits")
    return int(digits)
