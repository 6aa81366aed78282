"""Rechunk X and y after a scale-up from two to four workers.

Two workers hold all rows, then two more join. Ours is `prepare(rechunk=...)`. The
others are Dask's `rechunk` with `tasks` and `p2p`, and `repartition` for DataFrames.
Dask's variants are timed twice: `bare` until the new partitions exist, and `end` until
they are placed as ours are (even rows, X with its y), which a second call of `prepare`
does. The old partitions are freed meanwhile. Bytes are those of the loopback interface.
Peaks are resident memory above the start of each worker.

Options: `--rounds 6`, `--case big` (also `tiny`, `article`, `frame`), `--scale 2`
(divides the rows).
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
from distributed import Client, futures_of, wait
from measure import (
    cluster,
    compare,
    interval,
    machine,
    ratios,
    run,
    settle,
    workers_of,
)
from tabulate import tabulate

import clustertune

Figures = dict[str, float]
Rounds = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Case:
    """Rows, old partitions and new partitions."""

    columns: int
    old: int
    new: int
    frame: bool = False
    in_turn: bool = False  # old partitions on the workers in turns; else in halves
    rows: int = 1_000_000

    @property
    def nbytes(self) -> int:
        return self.rows * (self.columns + 1) * 8  # y too

    @property
    def share(self) -> float:
        return self.nbytes / 4

    @property
    def bound(self) -> float:
        """Fewest bytes that reach the end state with the rows in order.

        Half of the rows move to the new workers. If old partitions are in turns on both
        old workers, the smaller part of each other new partition moves too.
        """
        parts = self.old // self.new
        return self.nbytes / 2 * (1 + (parts // 2 / parts if self.in_turn else 0))

    @property
    def rivals(self) -> tuple[str, ...]:
        return ("repartition",) if self.frame else ("tasks", "p2p")

    @property
    def variants(self) -> list[str]:
        return ["ours", *self.rivals]

    def divided(self, by: int) -> Case:
        """The case with fewer rows in equal partitions."""
        common = math.lcm(self.old, self.new)
        return replace(self, rows=max(1, self.rows // common // by) * common)


WHOLE = {"rechunk": False, "progress": False}  # moves whole partitions
CASES = {
    "big": Case(100, 10, 80),
    "tiny": Case(100, 2000, 80, in_turn=True),
    "article": Case(150, 10, 100),
    "frame": Case(150, 10, 100, frame=True),
}


# --- the data -------------------------------------------------------------------------


def load(client: Client, case: Case, addresses: Sequence[str]) -> list[Any]:
    """X, and y computed from it, on the given workers."""
    rows, n = case.rows // case.old, len(addresses)
    if case.frame:
        names = [f"x{i}" for i in range(case.columns)]
        meta = pd.DataFrame(np.empty((0, case.columns)), columns=names)
        X = dd.from_map(_partition, range(case.old), rows=rows, names=names, meta=meta)
        y = X["x0"] * 2
    else:
        rng = da.random.default_rng(7)
        shape = (case.rows, case.columns)
        X = rng.standard_normal(shape, chunks=(rows, case.columns))
        y = X[:, 0] * 2
    where = [addresses[i % n if case.in_turn else i * n // case.old]
             for i in range(case.old)]  # fmt: skip
    with dask.annotate(workers=lambda key: where[key[1]], allow_other_workers=False):
        loaded = list(client.persist([X, y]))
    wait(loaded)
    assert all(held == [{w} for w in where] for held in holders(client, loaded))
    return loaded


def _partition(number: int, rows: int, names: list[str]) -> pd.DataFrame:
    rng = np.random.default_rng(number)
    return pd.DataFrame(rng.standard_normal((rows, len(names))), columns=names)


def partitions(collection: Any) -> list[Any]:
    """Futures in the order of the rows."""
    return sorted(futures_of(collection), key=lambda future: future.key[1])


def holders(client: Client, collections: Sequence[Any]) -> list[list[set[str]]]:
    """Holders of each partition, by collection."""
    found = client.who_has(futures_of(list(collections)))
    return [[set(found[f.key]) for f in partitions(c)] for c in collections]


def fullest(client: Client, collections: Sequence[Any]) -> float:
    """Rows on the fullest worker over a quarter of all rows; checks the labels too.

    It may leave replicas, so it runs last.
    """
    where = holders(client, collections[:1])[0]
    counts = client.gather(client.map(_rows, *map(partitions, collections), pure=False))
    assert -1 not in counts, "rows have the labels of other rows"
    held: Counter[str] = Counter()
    for workers, rows in zip(where, counts, strict=True):
        held.update(dict.fromkeys(workers, rows))
    return max(held.values()) / sum(held.values()) * 4


def _rows(X: Any, y: Any) -> int:
    return len(X) if np.array_equal(np.asarray(X)[:, 0] * 2, np.asarray(y)) else -1


# --- one variant ----------------------------------------------------------------------


def rechunk(client: Client, method: str, old: list[Any], case: Case) -> list[Any]:
    """Load new partitions, and free the old ones, which only ``old`` holds."""
    if method == "ours":
        return list(clustertune.prepare(client, *old, rechunk=case.new,
                    release_inputs=True, progress=False))  # fmt: skip
    if method == "repartition":
        new = [c.repartition(npartitions=case.new) for c in old]
    else:
        new = [c.rechunk({0: case.rows // case.new}, method=method) for c in old]
    new = list(client.persist(new))
    old.clear()
    wait(new)
    return new


def warm_up(client: Client, case: Case, addresses: Sequence[str]) -> None:
    """Import, connect all workers, and use each method once."""
    made = [client.submit(np.ones, 1000, workers=[a], pure=False) for a in addresses]
    wait([client.submit(len, made, workers=[a], pure=False) for a in addresses])
    few = replace(case, rows=1600, columns=4, old=8, new=16)
    for method in case.rivals:
        old = load(client, few, addresses)
        rechunk(client, method, old, few)
    fresh = replace(few, columns=5)  # keys that ``old`` does not hold
    rechunk(client, "ours", load(client, fresh, addresses[:2]), few)


@contextmanager
def peaks(pids: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Increase of resident memory by worker, updated during the block."""
    processes = {w: psutil.Process(pid) for w, pid in pids.items()}
    start = {w: p.memory_info().rss for w, p in processes.items()}
    risen, done = dict.fromkeys(pids, 0), Event()

    def watch() -> None:
        while not done.wait(0.005):
            for w, process in processes.items():
                risen[w] = max(risen[w], process.memory_info().rss - start[w])

    thread = Thread(target=watch)
    thread.start()
    try:
        yield risen
    finally:
        done.set()
        thread.join()


