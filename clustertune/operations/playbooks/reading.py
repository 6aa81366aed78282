"""Read playbooks from files, and list all mistakes with their lines.

A file holds plain data in YAML: text, numbers, true and false, lists, and mappings.
Anchors, tags, duplicate keys, and large or deep files are refused.
"""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from clustertune import checks
from clustertune.core import arguments
from clustertune.core.findings import Severity
from clustertune.core.wording import names_text, printable, seconds_text
from clustertune.operations.playbooks import PlaybookError, available

MAX_BYTES = 64 * 1024
MAX_DEPTH = 8  # levels of lists and mappings
MAX_STEPS = 50
NAMED = "named"  # ``workers``: the workers that the condition names
GIVEN = "given"  # ``keep``: the collections that are passed to the call
ON_DATA = frozenset(("load", "rebalance", "rechunk"))  # act on the given data

Place = tuple[str | int, ...]  # path of a value: ("steps", 2, "with", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Run checks, or an action if a condition is met."""

    line: str  # file and line
    check: tuple[str, ...] = ()  # names of checks, or words of their names
    when: str = ""  # the check whose finding is the condition; "": no condition
    at_least: Severity = Severity.warning
    holds: float = 0.0  # seconds for which the condition must last
    do: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # of the action

    def __str__(self) -> str:
        if self.check:
            return f"check {', '.join(self.check)}"
        shown = [f"{k}: {_option_text(k, v)}" for k, v in self.options.items()]
        text = f"{self.do} ({', '.join(shown)})" if shown else self.do
        if self.when:
            text += f", when {self.when} is at least {self.at_least}"
        return text + (f" for {seconds_text(self.holds)}" if self.holds else "")


