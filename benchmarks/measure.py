"""How the benchmarks measure: interleaved rounds, paired ratios, and a quiet machine.

Each round runs every variant once, in an order that rotates, so that a machine that
gets slower or faster meets all of them alike; only ratios within a round are compared.
A round in which anything else used the machine is thrown away and run again.
"""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

import dask
import psutil
from tabulate import tabulate

if TYPE_CHECKING:
    from distributed import Client

# what is measured is nobody's history
dask.config.set({"clustertune.history.enabled": False})

MOST_FOREIGN = 0.08  # share of all CPU time that others may have used in a round
MOST_TRIES = 4  # of one round
ORPHANS = "orphans"  # a figure: CPU seconds of processes that a variant has not awaited
LOOK = 0.2  # seconds between two looks at them


@contextmanager
def cluster(n_workers: int, **options: Any) -> Iterator[Client]:
    """A client of worker processes on this machine, of one thread and 4 GiB each."""
    # not above: some benchmarks measure what importing takes
    from distributed import Client, LocalCluster

    usual = {
        "threads_per_worker": 1,
        "memory_limit": "4GiB",
        "dashboard_address": "127.0.0.1:0",
    }
    with (
        LocalCluster(n_workers=n_workers, **(usual | options)) as started,
        Client(started) as client,
    ):
        yield client


def workers_of(client: Client) -> dict[str, dict[str, Any]]:
    """What the scheduler says of each worker, by address.

    Not ``client.scheduler_info()``, in which the client puts no workers now and then.
    """
    found: dict[str, dict[str, Any]] = client.sync(
        client.scheduler.identity, n_workers=-1
    )["workers"]
    return found


@dataclass(frozen=True)
class Interval:
    """The median of some values and its 95 % confidence interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} [{self.low:.3g}, {self.high:.3g}]"


def interval(values: Sequence[float]) -> Interval:
    """Median and distribution-free interval of at least 95 %, from order statistics.

    With fewer than six values no such interval exists; then it is the whole range, and
    its true confidence is lower.
    """
    ordered = sorted(values)
    n = len(ordered)
    outside = 0  # values left out at each end
    while 2 * _at_most(outside, n) <= 0.05:
        outside += 1
    outside = max(0, outside - 1)
    return Interval(median(ordered), ordered[outside], ordered[n - 1 - outside])


def _at_most(k: int, n: int) -> float:
    """Chance that at most k of n values lie below the median."""
    return sum(math.comb(n, i) for i in range(k + 1)) / 2**n


def ratios(rounds: Sequence[Mapping[str, float]], over: str, under: str) -> Interval:
    """The interval of the paired ratio of two figures."""
    return interval([r[over] / r[under] for r in rounds])


def run(
    script: str,
    variants: Sequence[str],
    n_rounds: int,
    *arguments: str,
    tries: int = MOST_TRIES,
) -> list[dict[str, float]]:
    """Run all variants in each round, each as a process of its own.

    A variant is ``script --variant NAME arguments...``; its last line is a JSON object
    of figures. They come back prefixed with the variant's name, with the ``idle`` and
    ``foreign`` shares of the round's CPU time.
    """
    rounds: list[dict[str, float]] = []
    while len(rounds) < n_rounds:
        turn = len(rounds) % len(variants)
        order = [*variants[turn:], *variants[:turn]]
        for attempt in range(tries):
            figures = _round(script, order, arguments)
            quiet = figures["foreign"] <= MOST_FOREIGN
            print(
                f"round {len(rounds) + 1}: idle {figures['idle']:.0%}, others "
                f"{figures['foreign']:.1%}"
                + ("" if quiet else f", not quiet (try {attempt + 1})"),
                flush=True,
            )
            if quiet:
                break
        rounds.append(figures)
    return rounds


def alternate(
    variants: Mapping[str, Callable[[], float]],
    n_rounds: int,
    *,
    tries: int = MOST_TRIES,
) -> list[dict[str, float]]:
    """Run all variants in each round, in this process and its children that live on.

    For variants that are as short as a second: starting a cluster for each would take
    longer than all rounds. A variant returns its figure; the rest is as with
    :func:`run`.
    """
    names, rounds = list(variants), []
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    while len(rounds) < n_rounds:
        turn = len(rounds) % len(names)
        for _ in range(tries):
            start, busy, ours = perf_counter(), _busy(), _used(processes)
            order = [*names[turn:], *names[:turn]]
            figures = {name: variants[name]() for name in order}
            shares = _shares(start, busy, _used(processes) - ours)
            if shares["foreign"] <= MOST_FOREIGN:
                break
        rounds.append(figures | shares)
    return rounds


def _used(processes: Sequence[psutil.Process]) -> float:
    """CPU seconds of processes so far."""
    times = [process.cpu_times() for process in processes]
    return sum(t.user + t.system for t in times)


def _shares(start: float, busy: float, ours: float) -> dict[str, float]:
    """Of all CPU time since then: what nobody used, and what neither did ``ours``."""
    total = (perf_counter() - start) * (os.cpu_count() or 1)
    busy = _busy() - busy
    return {
        "idle": max(0.0, 1 - busy / total),
        "foreign": max(0.0, busy - ours) / total,
    }


def _round(
    script: str, order: Sequence[str], arguments: Sequence[str]
) -> dict[str, float]:
    figures: dict[str, float] = {}
    start, busy, ours = perf_counter(), _busy(), _children()
    for name in order:
        command = [sys.executable, script, "--variant", name, *arguments]
        result = _figures(command, name)
        ours -= result.pop(ORPHANS, 0.0)
        figures |= {f"{name}.{k}": v for k, v in result.items()}
    return figures | _shares(start, busy, _children() - ours)


def _figures(command: Sequence[str], name: str) -> dict[str, float]:
    """What a variant has printed last.

    Python before 3.14 can abort in its own end, when a daemon thread meets C++ code
    there ("exception not rethrown", CPython issue 87135): by then the figures are
    printed, and count.
    """
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode == -signal.SIGABRT and last.startswith("{"):
        print(f"{name}: the process aborted after it had printed its figures")
    else:
        done.check_returncode()
    return dict(json.loads(last))


def _busy() -> float:
    """CPU seconds used so far by anybody; what a neighbour of the machine stole too."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def _children() -> float:
    """CPU seconds of the children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def orphans() -> Iterator[dict[str, float]]:
    """What processes below this one use, if nobody is going to wait for them: the
    system counts them as anybody's. The figure is there at the end.

    They come and go, so they are looked at all the time.
    """
    used: dict[int, float] = {}
    over = Event()

    def watch() -> None:
        while not over.wait(LOOK):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    used[process.pid] = _used([process])

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    figures: dict[str, float] = {}
    try:
        yield figures
    finally:
        over.set()
        watcher.join()
        figures[ORPHANS] = sum(used.values())


def reset_peak() -> None:
    """Let :func:`peak` count from here on."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Bytes of memory that this process has had at most, as the kernel keeps them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (x for x in lines if x.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def show(rounds: Sequence[Mapping[str, float]], figures: Mapping[str, str]) -> None:
    """Print median and interval of single figures, by name in the rounds."""
    rows = [
        [title, str(interval([r[name] for r in rounds]))]
        for name, title in figures.items()
    ]
    print(tabulate(rows, headers=["figure", "median [95 %]"], disable_numparse=True))


def machine() -> str:
    """What was measured on, without names."""
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} CPUs, {memory:.0f} GiB, Python {platform.python_version()}"
    )
