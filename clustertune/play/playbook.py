"""Playbooks: what to do before, between or after training runs, as a YAML file.

This module reads them and says what is wrong with them, by line; it does nothing. The
language is what :class:`Playbook` holds: data, and no expressions. Carrying one out is
:mod:`clustertune.play.playing`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dask
from dask.utils import parse_timedelta

import clustertune.settings  # noqa: F401, with it Dask's configuration has our defaults
from clustertune import actions, arguments, checks
from clustertune.errors import PlaybookError
from clustertune.model import Severity
from clustertune.play.plainyaml import LARGEST, Node, parse
from clustertune.wording import bytes_text, names_text, printable, seconds_text

VERSION = 1
MOST_STEPS = 50
NAMED = "named"  # of ``workers``: those that the condition names
GIVEN = "given"  # of ``keep``: the collections with which the playbook is run
SEVERITIES = ("info", "warning", "critical")
ON_FAILURE = ("stop", "continue")

_TOP = ("version", "name", "description", "steps", "limits", "on_failure")
_STEP = ("check", "when", "at_least", "holds", "do", "with")
_LIMITS = ("disrupted_workers", "minimum_workers", "settle")


# --- what a playbook says -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Look at the conditions ``check``; or do something, if a condition holds."""

    line: str  # where it stands: file and line
    check: tuple[str, ...] = ()  # as written: names of checks, or words of them
    when: str = ""  # the check whose finding is the condition; "": always
    at_least: Severity = Severity.warning
    holds: float = 0.0  # seconds for which the condition must last
    do: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # of what is done

    def __str__(self) -> str:
        if self.check:
            return f"check {', '.join(self.check)}"
        text = self.do
        if self.options:
            shown = (f"{k}: {_value_text(k, v)}" for k, v in self.options.items())
            text += f" ({', '.join(shown)})"
        if self.when:
            text += f", when {self.when} is at least {self.at_least}"
        return text + (f" for {seconds_text(self.holds)}" if self.holds else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What no step may do, whatever it says."""

    disrupted_workers: float = 1  # away at the same time: a number, or below 1 a part
    minimum_workers: int = 0  # that must run meanwhile
    settle: float = 5.0  # seconds after a step, before the cluster is looked at again


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """A playbook, checked."""

    name: str
    source: str  # the file
    steps: tuple[Step, ...]
    description: str = ""
    limits: Limits = field(default_factory=Limits)
    on_failure: str = "stop"

    @property
    def acts(self) -> bool:
        """Whether a step may change anything."""
        return any(step.do for step in self.steps)


def _value_text(key: str, value: Any) -> str:
    if key in ("timeout", "wait"):
        return seconds_text(value)
    if key == "memory_limit":
        return bytes_text(value)
    if isinstance(value, list | tuple):
        return names_text([str(v) for v in value], most=8)
    return printable(str(value), longest=60)


# --- what may be written --------------------------------------------------------------

Reader = Callable[[str, Any], Any]


def _present(read: Reader) -> Reader:
    """Where None is no answer."""

    def call(name: str, value: Any) -> Any:
        if value is None:
            raise ValueError(f"{name} has no value")
        return read(name, value)

    return call


def _workers(name: str, value: Any) -> Any:
    return NAMED if value == NAMED else arguments.names(name, value)


def _prefixes(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and value:
        return arguments.texts(name, value)
    raise ValueError(f"{name}={value!r} must be a list of prefixes of keys")


def _keep(name: str, value: Any) -> str:
    if value == GIVEN:
        return GIVEN
    raise ValueError(
        f"{name}={value!r} must be {GIVEN}: the collections with which the playbook "
        "is run"
    )


def _pause(name: str, value: Any) -> float:
    """Seconds, 0 among them."""
    text = f'{name}={value!r} must be a duration, like "30s", or 0'
    try:
        seconds = math.nan if isinstance(value, bool) else float(parse_timedelta(value))
    except (*arguments.UNREADABLE, AssertionError) as error:
        raise ValueError(text) from error
    if not 0 <= seconds < math.inf:
        raise ValueError(text)
    return seconds


def _minimum(name: str, value: Any) -> int:
    if type(value) is int and value >= 0:
        return value
    raise ValueError(f"{name}={value!r} must be a whole number, 0 or more")


#: by key of ``with``, how its value is read; the names are those of the functions
KEYS: Mapping[str, Reader] = {
    "dtype": arguments.number_type,
    "env": arguments.variables,
    "include_other_clients": arguments.flag,
    "keep": _keep,
    "memory_fraction": arguments.fraction,
    "memory_limit": arguments.nbytes,
    "n_workers": arguments.count,
    "nthreads": arguments.count,
    "prefixes": _prefixes,
    "rechunk": arguments.cutting,
    "release_inputs": arguments.flag,
    "timeout": arguments.duration,
    "to": arguments.kind,
    "tolerance": lambda name, value: arguments.fraction(name, value, zero=True),
    "wait": arguments.duration,
    "workers": _workers,
}
#: by action, the keys that it takes: arguments of the function of that name, of
#: ``prepare`` where it acts on data. None of them lets a playbook lose data unseen, or
#: go beyond its limits.
ACTIONS: Mapping[str, tuple[str, ...]] = {
    "persist": ("memory_fraction", "timeout"),
    "rebalance": ("memory_fraction", "timeout", "tolerance"),
    "rechunk": (
        "dtype",
        "memory_fraction",
        "rechunk",
        "release_inputs",
        "timeout",
        "to",
        "tolerance",
    ),
    "release": ("include_other_clients", "keep", "prefixes", "timeout"),
    "resize": ("env", "memory_limit", "nthreads", "timeout", "wait", "workers"),
    "restart": ("timeout", "wait", "workers"),
    "scale": ("n_workers", "timeout", "wait"),
    "trim": ("timeout", "workers"),
}
ON_DATA = frozenset(("persist", "rebalance", "rechunk"))
OF_OTHERS = ("timeout",)  # keys that an action of another package takes

_LIMIT_READERS: Mapping[str, Reader] = {
    "disrupted_workers": arguments.part,
    "minimum_workers": _minimum,
    "settle": _pause,
}


def actions_known() -> Mapping[str, tuple[str, ...]]:
    """By action, the keys that it takes; those of other packages among them."""
    return {**ACTIONS, **dict.fromkeys(actions.others(), OF_OTHERS)}


def checks_named(word: str) -> tuple[str, ...]:
    """Names of checks: that name, or all with that word in their names, or ``all``."""
    known = checks.available()
    if word in known:
        return (word,)
    return tuple(n for n in known if word == "all" or word in n.split("_"))


# --- reading --------------------------------------------------------------------------


def load(
    text: str | bytes, source: str, values: Mapping[str, str] | None = None
) -> Playbook:
    """Read a playbook.

    Parameters
    ----------
    text
        Of the file; bytes are UTF-8.
    source
        What errors call the file.
    values
        To be read in place of what the file says, by key: a path such as
        ``steps[2].with.timeout``, or the end of one that no other has, ``n_workers``.

    Raises
    ------
    PlaybookError
        It is no playbook; the text says all that is wrong, a line each, with the line
        of the file, what is allowed, and what is close to what was written.
    """
    root = parse(text, source)
    for key, value in (values or {}).items():
        root = _with_value(root, str(key), value)
    return _Reading(source).playbook(root)


class _Reading:
    """Reads nodes, and notes all that is wrong with them."""

    def __init__(self, source: str):
        self.source = source
        self.problems: list[str] = []

    def note(self, node: Node, path: str, text: str) -> None:
        place = f"{path}: " if path else ""
        self.problems.append(f"{node.where}: {place}{printable(text, longest=600)}")

    def playbook(self, root: Node) -> Playbook:
        top = self.mapping(root, "", _TOP, needed=("version", "name", "steps"))
        version = top.get("version")
        if version is not None and not (
            type(version.value) is int and version.value == VERSION
        ):
            self.note(
                version, "version", f"{version.plain!r} is not known, {VERSION} is"
            )
        name = self.text(top, "name")
        description = self.text(top, "description")
        limits = self.limits(top.get("limits"))
        steps = self.steps(top.get("steps"), limits)
        failing = self.choice(top, "", "on_failure", ON_FAILURE) or ON_FAILURE[0]
        if self.problems:
            raise PlaybookError("\n".join(sorted(self.problems, key=_line)))
        return Playbook(
            name=name,
            source=self.source,
            description=description,
            steps=steps,
            limits=limits,
            on_failure=failing,
        )

    # --- kinds of values --------------------------------------------------------------

    def mapping(
        self,
        node: Node,
        path: str,
        known: Collection[str],
        needed: Collection[str] = (),
    ) -> Mapping[str, Node]:
        """Its nodes by key, of keys that there are."""
        if not isinstance(node.value, Mapping):
            allowed = ", ".join(known)
            self.note(node, path, f"must be a mapping, with keys among {allowed}")
            return {}
        for key, child in node.value.items():
            if key not in known:
                place = f"{path}.{key}" if path else key
                text = _unknown("key", key, known)
                self.note(child, printable(place, longest=80), text)
        for key in needed:
            if key not in node.value:
                self.note(node, path, f"the key {key!r} is missing")
        return {k: v for k, v in node.value.items() if k in known}

    def text(self, top: Mapping[str, Node], key: str) -> str:
        node = top.get(key)
        if node is None:
            return ""
        if not isinstance(node.value, str) or not node.value.strip():
            self.note(node, key, f"must be text; it is {_kind(node)}")
            return ""
        return node.value.strip()

    def choice(
        self, top: Mapping[str, Node], path: str, key: str, known: Collection[str]
    ) -> str:
        node = top.get(key)
        if node is None:
            return ""
        if not isinstance(node.value, str) or node.value not in known:
            self.note(node, f"{path}{key}", f"{_unknown(key, node.plain, known)}")
            return ""
        return node.value

    def read(self, node: Node, path: str, key: str, reader: Reader) -> Any:
        try:
            return _present(reader)(key, node.plain)
        except ValueError as error:
            self.note(node, path, str(error))
            return None

    # --- parts ------------------------------------------------------------------------

    def limits(self, node: Node | None) -> Limits:
        if node is None:
            return Limits()
        found = {
            key: value
            for key, child in self.mapping(node, "limits", _LIMITS).items()
            if (value := self.read(child, f"limits.{key}", key, _LIMIT_READERS[key]))
            is not None
        }
        return Limits(**found)

    def steps(self, node: Node | None, limits: Limits) -> tuple[Step, ...]:
        if node is None:
            return ()
        if not isinstance(node.value, tuple) or not node.value:
            self.note(node, "steps", f"must be a list of steps; it is {_kind(node)}")
            return ()
        if len(node.value) > MOST_STEPS:
            text = f"there are {len(node.value)}; at most {MOST_STEPS} are allowed"
            self.note(node, "steps", text)
            return ()
        found = (
            self.step(child, f"steps[{i}]", limits)
            for i, child in enumerate(node.value)
        )
        return tuple(step for step in found if step is not None)

    def step(self, node: Node, path: str, limits: Limits) -> Step | None:
        before = len(self.problems)
        keys = self.mapping(node, path, _STEP)
        if len(self.problems) > before and not keys:
            return None
        if ("check" in keys) == ("do" in keys):
            self.note(node, path, "a step has either check or do")
            return None
        if "check" in keys:
            for key in keys.keys() - {"check"}:
                self.note(keys[key], f"{path}.{key}", "belongs to a step with do")
            check = self.checks(keys["check"], f"{path}.check")
            return Step(line=node.where, check=check)
        do = self.choice_of_action(keys["do"], f"{path}.do")
        when = self.condition(keys, path)
        level = self.choice(keys, f"{path}.", "at_least", SEVERITIES) or "warning"
        holds = keys.get("holds")
        options = self.options(keys.get("with"), node, path, do, limits)
        if options.get("workers") == NAMED and not keys.get("when"):
            text = f"{NAMED} means those that the condition names: give when"
            self.note(keys["with"], f"{path}.with.workers", text)
        return Step(
            line=node.where,
            when=when,
            at_least=Severity[level],
            holds=0.0
            if holds is None
            else self.read(holds, f"{path}.holds", "holds", _pause) or 0.0,
            do=do,
            options=options,
        )

    def checks(self, node: Node, path: str) -> tuple[str, ...]:
        listed = node.value if isinstance(node.value, tuple) else (node,)
        if not listed:
            self.note(node, path, "names no check")
        found: list[str] = []
        for child in listed:
            if isinstance(child.value, str) and checks_named(child.value):
                found.append(child.value)
            else:
                self.note(child, path, _unknown_check(child.plain, _words()))
        return tuple(found)

    def condition(self, keys: Mapping[str, Node], path: str) -> str:
        node = keys.get("when")
        if node is None:
            for key in ("at_least", "holds"):
                if key in keys:
                    self.note(keys[key], f"{path}.{key}", "belongs to when")
            return ""
        if isinstance(node.value, str) and node.value in checks.available():
            return node.value
        text = _unknown_check(node.plain, checks.available())
        self.note(node, f"{path}.when", text)
        return ""

    def choice_of_action(self, node: Node, path: str) -> str:
        known = actions_known()
        if isinstance(node.value, str) and node.value in known:
            return node.value
        self.note(node, path, _unknown("action", node.plain, known))
        return ""

    def options(
        self, node: Node | None, step: Node, path: str, do: str, limits: Limits
    ) -> Mapping[str, Any]:
        if not do:
            return {}
        place, found = f"{path}.with", {}
        if node is not None:
            for key, child in self.mapping(node, place, actions_known()[do]).items():
                value = self.read(child, f"{place}.{key}", key, KEYS[key])
                if value is not None:
                    found[key] = value
        given = node.value if node is not None else {}
        written = set(given) if isinstance(given, Mapping) else set()
        for text in _lacking(do, written, found, limits):
            self.note(node or step, place, text)
        return found


def _line(problem: str) -> int:
    """In which it is; what is wrong with a value that was set is said first."""
    number = problem.partition(": ")[0].rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


def _lacking(
    do: str, written: Collection[str], found: Mapping[str, Any], limits: Limits
) -> Iterator[str]:
    """What keys of one action need of each other, and of the limits."""
    if do == "scale" and "n_workers" not in written:
        yield "scale needs n_workers"
    if found.get("n_workers", math.inf) < limits.minimum_workers:
        yield (
            f"n_workers={found['n_workers']} is less than limits.minimum_workers="
            f"{limits.minimum_workers}"
        )
    if do == "resize" and not {"env", "memory_limit", "nthreads"} & set(written):
        yield "resize needs nthreads, memory_limit or env"
    if {"keep", "prefixes"} <= set(written):
        yield "keep and prefixes exclude each other"
    if "include_other_clients" in written and "prefixes" not in written:
        yield "include_other_clients needs prefixes"


# --- what is close to what was written ------------------------------------------------


def _unknown(what: str, word: Any, known: Iterable[str]) -> str:
    listed = list(known)
    return (
        f"unknown {what} {_short(word)}; choose from: {', '.join(listed)}"
        f"{_near(word, listed)}"
    )


def _unknown_check(word: Any, known: Iterable[str]) -> str:
    return (
        f"unknown check {_short(word)}{_near(word, list(known))}; `clustertune explain`"
        " lists them"
    )


def _near(word: Any, known: Collection[str]) -> str:
    near = difflib.get_close_matches(str(word)[:60], known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _short(word: Any) -> str:
    return printable(repr(word), longest=60)


def _words() -> list[str]:
    """All that ``check`` may name."""
    known = checks.available()
    return sorted({"all", *known, *(w for name in known for w in name.split("_"))})


def _kind(node: Node) -> str:
    kinds = {bool: "true or false", str: "text", int: "a number", float: "a number"}
    if node.value is None or node.value in ("", ()):
        return "empty"
    if isinstance(node.value, tuple):
        return "a list"
    return kinds.get(type(node.value), "a mapping")


# --- values from the command line -----------------------------------------------------


def _with_value(root: Node, key: str, text: str) -> Node:
    """The tree in which one value is another."""
    paths = list(_settable(root))
    hits = [p for p in paths if _path(p) == key] or [
        p for p in paths if _path(p).endswith(f".{key}")
    ]
    where = f"--set {printable(f'{key}={text}', longest=100)}"
    if len(hits) != 1:
        names = sorted(_path(p) for p in hits or paths)
        problem = "stands for several; say which" if hits else "is not in this playbook"
        near = "" if hits else _near(key, [*names, *(n.split(".")[-1] for n in names)])
        raise PlaybookError(
            f"{where}: {_short(key)} {problem}; choose from: {', '.join(names)}{near}"
        )
    return _replaced(root, hits[0], parse(str(text) or "''", where))


def _settable(root: Node) -> Iterator[tuple[str | int, ...]]:
    """Paths of values that may be others: those of ``with``, conditions and limits."""
    if not isinstance(root.value, Mapping):
        return
    yield ("on_failure",)
    yield from (("limits", key) for key in _LIMITS)
    steps = root.value.get("steps")
    listed = steps.value if steps is not None else ()
    for i, step in enumerate(listed if isinstance(listed, tuple) else ()):
        keys = step.value if isinstance(step.value, Mapping) else {}
        yield from (("steps", i, key) for key in ("at_least", "holds") if key in keys)
        options = keys["with"].value if "with" in keys else None
        for key in options if isinstance(options, Mapping) else ():
            yield ("steps", i, "with", key)


def _path(parts: Iterable[str | int]) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts)[1:]


def _replaced(node: Node, path: tuple[str | int, ...], value: Node) -> Node:
    """The tree with another value at a path; mappings that lack are made."""
    if not path:
        return _at(value, value.where.rpartition(":")[0])
    first, rest = path[0], path[1:]
    if isinstance(first, int):
        assert isinstance(node.value, tuple)
        changed = _replaced(node.value[first], rest, value)
        listed = (*node.value[:first], changed, *node.value[first + 1 :])
        return replace(node, value=listed)
    there = node.value if isinstance(node.value, Mapping) else {}
    inner = there.get(first, Node(value.where, {}))
    return replace(node, value={**there, first: _replaced(inner, rest, value)})


def _at(node: Node, where: str) -> Node:
    """The value, all of it at one place."""
    if isinstance(node.value, tuple):
        return Node(where, tuple(_at(n, where) for n in node.value))
    if isinstance(node.value, Mapping):
        return Node(where, {k: _at(n, where) for k, n in node.value.items()})
    return Node(where, node.value)


# --- files ----------------------------------------------------------------------------


def folders() -> tuple[Path, ...]:
    """Where playbooks lie: the user's folder, if one is configured, then the shipped.

    Raises
    ------
    ValueError
        ``clustertune.playbooks`` is set to something else than a folder.
    """
    own = dask.config.get("clustertune.playbooks", None)
    if own is None:
        return (_shipped(),)
    try:
        folder = Path(own).expanduser() if isinstance(own, str) else None
        there = folder is not None and folder.is_dir()
    except (OSError, RuntimeError):  # too long a name, or nobody's home
        there = False
    if folder is None or not there:
        raise ValueError(
            f"clustertune.playbooks={own!r} in Dask's configuration must be a folder"
        )
    return folder, _shipped()


def _shipped() -> Path:
    """In an installed package they are in it; in the project's folder beside it."""
    package = Path(__file__).parents[1]
    inside = package / "playbooks"
    return inside if inside.is_dir() else package.parent / "playbooks"


def available() -> Mapping[str, Path]:
    """Playbooks by the names of their files; of the same name the user's own.

    Raises
    ------
    ValueError
        ``clustertune.playbooks`` is no folder, or none that can be read.
    """
    found: dict[str, Path] = {}
    for folder in reversed(folders()):
        try:
            files = list(folder.iterdir())
        except OSError as error:
            raise ValueError(f"playbooks cannot be listed: {error}") from error
        found |= {p.stem: p for p in files if p.suffix in (".yaml", ".yml")}
    return dict(sorted(found.items()))


def read(which: str | Path, values: Mapping[str, str] | None = None) -> Playbook:
    """Find a playbook by its name, or as a file, and read it.

    Parameters
    ----------
    which
        A name as :func:`available` has it, or the path of a file: one that ends with
        ``.yaml`` or ``.yml``, or has a folder in it.
    values
        As for :func:`load`.

    Raises
    ------
    PlaybookError
        It is no playbook.
    ValueError
        There is no such playbook; the text says which there are.
    """
    path = _file(which)
    return load(_content(path), printable(path.name), values)


def text_of(which: str | Path) -> str:
    """The file of a playbook as it is, with what a terminal would not print replaced.

    Raises
    ------
    ValueError
        There is no such playbook.
    """
    lines = _content(_file(which)).decode(errors="replace").splitlines()
    return "".join(f"{printable(line)}\n" for line in lines)


def _file(which: str | Path) -> Path:
    text = str(which)
    if isinstance(which, Path) or "/" in text or text.endswith((".yaml", ".yml")):
        return Path(which)
    known = available()
    if text not in known:
        raise ValueError(
            f"{_unknown('playbook', text, known)}; or give the path of a file"
        )
    return known[text]


def _content(path: Path) -> bytes:
    """As much of a file as is read of any."""
    try:
        with path.expanduser().open("rb") as file:
            return file.read(LARGEST + 1)
    # what is no path at all, or a home that nobody has
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"the playbook {printable(str(path))} cannot be read: {reason}"
        ) from error
