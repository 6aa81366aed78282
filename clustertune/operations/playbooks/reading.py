"""Find and read playbooks, and list all mistakes with their lines.

A file holds plain data in YAML: text, numbers, true and false, lists, and mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import yaml

from clustertune import checks
from clustertune.core import arguments
from clustertune.core.model import Severity
from clustertune.core.wording import near, printable, seconds_text
from clustertune.operations import workers
from clustertune.operations.prepare import prepare

MAX_BYTES = 64 * 1024
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
class Playbook:
    """A valid playbook."""

    name: str
    steps: tuple[Step, ...]
    description: str = ""
    disrupted_workers: float = 1  # away at the same time; below 1: a fraction of all
    settle: float = 5.0  # seconds after a step before the cluster is read again
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

    The text has at most one byte more than the limit. Raise ValueError if there is no
    regular file.
    """
    text, known = str(which), shipped()
    try:
        path = known.get(text) or Path(which).expanduser()
        if path.is_file() or not path.exists():  # to read a pipe may never end
            with path.open("rb") as file:
                return printable(path.name), file.read(MAX_BYTES + 1)
        reason = "it is not a regular file"
    except (OSError, ValueError, RuntimeError) as error:  # also: bad path, bad user
        reason = getattr(error, "strerror", None) or str(error)
    raise ValueError(
        f"the playbook {printable(text)} cannot be read: {reason}{near(text, known)}; "
        f"choose from {', '.join(known)}, or give the path of a file"
    )


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
    try:
        plain = text if isinstance(text, str) else text.decode()
        return _Document(source, plain).playbook()
    except PlaybookError:
        raise
    # also: not UTF-8, a character that does not exist, or too many nested brackets
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{source}:{mark.line + 1}" if mark else source
        reason = getattr(error, "problem", None) or str(error)
        shown = f"{line}: cannot be read: {reason.splitlines()[0]}"
        raise PlaybookError(printable(shown, longest=1000)) from error


# --- the language ---------------------------------------------------------------------

Check = Callable[[str, Any], Any]  # of the value of a key; raises ValueError


def _word(what: str, value: Any, known: Collection[str]) -> str:
    """Return a known word; an error has the known words and a close match."""
    if isinstance(value, str) and value in known:
        return value
    which = f"choose from {', '.join(known)}"
    if len(known) > 20:
        which = "`clustertune explain` lists them"
    raise ValueError(
        f"unknown {what} {_short(value)}{near(str(value), known)}; {which}"
    )


def _checks(key: str, value: Any) -> tuple[str, ...]:
    known = ("all", *checks.available())
    words = value if isinstance(value, list) else [value]
    if not words:
        raise ValueError("check names no check")
    return tuple(_word(key, word, known) for word in words)


def _pause(key: str, value: Any) -> float:
    return 0.0 if str(value) in {"0", "0s"} else arguments.duration(key, value)


def _steps(_key: str, value: Any) -> Any:
    if isinstance(value, list) and value:
        return value
    raise ValueError("must be a list of at least 1 step")


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
    "if_needed": arguments.flag,
    "memory_limit": arguments.nbytes,
    "n_workers": arguments.number,
    "nthreads": arguments.number,
    "on_low_memory": lambda key, x: _word(key, x, ("report", "raise")),
    "rechunk": arguments.cutting,
    "timeout": arguments.duration,
    "wait": arguments.duration,
    "workers": lambda key, x: x if x == NAMED else arguments.names(key, x),
}
_STEP: Mapping[str, Check] = {
    "check": _checks,
    "do": lambda _, x: _word("action", x, CALLS),
    "when": lambda _, x: _word("check", x, checks.available()),
    "at_least": lambda key, x: Severity[_word(key, x, ("info", "warning", "critical"))],
    "holds": _pause,
    "with": lambda _, x: x,  # depends on the action
}
#: keys of a step that belong to another key
_OWNERS = {"when": "do", "with": "do", "at_least": "when", "holds": "when"}
_LIMITS: Mapping[str, Check] = {"disrupted_workers": arguments.part, "settle": _pause}
_PLAYBOOK: Mapping[str, Check] = {
    "version": lambda key, x: _word(key, str(x), ("1",)),
    "name": arguments.text,
    "description": arguments.text,
    "steps": _steps,
    "limits": lambda _, x: x,  # checked apart, by _LIMITS
    "on_failure": lambda key, x: _word(key, x, ("stop", "continue")),
}


def arguments_of(action: str) -> Mapping[str, Parameter]:
    """Return the parameters of an action's call that a playbook can give."""
    known = signature(CALLS[action]).parameters.items()
    return {name: x for name, x in sorted(known) if name in ARGUMENTS}


