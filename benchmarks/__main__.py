"""All benchmarks, one after the other, and the page that says what they found.

    python -m benchmarks                       all, as many rounds as the page has
    python -m benchmarks --quick               all, with little data: whether they run
    python -m benchmarks --only restart        these; the others keep what they found
    python -m benchmarks --stale               those whose results are of other code
    python -m benchmarks --page                none; the page is written anew
    python -m benchmarks --only restart -- --rounds=2 --mb=200
                                               with options of its own, for size and
                                               rounds; the page stays as it is

Each runs in a process of its own and prints what it found, with its aims and whether
they are met. What the last full run of each has printed is kept in
``benchmarks/results`` with a digest of the code that ran, and ``docs/benchmarks.md`` is
made of these files. A run of all takes hours: one that was stopped goes on with
``--stale``.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import distributions
from pathlib import Path
from time import perf_counter

import psutil

HERE = Path(__file__).parent
CODE = HERE.parent / "clustertune"
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
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
    """A script in this folder, and what it is given.

    One script may have several, each with its own results: ``fit-xgboost`` is of
    ``fit.py``.
    """

    name: str
    title: str
    rival: str  # beside which it is measured
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        return f"{self.name.partition('-')[0]}.py"


def _fit(library: str, title: str, *rounds: str) -> Benchmark:
    layouts = "--layout=half,even"
    return Benchmark(
        f"fit-{library}",
        f"{title}: preparation and fit",
        "the recipe of the articles: scale, cut evenly, persist, `client.rebalance`",
        full=(f"--library={library}", layouts, *rounds),
        quick=(f"--library={library}", layouts, "--rounds=1", "--scale=0.05"),
    )


BENCHMARKS = (
    Benchmark(
        "fit_after_scale",
        "XGBoost after 1 → 2 workers",
        "what users do: scale; and then `client.rebalance`; data even from the start; "
        "one process without Dask",
        quick=("--rounds=1", "--rows=100000"),
    ),
    Benchmark(
        "parquet",
        "XGBoost, from Parquet files to the model",
        "Dask as users write it; Ray Data split with locality, and Ray Train; one "
        "process without Dask",
        quick=("--rounds=1", "--rows=100000"),
    ),
    _fit("xgboost", "XGBoost", "--rounds=3"),
    _fit("lightgbm", "LightGBM", "--rounds=3"),
    _fit("proximal", "dask-glm, proximal gradient", "--rounds=3", "--pairs=30"),
    _fit("admm", "dask-glm, ADMM", "--rounds=3", "--pairs=16"),
    _fit("kmeans", "KMeans of dask-ml", "--rounds=4", "--pairs=16"),
    _fit("predict", "Predictions by a model of 20 MB", "--rounds=8"),
    _fit("ddp", "PyTorch DistributedDataParallel", "--rounds=3", "--pairs=20"),
    Benchmark(
        "fit-layouts",
        "Other layouts: skewed, tiny and huge partitions, misaligned",
        "the same recipe",
        full=("--layout=skewed,tiny,huge,misaligned", "--rounds=1", "--scale=0.3"),
        quick=("--library=xgboost", "--layout=tiny", "--rounds=1", "--scale=0.05"),
    ),
    Benchmark(
        "rechunk",
        "Other partitions after 2 → 4 workers",
        "Dask's `rechunk` (tasks and P2P) and `repartition`",
        full=("--rounds=4",),
        quick=("--rounds=1", "--scale=50"),
    ),
    Benchmark(
        "placement",
        "How few bytes are moved",
        "the fewest that any placement can move",
        quick=("--layouts=20", "--repeats=1"),
    ),
    Benchmark(
        "already_fine",
        "`prepare` where nothing is to be done",
        "nothing",
        quick=("--calls=5",),
    ),
    Benchmark(
        "restart",
        "New workers without loss",
        "`client.restart`, `client.restart_workers`, lifetimes",
        quick=("--rounds=1", "--mb=100"),
    ),
    Benchmark(
        "rescue",
        "Restarts of full and of paused workers",
        "`client.restart`, `client.restart_workers`",
        quick=("--rounds=1",),
    ),
    Benchmark(
        "map_reduce",
        "Sums with parameters",
        "parameters sent with each task, `scatter` and `gather`, `as_completed`, "
        "batches and a tree by hand",
        quick=("--pairs=2", "--scale=20"),
    ),
    Benchmark(
        "gridsearch",
        "Grid searches over forests",
        "joblib's own backend for Dask, also with `scatter=`; threads and processes of "
        "one machine without Dask",
        quick=("--rounds=1", "--case=small"),
    ),
    Benchmark(
        "glm",
        "Logistic regression by several solvers",
        "the same data as it came; scikit-learn in one process",
        full=("--rounds=1",),
        quick=("--rounds=1", "--scale=0.02"),
    ),
    Benchmark(
        "monitor",
        "A look at 1,000 workers",
        "the scheduler's event loop left alone",
        full=("--rounds=1",),
        quick=("--rounds=1",),
    ),
    Benchmark(
        "scale",
        "Growth with workers and partitions",
        "itself with a tenth of the workers",
        quick=("records", "turns", "--sizes", "30", "100"),
    ),
    Benchmark("dashboard", "The dashboard page", "nobody looking", quick=("4",)),
)


@dataclass(frozen=True)
class Result:
    """What a run has printed."""

    command: str
    began: str
    seconds: float
    status: int
    machine: str
    versions: Mapping[str, str]
    output: str
    code: str  # digest of clustertune's


# --- running --------------------------------------------------------------------------


def run(benchmark: Benchmark, arguments: Sequence[str]) -> Result:
    """Run it and show what it prints as it does; ``^C`` ends all."""
    command = ["python", f"benchmarks/{benchmark.script}", *arguments]
    print(f"\n== {' '.join(command)}", flush=True)
    began, start = datetime.now(timezone.utc), perf_counter()
    lines = []
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", *command[1:]],
        cwd=HERE.parent,
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return Result(
        command=" ".join(command),
        began=f"{began:%Y-%m-%d %H:%M} UTC",
        seconds=round(perf_counter() - start, 1),
        status=process.returncode,
        machine=machine(),
        versions=versions(),
        output="\n".join(x for x in lines if not _is_noise(x)).strip("\n"),
        code=digest(),
    )


def _is_noise(line: str) -> bool:
    """Of libraries, whose trackers greet their workers."""
    return "got rank" in line


def digest(folder: Path = CODE) -> str:
    """Of what clustertune's code does here: neither comments nor docstrings count."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        name = path.relative_to(folder).as_posix()
        found.update(f"{name}\0{ast.dump(tree)}\0".encode())
    return found.hexdigest()[:12]


def machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    python = platform.python_version()
    return f"{os.cpu_count()} CPUs, {memory:.0f} GiB of memory, Python {python}"


def versions() -> dict[str, str]:
    """Of what is installed; a benchmark that lacks something says so itself."""
    installed = {x.metadata["Name"].lower(): x.version for x in distributions()}
    return {name: installed[name] for name in PACKAGES if name in installed}


# --- the page -------------------------------------------------------------------------

HEAD = """# Benchmarks

<!-- made by python -m benchmarks: edit that -->

What clustertune gains and costs, beside what one has without it. The page is made of
what the benchmarks have printed; nothing is left out or rounded in our favour. To see
for yourself, in a clone of the repository with the `test` extra installed:

    python -m benchmarks             about three hours, on an otherwise idle machine
    python -m benchmarks --quick     some minutes with little data: whether it runs
    python -m benchmarks --stale     those alone that ran on other code
    python -m benchmarks --only restart,fit-xgboost
    python -m benchmarks --only restart -- --rounds=2 --mb=200

**How it is measured.** The forms that are compared run in turn, in rounds, each in
processes and on a cluster of its own, warmed up alike; the order rotates. Compared are
figures of the same round, as a ratio: a machine that gets slower meets all alike.
`0.65 [0.63, 0.70]` is the median of these ratios with its interval of 95 % (fewer than
six rounds have none: then it is the whole range). `idle` is the share of the CPUs that
nobody used in a round, `others` what was used by processes that are none of ours;
a round with more than 8 % is run again, and says so if it could not be had quietly.
An aim counts as met when the whole interval meets it.

**How to read it.** All workers are processes of one machine with 2 CPUs: links between
them are memory, not wires, so moving data is cheaper here than on most clusters, and so
is what one saves by moving less. Ratios of fits carry over better than seconds.
"""


def page(results: Mapping[str, Result]) -> str:
    """The page of the documentation, of the results by name of their benchmark."""
    told = [b for b in BENCHMARKS if b.name in results]
    parts = [HEAD, _codes(told, results), "## Aims\n", _aims(told, results)]
    for i, b in enumerate(told):
        parts.append(_section(b, results[b.name]))
        if b.script not in {x.script for x in told[i + 1 :]}:
            parts.append(_about(b.script))
    return "\n".join(parts)


