"""XGBoost and LightGBM on one worker of two threads in place of two workers.

`two` fits on two workers with one thread each. `merged` starts with the same cluster,
data and memory, and calls `clustertune.merge_workers` before the fit. `whole`, for
XGBoost, calls `clustertune.fit` on the two workers, which trains on one of them with
two threads; its time includes the preparation. `one_process` fits without Dask on two
threads. Each variant has its own processes, warmed up with a fit on few rows. The
memory is the sum of the peak resident memory of all processes that train; that of
`whole` includes the idle worker. The longest task of a fit is the training in the
library, without Dask's work around it.

Options: `--library xgboost,lightgbm`, `--rounds 6`, `--scale 0.3` (fraction of the
rows).
"""

from __future__ import annotations

import argparse
import json
import sys
from time import perf_counter
from typing import Any

from distributed import Client, get_task_stream
from layouts import Table, even, load
from libraries import LIBRARIES, NO_ARGUMENTS, Library
from measure import (
    cluster,
    compare,
    machine,
    peak,
    ratios,
    reset_peak,
    run,
    show,
    workers_of,
)

import clustertune

VARIANTS = ("two", "merged", "whole", "one_process")
FEW = 2000  # rows of the warm-up


def fit(client: Client, library: Library, table: Table) -> dict[str, float]:
    """Load even partitions on all workers, and fit."""
    n_workers = len(workers_of(client))
    data = load(client, table, even(library.partitions, n_workers))
    clustertune.trim_memory(client, progress=False)
    return fit_loaded(client, library, data)


def fit_loaded(client: Client, library: Library, data: list[Any]) -> dict[str, float]:
    client.run(reset_peak)
    with get_task_stream(client) as stream:
        start = perf_counter()
        fitted = library.fit(client, *data, NO_ARGUMENTS)
        seconds = perf_counter() - start
    spans = [s for task in stream.data for s in task["startstops"]]
    longest = max(s["stop"] - s["start"] for s in spans if s["action"] == "compute")
    return {
        "fit": seconds,
        "around": seconds - longest,
        "peak": sum(client.run(peak).values()) / 1e6,
        "quality": library.judge(fitted),
    }


def merged(client: Client, library: Library) -> dict[str, float]:
    """Load the data on two workers, merge them, and fit."""
    data = load(client, library.table, even(library.partitions, 2))
    start = perf_counter()
    report = clustertune.merge_workers(client, *data, progress=False)
    seconds = perf_counter() - start
    assert report.status == "done", report
    assert len(workers_of(client)) == 1
    fit(client, library, few(library))
    clustertune.trim_memory(client, progress=False)
    return fit_loaded(client, library, data) | {"merge": seconds}


def whole(client: Client, library: Library) -> dict[str, float]:
    """Load the data on two workers, and fit with ``clustertune.fit``."""
    for table in (few(library), library.table):
        data = load(client, table, even(library.partitions, 2))
        clustertune.trim_memory(client, progress=False)
        client.run(reset_peak)
        start = perf_counter()
        model = clustertune.fit(client, library.estimator(), *data, progress=False)
        seconds = perf_counter() - start
    report = model.clustertune_report_
    assert any("one worker of each host" in note for note in report.notes), report
    return {
        "fit": seconds,
        "peak": sum(client.run(peak).values()) / 1e6,
        "quality": library.judge(library.result(model)),
    }


def few(library: Library) -> Table:
    return Table(FEW, library.table.columns, library.table.dtype)


def alone(library: Library) -> dict[str, float]:
    """Fit in this process, which has all rows before the fit, as the workers have."""
    table, library.table = library.table, few(library)
    library.alone()()
    library.table = table
    train = library.alone()
    reset_peak()
    start = perf_counter()
    fitted = train()
    seconds = perf_counter() - start
    return {"fit": seconds, "peak": peak() / 1e6, "quality": library.judge(fitted)}


def variant(name: str, library: Library) -> dict[str, float]:
    if name == "one_process":
        return alone(library)
    with cluster(2) as client:
        if name == "merged":
            return merged(client, library)
        if name == "whole":
            return whole(client, library)
        fit(client, library, few(library))
        return fit(client, library, library.table)


def measure(name: str, n_rounds: int, scale: float) -> None:
    """Run all rounds of a library, and compare."""
    library = LIBRARIES[name](scale)
    rows, columns = library.table.rows, library.table.columns
    print(f"\n{name}: {rows:,} x {columns} {library.dtype}; {machine()}", flush=True)
    variants = [v for v in VARIANTS if v != "whole" or name == "xgboost"]
    rounds = run(sys.argv[0], variants, n_rounds, f"--library={name}",
        f"--scale={scale}")  # fmt: skip
    show(
        rounds,
        {f"{v}.fit": f"fit, {v} (s)" for v in variants}
        | {
            f"{v}.around": f"of these around the longest task, {v} (s)"
            for v in VARIANTS[:2]
        }
        | {f"{v}.peak": f"memory, {v} (MB)" for v in variants}
        | {f"{v}.quality": f"loss, {v}" for v in variants}
        | {"merged.merge": "merge itself (s)"},
    )
    one = ratios(rounds, "merged.fit", "one_process.fit")
    compare(f"{name}: fit after the merge / fit in one process", one, at_most=1.1)
    gained = ratios(rounds, "two.fit", "merged.fit")
    what = f"{name}: fit on two workers / fit after the merge"
    compare(what, gained, at_least=1.1, headline=True)
    if "whole" in variants:
        ours = ratios(rounds, "whole.fit", "one_process.fit")
        compare(f"{name}: clustertune.fit / fit in one process", ours, at_most=1.1)
        gained = ratios(rounds, "two.fit", "whole.fit")
        what = f"{name}: fit on two workers / clustertune.fit"
        compare(what, gained, at_least=1.1, headline=True)
    memory = ratios(rounds, "merged.peak", "two.peak")
    compare(f"{name}: memory after the merge / on two workers", memory, at_most=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", default="xgboost,lightgbm")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--scale", type=float, default=0.3)
    parser.add_argument("--variant", choices=VARIANTS)
    given = parser.parse_args()
    if given.variant:
        library = LIBRARIES[given.library](given.scale)
        print(json.dumps(variant(given.variant, library)))
        return
    for name in given.library.split(","):
        measure(name, given.rounds, given.scale)


if __name__ == "__main__":
    main()
