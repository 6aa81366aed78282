"""JSON becomes dataclasses, or an error of one line that names the bad field."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from clustertune.core import decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A dataclass in a tuple."""

    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """A dataclass with one field of each kind."""

    id: str | int
    share: float = 0.0
    inner: tuple[Inner, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


def test_values() -> None:
    """Defaults are filled in, and unknown fields are ignored."""
    text = '{"id": 3, "share": NaN, "inner": [{"size": 1, "new": 2}], "more": []}'
    found = decoding.convert(decoding.parse_json(text), Outer)
    assert (found.id, found.inner) == (3, (Inner(size=1),))
    assert math.isnan(found.share)
    assert decoding.convert({"id": "a", "share": 1}, Outer).share == 1.0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "Expecting property name"),
        ("[" * 100_000, "nested too deeply"),
        ('{"id": 1' + "0" * 300 + "}", "more than 300 digits"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "Object missing required field `id`"),
        ('{"id": true}', "Expected `int | str`, got `bool` - at `$.id`"),
        ('{"id": 1, "share": "1"}', "Expected `float`, got `str` - at `$.share`"),
        ('{"id": 1, "inner": [{"size": 1.5}]}', "got `float` - at `$.inner[0].size`"),
    ],
)
def test_errors(text: str, error: str) -> None:
    """The text is one line with the path."""
    with pytest.raises(ValueError, match=re.escape(error)) as caught:
        decoding.convert(decoding.parse_json(text), Outer)
    assert "\n" not in str(caught.value)