def clocked(work: Callable[[], list[Any]]) -> tuple[list[Any], float, int]:
    """Result, seconds, and loopback bytes of some work."""
    before, start = _loopback(), perf_counter()
    result = work()
    return result, perf_counter() - start, _loopback() - before


def _loopback() -> int:
    return psutil.net_io_counters(pernic=True)["lo"].bytes_recv


def variant(method: str, case: Case) -> Figures:
    with cluster(2, memory_limit="6GiB") as client:
        sources = list(workers_of(client))
        old = load(client, case, sources)
        keys = {f.key for f in futures_of(old)}
        client.cluster.scale(4)
        client.wait_for_workers(4)
        receivers = [w for w in workers_of(client) if w not in sources]
        everyone = [*sources, *receivers]
        warm_up(client, case, everyone)
        client.run(settle)
        sleep(0.5)  # let background work end
        with peaks(client.run(settle)) as risen:
            new, seconds, nbytes = clocked(lambda: rechunk(client, method, old, case))
            figures = {"bare": seconds, "bare_bytes": nbytes}
            figures |= {"end": seconds, "end_bytes": nbytes}
            figures |= state(client, new, everyone, "bare_")
            if method != "ours":
                new, seconds, nbytes = clocked(
                    lambda: list(clustertune.prepare(client, *new, **WHOLE))
                )
                figures["end"] += seconds
                figures["end_bytes"] += nbytes
        figures["source"] = max(risen[w] for w in sources)
        figures["receiver"] = max(risen[w] for w in receivers)
        figures |= state(client, new, everyone)
        left = keys & {k for held in client.has_what().values() for k in held}
        assert not left, "old partitions are kept"
        figures["fullest"] = fullest(client, new)
        return figures


