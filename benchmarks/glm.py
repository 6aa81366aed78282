"""Logistic regression with several solvers, without and with `prepare`.

All rows are on the first of two workers, in eight partitions. `prepared` calls
`prepare` before the fit, and its seconds count; `naive` does not. `proximal_grad` and
`admm` are solvers of dask-glm; the other three are the examples of `docs/training.md`.
`LogisticRegression` and `SGDClassifier` of scikit-learn run in one process. All
minimise the same function with an L2 penalty, with their own stopping rules. dask-glm's
`admm` divides the penalty by the number of partitions.

Options: `--rounds 1`, `--scale 1` (fraction of the rows).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import dask
import numpy as np
from dask_glm.estimators import LogisticRegression
from distributed import Client
from layouts import Table, half, load
from measure import cluster, compare, interval, machine, ratios, run
from tabulate import tabulate

import clustertune

ROWS, COLUMNS = 400_000, 15
WORKERS = 2
PARTITIONS = 8
PENALTY = 1.0
FEW = 2000  # rows of the warm-up
PAGE = Path(__file__).parents[1] / "docs" / "training.md"

Fit = Callable[[Client, Any, Any], Any]


def examples() -> dict[str, Any]:
    """The names that the examples of the page define."""
    code: dict[str, Any] = {"__name__": "examples"}
    blocks = r"<!-- glm: \w+ -->\n```python\n(.*?)```"
    for block in re.findall(blocks, PAGE.read_text(), flags=re.DOTALL):
        exec(block, code)
    return code


def dask_glm(solver: str) -> LogisticRegression:
    return LogisticRegression(
        solver=solver, regularizer="l2", lamduh=PENALTY, fit_intercept=False
    )


def fit_dask_glm(solver: str) -> Fit:
    return lambda client, X, y: dask_glm(solver).fit(X, y).coef_


def fit_example(name: str) -> Fit:
    example = examples()[name]
    return lambda client, X, y: example(client, X, y, penalty=PENALTY)


def our_admm(client: Client, X: Any, y: Any) -> Any:
    """Fit ADMM with a rho in proportion to the rows of a partition."""
    rho = X.chunks[0][0] / 10
    return examples()["admm"](client, X, y, penalty=PENALTY, rho=rho)


#: by name: the fit, and the arguments of ``prepare``
SOLVERS: dict[str, tuple[Fit, dict[str, Any]]] = {
    "proximal_grad": (
        fit_dask_glm("proximal_grad"),
        {"estimator": dask_glm("proximal_grad")},
    ),
    "admm": (fit_dask_glm("admm"), {"estimator": dask_glm("admm")}),
    "gradient_descent": (fit_example("gradient_descent"), {}),
    "newton": (fit_example("newton"), {}),
    "our_admm": (our_admm, {}),
}
VARIANTS = ("naive", "prepared", "alone")


# --- one variant ----------------------------------------------------------------------


def variant(name: str, table: Table) -> dict[str, float]:
    if name == "alone":
        return alone(table)
    figures: dict[str, float] = {}
    with cluster(WORKERS) as client:
        few = Table(FEW, table.columns, table.dtype)
        for solver, (fit, wanted) in SOLVERS.items():
            for size in (few, table):
                data = load(client, size, half(PARTITIONS, WORKERS))
                start = perf_counter()
                if name == "prepared":
                    data = list(
                        clustertune.prepare(client, *data, progress=False, **wanted)
                    )
                ready = perf_counter()
                w = fit(client, *data)
                end = perf_counter()
                partitions = data[0].numblocks[0]
                del data
            figures |= {
                f"{solver}.ready": ready - start,
                f"{solver}.fit": end - ready,
                f"{solver}.seconds": end - start,
                f"{solver}.partitions": partitions,
                f"{solver}.objective": objective(table, w),
            }
    return figures


def alone(table: Table) -> dict[str, float]:
    from sklearn.linear_model import LogisticRegression as Whole
    from sklearn.linear_model import SGDClassifier

    X, y = table.make(0, table.rows)
    models = {
        "LogisticRegression": Whole(C=1 / PENALTY, fit_intercept=False),
        "SGDClassifier": SGDClassifier(
            loss="log_loss",
            alpha=PENALTY / len(X),
            fit_intercept=False,
            random_state=0,
        ),
    }
    figures: dict[str, float] = {}
    for name, model in models.items():
        model.fit(X[:FEW], y[:FEW])
        start = perf_counter()
        model.fit(X, y)
        figures[f"{name}.seconds"] = perf_counter() - start
        figures[f"{name}.objective"] = objective(table, model.coef_[0])
    return figures


def objective(table: Table, w: Any) -> float:
    X, y = table.make(0, table.rows)
    score = X @ w
    loss = np.logaddexp(0, score).sum() - y @ score
    return float(loss + PENALTY / 2 * (w @ w))


# --- all of them ----------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--tries", type=int, default=4)
    parser.add_argument("--variant")
    chosen = parser.parse_args()
    rows = max(1, round(ROWS * chosen.scale / PARTITIONS)) * PARTITIONS
    table = Table(rows, COLUMNS, "f8")
    if chosen.variant:
        print(json.dumps(variant(chosen.variant, table)))
        return
    print(f"{rows:,} rows of {COLUMNS} numbers, {WORKERS} workers of 1 thread; "
          f"{machine()}, dask {dask.__version__}")  # fmt: skip
    given = f"--scale={chosen.scale}"
    names = list(VARIANTS)
    rounds = run(sys.argv[0], names, chosen.rounds, given, tries=chosen.tries)
    best = min(v for r in rounds for k, v in r.items() if k.endswith(".objective"))
    shown = [
        line(rounds, which, solver, best)
        for solver in SOLVERS
        for which in ("naive", "prepared")
    ]
    shown += [
        line(rounds, "alone", name, best)
        for name in ("LogisticRegression", "SGDClassifier")
    ]
    head = ("solver", "data", "partitions", "seconds [95 %]", "of these, prepare",
            "objective above the best")  # fmt: skip
    print(tabulate(shown, headers=head, disable_numparse=True))
    for solver in SOLVERS:
        found = ratios(rounds, f"prepared.{solver}.seconds", f"naive.{solver}.seconds")
        compare(
            f"{solver}: prepare and fit / fit",
            found,
            headline=solver == "proximal_grad",
        )


def line(
    rounds: list[dict[str, float]], which: str, solver: str, best: float
) -> list[str]:
    name = f"{which}.{solver}"
    first = rounds[0]
    ready = [r[f"{name}.ready"] for r in rounds if which == "prepared"]
    return [
        solver,
        which,
        f"{first[f'{name}.partitions']:.0f}" if which != "alone" else "1",
        str(interval([r[f"{name}.seconds"] for r in rounds])),
        str(interval(ready)) if ready else "",
        f"{first[f'{name}.objective'] / best - 1:.1e}",
    ]


if __name__ == "__main__":
    main()
