"""The rest of the package does not need ``training``, which needs little of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import clustertune

PACKAGE = Path(clustertune.__file__).parent

# Public calls, from the modules that define them: clustertune/__init__.py names
# training, so importing the package would be a circle.
PUBLIC = {"operations.preparation", "operations.prepared", "operations.holding"}
# Besides itself and public calls it may use only these: docs/design.md says why.
HELPERS = {
    "core.arguments",
    "monitor.connection",
    "monitor.monitor",
    "collections.graphs",
    "collections.inputs",
    "errors",
    "core.model",
    "remote",
    "operations.entrance",
    "operations.blocks",
    "core.wording",
}


def imports(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports, below ``clustertune``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            top, *within = str(node.module).split(".")
            for alias in node.names if top == "clustertune" else ():
                yield _module([*within, alias.name])


def _module(names: list[str]) -> str:
    """Of ``training`` and ``remote`` the folder; else the module that has the name."""
    if names[0] in ("training", "remote"):
        return names[0]
    is_file = PACKAGE.joinpath(*names).with_suffix(".py").exists()
    return ".".join(names if is_file or len(names) == 1 else names[:-1])


def test_training_is_a_leaf() -> None:
    own = list((PACKAGE / "training").rglob("*.py"))
    used = {name for path in own for name in imports(path)}
    assert used - {"training"} <= HELPERS | PUBLIC
    assert "training" in used  # what it imports is seen
    others = [path for path in PACKAGE.rglob("*.py") if path not in own]
    needing = [path for path in others if "training" in set(imports(path))]
    assert needing == [PACKAGE / "__init__.py"]