def state(
    client: Client, new: Sequence[Any], workers: Sequence[str], prefix: str = ""
) -> Figures:
    """Partitions by worker, unseparated pairs, and surplus replicas."""
    X, y = holders(client, new)
    found = {
        f"partitions_{i}": sum(w in held for held in X) for i, w in enumerate(workers)
    }
    found["pairs"] = sum(a == b for a, b in zip(X, y, strict=True))
    found["copies"] = sum(len(held) - 1 for held in [*X, *y])
    return {prefix + k: v for k, v in found.items()}


# --- all of them ----------------------------------------------------------------------


def tables(rounds: Rounds, case: Case) -> None:
    def cell(figure: str, unit: float = 1, form: str = ".2f") -> str:
        i = interval([r[figure] / unit for r in rounds])
        return f"{i.median:{form}} [{i.low:{form}}, {i.high:{form}}]"

    def peak(figure: str) -> str:
        return f"{cell(figure, 1e6, '.0f')} = {cell(figure, case.share)}"

    def placed(prefix: str) -> str:
        names = [*(f"partitions_{i}" for i in range(4)), "pairs"]
        counts = [f"{median(r[prefix + n] for r in rounds):.0f}" for n in names]
        return f"{'/'.join(counts[:4])}, {counts[4]}"

    cost, found = [], []
    for v in case.variants:
        seconds = [cell(f"{v}.{k}") for k in ("bare", "end")]
        mb = [cell(f"{v}.{k}_bytes", 1e6, ".0f") for k in ("bare", "end")]
        cost.append([v, *seconds, *mb])
        rose = [peak(f"{v}.{k}") for k in ("source", "receiver")]
        found.append(
            [v, *rose, placed(f"{v}.bare_"), placed(f"{v}."), cell(f"{v}.fullest")]
        )
    head = "variant", "bare (s)", "end (s)", "bare (MB)", "end (MB)"
    print(tabulate(cost, headers=head, disable_numparse=True), end="\n\n")
    head = "variant", "source's peak (MB = shares)", "receiver's peak"
    head += "bare: partitions, pairs", "end", "rows/share"
    print(tabulate(found, headers=head, disable_numparse=True), end="\n\n")


def judge(rounds: list[Figures], case: Case) -> None:
    """Compare with the aims, and in each round with the faster variant of Dask."""
    for r in rounds:
        r["rival"] = min(r[f"{m}.end"] for m in case.rivals)
    found = ratios(rounds, "ours.end", "rival")
    what = "ours / the faster of Dask's, to the same end state"
    compare(what, found, at_most=1, headline=True)
    moved = interval([r["ours.end_bytes"] / case.bound for r in rounds])
    compare("moved bytes / fewest possible", moved, at_most=1.05)
    for who, most in {"source": 0.25, "receiver": 1.25}.items():
        peaks = [r[f"ours.{who}"] / case.share for r in rounds]
        what = f"peak memory of a {who} / its final rows"
        compare(what, interval(peaks), at_most=most)
    wrong = [
        v
        for v in case.variants
        for r in rounds
        if r[f"{v}.fullest"] > 1.05 or r[f"{v}.copies"] or r[f"{v}.pairs"] != case.new
    ]
    good, total = len(case.variants) - len(set(wrong)), len(case.variants)
    compare("variants with the same end state", f"{good} of {total}", met=not wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--case", choices=CASES, default="big")
    parser.add_argument("--scale", type=int, default=2)
    parser.add_argument("--variant")
    chosen = parser.parse_args()
    case = CASES[chosen.case].divided(chosen.scale)
    if chosen.variant:
        # Dask warns that it ignores these annotations, but it does not
        warnings.filterwarnings("ignore", "Dask annotations")
        logging.getLogger("distributed.shuffle").setLevel(logging.ERROR)
        print(json.dumps(variant(chosen.variant, case)))
        return
    print(f"{chosen.case}: {case.rows:,} x {case.columns} float64, {case.old} -> "
          f"{case.new} partitions, with y, 2 -> 4 workers; {machine()}, "
          f"dask {dask.__version__}")  # fmt: skip
    print(f"{case.nbytes / 1e6:.0f} MB; bound {case.bound / 1e6:.0f} MB, final share "
          f"{case.share / 1e6:.0f} MB")  # fmt: skip
    given = (f"--case={chosen.case}", f"--scale={chosen.scale}")
    rounds = run(sys.argv[0], case.variants, chosen.rounds, *given)
    tables(rounds, case)
    judge(rounds, case)


if __name__ == "__main__":
    main()