# --- from text to a playbook ----------------------------------------------------------


class _Document:
    """Plain data from a file, the line of each value by its path, and all mistakes."""

    def __init__(self, source: str, text: str):
        node = yaml.compose(text, yaml.SafeLoader)
        if node is None:
            raise ValueError("it is empty")
        for event in yaml.parse(text, yaml.SafeLoader):
            # an alias may stand for itself, or for more data than fits into memory
            if getattr(event, "anchor", None) or getattr(event, "tag", None):
                raise _unreadable(event, "anchors, aliases and tags are not allowed")
        self.source = source
        self.lines: dict[str, int] = {}
        self.mistakes: list[tuple[int, str]] = []
        self.value = self._plain(node, "")

    def _plain(self, node: Any, path: str) -> Any:
        """Return lists, mappings, text, numbers, booleans or None; a date is text."""
        self.lines[path] = node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            values = enumerate(node.value)
            return [self._plain(value, f"{path}[{i}]") for i, value in values]
        if isinstance(node, yaml.MappingNode):
            found: dict[str, Any] = {}
            for key, value in node.value:
                if not isinstance(key.value, str):
                    raise _unreadable(key, "a key must be plain text")
                if key.value in found:
                    twice = f"the key {_short(key.value)} is there twice"
                    raise _unreadable(key, twice)
                found[key.value] = self._plain(value, _path(path, key.value))
            return found
        try:
            scalar = yaml.constructor.SafeConstructor().construct_object(node)
        except ValueError:  # such as a day that does not exist
            return node.value
        return scalar if isinstance(scalar, str | int | float | None) else node.value

    def note(self, path: str, text: str) -> None:
        """Note a mistake at a value, or at the mapping in which it is missing."""
        line = self.lines[path]
        where = f"{printable(path, longest=80)}: " if path else ""
        text = f"{self.source}:{line}: {where}{printable(text, longest=1000)}"
        self.mistakes.append((line, text))

    def checked(
        self, given: Any, path: str, known: Mapping[str, Check], *needed: str
    ) -> dict[str, Any]:
        """Return the values of a mapping that have no mistake, and note the others."""
        if not isinstance(given, dict):
            keys = f"must be a mapping, with keys among {', '.join(known)}"
            self.note(path, f"{keys}; it is {_short(given)}")
            return {}
        found = {}
        for key, value in given.items():
            if value is None and key in known:
                self.note(_path(path, key), "has no value")
                continue
            try:
                found[key] = known[_word("key", key, known)](key, value)
            except ValueError as error:
                self.note(_path(path, key), str(error))
        for key in needed:
            if key not in given:
                self.note(path, f"the key {key!r} is missing")
        return found

    def playbook(self) -> Playbook:
        """Return the playbook; raise PlaybookError if there is a mistake."""
        top = self.checked(self.value, "", _PLAYBOOK, "version", "name", "steps")
        top |= self.checked(top.pop("limits", {}), "limits", _LIMITS)
        steps = enumerate(top.pop("steps", ()))
        found = tuple(self._step(given, f"steps[{i}]") for i, given in steps)
        if self.mistakes:
            raise PlaybookError("\n".join(text for _, text in sorted(self.mistakes)))
        del top["version"]
        return Playbook(steps=found, **top)

    def _step(self, given: Any, path: str) -> Step:
        step = self.checked(given, path, _STEP)
        if not isinstance(given, dict):
            return Step()
        if ("check" in given) == ("do" in given):
            self.note(path, "a step has either check or do")
        for key, owner in _OWNERS.items():
            if key in given and owner not in given:
                self.note(f"{path}.{key}", f"belongs to {owner}")
        options, where = step.pop("with", {}), f"{path}.with"
        if "do" in step:
            self.lines.setdefault(where, self.lines[path])
            known = arguments_of(step["do"])
            needed = [n for n, x in known.items() if x.default is Parameter.empty]
            allowed = {name: ARGUMENTS[name] for name in known}
            valid = self.checked(options, where, allowed, *needed)
            sizes = {"nthreads", "memory_limit"}
            sound = isinstance(options, dict) and valid.keys() == options.keys()
            if step["do"] == "resize" and sound and sizes.isdisjoint(valid):
                self.note(where, "needs nthreads or memory_limit")
            if valid.get("workers") == NAMED and "when" not in given:
                text = "named means the workers that the condition names: give when"
                self.note(f"{where}.workers", text)
        return Step(options=options, **step)


def _path(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _unreadable(place: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def _short(value: Any) -> str:
    return printable(repr(value), longest=60)
