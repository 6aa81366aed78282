"""The language of playbooks: a JSON schema, and a reader for each value.

``schema.yaml`` has the schema. :func:`schema` adds the installed checks and actions.
``clustertune playbooks --schema`` prints the result, for completion in editors.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Any

from dask.utils import parse_timedelta
from jsonschema import Draft7Validator, ValidationError
from ruamel.yaml import YAML

from clustertune import actions, checks
from clustertune.core import arguments
from clustertune.core.wording import printable
from clustertune.operations.playbooks.playbook import GIVEN, NAMED

ON_DATA = frozenset(("load", "rebalance", "rechunk"))  # act on the given data

Path = tuple[str | int, ...]  # of a value: ("steps", 2, "with", "timeout")


# --- the schema -----------------------------------------------------------------------


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 7) of playbooks.

    ``errorMessage`` is a keyword of editors: it replaces their own message.
    """
    root = deepcopy(_read_file())
    definitions = root["definitions"]
    known = definitions["actions"]
    definitions["check"]["enum"] = _check_words()
    step = definitions["step"]
    step["properties"]["when"]["enum"] = list(checks.available())
    for name in sorted(actions.others()):
        known[name] = {"properties": {"timeout": {"$ref": "#/definitions/duration"}}}
    step["properties"]["do"]["enum"] = list(known)
    for name, options in known.items():
        options |= {"type": "object", "additionalProperties": False}
        rule: dict[str, Any] = {
            "properties": {"with": {"$ref": f"#/definitions/actions/{name}"}}
        }
        if "errorMessage" in options:  # some argument is required
            rule |= {"required": ["with"], "errorMessage": options["errorMessage"]}
        condition = {"required": ["do"], "properties": {"do": {"const": name}}}
        step["allOf"].append({"if": condition, "then": rule})
    return root


@cache
def _read_file() -> dict[str, Any]:
    file = files("clustertune.operations.playbooks").joinpath("schema.yaml")
    root: dict[str, Any] = YAML(typ="safe", pure=True).load(file.read_text("utf-8"))
    return root


def own_actions() -> Mapping[str, Mapping[str, Any]]:
    """The actions of clustertune: for each one, the schema of its arguments."""
    found: Mapping[str, Mapping[str, Any]] = _read_file()["definitions"]["actions"]
    return found


def matching_checks(word: str) -> tuple[str, ...]:
    """Names of checks: this name, or all with this word in their names, or ``all``."""
    known = checks.available()
    if word in known:
        return (word,)
    return tuple(n for n in known if word == "all" or word in n.split("_"))


def _check_words() -> list[str]:
    known = checks.available()
    return sorted({"all", *known, *(w for name in known for w in name.split("_"))})


# --- readers of values ----------------------------------------------------------------


def read(key: str, value: Any) -> Any:
    """Convert the value of a key.

    Raises
    ------
    ValueError
        The value is not allowed.
    """
    if value is None:
        raise ValueError(f"{key} has no value")
    return READERS[key](key, value)


