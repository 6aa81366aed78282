"""A playbook's file, read: all that is wrong with it is said at once, by line.

Values that were given beside the file are read in place of what it says.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from clustertune import checks
from clustertune.core.model import Severity
from clustertune.core.wording import printable
from clustertune.errors import PlaybookError
from clustertune.operations.playbooks.plainyaml import Node, parse
from clustertune.operations.playbooks.playbook import (
    KEYS,
    LIMIT_KEYS,
    LIMIT_READERS,
    MOST_STEPS,
    NAMED,
    ON_FAILURE,
    SEVERITIES,
    STEP_KEYS,
    TOP_KEYS,
    VERSION,
    Limits,
    Playbook,
    Reader,
    Step,
    actions_known,
    checks_named,
    lacking,
    pause,
    present,
)


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
        self.problems.append(f"{node.where}: {place}{printable(text, longest=1200)}")

    def playbook(self, root: Node) -> Playbook:
        top = self.mapping(root, "", TOP_KEYS, needed=("version", "name", "steps"))
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
                text = unknown("key", key, known)
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
            self.note(node, f"{path}{key}", f"{unknown(key, node.plain, known)}")
            return ""
        return node.value

    def read(self, node: Node, path: str, key: str, reader: Reader) -> Any:
        try:
            return present(reader)(key, node.plain)
        except ValueError as error:
            self.note(node, path, str(error))
            return None

    # --- parts ------------------------------------------------------------------------

    def limits(self, node: Node | None) -> Limits:
        if node is None:
            return Limits()
        found = {
            key: value
            for key, child in self.mapping(node, "limits", LIMIT_KEYS).items()
            if (value := self.read(child, f"limits.{key}", key, LIMIT_READERS[key]))
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
        keys = self.mapping(node, path, STEP_KEYS)
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
            else self.read(holds, f"{path}.holds", "holds", pause) or 0.0,
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
        self.note(node, path, unknown("action", node.plain, known))
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
        for text in lacking(do, written, found, limits):
            self.note(node or step, place, text)
        return found


def _line(problem: str) -> int:
    """In which it is; what is wrong with a value that was set is said first."""
    number = problem.partition(": ")[0].rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


# --- what is close to what was written ------------------------------------------------


def unknown(what: str, word: Any, known: Iterable[str]) -> str:
    """That there is none of that name, which there are, and which is close."""
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
    yield from (("limits", key) for key in LIMIT_KEYS)
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
