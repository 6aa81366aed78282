"""Imports run in one direction, between rooms and between files."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "clustertune"
MAX_LINES = 600  # of a file

#: a room imports only itself and the rooms before it
ROOMS = (
    "core",
    "remote",
    "collections",
    "planner",
    "integrations",
    "monitor",
    "checks",
    "actions",
    "operations",
    "training",
    "dashboard",
    "cli",
)
#: top-level modules, and the rooms to which they count
TOP_LEVEL = {
    "__main__": "cli",
    "preload": "cli",
    "errors": "core",
}


def sources(package: Path) -> dict[str, str]:
    """Return by dotted name the text of each module in a package."""
    found = {}
    for file in package.rglob("*.py"):
        parts = file.relative_to(package.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(parts)] = file.read_text(encoding="utf-8")
    return found


def imported(text: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Return the imported modules of the package, also those in functions."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules else node.module


def cycle(modules: Mapping[str, str]) -> list[str]:
    """Return modules that import each other in a circle, or none."""
    graph = {
        name: {other for other in imported(text, modules) if other != name}
        for name, text in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_file_imports_itself_through_others() -> None:
    """Imports for types, and imports in functions, count too."""
    modules = sources(PACKAGE)
    assert len(modules) > 100
    found = cycle(modules)
    assert not found, " imports ".join(reversed(found))


def upward(modules: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return imports of later rooms; the package itself loads names lazily."""
    rank = {}
    for module in modules:
        _, _, name = module.partition(".")
        first = name.partition(".")[0]
        if first:
            rank[module] = ROOMS.index(TOP_LEVEL.get(first, first))
    return [
        (module, other)
        for module in rank
        for other in imported(modules[module], modules)
        if rank.get(other, 0) > rank[module]
    ]


def test_rooms_import_only_earlier_rooms() -> None:
    """A new folder needs a place in the order."""
    assert upward(sources(PACKAGE)) == []


def test_an_upward_import_is_found() -> None:
    """The test above can fail."""
    modules = {"p": "", "p.core": "", "p.core.a": "from p.checks import b"}
    modules |= {"p.checks": "", "p.checks.b": "from p.core import a"}
    assert upward(modules) == [("p.core.a", "p.checks.b")]


@pytest.mark.parametrize(
    "late",
    [
        "from p import a",
        "def f():\n    from p.a import x",
        "if TYPE_CHECKING:\n    import p.a",
    ],
)
def test_a_circle_is_found(late: str) -> None:
    """The test above can fail."""
    modules = {"p": "", "p.a": "from p.b import y", "p.b": late}
    assert set(cycle(modules)) == {"p.a", "p.b"}
    assert not cycle({**modules, "p.b": "import sys"})


def test_files_are_short() -> None:
    """No file of the package has more than 600 lines."""
    lines = {name: text.count("\n") for name, text in sources(PACKAGE).items()}
    assert {name: n for name, n in lines.items() if n > MAX_LINES} == {}