def _checks(_key: str, value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise ValueError("names no check")
    for word in listed:
        if not (isinstance(word, str) and matching_checks(word)):
            raise ValueError(_unknown_check(word, _check_words()))
    return tuple(listed)


def _workers(key: str, value: Any) -> Any:
    return NAMED if value == NAMED else arguments.names(key, value)


def _prefixes(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and value:
        return arguments.texts(key, value)
    raise ValueError(f"{key}={value!r} must be a list of prefixes of keys")


def _keep(key: str, value: Any) -> str:
    if value == GIVEN:
        return GIVEN
    raise ValueError(f"{key}={value!r} must be {GIVEN}: the collections of the call")


def _pause(key: str, value: Any) -> float:
    text = f'{key}={value!r} must be a duration, like "30s", or 0'
    try:
        seconds = math.nan if isinstance(value, bool) else float(parse_timedelta(value))
    except (*arguments.UNREADABLE, AssertionError) as error:
        raise ValueError(text) from error
    if not 0 <= seconds < math.inf:
        raise ValueError(text)
    return seconds


def _minimum(key: str, value: Any) -> int:
    if type(value) is int and value >= 0:
        return value
    raise ValueError(f"{key}={value!r} must be a whole number, 0 or more")


#: by key of ``with``, ``limits`` and steps
READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "check": _checks,
    "disrupted_workers": arguments.part,
    "dtype": arguments.number_type,
    "env": arguments.variables,
    "holds": _pause,
    "if_needed": arguments.flag,
    "include_other_clients": arguments.flag,
    "keep": _keep,
    "memory_limit": arguments.nbytes,
    "minimum_workers": _minimum,
    "n_workers": arguments.count,
    "nthreads": arguments.count,
    "prefixes": _prefixes,
    "rechunk": arguments.cutting,
    "release_inputs": arguments.flag,
    "settle": _pause,
    "timeout": arguments.duration,
    "to": arguments.kind,
    "wait": arguments.duration,
    "workers": _workers,
}


def fields(data: Any) -> Iterator[Path]:
    """Paths of the values in steps, ``with`` and ``limits``, also in bad playbooks."""
    top = data if isinstance(data, dict) else {}
    steps, limits = top.get("steps"), top.get("limits")
    yield from (("limits", key) for key in (limits if isinstance(limits, dict) else ()))
    for i, step in enumerate(steps if isinstance(steps, list) else ()):
        keys = step if isinstance(step, dict) else {}
        yield from (("steps", i, key) for key in keys if key != "with")
        options = keys.get("with")
        for key in options if isinstance(options, dict) else ():
            yield ("steps", i, "with", key)


# --- mistakes -------------------------------------------------------------------------


def problems(data: Any) -> list[tuple[Path, str]]:
    """List the paths of bad values, and messages. A valid playbook has none."""
    found: dict[Any, tuple[Path, str]] = {}
    for error in Draft7Validator(schema()).iter_errors(data):
        path = _field(tuple(error.absolute_path))
        if path in found:
            continue  # its reader has explained it
        for where, text in _explained(error, path, data):
            key = where if _is_value(where) else (where, text)
            found.setdefault(key, (where, text))
        if error.validator == "maxItems":
            return list(found.values())  # every further step may have errors, too
    refused = {path for path, _ in found.values()}
    for path in filter(_is_value, fields(data)):
        if path not in refused and (text := _reader_error(data, path)):
            found[path] = path, text
    return list(found.values())


def _is_value(path: Path) -> bool:
    return bool(path) and path[-1] in READERS


def _explained(
    error: ValidationError, path: Path, data: Any
) -> Iterator[tuple[Path, str]]:
    rule: Any = error.schema
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
    elif key in READERS:
        # the schema is stricter about text: Dask reads "s" as 1 s
        like = ", ".join(map(str, rule.get("examples", ())))
        text = f"must begin with a number, like {like}"
        yield path, _reader_error(data, path) or text
    else:
        yield path, _misfit(key, error.instance, rule)


def _field(path: Path) -> Path:
    """Shorten a path to a key of the language: ``steps[2].with.env.A`` to ``env``."""
    if path[:1] == ("steps",):
        return path[: 4 if path[2:3] == ("with",) else 3]
    return path[: 2 if path[:1] == ("limits",) else 1]


def _reader_error(data: Any, path: Path) -> str:
    """The message of the reader of a value; empty if it is good."""
    for part in path:
        data = data[part]
    try:
        read(str(path[-1]), data)
    except ValueError as error:
        return str(error)
    return ""


def _misfit(key: str, value: Any, rule: Mapping[str, Any]) -> str:
    if key == "when":
        return _unknown_check(value, rule["enum"])
    if "enum" in rule:
        return unknown("action" if key == "do" else key, value, rule["enum"])
    if rule["type"] == "object":
        known = ", ".join(rule["properties"])
        return f"must be a mapping, with keys among {known}"
    if isinstance(value, list) and value:
        return f"there are {len(value)}; at most {rule['maxItems']} are allowed"
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
