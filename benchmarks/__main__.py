"""Run the benchmarks and write docs/benchmarks.md.

    python -m benchmarks                       run all
    python -m benchmarks --quick               run all with little data, to find errors
    python -m benchmarks --only restart,glm    run these
    python -m benchmarks --stale               run those whose results are of other code
    python -m benchmarks --page                run none, only write the page
    python -m benchmarks --only restart -- --rounds=2 --mb=200
                                               run with other options, without the page

Each benchmark runs in its own process. The results of the last full run are in
``benchmarks/results``, with the printed output and a digest of clustertune's code. The
page is made from these files.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import distributions
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

HERE = Path(__file__).parent
CODE = HERE.parent / "clustertune"
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
RECORD = "CLUSTERTUNE_BENCHMARK_RECORD"  # as in measure.py
# XGBoost prints the rank of each worker, and SciPy's HiGHS prints a line of its source
NOISE = ("got rank", "HighsMipSolverData::")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PACKAGES = (
    "clustertune",
    "dask",
    "distributed",
    "numpy",
    "pandas",
    "xgboost",
    "xgboost-cpu",
    "lightgbm",
    "dask-ml",
    "scikit-learn",
    "torch",
    "ray",
)


@dataclass(frozen=True)
class Benchmark:
    """A script in this folder and its options.

    A script may have several benchmarks: ``fit-xgboost`` runs ``fit.py``.
    """

    name: str
    title: str
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        return f"{self.name.partition('-')[0]}.py"


def _fit(library: str, title: str, scale: float) -> Benchmark:
    options = (f"--library={library}", "--layout=half,even")
    quick = (*options, "--pairs=1", "--scale=0.03", "--tries=1")
    full = (*options, f"--scale={scale}")
    return Benchmark(f"fit-{library}", title, full=full, quick=quick)


BENCHMARKS = (
    Benchmark(
        "fit_after_scale",
        "XGBoost after 1 → 2 workers",
        full=("--rows=500000", "--rounds=4"),
        quick=("--rounds=1", "--rows=100000"),
    ),
    Benchmark(
        "parquet",
        "XGBoost from Parquet files",
        full=("--rows=150000", "--rounds=4"),
        quick=("--rounds=1", "--rows=100000"),
    ),
    _fit("xgboost", "XGBoost", 0.15),
    _fit("lightgbm", "LightGBM", 0.1),
    _fit("kmeans", "KMeans of dask-ml", 0.3),
    _fit("ddp", "PyTorch DistributedDataParallel", 0.5),
    Benchmark(
        "rechunk",
        "Rechunk",
        full=("--scale=6",),
        quick=("--rounds=1", "--scale=50"),
    ),
    Benchmark(
        "placement",
        "Placement",
        full=("--layouts=250",),
        quick=("--layouts=20", "--plans=12", "--repeats=1"),
    ),
    Benchmark(
        "hosts",
        "Placement on several hosts",
        quick=("--layouts=6",),
    ),
    Benchmark(
        "links",
        "Scale-up over links",
        full=("--rounds=4",),
        quick=("--rounds=1", "--mb=30", "--rates=1gbit"),
    ),
    Benchmark("already_fine", "`prepare` without work", quick=("--calls=5",)),
    Benchmark(
        "restart",
        "Rolling restart",
        full=("--variants=ours,reload,workers", "--mb=200", "--rounds=4"),
        quick=("--rounds=1", "--mb=100"),
    ),
    Benchmark(
        "merge",
        "One worker in place of two",
        full=("--library=xgboost", "--scale=0.1", "--rounds=4"),
        quick=("--rounds=1", "--scale=0.02"),
    ),
    Benchmark(
        "survive",
        "A fit that loses a worker",
        full=("--trees=60", "--mb=70", "--rounds=4"),
        quick=("--rounds=1", "--mb=10", "--trees=60"),
    ),
    Benchmark(
        "map_reduce",
        "`map_reduce`",
        full=("--pairs=6",),
        quick=("--pairs=2", "--scale=20"),
    ),
    Benchmark(
        "gridsearch",
        "Grid search",
        full=("--tries=2", "--variants=ours,dask,scatter", "--rounds=4"),
        quick=("--rounds=1", "--case=small"),
    ),
    Benchmark(
        "glm",
        "Logistic regression",
        full=("--scale=0.25",),
        quick=("--scale=0.02",),
    ),
    Benchmark("monitor", "Monitor", full=("--workers=100",), quick=("--workers=50",)),
    Benchmark(
        "scale",
        "Large clusters",
        quick=("records", "turns", "--sizes", "30", "100"),
    ),
    Benchmark("dashboard", "Dashboard page", quick=("4",)),
)


@dataclass(frozen=True)
class Result:
    """The printed output and the comparisons of a run."""

    command: str
    began: str
    seconds: float
    status: int
    machine: str
    versions: Mapping[str, str]
    output: str
    code: str  # digest of clustertune's code
    script: str = ""  # digest of the script
    comparisons: Sequence[Mapping[str, Any]] = ()  # as of measure.Comparison


# --- running --------------------------------------------------------------------------


def run(benchmark: Benchmark, arguments: Sequence[str]) -> Result:
    """Run a benchmark and show its output."""
    command = ["python", f"benchmarks/{benchmark.script}", *arguments]
    print(f"\n== {' '.join(command)}", flush=True)
    began, start = datetime.now(timezone.utc), perf_counter()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "comparisons")
        record.touch()
        with subprocess.Popen(
            [sys.executable, "-W", "ignore", *command[1:]],
            cwd=HERE.parent,
            env={
                **os.environ,
                "PYTHONPATH": str(HERE.parent),
                RECORD: str(record),
            },
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip())
        comparisons = [json.loads(x) for x in record.read_text().splitlines()]
    return Result(
        command=" ".join(command),
        began=f"{began:%Y-%m-%d %H:%M} UTC",
        seconds=round(perf_counter() - start, 1),
        status=process.returncode,
        machine=machine(),
        versions=versions(),
        output="\n".join(
            x for x in lines if not any(noise in x for noise in NOISE)
        ).strip("\n"),
        code=digest(CODE),
        script=digest(HERE / benchmark.script),
        comparisons=comparisons,
    )


def digest(code: Path) -> str:
    """Digest of a file or folder without comments and docstrings."""
    found = hashlib.sha256()
    for path in sorted(code.rglob("*.py")) if code.is_dir() else [code]:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        name = path.relative_to(code).as_posix()
        found.update(f"{name}\0{_plain(tree)}\0".encode())
    return found.hexdigest()[:12]


def _plain(node: object) -> object:
    """A syntax tree as lists, which are the same in all releases of Python.

    ``ast.dump`` is not: later releases have more fields, and leave out empty ones.
    """
    if isinstance(node, ast.AST):
        fields = [(name, _plain(value)) for name, value in ast.iter_fields(node)]
        return [type(node).__name__, *(f for f in fields if f[1] not in ("None", []))]
    return [*map(_plain, node)] if isinstance(node, list) else repr(node)


def machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    python = platform.python_version()
    return f"{os.cpu_count()} CPUs, {memory:.0f} GiB of memory, Python {python}"


def versions() -> dict[str, str]:
    """Versions of the installed packages."""
    installed = {x.metadata["Name"].lower(): x.version for x in distributions()}
    return {name: installed[name] for name in PACKAGES if name in installed}


# --- the page -------------------------------------------------------------------------

HEAD = """# Benchmarks

