"""The benchmarks are all run, and their page has what they found."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def result(**known: Any) -> Any:
    facts = {
        "command": "python x.py",
        "began": "2026-01-02 03:04 UTC",
        "seconds": 1.0,
        "status": 0,
        "machine": "2 CPUs",
        "versions": {"dask": "1"},
        "output": "a <= 1: met",
        "code": "0a1b",
    }
    return main["Result"](**facts | known)


def test_what_falls_short_is_said_first() -> None:
    name = main["BENCHMARKS"][0].name
    ran = result(status=3, output="a <= 1: met\nb <= 2: NOT met")
    page = main["page"]({name: ran})
    assert "1 of 2" in page
    assert page.index(f"    {name}: b <= 2: NOT met") < page.index(f"({name})=")
    assert "ended with status 3" in page


def test_which_code_ran() -> None:
    """One line where it was one code; else which benchmark ran on which."""
    first, second = (b.name for b in main["BENCHMARKS"][:2])
    page = main["page"]({first: result(), second: result(began="2026-01-03 01:00 UTC")})
    assert "All: of clustertune's code `0a1b`, 2026-01-02 to 2026-01-03.\n" in page
    page = main["page"]({first: result(), second: result(code="ffff")})
    assert f"`{first}`: of clustertune's code `0a1b`, 2026-01-02.\n" in page
    assert f"`{second}`: of clustertune's code `ffff`, 2026-01-02.\n" in page


def test_the_code_by_its_digest(tmp_path: Path) -> None:
    """Which changes with a name as with a letter, and not with what is said of it."""
    digest = main["digest"]
    (tmp_path / "a.py").write_text("1")
    found = [digest(tmp_path)]
    (tmp_path / "a.py").write_text("2")
    found.append(digest(tmp_path))
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    found.append(digest(tmp_path))
    (tmp_path / "b.pyc").write_text("3")
    (tmp_path / "b.py").write_text('"""Two."""\n\n2  # two')
    assert digest(tmp_path) == found[-1]
    assert len(set(found)) == 3


def test_what_is_stale() -> None:
    """What has no result, a failed one, or one of other code."""
    is_stale = main["is_stale"]
    assert is_stale(None)
    assert is_stale(result())
    assert is_stale(result(code=main["digest"](), status=1))
    assert not is_stale(result(code=main["digest"]()))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["--only", "restart", "--quick", "--", "--help"], "--mb MB"),
        (["--only", "nonsense"], "nonsense: known are fit_after_scale"),
        (["--", "--rounds=1"], "name it with --only"),
    ],
)
def test_the_command(given: list[str], found: str) -> None:
    command = [sys.executable, "-m", "benchmarks", *given]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found in done.stdout + done.stderr
