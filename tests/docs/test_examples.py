"""The script of the README and the tutorial run as they are printed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

if sys.platform == "win32":
    pytest.skip("the script runs in a pseudo-terminal", allow_module_level=True)

from docs import make_examples
from tests.pages import DOCS, ROOT

README = (ROOT / "README.md").read_text()
TUTORIAL = nbformat.read(DOCS / "tutorial.ipynb", as_version=4)
FIT = ROOT / "benchmarks" / "results" / "fit_after_scale.json"
NUMBER = re.compile(r"\d\.\d+")
#: rows of the README's table, and the figures of the benchmark
FIGURES = {
    "all on the first worker": "fit, naive (s)",
    "`client.rebalance()`": "fit, rebalance (s)",
    "after `prepare`": "fit, prepare (s)",
    "which took": "prepare itself (s)",
    "spread evenly": "fit, even (s)",
    "in one process": "fit, one_process (s)",
}


def kinds(output: str) -> list[str]:
    """Return the kind of each line: all of it but times, sizes and hints.

    Findings that are left, and hints about the machine, depend on the machine.
    """
    found = []
    for line in output.splitlines():
        headline = re.match(r"clustertune: (?:(\w+): )?", line)
        if headline is None:
            line = re.sub(r"^\[.*(?= got rank)", "", line)  # noqa: PLW2901
            # without a terminal, the log has the measures of a hold without a prefix
            found.append(re.sub(r"(?<=^held for ).*", "", line))
        elif headline[1] not in (None, "info", "warning"):
            found.append(headline[0])
    return sorted(found)  # workers have no order


@pytest.mark.slow
def test_the_script_of_the_readme() -> None:
    """It prints the lines that are printed below it, with the same rows by worker."""
    script, output = make_examples.example(README)
    assert kinds(make_examples.run_script(script)) == kinds(output)


def test_lines_of_other_kinds_differ() -> None:
    """The comparison ignores times and order, and nothing else."""
    a = "clustertune: did: moved 2 of 2 keys\n[19:00:00] Task a:tcp://b got rank 0\n"
    b = "[20:00:01] Task c:tcp://d got rank 0\nclustertune: did: moved 3 of 3 keys\n"
    assert kinds(a) == kinds(b)
    assert kinds(a) != kinds(b.replace("rank 0", "rank 1"))
    assert kinds(a) != kinds(b.replace("did", "failed"))


def test_progress_is_not_stored() -> None:
    """Of a line that was overwritten, the last text is kept; warnings are removed."""
    text = "\rmoving 1%\rmoving 99%\r         \rdone\r\n/x.py:1: UserWarning: y\n  1\n"
    assert make_examples.clean(text) == "done\n  1\n"
    ranks = "[19:00:00] Task a got rank 0[19:00:00] Task b got rank 1\n"
    assert make_examples.clean(ranks).count("\n") == 2


def test_numbers_of_the_readme_are_those_of_the_benchmark() -> None:
    """The table has the medians that the benchmark has printed."""
    output = json.loads(FIT.read_text())["output"]
    table = next(x for x in README.split("\n\n") if x.startswith("| rows | fit |"))
    for words, figure in FIGURES.items():
        median = re.search(rf"^{re.escape(figure)} +([\d.]+) \[", output, re.MULTILINE)
        assert median, figure
        (line,) = [x for x in table.splitlines() if words in x]
        after = line.partition(words)[2]
        assert re.search(r"([\d.]+) s", after), line
        assert median[1] in re.findall(r"([\d.]+) s", after), line


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 90


# --- the tutorial ---------------------------------------------------------------------


def results(notebook: Any) -> tuple[list[str], list[float], list[list[int]]]:
    """Return the printed words, the printed numbers, and the rows by worker.

    The worker that has more of the rows may be either of the two.
    """
    found: list[str] = []
    numbers: list[float] = []
    tables: list[list[int]] = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "execute_result":
                text = output.data["text/plain"]
                rows = re.findall(r"^\d+ +\d+ +(\d+)$", text, re.MULTILINE)
                tables.append(sorted(map(int, rows)))
            elif output.get("name") == "stdout":
                found.append(NUMBER.sub("N", output.text))
                numbers += [float(x) for x in NUMBER.findall(output.text)]
    return found, numbers, tables


@pytest.mark.slow
def test_the_tutorial() -> None:
    """All cells run, and have the results that are stored.

    Losses depend a little on the release of XGBoost and on the layout of the rows.
    """
    found, numbers, tables = results(make_examples.run_tutorial())
    expected, stored, shares = results(TUTORIAL)
    assert found == expected
    assert numbers == pytest.approx(stored, abs=0.03)
    # Dask chooses the workers of lazy data, so prepare moves other partitions
    tolerance = [pytest.approx(rows, rel=0.05) for rows in shares]
    assert tables == tolerance
    assert len(found) + len(tables) == 6
    assert len(numbers) == 2


def test_the_tutorial_is_stored_with_its_outputs() -> None:
    """All workers have trained; no output has a path or an error of one machine."""
    stored = json.dumps(TUTORIAL)
    assert "got rank 1" in stored
    assert not re.search(r"/tmp/|/home/|/root/|Traceback|Warning", stored)
    assert all(
        cell.execution_count for cell in TUTORIAL.cells if cell.cell_type == "code"
    )


@pytest.mark.parametrize("name", ["before", "after"])
def test_pictures_are_small(name: str) -> None:
    assert Path(DOCS, f"dashboard-{name}.png").stat().st_size < 150_000
