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

from jsonschema import Draft7Validator, ValidationError
from ruamel.yaml import YAML

from clustertune import actions, checks
from clustertune.core import arguments
from clustertune.core.model import Severity
from clustertune.core.wording import printable
from clustertune.operations.playbooks.playbook import NAMED

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
    """Convert the value of a key; raise ValueError if it is not allowed."""
    return READERS[key](key, value) if key in READERS else value


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


def _pause(key: str, value: Any) -> float:
    text = f'{key}={value!r} must be a duration, like "30s", or 0'
    try:
        seconds = arguments.parse_seconds(value)
    except (*arguments.UNREADABLE, AssertionError) as error:
        raise ValueError(text) from error
    if not 0 <= seconds < math.inf:
        raise ValueError(text)
    return seconds


def _severity(key: str, value: Any) -> Severity:
    if not isinstance(value, str) or value not in Severity.__members__:
        raise ValueError(f"{key} must be one of {', '.join(Severity.__members__)}")
    return Severity[value]


#: by key of ``with``, ``limits`` and steps, if the schema does not suffice
READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "at_least": _severity,
    "check": _checks,
    "disrupted_workers": arguments.part,
    "env": arguments.variables,
    "holds": _pause,
    "memory_limit": arguments.nbytes,
    "n_workers": arguments.number,
    "nthreads": arguments.number,
    "settle": _pause,
    "timeout": arguments.duration,
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
    """List the paths of bad values, and messages: one for each key of the language.

    A valid playbook has none.
    """
    found: dict[Path, tuple[Path, str]] = {}  # by path of the key
    for error in Draft7Validator(schema()).iter_errors(data):
        path = tuple(error.absolute_path)
        key = _key(path)
        if error.validator == "additionalProperties":
            known = error.schema["properties"]
            wrong = [(*path, name) for name in error.instance if name not in known]
            found |= {p: (p, unknown("key", p[-1], known)) for p in wrong}
        elif key not in found:
            found[key] = path, _message(error, str(key[-1]) if key else "")
        if error.validator == "maxItems":
            return list(found.values())  # every further step may have errors, too
    for key in fields(data):
        if key not in found and (text := _reader_error(data, key)):
            found[key] = key, text
    return list(found.values())


def _key(path: Path) -> Path:
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


def _message(error: ValidationError, key: str) -> str:
    rule: Any = error.schema
    value = error.instance
    if "errorMessage" in rule:
        text: str = rule["errorMessage"]
        several = isinstance(value, dict) or error.validator == "not"
        return text if several else f"{text}; it is {_short(value)}"
    if error.validator == "required":
        missing = [name for name in rule["required"] if name not in value]
        text = ", ".join(f"the key {name!r} is missing" for name in missing)
    elif key == "check":
        text = _reader_error({key: value}, (key,))
    elif key == "when":
        text = _unknown_check(value, rule["enum"])
    elif "enum" in rule:
        text = unknown("action" if key == "do" else key, value, rule["enum"])
    elif rule["type"] == "object":
        text = f"must be a mapping, with keys among {', '.join(rule['properties'])}"
    elif isinstance(value, list) and value:
        text = f"there are {len(value)}; at most {rule['maxItems']} are allowed"
    else:
        text = f"must be a list of {key}; it is {_short(value)}"
    return text


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