<!-- made by python -m benchmarks: edit benchmarks/__main__.py -->

Each benchmark compares clustertune with the usual way of doing the same without it.
Variants run in turns, and the result is the ratio of two variants of the same round:
`0.65 [0.63, 0.70]` is the median with its 95 % interval (with fewer than six rounds,
its range). A ratio of times below 1 means that clustertune is faster. An aim is met if
the whole interval meets it. A round is repeated if other processes used more than 8 %
of the CPU time.

All workers run on one machine with 2 CPUs. Their connections are faster than a network,
so clusters gain more from moving fewer bytes. Ratios carry over better than seconds.
"""


def page(results: Mapping[str, Result]) -> str:
    """The page of the documentation, from the results by name of the benchmark."""
    known = [b for b in BENCHMARKS if b.name in results]
    parts = [HEAD, _summary(known, results), _how_to_run(known, results)]
    scripts = dict.fromkeys(b.script for b in known)
    parts += [
        _section(script, [b for b in known if b.script == script], results)
        for script in scripts
    ]
    return "\n".join(parts)


def _met(comparison: Mapping[str, Any]) -> str:
    return {True: "yes", False: "**no**", None: ""}[comparison["met"]]


def _summary(known: Sequence[Benchmark], results: Mapping[str, Result]) -> str:
    rows = []
    aims = []
    for b in known:
        for c in results[b.name].comparisons:
            aims += [c["met"]] if c["met"] is not None else []
            if c["headline"]:
                title = f"[{b.title}](#{b.name})"
                rows.append([title, c["what"], c["value"], c["aim"], _met(c)])
    head = ["benchmark", "compared", "median [95 %]", "aim", "met"]
    lines = [head, ["---"] * len(head), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return (
        f"## Results\n\n{table}\n{sum(aims)} of all {len(aims)} aims are met. "
        "The output of each run has the others.\n"
    )


def _how_to_run(known: Sequence[Benchmark], results: Mapping[str, Result]) -> str:
    total = sum(results[b.name].seconds for b in known)
    by_code: dict[str, list[str]] = {}
    for b in known:
        by_code.setdefault(results[b.name].code, []).append(b.name)
    ordered = sorted(by_code.items(), key=lambda x: len(x[1]))
    *others, (last, _) = ordered
    codes = [f"`{code}` ({', '.join(names)})" for code, names in others]
    codes.append(f"`{last}` ({'all others' if others else 'all'})")
    days = sorted(results[b.name].began[:10] for b in known)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return f"""## How to run them

