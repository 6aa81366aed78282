"""The language of playbooks: one JSON schema, and the reader of each value.

``clustertune playbooks --schema`` prints the schema, so editors complete and check
playbooks. Each value has a format, which is the reader of that value. Thus a playbook
that passes :func:`problems` can be read without further errors.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dask.utils import parse_timedelta
from jsonschema import Draft7Validator, FormatChecker, ValidationError

from clustertune import actions, checks
from clustertune.core import arguments
from clustertune.core.wording import printable
from clustertune.operations.playbooks.playbook import GIVEN, NAMED

VERSION = 1
MAX_STEPS = 50
SEVERITIES = ("info", "warning", "critical")

Path = tuple[str | int, ...]  # of a value: ("steps", 2, "with", "timeout")
Schema = dict[str, Any]


# --- values ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """How a value is read, and its schema."""

    read: Callable[[str, Any], Any]
    schema: Schema


def read(key: str, value: Any) -> Any:
    """Convert the value of a key.

    Raises
    ------
    ValueError
        The value is not allowed.
    """
    if value is None:
        raise ValueError(f"{key} has no value")
    return VALUES[key].read(key, value)


def matching_checks(word: str) -> tuple[str, ...]:
    """Names of checks: this name, or all with this word in their names, or ``all``."""
    known = checks.available()
    if word in known:
        return (word,)
    return tuple(n for n in known if word == "all" or word in n.split("_"))


def _checks(_key: str, value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise ValueError("names no check")
    for word in listed:
        if not (isinstance(word, str) and matching_checks(word)):
            raise ValueError(_unknown_check(word, _check_words()))
    return tuple(listed)


def _check_words() -> list[str]:
    known = checks.available()
    return sorted({"all", *known, *(w for name in known for w in name.split("_"))})


def _workers(key: str, value: Any) -> Any:
    return NAMED if value == NAMED else arguments.names(key, value)


def _prefixes(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and value:
        return arguments.texts(key, value)
    raise ValueError(f"{key}={value!r} must be a list of prefixes of keys")


def _keep(key: str, value: Any) -> str:
    if value == GIVEN:
        return GIVEN
    raise ValueError(
        f"{key}={value!r} must be {GIVEN}: the collections with which the playbook is "
        "run"
    )


def _duration_or_zero(key: str, value: Any) -> float:
    text = f'{key}={value!r} must be a duration, like "30s", or 0'
    try:
        seconds = math.nan if isinstance(value, bool) else float(parse_timedelta(value))
    except (*arguments.UNREADABLE, AssertionError) as error:
        raise ValueError(text) from error
    if not 0 <= seconds < math.inf:
        raise ValueError(text)
    return seconds


def _whole_or_zero(key: str, value: Any) -> int:
    if type(value) is int and value >= 0:
        return value
    raise ValueError(f"{key}={value!r} must be a whole number, 0 or more")


_FLAG = {"type": "boolean"}
_FRACTION = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
_COUNT = {"type": "integer", "minimum": 1}
#: text begins with a number: Dask reads ".5s" as 1.5 s, and "s" as 1 s
_DURATION = {
    "type": ["number", "string"],
    "exclusiveMinimum": 0,
    "pattern": r"^\s*\d",
    "examples": ["30s", "5 minutes"],
}
_PAUSE = _DURATION | {"exclusiveMinimum": -1, "examples": ["0", "30s"]}

#: by key of ``with``, ``limits`` and steps
VALUES: Mapping[str, Value] = {
    "check": Value(_checks, {}),  # names depend on other packages: see _step
    "disrupted_workers": Value(
        arguments.part,
        {
            "type": ["number", "string"],
            "exclusiveMinimum": 0,
            "pattern": r"^\s*\d",
            "description": "The most workers that are away at the same time",
            "examples": [1, "25%"],
        },
    ),
    "dtype": Value(
        arguments.number_type, {"type": "string", "examples": ["float32", "float64"]}
    ),
    "env": Value(
        arguments.variables,
        {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Variables of thread pools and allocators",
        },
    ),
    "holds": Value(
        _duration_or_zero,
        _PAUSE | {"description": "How long the condition must last"},
    ),
    "if_needed": Value(arguments.flag, _FLAG),
    "include_other_clients": Value(arguments.flag, _FLAG),
    "keep": Value(_keep, {"const": GIVEN}),
    "memory_fraction": Value(arguments.fraction, _FRACTION),
    "memory_limit": Value(
        arguments.nbytes,
        {
            "type": ["number", "string"],
            "pattern": r"^\s*[.\d]",
            "examples": ["4 GiB"],
        },
    ),
    "minimum_workers": Value(
        _whole_or_zero,
        {
            "type": "integer",
            "minimum": 0,
            "description": "The least workers that run while others are away",
        },
    ),
    "n_workers": Value(arguments.count, _COUNT),
    "nthreads": Value(arguments.count, _COUNT),
    "prefixes": Value(
        _prefixes,
        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
    ),
    "rechunk": Value(arguments.cutting, {"type": ["boolean", "integer"], "minimum": 1}),
    "release_inputs": Value(arguments.flag, _FLAG),
    "settle": Value(
        _duration_or_zero,
        _PAUSE | {"description": "Pause after each step that changed something"},
    ),
    "timeout": Value(arguments.duration, _DURATION),
    "to": Value(arguments.kind, {"const": "array"}),
    "tolerance": Value(
        partial(arguments.fraction, zero=True),
        {"type": "number", "minimum": 0, "maximum": 1},
    ),
    "wait": Value(arguments.duration, _DURATION),
    "workers": Value(
        _workers,
        {
            "anyOf": [
                {"const": NAMED},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": ["string", "integer"]},
                },
            ],
            "description": f"Names or addresses; {NAMED}: the condition names them",
        },
    ),
}
LIMITS = ("disrupted_workers", "minimum_workers", "settle")


# --- actions --------------------------------------------------------------------------


@dataclass(frozen=True)
class Action:
    """An action that a step can do.

    ``keys`` are arguments of the function with the same name, or of ``prepare`` if the
    action needs data. None of them lets a playbook lose data or exceed its limits.
    """

    summary: str
    keys: tuple[str, ...]
    data: bool = False  # acts on the given data
    needs: tuple[str, ...] = ()  # one of these keys must be there


ACTIONS: Mapping[str, Action] = {
    "persist": Action(
        'load the given data; `prepare(..., only=["persist"])`',
        ("memory_fraction", "timeout"),
        data=True,
    ),
    "rebalance": Action(
        "place the partitions of the given data: rows even, pairs together; "
        '`only=["rebalance"]`',
        ("memory_fraction", "timeout", "tolerance"),
        data=True,
    ),
    "rechunk": Action(
        'rechunk the given data if needed; `only=["rechunk"]`',
        (
            *("dtype", "memory_fraction", "rechunk", "release_inputs"),
            *("timeout", "to", "tolerance"),
        ),
        data=True,
    ),
    "release": Action(
        "release the given data (published data sets are unpublished), or the keys "
        "with one of `prefixes`, or with `keep: given` all other data of this client",
        ("include_other_clients", "keep", "prefixes", "timeout"),
    ),
    "resize": Action(
        "give workers other threads, memory or variables",
        ("env", "memory_limit", "nthreads", "timeout", "wait", "workers"),
        needs=("nthreads", "memory_limit", "env"),
    ),
    "restart": Action(
        "restart workers without losing data; with `if_needed` trim first, and restart "
        "only workers that still need it",
        ("if_needed", "timeout", "wait", "workers"),
    ),
    "scale": Action(
        "scale the cluster to `n_workers` workers",
        ("n_workers", "timeout", "wait"),
        needs=("n_workers",),
    ),
    "trim": Action(
        "return unused memory of workers to the operating system",
        ("timeout", "workers"),
    ),
}
ON_DATA = frozenset(name for name, action in ACTIONS.items() if action.data)


def available_actions() -> Mapping[str, Action]:
    """Actions by name, including those of other packages."""
    others = {
        name: Action(f"{name}, of another package", ("timeout",))
        for name in sorted(actions.others())
    }
    return {**ACTIONS, **others}


# --- the schema -----------------------------------------------------------------------


def schema() -> Schema:
    """Return the JSON schema (draft 7) of playbooks.

    It lists the checks and actions that are installed. ``errorMessage`` is a keyword of
    editors: it replaces their own message.
    """
    text = {"type": "string", "pattern": r"\S", "errorMessage": "must be text"}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "clustertune playbook",
        **_mapping(
            {
                "version": {
                    "const": VERSION,
                    "errorMessage": f"must be {VERSION}",
                },
                "name": text,
                "description": text,
                "steps": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MAX_STEPS,
                    "items": _step(),
                },
                "limits": _mapping({key: _value(key) for key in LIMITS}),
                "on_failure": {"enum": ["stop", "continue"]},
            }
        ),
        "required": ["version", "name", "steps"],
    }


def _mapping(properties: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def _value(key: str) -> Schema:
    return {**VALUES[key].schema, "format": f"clustertune-{key}"}


def _step() -> Schema:
    names = {"enum": _check_words()}
    known = available_actions()
    either = "a step has either check or do"
    with_do = dict.fromkeys(
        ("when", "at_least", "holds", "with"), _refused("belongs to a step with do")
    )
    with_when = dict.fromkeys(("at_least", "holds"), _refused("belongs to when"))
    step = _mapping(
        {
            "check": {
                **_value("check"),
                "anyOf": [names, {"type": "array", "minItems": 1, "items": names}],
                "description": "Checks to run: names, words of names, or all",
            },
            "when": {
                "enum": list(checks.available()),
                "description": "The check whose finding is the condition",
            },
            "at_least": {"enum": list(SEVERITIES), "default": "warning"},
            "holds": _value("holds"),
            "do": {"enum": list(known), "description": "The action"},
            "with": {"description": "Arguments of the action"},
        }
    )
    rules = [
        {
            "if": {"required": ["check"]},
            "then": {"properties": {"do": _refused(either), **with_do}},
            "else": {"required": ["do"], "errorMessage": either},
        },
        {"if": {"required": ["when"]}, "else": {"properties": with_when}},
        _named_needs_when(),
        *(_action_rule(name, action) for name, action in known.items()),
    ]
    return step | {"allOf": rules}


def _refused(text: str) -> Schema:
    return {"not": {}, "errorMessage": text}


def _named_needs_when() -> Schema:
    named = {
        "type": "object",
        "required": ["workers"],
        "properties": {"workers": {"const": NAMED}},
    }
    return {
        "if": {"required": ["with"], "properties": {"with": named}},
        "then": {
            "required": ["when"],
            "errorMessage": f"{NAMED} means the workers that the condition names: give "
            "when",
        },
    }


def _action_rule(name: str, action: Action) -> Schema:
    """Which arguments an action takes, and which of them belong together."""
    options = _mapping({key: _value(key) for key in action.keys})
    then: Schema = {"properties": {"with": options}}
    if action.needs:
        listed = [*action.needs[:-2], " or ".join(action.needs[-2:])]
        message = {"errorMessage": f"{name} needs {', '.join(listed)}"}
        either = [{"required": [key]} for key in action.needs]
        options["allOf"] = [{"anyOf": either, **message}]
        then |= {"required": ["with"], **message}
    if {"keep", "prefixes"} <= set(action.keys):
        options["allOf"] = [
            {
                "not": {"required": ["keep", "prefixes"]},
                "errorMessage": "keep and prefixes exclude each other",
            },
            {
                "dependencies": {"include_other_clients": ["prefixes"]},
                "errorMessage": "include_other_clients needs prefixes",
            },
        ]
    return {
        "if": {"required": ["do"], "properties": {"do": {"const": name}}},
        "then": then,
    }


# --- mistakes -------------------------------------------------------------------------


def problems(data: Any) -> Iterator[tuple[Path, str]]:
    """Check a playbook: paths of bad values, and messages; nothing if it is valid."""
    validator = Draft7Validator(schema(), format_checker=_formats())
    seen: set[Any] = set()
    for error in validator.iter_errors(data):
        for path, text in _explained(error, data):
            # several rules may refuse the same value
            key = path if path[-1:] and path[-1] in VALUES else (path, text)
            if key not in seen:
                seen.add(key)
                yield path, text
        if error.validator == "maxItems":
            return  # every further step may have errors, too


def _formats() -> FormatChecker:
    checker = FormatChecker(formats=())

    def readable(key: str, value: Any) -> bool:
        read(key, value)
        return True

    for key in VALUES:
        checker.checks(f"clustertune-{key}", ValueError)(partial(readable, key))
    return checker


def _explained(error: ValidationError, data: Any) -> Iterator[tuple[Path, str]]:
    rule: Any = error.schema
    path = _field(tuple(error.absolute_path))
    key = str(path[-1]) if path else ""
    if error.validator == "additionalProperties":
        known = rule["properties"]
        for name in error.instance:
            if name not in known:
                yield (*path, name), unknown("key", name, known)
    elif "errorMessage" in rule:
        leaf = error.validator in ("const", "pattern", "type")
        shown = f"; it is {_short(error.instance)}" if leaf else ""
        yield path, f"{rule['errorMessage']}{shown}"
    elif error.validator == "required":
        for name in rule["required"]:
            if name not in error.instance:
                yield path, f"the key {name!r} is missing"
    elif key in VALUES:
        yield path, _unreadable(key, _at(data, path), rule)
    else:
        yield path, _misfit(key, error.instance, rule)


def _field(path: Path) -> Path:
    """Shorten a path to a key of the language: ``steps[2].with.env.A`` to ``env``."""
    if path[:1] == ("steps",):
        return path[: 4 if path[2:3] == ("with",) else 3]
    return path[: 2 if path[:1] == ("limits",) else 1]


def _at(data: Any, path: Path) -> Any:
    for part in path:
        data = data[part]
    return data


def _unreadable(key: str, value: Any, rule: Schema) -> str:
    """The message of the reader, or of the schema, which is stricter about text."""
    try:
        read(key, value)
    except ValueError as error:
        return str(error)
    like = ", ".join(map(str, rule.get("examples", ())))
    return f"{key}={value!r} must begin with a number, like {like}"


def _misfit(key: str, value: Any, rule: Schema) -> str:
    if key == "when":
        return _unknown_check(value, rule["enum"])
    if "enum" in rule:
        return unknown("action" if key == "do" else key, value, rule["enum"])
    if rule["type"] == "object":
        known = ", ".join(rule["properties"])
        return f"must be a mapping, with keys among {known}"
    if isinstance(value, list) and value:
        return f"there are {len(value)}; at most {MAX_STEPS} are allowed"
    return f"must be a list of {key}; it is {_short(value)}"


def unknown(what: str, word: Any, known: Collection[str]) -> str:
    """Report an unknown word, with all known words and a close match."""
    return (
        f"unknown {what} {_short(word)}; choose from: {', '.join(known)}"
        f"{close_match(word, known)}"
    )


def _unknown_check(word: Any, known: Collection[str]) -> str:
    return (
        f"unknown check {_short(word)}{close_match(word, known)}; `clustertune explain`"
        " lists them"
    )


def close_match(word: Any, known: Collection[str]) -> str:
    """The known word that is most similar, as part of a message; else nothing."""
    near = difflib.get_close_matches(str(word)[:60], known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _short(value: Any) -> str:
    return printable(repr(value), longest=60)
