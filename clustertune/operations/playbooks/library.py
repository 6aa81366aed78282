"""Read playbooks from files.

A file holds plain data in YAML 1.2: text, numbers, true and false, lists, and mappings.
Anchors, tags, directives, duplicate keys, and large or deep files are refused.
"""

from __future__ import annotations

import dataclasses
import math
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode

from clustertune.core.wording import printable
from clustertune.errors import PlaybookError
from clustertune.operations.playbooks import available, schema
from clustertune.operations.playbooks.playbook import Limits, Playbook, Step

MAX_BYTES = 64 * 1024
MAX_DEPTH = 8  # levels of lists and mappings
MAX_LINE = 300  # characters of a message about YAML

_DIRECTIVE = re.compile("^%", re.MULTILINE)
_TAG = "tag:yaml.org,2002:"
_SCALARS = frozenset(f"{_TAG}{x}" for x in ("str", "int", "float", "bool", "null"))


# --- find a playbook ------------------------------------------------------------------


def read(which: str | Path, values: Mapping[str, Any] | None = None) -> Playbook:
    """Find a playbook, and read it; ``values`` are those of :func:`load`.

    ``which`` is a name of :func:`~.available`, or the path of a file, which ends with
    ``.yaml`` or ``.yml``, or contains a folder. Raises ``PlaybookError`` for a bad
    playbook, and ``ValueError`` if there is none; the message lists the names.
    """
    path = _file(which)
    return load(_content(path), printable(path.name), values)


def problems(which: str | Path) -> list[str]:
    """List all problems of a playbook, each with file and line; a valid one has none.

    ``which`` is a name or a path, as for :func:`read`.
    """
    try:
        path = _file(which)
        load(_content(path), printable(str(path)))
    except ValueError as error:  # a PlaybookError has a line for each problem
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
        raise ValueError(
            f"{schema.unknown('playbook', text, known)}; or give the path of a file"
        )
    return known[text]


def _content(path: Path) -> bytes:
    """Read a file, at most one byte more than the limit."""
    try:
        found = path.expanduser()
        if not stat.S_ISREG(found.stat().st_mode):  # a pipe may never end
            raise ValueError("it is not a regular file")  # noqa: TRY301
        with found.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:  # also: bad path, bad user
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"the playbook {printable(str(path))} cannot be read: {reason}"
        ) from error


# --- read a playbook ------------------------------------------------------------------


def load(
    text: str | bytes, source: str, values: Mapping[str, Any] | None = None
) -> Playbook:
    """Read a playbook; ``source`` is the name of the file in errors.

    ``values`` replace those of the file, by key. A key is a path such as
    ``steps[2].with.timeout``, or the unique end of one, such as ``n_workers``. A
    ``PlaybookError`` has a line for each mistake: the line of the file, the path of the
    value, and the allowed values.
    """
    document = _document(text, source)
    for key, value in (values or {}).items():
        _replace(document, str(key), str(value))
    found = document.problems + [
        (path, text)
        for path, text in schema.problems(document.data)
        if not any(path[: len(p)] == p for p in document.unread)
    ]
    if found:
        raise document.error(found)
    return _playbook(document)


def _playbook(document: Document) -> Playbook:
    """Convert the data of a valid playbook."""
    data = document.data
    limits = Limits(**_values(data.get("limits", {})))
    steps = [
        _step(given, document.place(("steps", i)).text)
        for i, given in enumerate(data["steps"])
    ]
    wrong: list[Problem] = []
    least = limits.minimum_workers
    for i, step in enumerate(steps):
        n_workers = step.options.get("n_workers", least)
        if n_workers < least:
            text = f"n_workers={n_workers} is less than limits.minimum_workers={least}"
            wrong.append((("steps", i, "with"), text))
    if wrong:
        raise document.error(wrong)
    return Playbook(
        name=data["name"].strip(),
        description=data.get("description", "").strip(),
        steps=tuple(steps),
        limits=limits,
        on_failure=data.get("on_failure", "stop"),
    )


def _step(given: Mapping[str, Any], line: str) -> Step:
    values = _values(given)
    options = _values(values.pop("with", {}))
    return Step(line=line, options=options, **values)


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema.read(key, value) for key, value in given.items()}


# --- YAML -----------------------------------------------------------------------------


Problem = tuple[schema.Path, str]  # the path of a bad value, and a message


class Place(NamedTuple):
    """The place of a value; ``line`` is 0 for a value from the command line."""

    line: int
    text: str  # "file.yaml:14"


class _Composer(Composer):
    """Stops at deep nesting, which takes ruamel.yaml quadratic time."""

    levels = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.levels += 1
        if self.levels > MAX_DEPTH:
            mark = self.parser.peek_event().start_mark
            raise ComposerError(None, None, f"deeper than {MAX_DEPTH} levels", mark)
        node = super().compose_node(parent, index)
        self.levels -= 1
        return node