def _option_text(key: str, value: Any) -> str:
    if key in ("timeout", "wait"):
        return seconds_text(value)
    if isinstance(value, tuple):
        return names_text(value, most=8)
    return printable(str(value), longest=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that hold for every step."""

    disrupted_workers: float = 1  # away at the same time; below 1: a fraction of all
    minimum_workers: int = 0  # that must run meanwhile
    settle: float = 5.0  # seconds after a step before the cluster is read again


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """A valid playbook."""

    name: str
    steps: tuple[Step, ...]
    description: str = ""
    limits: Limits = field(default_factory=Limits)
    on_failure: str = "stop"

    @property
    def acts(self) -> bool:
        """Whether a step may change anything."""
        return any(step.do for step in self.steps)


# --- the language ---------------------------------------------------------------------

Reader = Callable[[str, Any], Any]  # of the value of a key; raises ValueError


def matching_checks(word: str) -> tuple[str, ...]:
    """Names of checks: this name, or all with this word in their names, or ``all``."""
    known = checks.available()
    if word in known:
        return (word,)
    return tuple(n for n in known if word == "all" or word in n.split("_"))


def _checks(_key: str, value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else [value]
    known = checks.available()
    words = {"all", *known, *(w for name in known for w in name.split("_"))}
    for word in listed:
        _one_of(*sorted(words))("check", word)
    if not listed:
        raise ValueError("check= names no check")
    return tuple(listed)


def _check(key: str, value: Any) -> Any:
    return _one_of(*checks.available())(key, value)


def _one_of(*known: str) -> Reader:
    def read(key: str, value: Any) -> str:
        if isinstance(value, str) and value in known:
            return value
        raise ValueError(_unknown(key, value, known))

    return read


def _unknown(key: str, value: Any, known: Collection[str]) -> str:
    """Report an unknown word, with the known words and a close match."""
    near = get_close_matches(str(value)[:60], known, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    which = f"choose from {', '.join(known)}"
    if len(known) > 20:
        which = "`clustertune explain` lists them"
    what = {"when": "check", "do": "action"}.get(key, key)
    return f"unknown {what} {_short(value)}{meant}; {which}"


def _text(key: str, value: Any) -> str:
    if not arguments.text(key, value).strip():
        raise ValueError(f"{key} is empty")
    return str(value).strip()


def _whole(key: str, value: Any) -> int:
    return 0 if type(value) is int and value == 0 else arguments.number(key, value)


def _pause(key: str, value: Any) -> float:
    return 0.0 if str(value) in ("0", "0s", "0 s") else _duration(key, value)


def _duration(key: str, value: Any) -> float:
    # Dask reads "s" as one second
    if isinstance(value, bool) or not re.match(r"\s*[.\d]", str(value)):
        raise ValueError(f'{key}={_short(value)} must be a duration, like "30s"')
    if math.isfinite(seconds := arguments.duration(key, value)):
        return seconds
    raise ValueError(f"{key}={_short(value)} is without end")


def _workers(key: str, value: Any) -> Any:
    return NAMED if value == NAMED else arguments.names(key, value)


_WAITING = {"timeout": _duration, "wait": _duration}
#: the arguments of each action. None of them loses data or exceeds the limits
ACTIONS: Mapping[str, Mapping[str, Reader]] = {
    "load": {"timeout": _duration},
    "merge": {**_WAITING, "workers": _workers},
    "rebalance": {"timeout": _duration},
    "rechunk": {
        "rechunk": arguments.cutting,
        "release_inputs": arguments.flag,
        "timeout": _duration,
    },
    "release": {"keep": _one_of(GIVEN), "timeout": _duration},
    "resize": {
        "env": arguments.variables,
        "memory_limit": arguments.nbytes,
        "nthreads": arguments.number,
        "workers": _workers,
        **_WAITING,
    },
    "restart": {"if_needed": arguments.flag, "workers": _workers, **_WAITING},
    "scale": {"n_workers": arguments.number, **_WAITING},
    "trim": {"timeout": _duration, "workers": _workers},
}


_NEEDED = {"scale": ("n_workers",), "resize": ("nthreads", "memory_limit", "env")}


def _as_is(_key: str, value: Any) -> Any:
    return value  # read later


_LEVELS = [str(s) for s in Severity if s is not Severity.unknown]
_STEP: Mapping[str, Reader] = {
    "check": _checks,
    "do": _one_of(*ACTIONS),
    "when": _check,
    "at_least": lambda key, value: Severity[_one_of(*_LEVELS)(key, value)],
    "holds": _pause,
    "with": _as_is,
}
_LIMITS: Mapping[str, Reader] = {
    "disrupted_workers": arguments.part,
    "minimum_workers": _whole,
    "settle": _pause,
}
_PLAYBOOK: Mapping[str, Reader] = {
    "version": _as_is,
    "name": _text,
    "description": _text,
    "steps": _as_is,
    "limits": _as_is,
    "on_failure": _one_of("stop", "continue"),
}


# --- from data to a playbook ----------------------------------------------------------


class _Document:
    """The data of a file, the lines of its values, and mistakes with their lines."""

    def __init__(self, source: str):
        self.source = source
        self.lines: dict[Place, int] = {(): 1}
        self.mistakes: list[tuple[int, str]] = []

    def note(self, place: Place, text: str, line: int = 0) -> None:
        """Note a mistake at a value, or at the mapping or list that lacks it."""
        parts = (f"[{p}]" if isinstance(p, int) else f".{p}" for p in place)
        name = printable("".join(parts).lstrip("."), longest=80)
        while place not in self.lines:
            place = place[:-1]
        line = line or self.lines[place]
        where = f"{self.source}:{line}: {name}{': ' * bool(name)}"
        self.mistakes.append((line, where + printable(text, longest=1000)))

    def error(self) -> PlaybookError:
        self.mistakes.sort(key=lambda mistake: mistake[0])
        return PlaybookError("\n".join(text for _, text in self.mistakes))

    def mapping(
        self, data: Any, place: Place, readers: Mapping[str, Reader], *required: str
    ) -> dict[str, Any]:
        """Read the values of a mapping, and note each mistake."""
        if data is _UNREAD:
            return {}
        if not isinstance(data, dict):
            keys = f"must be a mapping, with keys among {', '.join(readers)}"
            self.note(place, f"{keys}; it is {_short(data)}")
            return {}
        found = {}
        for key, value in data.items():
            if key not in readers:
                self.note((*place, key), _unknown("key", key, list(readers)))
            elif value is None:
                self.note((*place, key), "has no value")
            elif value is not _UNREAD:
                try:
                    found[key] = readers[key](key, value)
                except ValueError as error:
                    self.note((*place, key), str(error))
        for key in required:
            if key not in data:
                self.note(place, f"the key {key!r} is missing")
        return found

    def playbook(self, data: Any) -> Playbook:
        """Convert the data; raise PlaybookError if there is a mistake."""
        top = self.mapping(data, (), _PLAYBOOK, "version", "name", "steps")
        if not isinstance(data, dict):
            raise self.error()
        if top.get("version", 1) != 1:
            self.note(("version",), f"must be 1; it is {_short(top['version'])}")
        given, steps = top.pop("steps", []), []
        if not isinstance(given, list) or ("steps" in data and not given):
            self.note(("steps",), f"must be a list of steps; it is {_short(given)}")
        elif len(given) > MAX_STEPS:
            self.note(("steps",), f"has {len(given)} steps; at most {MAX_STEPS}")
        else:
            steps = [self._step(step, ("steps", i)) for i, step in enumerate(given)]
        bounds = self.mapping(top.pop("limits", {}), ("limits",), _LIMITS)
        least = bounds.get("minimum_workers", 0)
        for i, step in enumerate(steps):
            n = step.options.get("n_workers", least)
            if n < least:
                text = f"n_workers={n} is less than limits.minimum_workers={least}"
                self.note(("steps", i, "with"), text)
        if self.mistakes:
            raise self.error()
        del top["version"]
        return Playbook(**top, steps=tuple(steps), limits=Limits(**bounds))

    def _step(self, data: Any, place: Place) -> Step:
        line = f"{self.source}:{self.lines.get(place, 1)}"
        if data is _UNREAD:
            return Step(line=line)
        found = self.mapping(data, place, _STEP)
        keys = set(data) if isinstance(data, dict) else {"do"}
        if ("check" in keys) == ("do" in keys):
            self.note(place, "a step has either check or do")
        elif "check" in keys:
            for key in sorted(keys & _STEP.keys() - {"check"}):
                self.note((*place, key), "belongs to a step with do")
        elif "when" not in keys:
            for key in sorted(keys & {"at_least", "holds"}):
                self.note((*place, key), "belongs to when")
        do = found.get("do", "")
        given = found.pop("with", None if "with" in keys else {})
        options: dict[str, Any] = {}
        if do and given is not None:
            options = self.mapping(given, (*place, "with"), ACTIONS[do])
            named = options.get("workers") == NAMED and "when" not in keys
            if named:
                text = "named means the workers that the condition names: give when"
                self.note((*place, "with", "workers"), text)
            needed = _NEEDED.get(do, ())
            if isinstance(given, dict) and needed and not given.keys() & needed:
                self.note(place, f"{do} needs {' or '.join(needed)}")
        return Step(line=line, options=options, **found)


# --- from text to data ----------------------------------------------------------------

_UNREAD = object()  # a value with a mistake that is already noted
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


class _Composer(yaml.BaseLoader):
    """Composes nodes as text; notes anchors, aliases and tags."""

    def __init__(self, text: str, document: _Document):
        super().__init__(text)
        self.document = document
        self.levels = 0
        self.unread: set[int] = set()  # ids of nodes with a noted mistake

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        self.levels += 1
        if self.levels > MAX_DEPTH:
            deep = f"deeper than {MAX_DEPTH} levels"
            raise yaml.composer.ComposerError(None, None, deep, event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            self.get_event()  # type: ignore[no-untyped-call]
            node: Any = yaml.ScalarNode("", "", event.start_mark)  # type: ignore[arg-type]
        else:
            node = super().compose_node(parent, index)
        self.levels -= 1
        if event.anchor is not None or getattr(event, "tag", None) is not None:
            text = "anchors, aliases and tags are not allowed"
            self.document.note((), text, event.start_mark.line + 1)
            self.unread.add(id(node))
        return node


def _plain(node: Any, place: Place, composer: _Composer) -> Any:
    """Convert a node to plain data, and note the lines of its values."""
    document = composer.document
    document.lines.setdefault(place, node.start_mark.line + 1)
    if id(node) in composer.unread:
        return _UNREAD
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    if isinstance(node, yaml.SequenceNode):
        items = enumerate(node.value)
        found = [_plain(item, (*place, i), composer) for i, item in items]
        return _UNREAD if _UNREAD in found and place != ("steps",) else found
    pairs: dict[str, Any] = {}
    is_read = True
    for key, value in node.value:
        name = key.value
        line = key.start_mark.line + 1
        if not isinstance(name, str) or id(key) in composer.unread:
            is_read = False  # which keys the mapping has is unknown
            if id(key) not in composer.unread:
                document.note(place, "a key must be plain text", line)
        elif name in pairs:
            document.note((*place, name), "the key is there twice", line)
        else:
            document.lines[(*place, name)] = line
            pairs[name] = _plain(value, (*place, name), composer)
    values_are_read = len(place) <= 3 or _UNREAD not in pairs.values()
    return pairs if is_read and values_are_read else _UNREAD


def _scalar(node: yaml.ScalarNode) -> Any:
    """Return the value of a scalar; text in quotes is always text."""
    text: str = node.value
    if node.style is not None:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"[-+]?\d{1,300}", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?", text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def load(text: str | bytes, source: str) -> Playbook:
    """Read a playbook; ``source`` is the name of the file in errors.

    A ``PlaybookError`` has a line for each mistake: the line of the file, the path of
    the value, and the allowed values.
    """
    document = _Document(source)
    if len(text) > MAX_BYTES:
        size = f"has more than {MAX_BYTES:,} bytes, which is the most that is read"
        raise PlaybookError(f"{source}: {size}")
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        composer = _Composer(decoded, document)
        node = composer.get_single_node()
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        context, problem = (getattr(error, x, None) for x in ("context", "problem"))
        reason = ", ".join(filter(None, (context, problem))) or str(error)
        document.note((), reason.partition("\n")[0], mark.line + 1 if mark else 1)
        raise document.error() from error
    except (ValueError, OverflowError) as error:  # not UTF-8, or an escape of no letter
        shown = printable(str(error), longest=300)
        raise PlaybookError(f"{source}: cannot be read: {shown}") from error
    if node is None:
        raise PlaybookError(f"{source}: is empty")
    return document.playbook(_plain(node, (), composer))


# --- files ----------------------------------------------------------------------------


def read(which: str | Path) -> Playbook:
    """Find a playbook, and read it.

    ``which`` is a name of :func:`~.available`, or the path of a file, which ends with
    ``.yaml`` or ``.yml``, or contains a folder. Raises ``PlaybookError`` for a bad
    playbook, and ``ValueError`` if there is none.
    """
    path = _file(which)
    return load(_content(path), printable(path.name))


def problems(which: str | Path) -> list[str]:
    """List all mistakes of a playbook, each with path and line."""
    try:
        path = _file(which)
        load(_content(path), printable(str(path)))
    except ValueError as error:  # a PlaybookError has a line for each mistake
        return str(error).splitlines()
    return []


def text_of(which: str | Path) -> str:
    """Return the text of a playbook, with control characters escaped."""
    lines = _content(_file(which)).decode(errors="replace").splitlines()
    return "".join(f"{printable(line)}\n" for line in lines)


def _file(which: str | Path) -> Path:
    text = str(which)
    if isinstance(which, Path) or "/" in text or text.endswith((".yaml", ".yml")):
        return Path(which)
    known = available()
    if text not in known:
        unknown = _unknown("playbook", text, known)
        raise ValueError(f"{unknown}; or give the path of a file")
    return known[text]


def _content(path: Path) -> bytes:
    """Read at most one byte more than the limit, and only from a regular file."""
    try:
        found = path.expanduser()
        if stat.S_ISREG(found.stat().st_mode):  # a pipe may never end
            with found.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        reason = "it is not a regular file"
    except (OSError, ValueError, RuntimeError) as error:  # also: bad path, bad user
        reason = getattr(error, "strerror", None) or str(error)
    where = printable(str(path))
    raise ValueError(f"the playbook {where} cannot be read: {reason}")


def _short(value: Any) -> str:
    return printable(repr(value), longest=60)
