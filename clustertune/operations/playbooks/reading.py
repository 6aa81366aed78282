"""Find and read playbooks, and list all mistakes with their lines.

A file holds plain data in YAML: text, numbers, true and false, lists, and mappings.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import yaml

from clustertune import checks
from clustertune.core import arguments
from clustertune.core.results import Severity
from clustertune.core.wording import near, printable, seconds_text
from clustertune.operations import workers
from clustertune.operations.prepare import prepare

MAX_BYTES = 64 * 1024
MAX_DEPTH = 8  # levels of lists and mappings
MAX_STEPS = 50
NAMED = "named"  # ``workers``: the workers that the condition names


class PlaybookError(ValueError):
    """A playbook is invalid; nothing was done. The text has a line for each mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Run checks, or an action if a condition is met."""

    check: tuple[str, ...] = ()  # names of checks; "all": all checks
    when: str = ""  # the check whose finding is the condition; "": no condition
    at_least: Severity = Severity.warning
    holds: float = 0.0  # seconds for which the condition must last
    do: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # as in the file

    def __str__(self) -> str:
        if self.check:
            return f"check {', '.join(self.check)}"
        shown = ", ".join(f"{k}: {v}" for k, v in self.options.items())
        text = f"{self.do} ({printable(shown, longest=200)})" if shown else self.do
        if self.when:
            text += f", when {self.when} is at least {self.at_least}"
        return text + (f" for {seconds_text(self.holds)}" if self.holds else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that hold for every step."""

    disrupted_workers: float = 1  # away at the same time; below 1: a fraction of all
    settle: float = 5.0  # seconds after a step before the cluster is read again


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """A valid playbook."""

    name: str
    steps: tuple[Step, ...]
    description: str = ""
    limits: Limits = field(default_factory=Limits)
    on_failure: str = "stop"


# --- files ----------------------------------------------------------------------------


def shipped() -> Mapping[str, Path]:
    """Map the names of shipped playbooks to their files."""
    # the wheel has the folder inside the package, a checkout next to it
    package = Path(__file__).parents[2]
    inside = package / "playbooks"
    folder = inside if inside.is_dir() else package.parent / "playbooks"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def content(which: str | Path) -> tuple[str, bytes]:
    """Return the name and the text of a file, by the name of a playbook or by a path.

    A path has a folder or a suffix. The text has at most one byte more than the limit.
    Raise ValueError if there is no such playbook, or no regular file.
    """
    text, known = str(which), shipped()
    is_path = isinstance(which, Path) or "/" in text or text.endswith((".yaml", ".yml"))
    if not is_path and text not in known:
        raise ValueError(
            f"unknown playbook {_short(text)}{near(text, known)}; choose from "
            f"{', '.join(known)}, or give the path of a file"
        )
    try:
        path = Path(which).expanduser() if is_path else known[text]
        if stat.S_ISREG(path.stat().st_mode):  # a pipe may never end
            with path.open("rb") as file:
                return printable(path.name), file.read(MAX_BYTES + 1)
        reason = "it is not a regular file"
    except (OSError, ValueError, RuntimeError) as error:  # also: bad path, bad user
        reason = getattr(error, "strerror", None) or str(error)
    raise ValueError(f"the playbook {printable(text)} cannot be read: {reason}")


def read(which: str | Path) -> Playbook:
    """Find a playbook by name or path, and read it.

    Raise PlaybookError for a bad playbook, and ValueError if there is none.
    """
    source, text = content(which)
    return load(text, source)


def load(text: str | bytes, source: str) -> Playbook:
    """Read a playbook; ``source`` is the name of the file in errors.

    A ``PlaybookError`` has a line for each mistake: the line of the file, the path of
    the value, and the allowed values. A file that is no plain YAML has one mistake.
    """
    if len(text) > MAX_BYTES:
        raise PlaybookError(f"{source}: has more than {MAX_BYTES:,} bytes")
    document = _Document(source)
    try:
        data = document.parse(text.decode() if isinstance(text, bytes) else text)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # also: not UTF-8
        mark = getattr(error, "problem_mark", None)
        line = f"{source}:{mark.line + 1}" if mark else source
        reason = getattr(error, "problem", None) or str(error)
        shown = f"{line}: cannot be read: {reason.splitlines()[0]}"
        raise PlaybookError(printable(shown, longest=1000)) from error
    return document.playbook(data)