class Document:
    """Plain data, the places of its values by path, and problems of its YAML."""

    def __init__(self, text: str, source: str):
        self.source = source
        self.places: dict[schema.Path, Place] = {}
        self.problems: list[Problem] = []
        self.unread: set[schema.Path] = set()  # of values that the schema cannot judge
        yaml = YAML(typ="safe", pure=True)
        yaml.Composer = _Composer
        self._constructor = yaml.constructor
        root = yaml.compose(text)
        self.data: Any = None if root is None else self._plain(root, (), 1)

    def place(self, path: schema.Path) -> Place:
        """The place of a value, or of the mapping or list that lacks it."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]

    def error(self, problems: Iterable[Problem]) -> PlaybookError:
        """An error with a line for each problem: its place, path and text."""
        found = []
        for path, text in problems:
            line, where = self.place(path)
            name = f"{printable(_path_text(path), longest=80)}: " if path else ""
            found.append((line, f"{where}: {name}{printable(text, longest=1200)}"))
        found.sort(key=lambda problem: problem[0])
        return PlaybookError("\n".join(text for _, text in found))

    def _plain(self, node: Any, path: schema.Path, line: int) -> Any:
        self.places[path] = Place(line, f"{self.source}:{line}")
        if node.anchor is not None:
            self._note(path, "anchors and aliases are not allowed")
            return None
        if isinstance(node, ScalarNode) and node.tag in _SCALARS:
            return self._scalar(node, path)
        if node.tag == f"{_TAG}seq":
            items = enumerate(node.value)
            return [self._plain(x, (*path, i), _line(x)) for i, x in items]
        if node.tag == f"{_TAG}map" and isinstance(node, MappingNode):
            return dict(self._pairs(node, path))
        kind = _shown(node.tag.rpartition(":")[2])
        allowed = "text (in quotes), a number, true or false, a list or a mapping"
        self._note(path, f"is a {kind}; write {allowed}")
        return None

    def _pairs(self, node: Any, path: schema.Path) -> Iterator[tuple[str, Any]]:
        seen = set()
        for key, child in node.value:
            name = key.value if isinstance(key, ScalarNode) else "?"
            yield name, self._plain(child, (*path, name), _line(key))
            if not isinstance(key, ScalarNode) or key.anchor is not None:
                self._note((*path, name), "a key must be text without an anchor")
                self.unread.add(path)  # which keys the mapping has is unknown
            elif name in seen:
                self._note((*path, name), "the key is there twice")
            seen.add(name)

    def _scalar(self, node: Any, path: schema.Path) -> Any:
        try:
            value = self._constructor.construct_object(node)
        # such as 0b_, !!int without digits, or more digits than Python reads
        except (ValueError, LookupError):
            value = math.nan
        if isinstance(value, float) and not math.isfinite(value):
            kind = "true or false" if node.tag.endswith("bool") else "a number"
            self._note(path, f"{_shown(node.value)} cannot be used as {kind}")
        return value

    def _note(self, path: schema.Path, text: str) -> None:
        self.problems.append((path, text))
        self.unread.add(path)


def _path_text(path: schema.Path) -> str:
    parts = (f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
    return "".join(parts).lstrip(".")


def parse(text: str | bytes, source: str) -> Document:
    """Read plain data from YAML; raise PlaybookError for other text."""
    document = _document(text, source)
    if document.problems:
        raise document.error(document.problems)
    return document


def _document(text: str | bytes, source: str) -> Document:
    """Read YAML; the document has the problems of values that are not plain data."""
    if len(text) > MAX_BYTES:
        raise PlaybookError(
            f"{source}: has {len(text):,} bytes; at most {MAX_BYTES:,} are read"
        )
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise PlaybookError(f"{source}: is not UTF-8 text: {error}") from error
    if directive := _DIRECTIVE.search(decoded):
        line = decoded.count("\n", 0, directive.start()) + 1
        raise PlaybookError(f"{source}:{line}: directives are not allowed")
    try:
        document = Document(decoded, source)
    except YAMLError as error:
        raise PlaybookError(_yaml_problem(source, error)) from error
    # escapes that YAML allows and Python does not
    except (ValueError, OverflowError) as error:
        shown = printable(str(error), longest=MAX_LINE)
        raise PlaybookError(f"{source}: cannot be read: {shown}") from error
    if not document.places:
        raise PlaybookError(f"{source}: is empty")
    return document


def _yaml_problem(source: str, error: YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = source if mark is None else f"{source}:{mark.line + 1}"
    parts = (getattr(error, "context", None), getattr(error, "problem", None))
    text = ", ".join(str(p) for p in parts if p) or str(error).partition("\n")[0]
    return f"{where}: {printable(text, longest=MAX_LINE)}"


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _shown(text: str) -> str:
    return repr(printable(text, longest=60))


# --- values from the command line -----------------------------------------------------


def _replace(document: Document, key: str, text: str) -> None:
    """Replace one value of the document."""
    where = f"--set {printable(f'{key}={text}', longest=100)}"
    paths = list(_replaceable(document.data))
    hits = [p for p in paths if _path_text(p) == key] or [
        p for p in paths if _path_text(p).endswith(f".{key}")
    ]
    if len(hits) != 1:
        names = sorted(map(_path_text, hits or paths))
        problem = "matches several values" if hits else "is not in this playbook"
        ends = (n.split(".")[-1] for n in names)
        near = "" if hits else schema.close_match(key, [*names, *ends])
        shown = printable(repr(key), longest=60)
        raise PlaybookError(
            f"{where}: {shown} {problem}; choose from: {', '.join(names)}{near}"
        )
    (path,) = hits
    *parents, last = path
    target = document.data
    for part in parents:
        target = target.setdefault(part, {}) if part == "limits" else target[part]
    target[last] = parse(text or "''", where).data
    document.places[path] = Place(0, where)


def _replaceable(data: Any) -> Iterator[schema.Path]:
    """Paths of conditions, arguments and limits; limits may be absent in the file."""
    if not isinstance(data, dict):
        return
    yield ("on_failure",)
    if isinstance(data.get("limits", {}), dict):
        yield from (("limits", field.name) for field in dataclasses.fields(Limits))
    for path in schema.fields(data):
        if path[2:] in (("at_least",), ("holds",)) or path[2:3] == ("with",):
            yield path