In a clone with the `test` extra installed, on a machine without other work:

    python -m benchmarks             all
    python -m benchmarks --quick     with little data, to find errors
    python -m benchmarks --only restart,fit-xgboost

The results on this page took {total / 60:.0f} minutes in all ({when}). Each section
has the command of its run. Digests of clustertune's code: {", ".join(codes)}.
"""


def _section(
    script: str, of_script: Sequence[Benchmark], results: Mapping[str, Result]
) -> str:
    doc = ast.get_docstring(ast.parse((HERE / script).read_text())) or ""
    title, _, text = doc.partition("\n")
    anchors = "\n\n".join(f"({b.name})=" for b in of_script)
    parts = [f"{anchors}\n## {title.rstrip('.')}\n{text}\n"]
    for b in of_script:
        result = results[b.name]
        ended = f", ended with status {result.status}" if result.status else ""
        link = f"[output](../benchmarks/results/{b.name}.json)"
        old = result.script != digest(HERE / script)
        version = ", by an earlier version of the script" if old else ""
        facts = f"{result.seconds:.0f} s{version}{ended}"
        parts.append(f"- `{result.command}`, {facts}, {_aims(result)}: {link}")
    return "\n".join([*parts, ""])


def _aims(result: Result) -> str:
    met = [c["met"] for c in result.comparisons if c["met"] is not None]
    return f"{sum(met)} of {len(met)} aims met" if met else "no aims"


def load_results() -> dict[str, Result]:
    """The results of the last full runs, by name of the benchmark."""
    return {
        b.name: Result(**json.loads(path.read_text()))
        for b in BENCHMARKS
        if (path := RESULTS / f"{b.name}.json").exists()
    }


def store(name: str, result: Result) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(asdict(result), indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(f"{text}\n")


def is_stale(result: Result | None) -> bool:
    return result is None or result.status != 0 or result.code != digest(CODE)


# --- the command line -----------------------------------------------------------------


def main() -> None:
    known = {b.name: b for b in BENCHMARKS}
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Run benchmarks, and write their page."
    )
    parser.add_argument("--only", default=",".join(known), metavar="NAME,...")
    parser.add_argument(
        "--quick", action="store_true", help="use little data; do not write the page"
    )
    parser.add_argument(
        "--stale",
        action="store_true",
        help="run only benchmarks that failed or ran on other code",
    )
    parser.add_argument(
        "--page", action="store_true", help="write the page, and run nothing"
    )
    parser.add_argument(
        "options",
        nargs="*",
        metavar="-- OPTION",
        help="options of the benchmark that --only names; do not write the page",
    )
    given = parser.parse_args()
    names = given.only.split(",")
    if wrong := set(names) - set(known):
        parser.error(
            f"unknown {', '.join(sorted(wrong))}: choose from {', '.join(known)}"
        )
    if given.options and len(names) > 1:
        parser.error("options after -- need one benchmark: name it with --only")
    if given.stale:
        names = [name for name in names if is_stale(load_results().get(name))]
    full = not (given.quick or given.options)
    failed = []
    for name in () if given.page else names:
        b = known[name]
        result = run(b, given.options or (b.full if full else b.quick))
        if result.status:
            failed.append(name)
        if full:
            store(name, result)
    if full:
        PAGE.write_text(page(load_results()))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