# --- the language ---------------------------------------------------------------------

Check = Callable[[str, Any], Any]  # of the value of a key; raises ValueError


def _one_of(*known: str) -> Check:
    def check(key: str, value: Any) -> str:
        if isinstance(value, str) and value in known:
            return value
        raise ValueError(_unknown(key, value, known))

    return check


def _unknown(key: str, value: Any, known: Collection[str]) -> str:
    """Report an unknown word, with the known words and a close match."""
    which = f"choose from {', '.join(known)}"
    if len(known) > 20:
        which = "`clustertune explain` lists them"
    what = {"when": "check", "do": "action"}.get(key, key)
    return f"unknown {what} {_short(value)}{near(str(value), known)}; {which}"


def _check(key: str, value: Any) -> Any:
    return _one_of(*checks.available())(key, value)


def _checks(key: str, value: Any) -> tuple[str, ...]:
    valid = _one_of("all", *checks.available())
    words = value if isinstance(value, list) else [value]
    if not words:
        raise ValueError("check names no check")
    return tuple(valid(key, word) for word in words)


def _pause(key: str, value: Any) -> float:
    return 0.0 if str(value) in {"0", "0s"} else arguments.duration(key, value)


def _steps(_key: str, value: Any) -> Any:
    if isinstance(value, list) and 0 < len(value) <= MAX_STEPS:
        return value
    raise ValueError(f"must be a list of at least 1 and at most {MAX_STEPS} steps")


def _any(_key: str, value: Any) -> Any:
    return value  # its own keys are checked later


#: public calls by action
CALLS: Mapping[str, Callable[..., Any]] = {
    "merge": workers.merge_workers,
    "prepare": prepare,
    "release": workers.release_data,
    "resize": workers.resize_workers,
    "restart": workers.restart_workers,
    "scale": workers.scale,
    "trim": workers.trim_memory,
}
#: the arguments that a playbook can give. None of them loses data or exceeds the limits
ARGUMENTS: Mapping[str, Check] = {
    "env": arguments.variables,
    "if_needed": arguments.flag,
    "keep": _one_of("given"),  # the collections that are passed to the call
    "memory_limit": arguments.nbytes,
    "n_workers": arguments.number,
    "nthreads": arguments.number,
    "on_low_memory": _one_of("report", "raise"),
    "rechunk": arguments.cutting,
    "release_inputs": arguments.flag,
    "timeout": arguments.duration,
    "wait": arguments.duration,
    "workers": lambda key, x: x if x == NAMED else arguments.names(key, x),
}
_STEP: Mapping[str, Check] = {
    "check": _checks,
    "do": _one_of(*CALLS),
    "when": _check,
    "at_least": lambda key, x: Severity[_one_of("info", "warning", "critical")(key, x)],
    "holds": _pause,
    "with": _any,
}
#: keys of a step that belong to another key
_OWNERS = {"when": "do", "with": "do", "at_least": "when", "holds": "when"}
_LIMITS: Mapping[str, Check] = {"disrupted_workers": arguments.part, "settle": _pause}
_PLAYBOOK: Mapping[str, Check] = {
    "version": lambda key, x: _one_of("1")(key, str(x)),
    "name": arguments.text,
    "description": arguments.text,
    "steps": _steps,
    "limits": _any,
    "on_failure": _one_of("stop", "continue"),
}


def arguments_of(action: str) -> Mapping[str, Parameter]:
    """Return the parameters of an action's call that a playbook can give."""
    known = signature(CALLS[action]).parameters.items()
    return {name: x for name, x in sorted(known) if name in ARGUMENTS}


# --- from text to a playbook ----------------------------------------------------------


