"""What the source of the package must not do, by looking at it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import clustertune

PACKAGE = Path(clustertune.__path__[0])

#: calls that run what they are given, or commands of a shell
DANGEROUS = frozenset(
    (
        "eval", "exec", "compile", "__import__", "importlib.import_module",
        "os.system", "os.popen",
        "pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load",
        "cloudpickle.loads", "distributed.protocol.pickle.loads", "marshal.loads",
        "shelve.open", "joblib.load", "numpy.load", "pandas.read_pickle",
        # they decode with any codec that a file names, and some codecs unpickle
        "numcodecs.get_codec", "zarr.open", "zarr.open_array", "zarr.open_group",
        "yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load",
        "subprocess.run", "subprocess.Popen", "subprocess.call",
        "subprocess.check_call", "subprocess.check_output", "subprocess.getoutput",
        "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell",
    )
)  # fmt: skip

#: where one stands all the same, by file and function, and why that is safe
JUSTIFIED = {
    ("__init__.py", "importlib.import_module"): "modules of the package, by a table",
    ("cli/__init__.py", "importlib.import_module"): "modules of commands, by a table",
    ("operations/checkpoints.py", "importlib.import_module"): "of the package itself",
    ("integrations/libraries/lightgbm.py", "importlib.import_module"): "of a constant",
    ("collections/graphs.py", "pickle.loads"): "undoes a dumps of the same line",
    ("core/progress.py", "importlib.import_module"): "IPython, only in a notebook",
    (
        "training/running_roles.py",
        "pickle.loads",
    ): "scores and errors of the user's own roles, "
    "which they have pickled; as the results of tasks",
    ("remote/ship.py", "cloudpickle.loads"): "named, not called: how functions of "
    "clustertune travel from the user's client to the user's cluster",
    (
        "training/remote_sums.py",
        "pickle.loads",
    ): "a task's code, made by the client that sent the task",
    (
        "training/remote_sums.py",
        "distributed.protocol.pickle.loads",
    ): "undoes a dumps of the same line",
    (
        "training/remote_roles.py",
        "distributed.protocol.pickle.loads",
    ): "a state that the user's own role has saved, and that the user passes on; and "
    "a task's code, made by the client that sent the task",
}


def names(tree: ast.AST) -> Iterator[str]:
    """Names that are used, with those of the modules that they were imported from."""
    origin: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            origin |= {a.asname or a.name: a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin |= {
                a.asname or a.name: f"{node.module}.{a.name}" for a in node.names
            }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield origin.get(node.id, node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{origin.get(node.value.id, node.value.id)}.{node.attr}"


@cache
def sources() -> Mapping[str, ast.AST]:
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text())
        for path in PACKAGE.rglob("*.py")
    }


def test_nothing_runs_what_it_is_given() -> None:
    """No shell, no eval, and nothing unpickled but what the user's own client made."""
    found = {
        (file, name)
        for file, tree in sources().items()
        for name in names(tree)
        if name in DANGEROUS
    }
    assert found == JUSTIFIED.keys()


def test_it_is_found() -> None:
    """However it was imported."""
    for code, name in (
        ("import pickle as p\np.loads(b'')", "pickle.loads"),
        ("from pickle import loads as f\nf(b'')", "pickle.loads"),
        ("from os import system\nsystem('x')", "os.system"),
        ("eval('1')", "eval"),
        ("import yaml\nload = yaml.load", "yaml.load"),
    ):
        assert name in set(names(ast.parse(code)))


def test_no_shell() -> None:
    """Not even by a keyword."""
    for file, tree in sources().items():
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.keyword) and node.arg == "shell"), file


def test_html_is_escaped_where_it_is_made() -> None:
    """Jinja is not told that a text is safe, and tooltips show no markup."""
    for path in (PACKAGE / "dashboard").glob("*.py"):
        text = path.read_text().replace(" ", "")
        assert "{safe}" not in text, path
        assert "|safe" not in text, path
