"""Fits of training libraries: `prepare` against the usual recipe.

Two workers with one thread each. The recipe rechunks X and y into as many even
partitions as the library's documentation advises, persists them, calls
`client.rebalance`, and fits. Ours calls `prepare(estimator=...)` and fits. Both take
turns on one cluster, each on freshly loaded data, after a fit on few rows. The layouts
are `half` (all rows on one worker, as after a scale-up), `even`, `skewed` (growing
partitions), `tiny` (1,000 partitions), `huge` (3 partitions) and `misaligned` (X and y
with different boundaries). Models are compared with a fit in one process on the same
rows. Predicted bytes are compared with the workers' transfer logs, and forecast peaks
with the peak resident memory of the workers. Rows that are even from the
start are the limit: the aim is 1.02 times the recipe's time on them.

Options: `--library xgboost,kmeans`, `--layout even,half`, `--pairs 6`, `--scale 1`
(fraction of the rows). `ddp` needs PyTorch.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import dask
import measure
from distributed import Client, wait
from layouts import LAYOUTS, Layout, Table, even, holders, load
from libraries import LIBRARIES, NO_ARGUMENTS, Library
from measure import compare, interval, machine, peak, ratios, reset_peak, workers_of
from tabulate import tabulate

import clustertune

WORKERS = 2
MEMORY = "4GiB"  # of a worker: nothing spills
DEADLINE = 300  # seconds of two fits, after which a process exits with its stacks
PAIRS = 6  # runs of both variants on one cluster
FEW = 2000  # rows of the warm-up
NEARLY = 1.02  # times the recipe on even rows, which is the limit of ours
PEAK = 0.15  # allowed relative difference between a peak and its forecast

Figures = dict[str, Any]


# --- one variant ----------------------------------------------------------------------


def recipe(client: Client, library: Library, data: list[Any]) -> Any:
    """Even partitions as advised, persisted and rebalanced."""
    client.wait_for_workers(WORKERS)
    rows = -(-data[0].shape[0] // library.partitions)
    rechunked = [c.rechunk({0: rows}) for c in data]
    data[:] = client.persist(rechunked)
    del rechunked
    wait(data)
    client.rebalance(data)
    return NO_ARGUMENTS


def ours(client: Client, library: Library, data: list[Any]) -> Any:
    prepared = clustertune.prepare(
        client,
        *data,
        estimator=library.estimator(),
        progress=False,
        **library.options_of_prepare,
    )
    data[:] = prepared
    return prepared


PREPARE: dict[str, Callable[[Client, Library, list[Any]], Any]] = {
    "recipe": recipe,
    "ours": ours,
}
IN_TURN = "in_turn"


def in_turn(library: Library, layout: Layout, times: int) -> Figures:
    """Run both variants in turns on one cluster, each on freshly loaded data."""
    with workers() as client:
        first = {name: warm_up(name, client, library) for name in PREPARE}
        pairs = []
        for i in range(times):
            pair = {}
            for name in list(PREPARE)[:: 1 if i % 2 else -1]:
                # free the memory of the other variant, which would count in the peaks
                clustertune.trim_memory(client, progress=False)
                data = load(client, library.table, layout, labels=library.labels)
                figures = prepare_and_fit(name, client, library, data)
                del data
                figures["first"] = first[name]
                pair |= {f"{name}.{key}": value for key, value in figures.items()}
            pairs.append(pair)
    return {"pairs": pairs}


@contextmanager
def workers() -> Iterator[Client]:
    with (
        TemporaryDirectory() as folder,
        measure.cluster(WORKERS, memory_limit=MEMORY, local_directory=folder) as client,
    ):
        yield client


def prepare_and_fit(
    name: str, client: Client, library: Library, data: list[Any]
) -> Figures:
    """Prepare ``data`` in place, fit, and measure both."""
    figures: Figures = {}
    with measured(client, figures, "prepare"):
        prepared = PREPARE[name](client, library, data)
    if name == "ours":
        figures |= predicted(prepared.report)
    figures["fullest"] = fullest(client, data[0])
    X, y = (*data, None)[:2]
    with measured(client, figures, "fit"):
        fitted = library.fit(client, X, y, prepared)
    figures["total"] = figures["prepare"] + figures["fit"]
    figures["quality"] = library.judge(fitted)
    return figures


def warm_up(name: str, client: Client, library: Library) -> float:
    """Prepare and fit few rows; return the seconds of the preparation."""
    table, advised = library.table, library.partitions
    library.table = Table(FEW, table.columns, table.dtype)
    library.partitions = 2 * WORKERS
    try:
        layout = even(library.partitions, WORKERS)
        data = load(client, library.table, layout, labels=library.labels)
        start = perf_counter()
        prepared = PREPARE[name](client, library, data)
        seconds = perf_counter() - start
        X, y = (*data, None)[:2]
        library.fit(client, X, y, prepared)
        return seconds
    finally:
        library.table, library.partitions = table, advised


@contextmanager
def measured(client: Client, figures: Figures, what: str) -> Iterator[None]:
    """Measure seconds, transferred bytes and the peak memory of each worker."""
    client.run(reset_peak)
    client.run(_clear_transfers)
    start = perf_counter()
    yield
    figures[what] = perf_counter() - start
    received, peaks = client.run(_received), client.run(peak)
    workers = workers_of(client)
    figures[f"{what}_moved"] = sum(received.values())
    figures[f"{what}_peaks"] = {str(workers[w]["name"]): n for w, n in peaks.items()}


def _clear_transfers(dask_worker: Any) -> None:
    """Clear the log, which keeps a limited number of transfers."""
    dask_worker.transfer_incoming_log.clear()


def _received(dask_worker: Any) -> int:
    """Bytes in the transfer log."""
    sizes = [
        nbytes or 0
        for log in dask_worker.transfer_incoming_log
        for nbytes in log["keys"].values()
    ]
    return sum(sizes)


def fullest(client: Client, X: Any) -> float:
    """Fraction of rows on the fullest worker."""
    held: dict[str, int] = defaultdict(int)
    for where, rows in zip(holders(client, X), X.chunks[0], strict=True):
        held[where[0]] += rows
    return max(held.values()) / sum(held.values())


def predicted(report: Any) -> Figures:
    """Predicted and measured figures of a report."""
    steps = [
        {
            "action": s.action,
            "status": s.status,
            "bytes": [s.predicted_bytes, s.nbytes],
        }
        for s in report.steps
    ]
    return {
        "status": report.status,
        "left": [f.message for f in report.left if f.severity],
        "steps": steps,
        "forecast": {str(w.worker): w.peak for w in report.workers if w.peak},
    }


def alone(library: Library) -> Figures:
    """Fit in one process without Dask, on data in memory."""
    fit = library.alone()
    reset_peak()
    start = perf_counter()
    fitted = fit()
    seconds = perf_counter() - start
    return {"fit": seconds, "peak": peak(), "quality": library.judge(fitted)}


# --- all of them ----------------------------------------------------------------------


def run(given: argparse.Namespace) -> tuple[list[Figures], list[str]]:
    """Rounds of each library and layout, and failures."""
    records: list[Figures] = []
    failed: list[str] = []
    both = f"--scale={given.scale}", f"--pairs={given.pairs}"

    def rounds(n: int, variants: Sequence[str], *arguments: str) -> list[Figures]:
        print(" ".join(arguments), flush=True)
        options = {"tries": given.tries}
        try:
            return measure.run(sys.argv[0], variants, n, *arguments, *both, **options)
        except subprocess.CalledProcessError as error:
            failed.append(f"{' '.join(arguments)}: {error}")
            print(failed[-1], flush=True)
            return []

    for name in given.libraries:
        reference = rounds(1, ["alone"], f"--library={name}")
        for layout in given.layout if reference else ():
            which = f"--library={name}", f"--layout={layout}"
            for found in rounds(1, [IN_TURN], *which):
                pairs = found[f"{IN_TURN}.pairs"]
                record = {"library": name, "layout": layout, "rounds": pairs}
                records.append(record | {"alone": reference[0]})
    return records, failed


def tables(records: Sequence[Figures]) -> None:
    rows = []
    for r in records:
        rounds = r["rounds"]
        seconds = [_median(rounds, f"{v}.total") for v in PREPARE]
        gained = [str(ratios(rounds, f"ours.{x}", f"recipe.{x}")) for x in _TIMES]
        peaks = [
            median(max(x[f"{v}.fit_peaks"].values()) for x in rounds) / 1e6
            for v in PREPARE
        ]
        shares = [_median(rounds, f"{v}.fullest") for v in PREPARE]
        rows.append(
            [
                r["library"],
                r["layout"],
                *(f"{x:.2f}" for x in seconds),
                f"{_median(rounds, 'ours.prepare'):.2f}",
                *gained,
                "/".join(f"{x:.0f}" for x in peaks),
                "/".join(f"{x:.0%}" for x in shares),
                "/".join(f"{worst(r, v):.1e}" for v in PREPARE),
            ]
        )
    head = ["library", "layout", "recipe (s)", "ours (s)", "prepare (s)"]
    head += [f"ours/recipe, {x}" for x in _TIMES]
    head += ["peak memory (MB)", "fullest worker", "model difference"]
    print(tabulate(rows, headers=head, disable_numparse=True), end="\n\n")
    first = [x["ours.first"] for r in records for x in r["rounds"]]
    print(f"first prepare on a cluster (s): {interval(first)}")
    for name in dict.fromkeys(r["library"] for r in records):
        one = next(r["alone"] for r in records if r["library"] == name)["alone.fit"]
        print(f"{name} in one process: {one:.2f} s")


_TIMES = "total", "fit"


def _median(rounds: Sequence[Mapping[str, float]], name: str) -> float:
    return median(r[name] for r in rounds)


def worst(record: Figures, name: str) -> float:
    """Largest relative difference between a model and that of one process."""
    wanted = record["alone"]["alone.quality"]
    return max(abs(r[f"{name}.quality"] / wanted - 1) for r in record["rounds"])


TITLES = {"half": "all rows on one of two workers", "even": "even rows"}


def judge(records: Sequence[Figures]) -> None:
    """Compare the figures with the aims."""
    even = {
        r["library"]: _median(r["rounds"], "recipe.total")
        for r in records
        if r["layout"] == "even"
    }
    several = len({r["library"] for r in records}) > 1
    for r in records:
        title = TITLES.get(r["layout"], r["layout"])
        title = f"{r['library']}, {title}" if several else title
        if r["layout"] in TITLES:
            bound = even.get(r["library"], math.inf)
            bound /= _median(r["rounds"], "recipe.total")
            found = ratios(r["rounds"], "ours.total", "recipe.total")
            what = f"{title}: prepare and fit / recipe and fit"
            is_half = r["layout"] == "half"
            compare(what, found, at_most=round(NEARLY * bound, 3), headline=is_half)
        if r["layout"] == "even":
            share = ratios(r["rounds"], "ours.prepare", "recipe.total")
            compare(f"{title}: prepare / recipe and fit", share)
    compare_models(records)
    compare_bytes(records)
    compare_peaks(records)


def compare_models(records: Sequence[Figures]) -> None:
    """Compare models with those of one process."""
    for v in PREPARE:
        good = 0
        for r in records:
            library = LIBRARIES[r["library"]]
            difference = worst(r, v)
            good += difference <= library.tolerance
            if difference > library.tolerance:
                print(
                    f"{r['library']}, {r['layout']}, {v}: {library.judged} differs by "
                    f"{difference:.1e}, allowed {library.tolerance:g}"
                )
        count(f"{v}: models as good as in one process", good, len(records))


def compare_bytes(records: Sequence[Figures]) -> None:
    """Compare predicted bytes with the workers' transfer logs."""
    good = total = 0
    for r in records:
        for x in r["rounds"]:
            steps, moved = done(x["ours.steps"]), x["ours.prepare_moved"]
            predicted, reported = (
                sum(s["bytes"][i] or 0 for s in steps) for i in (0, 1)
            )
            total += 1
            good += predicted == reported == moved
            if not predicted == reported == moved:
                print(
                    f"{r['library']}, {r['layout']}: {predicted:,} B predicted, "
                    f"{reported:,} reported, {moved:,} in the logs"
                )
    count("runs with exactly predicted bytes", good, total)


