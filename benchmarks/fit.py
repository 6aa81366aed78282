"""Fits of the training libraries: data got ready as users do it, and by ``prepare``.

Run: ``python benchmarks/fit.py [--library xgboost,admm] [--layout even,half]
[--rounds 8] [--pairs 6] [--json PATH]``; ``--scale 0.05`` takes a part of the rows, for
a try. ``ddp`` needs PyTorch, which no extra of ours installs.

``naive`` is the recipe that users have: wait for the workers, cut X and y into as many
even partitions as the library's users advise, persist, ``client.rebalance``, fit. It
aligns X and y too, as both are cut at the same rows. ``ours`` is
``prepare(estimator=)`` and the fit with what it hands over. Both start from the same
rows, which lie as the layout says (``layouts.py``), on two workers of one thread. Each
variant has a cluster of its own, so that its memory is its own; workers have trained
on a few rows before, and ours has prepared them, so that neither pays for imports.
What the first ``prepare`` on a cluster takes, of few rows, is told beside it.

On even data there is little to do, so both take turns on one cluster, as often as
``--pairs`` says, and on another one if there are more rounds than that: fits of two
clusters differ more by chance than the 2 % that are at stake, and short fits on one
cluster do too, unless there are many. The partitions are the same keys, so what the
recipe's ``client.rebalance`` moves by chance ours finds uneven, and moves back.

What the recipe takes on even data, over what it takes where half of the workers have
all, is about what placing alone can gain: medians of different clusters. Ours may gain
more, by other partitions.

With ``admm`` and ``proximal`` that is little. Where all lies on one of two workers,
Dask's scheduler runs some of their tasks on the other one and carries partitions
there, 96 to 202 MB and 13 to 104 MB in a fit on 102 MB, whether or not work stealing
is on. So these fits take 1.06 to 1.20 times as long as where the rows lie evenly;
those of ``kmeans``, for which it carries none, 1.29 times (medians of four or five
fits, in turns on one cluster).

Peak memory is of each worker's process: VmHWM, which the kernel keeps and the worker
resets (5 in ``/proc/self/clear_refs``) when the preparation and the fit begin.

A model is judged by one that was fitted in one process on the same rows; by how much
they may differ is said in ``libraries.py``.

Ranks of ``ddp`` take as many steps as the one with fewest rows can. Where the recipe
leaves the rows uneven, the rest goes unused: with 62 % of them on the fullest of two
workers it trains on 76 %, and is faster by that.

Predictions of the reports are compared with what was measured: bytes with those in the
workers' logs of transfers; the peak of each worker in the fit, if the report has a
forecast; the seconds of steps with those of all rounds, and of ``AGAIN`` more
preparations on each cluster where the data is not even.

Aims: on even data ours takes at most 1.02 times as long as the recipe, preparation and
fit together; at most 0.7 times where all lay on half of the workers; models as good as
in one process; predicted bytes exact, peaks within 15 %, seconds within the spread.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import dask
import measure
from distributed import Client, wait
from layouts import LAYOUTS, Layout, Table, even, holders, load
from libraries import LIBRARIES, NOTHING, Library
from measure import interval, machine, peak, ratios, reset_peak, workers_of
from tabulate import tabulate

import clustertune

WORKERS = 2
MEMORY = "4GiB"  # of a worker: nothing spills
DEADLINE = 300  # seconds of two fits; one that hangs ends with tracebacks
PAIRS = 6  # by default, of both variants on one cluster, where neither changes it
FEW = 2000  # rows of the warm-up
AGAIN = 4  # preparations without a fit, whose seconds are spread
AIMS = {"even": 1.02, "half": 0.7}  # ours / naive, preparation and fit
PEAK = 0.15  # by which a peak may differ from what was predicted

Figures = dict[str, Any]


# --- one variant ----------------------------------------------------------------------


def naive(client: Client, library: Library, data: list[Any]) -> Any:
    """As many even partitions as advised, persisted and rebalanced."""
    client.wait_for_workers(WORKERS)
    rows = -(-data[0].shape[0] // library.partitions)
    cut = [c.rechunk({0: rows}) for c in data]
    data[:] = client.persist(cut)
    del cut
    wait(data)
    client.rebalance(data)
    return NOTHING


def ours(client: Client, library: Library, data: list[Any]) -> Any:
    prepared = clustertune.prepare(
        client,
        *data,
        estimator=library.estimator(),
        progress=False,
        **library.wanted,
    )
    data[:] = prepared
    return prepared


PREPARE: dict[str, Callable[[Client, Library, list[Any]], Any]] = {
    "naive": naive,
    "ours": ours,
}
TURNS = "in_turn"


def variant(name: str, library: Library, layout: Layout) -> Figures:
    with workers() as client:
        first = warm_up(name, client, library)
        data = load(client, library.table, layout, labels=library.labels)
        figures = prepare_and_fit(name, client, library, data)
        data.clear()
        if name == "ours":
            times = range(AGAIN)
            figures["again"] = [steps_again(client, library, layout) for _ in times]
        return {"first": first, **figures}


def steps_again(client: Client, library: Library, layout: Layout) -> list[Figures]:
    """What the same preparation is predicted to take, and takes, without a fit."""
    data = load(client, library.table, layout, labels=library.labels)
    steps: list[Figures] = predicted(ours(client, library, data).report)["steps"]
    return steps


def in_turn(library: Library, layout: Layout, times: int) -> Figures:
    """Both variants on one cluster, on the same data."""
    with workers() as client:
        first = {name: warm_up(name, client, library) for name in PREPARE}
        data = load(client, library.table, layout, labels=library.labels)
        pairs = []
        for i in range(times):
            pair = {}
            for name in list(PREPARE)[:: 1 if i % 2 else -1]:
                # what the other has freed and its processes keep is nobody's need
                clustertune.trim_memory(client, progress=False)
                figures = prepare_and_fit(name, client, library, list(data))
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
    """The list is emptied of what the preparation replaces."""
    figures: Figures = {}
    with measured(client, figures, "prepare"):
        handed = PREPARE[name](client, library, data)
    if name == "ours":
        figures |= predicted(handed.report)
    figures["fullest"] = fullest(client, data[0])
    X, y = (*data, None)[:2]
    with measured(client, figures, "fit"):
        fitted = library.fit(client, X, y, handed)
    figures["total"] = figures["prepare"] + figures["fit"]
    figures["quality"] = library.judge(fitted)
    return figures


def warm_up(name: str, client: Client, library: Library) -> float:
    """Imports, connections, a fit of few rows; seconds of their preparation."""
    table, advised = library.table, library.partitions
    library.table = Table(FEW, table.columns, table.dtype)
    library.partitions = 2 * WORKERS
    try:
        layout = even(library.partitions, WORKERS)
        data = load(client, library.table, layout, labels=library.labels)
        start = perf_counter()
        handed = PREPARE[name](client, library, data)
        seconds = perf_counter() - start
        X, y = (*data, None)[:2]
        library.fit(client, X, y, handed)
        return seconds
    finally:
        library.table, library.partitions = table, advised


@contextmanager
def measured(client: Client, figures: Figures, what: str) -> Iterator[None]:
    """Seconds, bytes that travelled, and the peak of each worker, by its name."""
    client.run(reset_peak)
    client.run(_forget_received)
    start = perf_counter()
    yield
    figures[what] = perf_counter() - start
    received, peaks = client.run(_received), client.run(peak)
    workers = workers_of(client)
    figures[f"{what}_moved"] = sum(received.values())
    figures[f"{what}_peaks"] = {str(workers[w]["name"]): n for w, n in peaks.items()}


def _forget_received(dask_worker: Any) -> None:
    """The log has the last thousands of transfers: those before drop out meanwhile."""
    dask_worker.transfer_incoming_log.clear()


def _received(dask_worker: Any) -> int:
    """Bytes of data."""
    sizes = [
        nbytes or 0
        for log in dask_worker.transfer_incoming_log
        for nbytes in log["keys"].values()
    ]
    return sum(sizes)


def fullest(client: Client, X: Any) -> float:
    """Rows on the worker that has most, as a fraction of all."""
    held: dict[str, int] = defaultdict(int)
    for where, rows in zip(holders(client, X), X.chunks[0], strict=True):
        held[where[0]] += rows
    return max(held.values()) / sum(held.values())


def predicted(report: Any) -> Figures:
    """What the report said beforehand, and how it says that it went."""
    steps = [
        {
            "action": s.action,
            "status": s.status,
            "bytes": [s.predicted_bytes, s.nbytes],
            "seconds": [s.predicted_seconds, s.seconds],
        }
        for s in report.steps
    ]
    forecast = getattr(report, "forecast", {})  # of each worker's peak, by its name
    return {
        "status": report.status,
        "left": [f.message for f in report.left if f.severity],
        "steps": steps,
        "forecast": {str(worker): n for worker, n in forecast.items()},
    }


def alone(library: Library) -> Figures:
    """One process without Dask; its data is in memory, as it is on the workers."""
    fit = library.alone()
    reset_peak()
    start = perf_counter()
    fitted = fit()
    seconds = perf_counter() - start
    return {"fit": seconds, "peak": peak(), "quality": library.judge(fitted)}


# --- all of them ----------------------------------------------------------------------


def run(given: argparse.Namespace) -> tuple[list[Figures], list[str]]:
    """Rounds of each library and layout; and what has failed."""
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
            by_turns = layout == "even"
            variants = [TURNS] if by_turns else list(PREPARE)
            n = -(-given.rounds // given.pairs) if by_turns else given.rounds
            if found := apart(rounds(n, variants, *which)):
                record = {"library": name, "layout": layout, "rounds": found}
                records.append(record | {"alone": reference[0]})
                if given.json:
                    keep(records, given)
    return records, failed


def apart(rounds: Sequence[Figures]) -> list[Figures]:
    """Pairs that one cluster has seen in turn, each as a round."""
    return [pair for x in rounds for pair in x.get(f"{TURNS}.pairs", [x])]


def keep(records: Sequence[Figures], given: argparse.Namespace) -> None:
    """As far as it has come: a long run that is stopped has not been in vain."""
    versions = {"dask": dask.__version__, "clustertune": clustertune.__version__}
    told = {"machine": machine(), "scale": given.scale, **versions, "records": records}
    given.json.write_text(json.dumps(told, indent=1))


def tables(records: Sequence[Figures]) -> None:
    rows = []
    for r in records:
        rounds = r["rounds"]
        seconds = [_median(rounds, f"{v}.total") for v in PREPARE]
        gained = [str(ratios(rounds, f"ours.{x}", f"naive.{x}")) for x in _TIMES]
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
    head += ["peaks (MB)", "fullest", "off from alone"]
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
    """By how much a model differed most from the one of one process, as a fraction."""
    wanted = record["alone"]["alone.quality"]
    return max(abs(r[f"{name}.quality"] / wanted - 1) for r in record["rounds"])


def judge(records: Sequence[Figures]) -> None:
    """Against the aims."""
    evenly = {
        r["library"]: _median(r["rounds"], "naive.total")
        for r in records
        if r["layout"] == "even"
    }
    for r in records:
        title = f"{r['library']}, {r['layout']}"
        if most := AIMS.get(r["layout"]):
            found = ratios(r["rounds"], "ours.total", "naive.total")
            aim(f"{title}: ours / recipe {found} <= {most}", found.high <= most)
        if r["layout"] == "half" and r["library"] in evenly:
            bound = evenly[r["library"]] / _median(r["rounds"], "naive.total")
            print(f"{title}: the recipe takes {bound:.2f} of its time where the data "
                  "lies evenly from the start")  # fmt: skip
        if r["layout"] == "even":
            share = ratios(r["rounds"], "ours.prepare", "naive.total")
            print(f"{title}: prepare is {share} of the recipe's time")
    compare_models(records)
    compare_bytes(records)
    compare_peaks(records)
    compare_seconds(records)


def compare_models(records: Sequence[Figures]) -> None:
    """With the one of one process."""
    total = 0
    wrong: dict[str, int] = dict.fromkeys(PREPARE, 0)
    for r in records:
        library = LIBRARIES[r["library"]]
        total += 1
        for v in PREPARE:
            if (off := worst(r, v)) > library.tolerance:
                wrong[v] += 1
                print(f"{r['library']}, {r['layout']}, {v}: {library.judged} is "
                      f"{off:.1e} off, {library.tolerance:g} allowed")  # fmt: skip
    for v in PREPARE:
        text = f"{v}: models as in one process for {total - wrong[v]} of {total}"
        aim(f"{text} libraries and layouts", not wrong[v])


def compare_bytes(records: Sequence[Figures]) -> None:
    """Against the transfers in the workers' logs, of all steps together."""
    wrong, total = [], 0
    for r in records:
        for x in r["rounds"]:
            steps, moved = done(x["ours.steps"]), x["ours.prepare_moved"]
            told = [sum(s["bytes"][i] or 0 for s in steps) for i in (0, 1)]
            total += 1
            if told != [moved, moved]:
                text = (
                    f"{told[0]:,} B predicted, {told[1]:,} reported, {moved:,} in the"
                )
                text += f" logs ({moved / max(1, told[0]) - 1:+.2%})"
                wrong.append(f"{r['library']}, {r['layout']}: {text}")
    for text in dict.fromkeys(wrong):
        print(text)
    aim(f"bytes: predicted exactly in {total - len(wrong)} of {total} runs", not wrong)


