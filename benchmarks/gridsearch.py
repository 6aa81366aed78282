"""Grid searches over random forests with `joblib_backend`.

`GridSearchCV` over random forests behind a scaler, with two workers of one thread.
`ours` uses `joblib_backend(client, X, y)`; `dask` uses joblib's own backend; `scatter`
does too, with `scatter=[X, y]`. `threads` and `processes` run without Dask. Each case
is warmed up with a search over few rows. Scores must be equal in all variants.

Options: `--rounds 6`, `--case small,middle` (also `trees` and `large`), `--variants
ours,dask,scatter,threads,processes`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import dask
import joblib
import sklearn
from distributed import Client
from layouts import Table
from measure import cluster, compare, interval, machine, ratios, run, serve
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tabulate import tabulate

from clustertune.training import joblib_backend

WORKERS = 2
MOST = 1.05
FEW = 2000  # rows of the warm-up


@dataclass(frozen=True)
class Case:
    """The size of the data, and the forests and folds of the search."""

    rows: int
    columns: int
    trees: int
    depths: tuple[int, ...]
    folds: int
    sample: float | None = None  # fraction of the rows of each tree

    @property
    def table(self) -> Table:
        return Table(self.rows, self.columns, "f4")

    @property
    def title(self) -> str:
        fits = len(self.depths) * self.folds
        return f"{self.table.nbytes / 1e6:.1f} MB, {fits} fits of {self.trees} trees"


CASES = {
    "small": Case(4_000, 20, 10, (2, 3, 4, 5, 6, 7, 8, 9), 5),
    "middle": Case(90_000, 54, 4, (4, 8), 2),
    "trees": Case(5_000, 54, 100, (4, 8), 3, 0.2),
    "large": Case(900_000, 54, 2, (4, 6), 2, 0.02),
}


def search(case: Case) -> GridSearchCV:
    forest = RandomForestClassifier(case.trees, max_samples=case.sample, random_state=0)
    grid = {"randomforestclassifier__max_depth": case.depths}
    return GridSearchCV(make_pipeline(StandardScaler(), forest), grid, cv=case.folds)


# --- the variants ---------------------------------------------------------------------


def ours(client: Client, X: Any, y: Any) -> Any:
    return joblib_backend(client, X, y)


def plain(client: Client, X: Any, y: Any) -> Any:
    return joblib.parallel_config("dask", client=client)


def scatter(client: Client, X: Any, y: Any) -> Any:
    return joblib.parallel_config("dask", client=client, scatter=[X, y])


def threads(client: None, X: Any, y: Any) -> Any:
    return joblib.parallel_config("threading", n_jobs=WORKERS)


def processes(client: None, X: Any, y: Any) -> Any:
    return joblib.parallel_config("loky", n_jobs=WORKERS)


Variant = Callable[[Any, Any, Any], AbstractContextManager[Any]]
VARIANTS: dict[str, Variant] = {
    "ours": ours,
    "dask": plain,
    "scatter": scatter,
    "threads": threads,
    "processes": processes,
}
ALONE = ("threads", "processes")


def variant(name: str, cases: list[str]) -> Generator[dict[str, float], None, None]:
    with ExitStack() as stack:
        client = None if name in ALONE else stack.enter_context(cluster(WORKERS))
        for each in cases:
            seconds(name, client, CASES[each], FEW)
        yield {}
        while True:
            figures: dict[str, float] = {}
            for each in cases:
                case = CASES[each]
                figures[each], score = seconds(name, client, case, case.rows)
                figures[f"{each}.score"] = score
            yield figures


def seconds(name: str, client: Client | None, case: Case, rows: int) -> Any:
    """Seconds of the search with its preparation, and the best score."""
    X, y = case.table.make(0, rows)
    model = search(case)
    start = perf_counter()
    with VARIANTS[name](client, X, y):
        model.fit(X, y)
    return perf_counter() - start, model.best_score_


# --- all of them ----------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--case", default="small,middle")
    parser.add_argument("--tries", type=int, default=4)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--variant", choices=VARIANTS)
    chosen = parser.parse_args()
    cases = chosen.case.split(",")
    if unknown := set(cases) - set(CASES):
        parser.error(f"--case {', '.join(unknown)}: choose from {', '.join(CASES)}")
    names = chosen.variants.split(",")
    if unknown := set(names) - set(VARIANTS):
        parser.error(f"--variants {', '.join(unknown)}: choose from {list(VARIANTS)}")
    if missing := set(VARIANTS) - set(ALONE) - set(names):
        parser.error(f"--variants needs {', '.join(missing)} too")
    if chosen.variant:
        serve(variant(chosen.variant, cases))
        return
    print(f"{WORKERS} workers of 1 thread; {machine()}, dask {dask.__version__}, "
          f"joblib {joblib.__version__}, scikit-learn "
          f"{sklearn.__version__}")  # fmt: skip
    given = f"--case={chosen.case}"
    rounds = run(
        sys.argv[0], names, chosen.rounds, given, tries=chosen.tries, kept=True
    )
    for case in cases:
        scores = {r[f"{name}.{case}.score"] for r in rounds for name in names}
        assert len(scores) == 1, f"{case}: scores differ, {scores}"
        rows = [
            [
                name,
                str(interval([r[f"{name}.{case}"] for r in rounds])),
                str(ratios(rounds, f"{name}.{case}", f"ours.{case}")),
            ]
            for name in names
        ]
        head = f"{case}: {CASES[case].title}", "seconds [95 %]", "times ours [95 %]"
        print(tabulate(rows, headers=head, disable_numparse=True))
        for r in rounds:
            r[f"best.{case}"] = min(r[f"dask.{case}"], r[f"scatter.{case}"])
        best = ratios(rounds, f"ours.{case}", f"best.{case}")
        what = f"{CASES[case].title}: ours / the faster of joblib's on Dask"
        compare(what, best, at_most=MOST, headline=True)
        print()


if __name__ == "__main__":
    main()
