"""The benchmarks are all run, and their page has what they found."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
PARTS = {"__main__", "crowd", "layouts", "libraries", "measure"}  # of others

main = runpy.run_path(str(FOLDER / "__main__.py"))


def test_every_benchmark_is_run() -> None:
    found = {path.stem for path in FOLDER.glob("*.py")} - PARTS
    assert {Path(b.script).stem for b in main["BENCHMARKS"]} == found


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
def test_each_runs_alone(path: Path) -> None:
    """As a script it finds what lies beside it, and no package that is around it."""
    tree = ast.walk(ast.parse(path.read_text()))
    named = {n.module for n in tree if isinstance(n, ast.ImportFrom)}
    assert not any((name or "").startswith("benchmarks") for name in named)


def test_the_page_has_what_they_found() -> None:
    """After a run: ``python -m benchmarks``; after a change of it: ``... --page``."""
    assert main["PAGE"].read_text() == main["page"](main["kept"]())


@pytest.mark.parametrize(
    ("line", "met"),
    [
        ("ours / recipe 0.65 [0.63, 0.7] <= 0.7: met", [True]),
        ("ours / recipe 0.65 [0.63, 0.71] <= 0.7: NOT met", [False]),
        ("median 132 ms   met", [True]),
        ("metal: 3", []),
    ],
)
def test_aims(line: str, met: list[bool]) -> None:
    assert [found for _, found in main["aims_of"](line)] == met


def test_what_falls_short_is_said_first() -> None:
    name = main["BENCHMARKS"][0].name
    result = main["Result"](
        command="python x.py",
        began="today",
        seconds=1.0,
        status=3,
        machine="2 CPUs",
        versions={"dask": "1"},
        output="a <= 1: met\nb <= 2: NOT met",
    )
    page = main["page"]({name: result})
    assert "1 of 2" in page
    assert page.index(f"    {name}: b <= 2: NOT met") < page.index(f"({name})=")
    assert "ended with status 3" in page
