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
        if path.is_file() or not path.exists():  # to read a pipe may never end
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
        found = document.playbook(text if isinstance(text, str) else text.decode())
    except RecursionError as error:
        text = f"{source}: cannot be read: it is nested too deeply"
        raise PlaybookError(text) from error
    # also: not UTF-8, or a character that does not exist
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{source}:{mark.line + 1}" if mark else source
        reason = getattr(error, "problem", None) or str(error)
        shown = f"{line}: cannot be read: {reason.splitlines()[0]}"
        raise PlaybookError(printable(shown, longest=1000)) from error
    if found is None:
        mistakes = sorted(document.mistakes)
        raise PlaybookError("\n".join(text for _, text in mistakes))
    return found


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
    if isinstance(value, list) and value:
        return value
    raise ValueError("must be a list of at least 1 step")


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


class _Loader(yaml.SafeLoader):
    """Reads plain data only."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        events: Any = self  # PyYAML has no types for it
        event = events.peek_event()
        if getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise _unreadable(event, "anchors, aliases and tags are not allowed")
        return super().compose_node(parent, index)


class _Document:
    """Converts the nodes of a file, and collects all mistakes with their lines."""

    def __init__(self, source: str):
        self.source = source
        self.mistakes: list[tuple[int, str]] = []

    def note(self, node: Any, path: str, text: str) -> None:
        """Note a mistake at a value, or at the mapping in which it is missing."""
        line = node.start_mark.line + 1
        where = f"{printable(path, longest=80)}: " if path else ""
        text = f"{self.source}:{line}: {where}{printable(text, longest=1000)}"
        self.mistakes.append((line, text))

    def mapping(
        self, node: Any, path: str, known: Mapping[str, Check], *needed: str
    ) -> dict[str, Any]:
        """Return the values that have no mistake."""
        if not isinstance(node, yaml.MappingNode):
            keys = f"must be a mapping, with keys among {', '.join(known)}"
            self.note(node, path, f"{keys}; it is {_short(_plain(node))}")
            return {}
        given, found = _values(node), {}
        for key, value in given.items():
            plain, where = _plain(value), f"{path}.{key}" if path else key
            if key not in known:
                self.note(value, where, _unknown("key", key, known))
            elif plain is None:
                self.note(value, where, "has no value")
            else:
                try:
                    found[key] = known[key](key, plain)
                except ValueError as error:
                    self.note(value, where, str(error))
        for key in needed:
            if key not in given:
                self.note(node, path, f"the key {key!r} is missing")
        return found

    def playbook(self, text: str) -> Playbook | None:
        """Return the playbook; None if there is a mistake."""
        node = yaml.compose(text, _Loader)
        if node is None:
            raise ValueError("it is empty")
        top = self.mapping(node, "", _PLAYBOOK, "version", "name", "steps")
        if "limits" in top:
            del top["limits"]
            top |= self.mapping(_values(node)["limits"], "limits", _LIMITS)
        if "steps" in top:
            steps = enumerate(_values(node)["steps"].value)
            top["steps"] = tuple(self._step(x, f"steps[{i}]") for i, x in steps)
        if self.mistakes:
            return None
        del top["version"]
        return Playbook(**top)

    def _step(self, node: Any, path: str) -> Step:
        step = self.mapping(node, path, _STEP)
        given = _values(node) if isinstance(node, yaml.MappingNode) else None
        if given is not None and ("check" in given) == ("do" in given):
            self.note(node, path, "a step has either check or do")
        for key, owner in _OWNERS.items():
            if given and key in given and owner not in given:
                self.note(given[key], f"{path}.{key}", f"belongs to {owner}")
        if given and (do := step.get("do")):
            nothing = yaml.MappingNode("", [], node.start_mark)
            own, where = given["with"] if "with" in step else nothing, f"{path}.with"
            known = arguments_of(do)
            needed = [n for n, x in known.items() if x.default is Parameter.empty]
            allowed = {name: ARGUMENTS[name] for name in known}
            options = self.mapping(own, where, allowed, *needed)
            if options.get("workers") == NAMED and "when" not in given:
                text = "named means the workers that the condition names: give when"
                self.note(_values(own)["workers"], f"{where}.workers", text)
        return Step(options=step.pop("with", {}), **step)


def _unreadable(place: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def _values(node: Any) -> dict[str, Any]:
    """Return the nodes of the values of a mapping."""
    found: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key.value, str):
            raise _unreadable(key, "a key must be plain text")
        if key.value in found:
            raise _unreadable(key, f"the key {_short(key.value)} is there twice")
        found[key.value] = value
    return found


def _plain(node: Any) -> Any:
    """Return lists, mappings, text, numbers, true, false or null; a date is text."""
    if isinstance(node, yaml.MappingNode):
        return {key: _plain(value) for key, value in _values(node).items()}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(x) for x in node.value]
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node)
    except ValueError:  # such as a day that does not exist
        return node.value
    return value if isinstance(value, str | int | float | None) else node.value


def _short(value: Any) -> str:
    return printable(repr(value), longest=60)