def compare_peaks(records: Sequence[Figures]) -> None:
    rows, every = [], []
    for r in records:
        off = [
            x["ours.fit_peaks"][worker] / nbytes - 1
            for x in r["rounds"]
            for worker, nbytes in x["ours.forecast"].items()
        ]
        every += off
        if off:
            rows.append([r["library"], r["layout"], f"{min(off):+.0%}"])
            rows[-1].append(f"{max(off):+.0%}")
    if not every:
        print("peaks: the reports have no forecast")
        return
    head = "library", "layout", "peak beyond forecast, least", "most"
    print(tabulate(rows, headers=head, disable_numparse=True))
    good = sum(abs(x) <= PEAK for x in every)
    text = f"peaks: {good} of {len(every)} within {PEAK:.0%} of the forecast"
    aim(text, good == len(every))


def compare_seconds(records: Sequence[Figures]) -> None:
    """Each prediction with all rounds of the same step, which take some time or other.

    Predictions differ between rounds as little as speeds do that workers have measured.
    """
    rows, good = [], 0
    for r in records:
        taken: dict[str, list[Any]] = defaultdict(list)
        for x in r["rounds"]:
            for steps in (x["ours.steps"], *x.get("ours.again", [])):
                for s in done(steps):
                    taken[s["action"]].append(s["seconds"])
        for action, pairs in taken.items():
            known = [p for p, _ in pairs if p is not None]
            told = median(known) if known else None
            took = [t for _, t in pairs]
            inside = told is not None and min(took) <= told <= max(took)
            good += inside
            if not inside:
                said = "none" if told is None else f"{told:.2f}"
                span = f"{min(took):.2f} to {max(took):.2f}"
                rows.append([r["library"], r["layout"], action, said, span])
    total = good + len(rows)
    if rows:
        head = "library", "layout", "step", "predicted (s)", "took (s)"
        print(tabulate(rows, headers=head, disable_numparse=True))
    aim(f"seconds: {good} of {total} predicted within the spread", not rows)


