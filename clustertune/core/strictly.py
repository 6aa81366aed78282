"""Frozen dataclasses from what JSON gives, every field read strictly.

One that is missing, unknown or of another type is named in an error of one line:
``seen.workers[2].nthreads: "x" must be a whole number``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import IntEnum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from clustertune.core.wording import printable

LAST = 1e11  # epoch seconds, some thousands of years from now: it can be printed
LARGEST = 10**300  # of whole numbers: larger ones cannot be reckoned with
_NOUNS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "an object",
}


def read(kind: Any, data: Any, where: str = "", *, lasting: bool = False) -> Any:
    """What JSON has made of a value of this type, as it was.

    Parameters
    ----------
    kind
        A dataclass, a tuple, a Mapping from text, a union of plain types, an IntEnum, a
        plain type, or Any.
    data
        As :func:`json.loads` returns it.
    where
        What errors are to call it.
    lasting
        Whether an older or a newer release may have written it: fields that are unknown
        here are dropped, and those that lack have their defaults, if they have any.

    Raises
    ------
    ValueError
        It is of another type; the text says where, what was given and what is allowed.
    """
    if is_dataclass(kind):
        return _read_fields(kind, data, where, lasting)
    reader = _READERS.get(get_origin(kind), _read_plain)
    return reader(kind, data, where, lasting)


def _read_fields(kind: Any, data: Any, where: str, lasting: bool) -> Any:
    _refuse_other((dict,), data, where)
    kinds = _kinds(kind)
    path = f"{where}." if where else ""
    unknown = [name for name in data if name not in kinds]
    if unknown and not lasting:
        known = ", ".join(kinds)
        raise ValueError(f"{_at(path + unknown[0])} is unknown; there are {known}")
    needed = _needed(kind) if lasting else kinds
    if missing := [name for name in needed if name not in data]:
        raise ValueError(f"{_at(path + missing[0])} is missing")
    return kind(
        **{
            k: read(kinds[k], v, path + k, lasting=lasting)
            for k, v in data.items()
            if k in kinds
        }
    )


@cache
def _needed(kind: Any) -> tuple[str, ...]:
    """Names of fields that have no default."""
    return tuple(
        f.name
        for f in fields(kind)
        if f.default is MISSING and f.default_factory is MISSING
    )


@cache
def _kinds(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def _read_items(kind: Any, data: Any, where: str, lasting: bool) -> Any:
    items = get_args(kind)
    _refuse_other((list,), data, where)
    if items[-1] is Ellipsis:
        items = items[:1] * len(data)
    if len(items) != len(data):
        raise ValueError(f"{_at(where)} {_shown(data)} must have {len(items)} items")
    return tuple(
        read(item, x, f"{where}[{i}]", lasting=lasting)
        for i, (item, x) in enumerate(zip(items, data, strict=True))
    )


def _read_values(kind: Any, data: Any, where: str, lasting: bool) -> Any:
    _, value = get_args(kind)
    _refuse_other((dict,), data, where)
    return {k: read(value, v, f"{where}.{k}", lasting=lasting) for k, v in data.items()}


def _read_union(kind: Any, data: Any, where: str, _lasting: bool) -> Any:
    _refuse_other(get_args(kind), data, where)
    return data


def _read_plain(kind: Any, data: Any, where: str, _lasting: bool) -> Any:
    if kind is Any:
        return data
    if issubclass(kind, IntEnum):
        known = {int(x): x for x in kind}
        if type(data) is not int or data not in known:
            listed = ", ".join(map(str, known))
            raise ValueError(f"{_at(where)} {_shown(data)} must be one of {listed}")
        return known[data]
    _refuse_other((kind,), data, where)
    return kind(data)


_READERS: Mapping[Any, Callable[[Any, Any, str, bool], Any]] = {
    tuple: _read_items,
    Mapping: _read_values,
    Union: _read_union,
    UnionType: _read_union,
}


def _refuse_other(kinds: tuple[Any, ...], data: Any, where: str) -> None:
    # True is an int, too; and a whole number is a number
    allowed = {*kinds, int} if float in kinds else set(kinds)
    if type(data) not in allowed:
        nouns = " or ".join(_NOUNS[kind] for kind in kinds)
        raise ValueError(f"{_at(where)} {_shown(data)} must be {nouns}")
    if type(data) is int and abs(data) >= LARGEST:
        raise ValueError(f"{_at(where)} a whole number must be below 1e300")


def _at(where: str) -> str:
    return f"{printable(where, longest=200) or 'the whole'}:"


def _shown(data: Any) -> str:
    return printable(json.dumps(data), longest=60)
