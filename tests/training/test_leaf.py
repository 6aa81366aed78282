"""No other room imports ``training``, and it imports few modules of other rooms."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import clustertune
from clustertune.remote import ship

PACKAGE = Path(clustertune.__file__).parent

# Public calls, by their modules: clustertune/__init__.py names training, so importing
# them from the package would be circular.
PUBLIC = {"operations.prepare", "operations.prepared", "operations.hold"}
# Further modules that it may import.
HELPERS = {
    "core.arguments",
    "monitor.connection",
    "monitor.monitor",
    "collections.graphs",
    "collections.inputs",
    "errors",
    "core.model",
    "remote",
    "operations.call",
    "core.wording",
}


def imports(path: Path) -> Iterator[str]:
    """Yield the modules of the package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            top, *within = str(node.module).split(".")
            for alias in node.names if top == "clustertune" else ():
                yield _module([*within, alias.name])


def _module(names: list[str]) -> str:
    """Return the room for ``training`` and ``remote``, else the module of a name."""
    if names[0] in ("training", "remote"):
        return names[0]
    is_file = PACKAGE.joinpath(*names).with_suffix(".py").exists()
    return ".".join(names if is_file or len(names) == 1 else names[:-1])


def test_training_is_a_leaf() -> None:
    own = list((PACKAGE / "training").rglob("*.py"))
    used = {name for path in own for name in imports(path)}
    assert used - {"training"} <= HELPERS | PUBLIC
    assert "training" in used  # the search finds imports
    others = [path for path in PACKAGE.rglob("*.py") if path not in own]
    needing = [path for path in others if "training" in set(imports(path))]
    assert needing == [PACKAGE / "__init__.py"]


# --- code that travels to workers -----------------------------------------------------

REMOTE = sorted(p.stem for p in (PACKAGE / "training").glob("remote_*.py"))
# functions import further libraries where the tasks that need them run
AVAILABLE = {
    "remote_roles": {
        "clustertune.remote.ending",
        "dask.array.dispatch",
        "dask.dataframe.dispatch",
        "psutil",
    },
    "remote_sums": {
        "clustertune.remote.scheduler.bindings",
        "joblib",
        "numpy",
    },
    "frameworks": {"tensorflow", "torch"},
}


def all_imports(path: Path) -> Iterator[str]:
    """Yield the full names of all imports, also of those in functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", [*REMOTE, "frameworks"])
def test_code_for_workers_imports_only_what_workers_have(name: str) -> None:
    """Workers have distributed and the standard library, but no clustertune."""
    assert ship._travels(f"clustertune.training.{name}")
    travelling = {f"clustertune.training.{other}" for other in REMOTE}
    allowed = {"distributed"} | travelling | AVAILABLE[name]
    for found in all_imports(PACKAGE / "training" / f"{name}.py"):
        known = any(found == a or found.startswith(f"{a}.") for a in allowed)
        assert known or found.partition(".")[0] in sys.stdlib_module_names, found
