"""YAML as plain data that knows where each value stands, and nothing else of YAML.

Text, numbers, true and false, lists, and mappings with text for keys. What else YAML
can say is refused (anchors and aliases, tags, several documents, keys that come twice),
and so is what is too large or too deep. No text makes this raise anything but
:class:`clustertune.errors.PlaybookError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from clustertune.core.wording import printable
from clustertune.errors import PlaybookError

LARGEST = 64 * 1024  # bytes of a text
DEEPEST = 8  # levels of lists and mappings
LONGEST = 300  # characters of a line that is said

Scalar = str | int | float | bool | None

_SCALARS = frozenset(
    f"tag:yaml.org,2002:{x}" for x in ("str", "int", "float", "bool", "null")
)


@dataclass(frozen=True, slots=True)
class Node:
    """A value, and where it stands: ``file.yaml:14``, at the line of its key."""

    where: str
    value: Scalar | tuple[Node, ...] | Mapping[str, Node]

    @property
    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, tuple):
            return [node.plain for node in self.value]
        if isinstance(self.value, Mapping):
            return {key: node.plain for key, node in self.value.items()}
        return self.value


def parse(text: str | bytes, source: str) -> Node:
    """Read a text.

    Parameters
    ----------
    text
        Bytes are UTF-8.
    source
        The name of the file that is said with line numbers.

    Raises
    ------
    PlaybookError
        It is no such text; all that is wrong is said, a line each.
    """
    if len(text) > LARGEST:
        raise PlaybookError(
            f"{source}: has {len(text):,} bytes; at most {LARGEST:,} are read"
        )
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise PlaybookError(f"{source}: is no text of UTF-8: {error}") from error
    problems: list[str] = []
    try:
        found = _composed(decoded, source, problems)
    except yaml.YAMLError as error:
        raise PlaybookError(_said(source, error)) from error
    # of codes of characters, and of versions, that YAML reads and Python does not
    except (ValueError, OverflowError) as error:
        text = printable(str(error), longest=LONGEST)
        raise PlaybookError(f"{source}: cannot be read: {text}") from error
    if found is None:
        raise PlaybookError(f"{source}: is empty")
    if problems:
        raise PlaybookError("\n".join(problems))
    return found


def _composed(text: str, source: str, problems: list[str]) -> Node | None:
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        return _Plain(loader, source, problems).node(root, "", 1) if root else None
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Composes nodes without aliases, and no deeper than is said."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:
            raise yaml.composer.ComposerError(
                None, None, "anchors and aliases are not allowed", event.start_mark
            )
        self.depth += 1
        try:
            if self.depth > DEEPEST:
                raise yaml.composer.ComposerError(
                    None, None, f"deeper than {DEEPEST} levels", event.start_mark
                )
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _said(source: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = source if mark is None else f"{source}:{mark.line + 1}"
    parts = (getattr(error, "context", None), getattr(error, "problem", None))
    text = ", ".join(str(p) for p in parts if p) or str(error).partition("\n")[0]
    return f"{where}: {printable(text, longest=LONGEST)}"


class _Plain:
    """Makes plain values of composed nodes, and notes what is none."""

    def __init__(self, loader: _Loader, source: str, problems: list[str]):
        self.loader, self.source, self.problems = loader, source, problems

    def node(self, node: Any, path: str, line: int) -> Node:
        where = f"{self.source}:{line}"
        value: Any
        if isinstance(node, yaml.ScalarNode):
            value = self._scalar(node, path, where)
        elif node.tag not in ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"):
            value = None
            self._refuse_tag(node, path, where)
        elif isinstance(node, yaml.SequenceNode):
            value = tuple(
                self.node(x, f"{path}[{i}]", _line(x)) for i, x in enumerate(node.value)
            )
        else:
            value = dict(self._pairs(node, path))
        return Node(where, value)

    def _pairs(self, node: Any, path: str) -> Iterator[tuple[str, Node]]:
        seen: set[str] = set()
        for key, child in node.value:
            line = _line(key)
            where = f"{self.source}:{line}"
            if not isinstance(key, yaml.ScalarNode):
                self._note(where, path, "a key must be text")
                continue
            name = key.value
            if name in seen:
                self._note(where, path, f"the key {_shown(name)} is there twice")
            seen.add(name)
            yield name, self.node(child, f"{path}.{name}" if path else name, line)

    def _scalar(self, node: Any, path: str, where: str) -> Scalar:
        if node.tag not in _SCALARS:
            self._refuse_tag(node, path, where)
            return None
        try:
            value: Scalar = self.loader.construct_object(node)
        # such as 0b_, more digits than Python reads, or !!int with nothing
        except (ValueError, LookupError):
            value = math.nan
        if isinstance(value, float) and not math.isfinite(value):
            kind = "true or false" if node.tag.endswith("bool") else "number"
            self._note(where, path, f"{_shown(node.value)} is no {kind} to work with")
            return None
        return value

    def _refuse_tag(self, node: Any, path: str, where: str) -> None:
        kind = node.tag.rpartition(":")[2]
        self._note(
            where,
            path,
            f"is a {_shown(kind)}; write text (in quotes), a number, true or false, a "
            "list or a mapping",
        )

    def _note(self, where: str, path: str, text: str) -> None:
        place = f"{printable(path, longest=80)}: " if path else ""
        self.problems.append(f"{where}: {place}{text}")


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _shown(text: str) -> str:
    return repr(printable(text, longest=60))