def compare_peaks(records: Sequence[Figures]) -> None:
    """Compare the peak memory of workers with the forecast."""
    differences = [
        x["ours.fit_peaks"][worker] / nbytes - 1
        for r in records
        for x in r["rounds"]
        for worker, nbytes in x["ours.forecast"].items()
    ]
    if differences:
        least, most = min(differences), max(differences)
        print(f"peak beyond forecast: {least:+.0%} to {most:+.0%}")
    good = sum(abs(x) <= PEAK for x in differences)
    count(f"peaks within {PEAK:.0%} of the forecast", good, len(differences))


def count(what: str, good: int, total: int) -> None:
    compare(what, f"{good} of {total}", met=good == total > 0)


def done(steps: Iterable[Figures]) -> list[Figures]:
    return [s for s in steps if s["status"] in ("done", "partly")]


# --- the command line -----------------------------------------------------------------


def main() -> None:
    given = arguments()
    if given.variant:
        limit = DEADLINE * given.pairs
        faulthandler.dump_traceback_later(limit, exit=True)
        warnings.simplefilter("ignore")
        dask.config.set({"distributed.logging.distributed": "critical"})
        library = LIBRARIES[given.libraries[0]](given.scale)
        if given.variant == "alone":
            figures = alone(library)
        else:
            layout = LAYOUTS[given.layout[0]](library.partitions, WORKERS)
            figures = in_turn(library, layout, given.pairs)
        print(json.dumps(figures), flush=True)
        # exit at once: a thread of Dask in native code can abort the interpreter's exit
        os._exit(0)
    print(f"{machine()}, dask {dask.__version__}")
    records, failed = run(given)
    if records:
        tables(records)
        judge(records)
    if failed:
        sys.exit("failed: " + "; ".join(failed))


def arguments() -> argparse.Namespace:
    def names(known: Iterable[str]) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            wrong = set(text.split(",")) - set(known)
            if wrong:
                raise argparse.ArgumentTypeError(
                    f"unknown {', '.join(sorted(wrong))}: "
                    f"choose from {', '.join(known)}"
                )
            return text.split(",")

        return parse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = list(LIBRARIES), list(LAYOUTS)
    parser.add_argument(
        "--library", dest="libraries", type=names(every[0]), default=every[0]
    )
    parser.add_argument("--layout", type=names(every[1]), default=every[1])
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--tries", type=int, default=measure.MOST_TRIES)
    parser.add_argument("--variant", choices=["alone", IN_TURN])
    return parser.parse_args()


if __name__ == "__main__":
    main()