def _codes(told: Sequence[Benchmark], results: Mapping[str, Result]) -> str:
    """Whether one code of clustertune made all figures, and when."""
    by_code: dict[str, list[Benchmark]] = {}
    for b in sorted(told, key=lambda b: results[b.name].began):
        by_code.setdefault(results[b.name].code, []).append(b)
    lines = []
    for code, ran in by_code.items():
        which = "All" if len(by_code) == 1 else ", ".join(f"`{b.name}`" for b in ran)
        days = [results[ran[i].name].began[:10] for i in (0, -1)]
        day = days[0] if days[0] == days[1] else " to ".join(days)
        lines.append(f"{which}: of clustertune's code `{code}`, {day}.")
    return "**Which code ran.** " + "\n".join(lines) + "\n"


def _aims(told: Sequence[Benchmark], results: Mapping[str, Result]) -> str:
    """How many are met, and each that is not, as it was printed."""
    rows, missed = [], []
    for b in told:
        aims = list(aims_of(results[b.name].output))
        short = [line for line, met in aims if not met]
        if aims:
            met = f"{len(aims) - len(short)} of {len(aims)}"
            rows.append(f"| [{b.title}](#{b.name}) | {met} |")
        missed += [f"{b.name}: {' '.join(line.split())}" for line in short]
    text = "| benchmark | aims that are met |\n|---|---|\n" + "\n".join(rows) + "\n"
    if missed:
        lines = "\n".join(f"    {line}" for line in missed)
        text += f"\nWhere we fall short:\n\n{lines}\n"
    return text


def aims_of(output: str) -> Iterator[tuple[str, bool]]:
    """Lines about aims, and whether these are met."""
    for line in output.splitlines():
        if re.search(r"\bmet\b", line):
            yield line, not re.search(r"\b(NOT|not) met\b", line)


def _section(b: Benchmark, result: Result) -> str:
    known = ", ".join(f"{name} {v}" for name, v in result.versions.items())
    ended = f"; ended with status {result.status}" if result.status else ""
    return f"""({b.name})=
## {b.title}

Beside: {b.rival}.

    {result.command}

{result.began}, {result.seconds:.0f} s{ended}; {result.machine}; {known}.

```text
{result.output}
```
"""


def _about(script: str) -> str:
    about = ast.get_docstring(ast.parse((HERE / script).read_text())) or ""
    return f"What `{script}` does, in its own words:\n\n```text\n{about}\n```\n"


def kept() -> dict[str, Result]:
    """The results of the last runs, by name of the benchmark."""
    return {
        b.name: Result(**json.loads(path.read_text()))
        for b in BENCHMARKS
        if (path := RESULTS / f"{b.name}.json").exists()
    }


def keep(name: str, result: Result) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(asdict(result), indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(f"{text}\n")


def is_stale(result: Result | None) -> bool:
    return result is None or result.status != 0 or result.code != digest()


# --- the command line -----------------------------------------------------------------


def main() -> None:
    known = {b.name: b for b in BENCHMARKS}
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Run the benchmarks, write their page."
    )
    parser.add_argument("--only", default=",".join(known), metavar="NAME,...")
    parser.add_argument(
        "--quick", action="store_true", help="little data; the page stays as it is"
    )
    parser.add_argument(
        "--stale",
        action="store_true",
        help="those alone that failed, or ran on other code",
    )
    parser.add_argument(
        "--page", action="store_true", help="write the page, run nothing"
    )
    parser.add_argument(
        "options",
        nargs="*",
        metavar="-- OPTION",
        help="of the one benchmark that is named; the page stays as it is",
    )
    given = parser.parse_args()
    names = given.only.split(",")
    if wrong := set(names) - set(known):
        parser.error(f"{', '.join(sorted(wrong))}: known are {', '.join(known)}")
    if given.options and len(names) > 1:
        parser.error("options after -- are of one benchmark: name it with --only")
    if given.stale:
        names = [name for name in names if is_stale(kept().get(name))]
    full = not (given.quick or given.options)
    failed = []
    for name in () if given.page else names:
        b = known[name]
        result = run(b, given.options or (b.full if full else b.quick))
        if result.status:
            failed.append(name)
        if full:
            keep(name, result)
    if full:
        PAGE.write_text(page(kept()))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