class _Document:
    """Converts a file, and collects all mistakes with their lines."""

    def __init__(self, source: str):
        self.source = source
        self.lines: dict[str, int] = {}  # by path, such as "steps[2].with.timeout"
        self.mistakes: list[tuple[int, str]] = []

    def parse(self, text: str) -> Any:
        """Return plain data; raise YAMLError for anything else."""
        level = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            level += isinstance(event, yaml.CollectionStartEvent)
            level -= isinstance(event, yaml.CollectionEndEvent)
            if level > MAX_DEPTH:
                raise _unreadable(event, f"deeper than {MAX_DEPTH} levels")
            if getattr(event, "anchor", None) or getattr(event, "tag", None):
                raise _unreadable(event, "anchors, aliases and tags are not allowed")
        node = yaml.compose(text, yaml.SafeLoader)
        if node is None:
            raise ValueError("it is empty")
        return self._data(node, "")

    def _data(self, node: Any, path: str) -> Any:
        self.lines[path] = node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [self._data(item, f"{path}[{i}]") for i, item in items]
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value
            if not isinstance(name, str):
                raise _unreadable(key, "a key must be plain text")
            if name in found:
                raise _unreadable(key, f"the key {_short(name)} is there twice")
            found[name] = self._data(value, f"{path}.{name}" if path else name)
        return found

    def note(self, path: str, text: str) -> None:
        """Note a mistake at a value, or at the mapping that lacks it."""
        line = self.lines.get(path) or self.lines[path.rpartition(".")[0]]
        where = f"{printable(path, longest=80)}: " if path else ""
        text = f"{self.source}:{line}: {where}{printable(text, longest=1000)}"
        self.mistakes.append((line, text))

    def mapping(
        self, data: Any, path: str, known: Mapping[str, Check], *needed: str
    ) -> dict[str, Any]:
        """Return the values that have no mistake."""
        if not isinstance(data, dict):
            keys = f"must be a mapping, with keys among {', '.join(known)}"
            self.note(path, f"{keys}; it is {_short(data)}")
            return {}
        found = {}
        for key, value in data.items():
            where = f"{path}.{key}" if path else key
            if key not in known:
                self.note(where, _unknown("key", key, known))
            elif value is None:
                self.note(where, "has no value")
            else:
                try:
                    found[key] = known[key](key, value)
                except ValueError as error:
                    self.note(where, str(error))
        for key in needed:
            if key not in data:
                self.note(path, f"the key {key!r} is missing")
        return found

    def playbook(self, data: Any) -> Playbook:
        """Convert the data; raise PlaybookError if there is a mistake."""
        top = self.mapping(data, "", _PLAYBOOK, "version", "name", "steps")
        limits = Limits(**self.mapping(top.pop("limits", {}), "limits", _LIMITS))
        given = enumerate(top.pop("steps", []))
        steps = [self._step(step, f"steps[{i}]") for i, step in given]
        if self.mistakes:
            raise PlaybookError("\n".join(text for _, text in sorted(self.mistakes)))
        del top["version"]
        return Playbook(**top, steps=tuple(steps), limits=limits)

    def _step(self, data: Any, path: str) -> Step:
        step = self.mapping(data, path, _STEP)
        keys = data if isinstance(data, dict) else ()
        if ("check" in keys) == ("do" in keys) and isinstance(data, dict):
            self.note(path, "a step has either check or do")
        for key, owner in _OWNERS.items():
            if key in keys and owner not in keys:
                self.note(f"{path}.{key}", f"belongs to {owner}")
        given = step.pop("with", {})
        if do := step.get("do"):
            known = arguments_of(do)
            needed = [n for n, x in known.items() if x.default is Parameter.empty]
            allowed = {name: ARGUMENTS[name] for name in known}
            options = self.mapping(given, f"{path}.with", allowed, *needed)
            if options.get("workers") == NAMED and "when" not in keys:
                text = "named means the workers that the condition names: give when"
                self.note(f"{path}.with.workers", text)
        return Step(options=given, **step)


def _unreadable(place: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def _scalar(node: yaml.ScalarNode) -> Any:
    """Return text, a number, true, false or null; a date is text."""
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node)
    except ValueError:  # such as a day that does not exist
        return node.value
    return value if isinstance(value, str | int | float | None) else node.value


def _short(value: Any) -> str:
    return printable(repr(value), longest=60)