def done(steps: Iterable[Figures]) -> list[Figures]:
    return [s for s in steps if s["status"] in ("done", "partly")]


def aim(text: str, good: bool) -> None:
    print(f"{text}: {'met' if good else 'NOT met'}")


# --- the command line -----------------------------------------------------------------


def main() -> None:
    given = arguments()
    if given.variant:
        limit = DEADLINE * (given.pairs if given.variant == TURNS else 1)
        faulthandler.dump_traceback_later(limit, exit=True)
        warnings.simplefilter("ignore")  # of libraries, about each other
        dask.config.set({"distributed.logging.distributed": "critical"})
        library = LIBRARIES[given.libraries[0]](given.scale)
        if given.variant == "alone":
            figures = alone(library)
        else:
            layout = LAYOUTS[given.layout[0]](library.partitions, WORKERS)
            if given.variant == TURNS:
                figures = in_turn(library, layout, given.pairs)
            else:
                figures = variant(given.variant, library, layout)
        print(json.dumps(figures), flush=True)
        # a thread of Dask's that is still in native code would abort Python's own end
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
                wanted = f"{', '.join(sorted(wrong))}: known are {', '.join(known)}"
                raise argparse.ArgumentTypeError(wanted)
            return text.split(",")

        return parse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = list(LIBRARIES), list(LAYOUTS)
    parser.add_argument(
        "--library", dest="libraries", type=names(every[0]), default=every[0]
    )
    parser.add_argument("--layout", type=names(every[1]), default=every[1])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--tries", type=int, default=measure.MOST_TRIES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--variant", choices=["alone", TURNS, *PREPARE])
    return parser.parse_args()


if __name__ == "__main__":
    main()
