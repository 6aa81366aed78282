"""All benchmarks run, and their page has the results."""

from __future__ import annotations

import ast
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
#: no benchmarks
PARTS = {"__main__", "crowd", "layouts", "libraries", "measure", "turns"}

main = runpy.run_path(str(FOLDER / "__main__.py"))


def test_every_benchmark_is_run() -> None:
    found = {path.stem for path in FOLDER.glob("*.py")} - PARTS
    assert {Path(b.script).stem for b in main["BENCHMARKS"]} == found


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
def test_each_runs_alone(path: Path) -> None:
    """A script imports modules of its folder, and no package."""
    tree = ast.walk(ast.parse(path.read_text()))
    named = {n.module for n in tree if isinstance(n, ast.ImportFrom)}
    assert not any((name or "").startswith("benchmarks") for name in named)


def test_the_page_is_current() -> None:
    """After a change of the page: ``python -m benchmarks --page``."""
    assert main["PAGE"].read_text() == main["page"](main["load_results"]())


COMPARISONS = [
    {"what": "a", "value": "0.5", "aim": "<= 1", "met": True, "headline": True},
    {"what": "b", "value": "3", "aim": "<= 2", "met": False, "headline": False},
]


def result(**known: Any) -> Any:
    facts = {
        "command": "python x.py",
        "began": "2026-01-02 03:04 UTC",
        "seconds": 1.0,
        "status": 0,
        "machine": "2 CPUs",
        "versions": {"dask": "1"},
        "output": "",
        "code": "0a1b",
        "comparisons": COMPARISONS,
    }
    return main["Result"](**facts | known)


def test_results_come_first() -> None:
    """Headlines are in the table; sections have the runs, with their status."""
    name = main["BENCHMARKS"][0].name
    page = main["page"]({name: result(status=3)})
    first, _, section = page.partition(f"({name})=")
    assert "| a | 0.5 | <= 1 | yes |" in first
    assert "| b | 3 |" not in first
    assert "1 of all 2 aims are met" in first
    assert "an earlier version of the script, ended with status 3, 1 of 2" in section
    script = main["digest"](FOLDER / main["BENCHMARKS"][0].script)
    page = main["page"]({name: result(script=script)})
    assert "earlier version of the script," not in page.partition(f"({name})=")[2]
    assert f"(../benchmarks/results/{name}.json)" in section


def test_the_table_is_short() -> None:
    """A reader sees at most 40 results."""
    table = main["PAGE"].read_text().partition("## How to run them")[0]
    assert 20 < table.count("\n| [") <= 40


def test_which_code_ran() -> None:
    """All benchmarks on one code, or the benchmarks of each."""
    first, second = (b.name for b in main["BENCHMARKS"][:2])
    page = main["page"]({first: result(), second: result(began="2026-01-03 01:00 UTC")})
    assert "(2026-01-02 to 2026-01-03)" in page
    assert "`0a1b` (all)." in page
    page = main["page"]({first: result(), second: result(code="ffff")})
    assert f"`0a1b` ({first}), `ffff` (all others)." in page


def test_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole interval must meet an aim; results are printed and recorded."""
    monkeypatch.setenv("CLUSTERTUNE_BENCHMARK_RECORD", str(tmp_path / "record"))
    with monkeypatch.context() as m:
        m.syspath_prepend(str(FOLDER))
        measure = runpy.run_path(str(FOLDER / "measure.py"))
    found = measure["Interval"](0.65, 0.63, 0.71)
    measure["compare"]("a / b", found, at_most=0.7)
    measure["compare"]("a / b", found, at_least=0.6, headline=True)
    measure["compare"]("rows", "2 of 3", met=False)
    measure["compare"]("seconds", 1.5, unit=" s")
    assert capsys.readouterr().out.splitlines() == [
        "a / b: 0.65 [0.63, 0.71], aim <= 0.7: NOT met",
        "a / b: 0.65 [0.63, 0.71], aim >= 0.6: met",
        "rows: 2 of 3, aim all: NOT met",
        "seconds: 1.5 s",
    ]
    lines = (tmp_path / "record").read_text().splitlines()
    recorded = [json.loads(line) for line in lines]
    assert [x["met"] for x in recorded] == [False, True, False, None]
    assert [x["headline"] for x in recorded] == [False, True, False, False]


def test_digest_of_the_code(tmp_path: Path) -> None:
    """It depends on names and code, not on comments and docstrings."""
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


def test_stale_results() -> None:
    """A missing or failed result, or one of other code, is stale."""
    is_stale, code = main["is_stale"], main["digest"](main["CODE"])
    assert is_stale(None)
    assert is_stale(result())
    assert is_stale(result(code=code, status=1))
    assert not is_stale(result(code=code))


def test_the_command() -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "restart", "--quick"]
    done = subprocess.run(
        [*command, "--", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--mb MB" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["--only", "nonsense"], "unknown nonsense: choose from fit_after_scale"),
        (["--", "--rounds=1"], "name it with --only"),
    ],
)
def test_wrong_options(
    given: list[str],
    found: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *given])
    with pytest.raises(SystemExit):
        main["main"]()
    assert found in capsys.readouterr().err


def test_turns() -> None:
    """The benchmark of the scheduler's turns sends every request."""
    command = [sys.executable, FOLDER / "scale.py", "--one", "turns", "3"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert {"keep prepared keys", "release_keys"} <= figures.keys()
