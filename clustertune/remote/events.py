"""Reads the events of topic ``clustertune`` in Dask's log, in which any client may log.

An event that is not built like clustertune's own is skipped. Its texts stay untrusted:
they are escaped where they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

MOST_TEXT = 2000  # characters of one text
LARGEST = 2.0**63  # numbers


def well_formed(
    logged: Iterable[tuple[Any, Any]],
) -> Iterator[tuple[float, dict[str, Any]]]:
    """When each well-formed event was logged, and its fields, cut to sensible lengths.

    Fields that clustertune logs have the type that it gives them. Other fields are
    texts or numbers; the rest of them is left out.
    """
    for at, event in logged:
        if type(event) is dict and _is_well_formed(event):
            yield float(at), {k: _cut(v) for k, v in event.items() if _is_shown(k, v)}


def _is_well_formed(event: Mapping[Any, Any]) -> bool:
    return _is_name(event.get("action")) and all(
        event[name] is None or is_right(event[name])
        for name, is_right in FIELDS.items()
        if name in event
    )


def _is_shown(name: Any, value: Any) -> bool:
    if type(name) is not str or len(name) > MOST_TEXT:
        return False
    return name in FIELDS or _is_text(value) or _is_number(value)


def _cut(value: Any) -> Any:
    return value[:MOST_TEXT] if type(value) is str else value


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_name(value: Any) -> bool:
    return type(value) is str and 0 < len(value) <= 100


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST < value < LARGEST  # so no NaN


def _are_steps(value: Any) -> bool:
    return type(value) in (list, tuple) and all(
        type(step) is dict and _is_text(step.get("summary")) for step in value
    )


#: the fields that clustertune's own events have, where the page reads them
FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "action": _is_name,
    "state": _is_name,
    "steps": _are_steps,
    "keys": _is_number,
    "nbytes": _is_number,
    "seconds": _is_number,
    "lost": _is_number,
    "again": _is_number,
    "address": _is_text,
    "status": _is_text,
    "outcome": _is_text,
    "problem": _is_text,
    "error": _is_text,
}
