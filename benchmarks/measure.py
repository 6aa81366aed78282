"""How the benchmarks measure: interleaved rounds and paired ratios.

Each round runs every variant once, in rotating order. A machine that becomes slower
affects all variants, because only ratios within a round are compared. A round in which
other processes used the machine is run again.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import platform
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
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

# scripts build views with the helpers of the tests
sys.path.append(str(Path(__file__).parents[1]))

# benchmark runs do not belong in the user's history
dask.config.set({"clustertune.history.enabled": False})

MOST_FOREIGN = 0.08  # fraction of CPU time that other processes may use in a round
MOST_TRIES = 4  # of one round
ORPHANS = "orphans"  # CPU seconds of processes that a variant did not wait for
ORPHAN_INTERVAL = 0.2  # seconds between two reads of their CPU time
FIGURES = "figures: "  # the begin of what a kept process prints of a round
RECORD = "CLUSTERTUNE_BENCHMARK_RECORD"  # variable with the path of the results


@contextmanager
def cluster(n_workers: int, **options: Any) -> Iterator[Client]:
    """A client of worker processes on this machine, of one thread and 4 GiB each."""
    # imported here: some benchmarks measure the import time
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
    """The scheduler's information about each worker, by address.

    ``client.scheduler_info()`` sometimes has no workers.
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
    """Median and distribution-free 95 % interval, from order statistics.

    Fewer than six values have no such interval. Then the interval is their range.
    """
    ordered = sorted(values)
    n = len(ordered)
    outside = 0  # values left out at each end
    while 2 * _at_most(outside, n) <= 0.05:
        outside += 1
    outside = max(0, outside - 1)
    return Interval(median(ordered), ordered[outside], ordered[n - 1 - outside])


def _at_most(k: int, n: int) -> float:
    """Probability that at most k of n values are below the median."""
    return sum(math.comb(n, i) for i in range(k + 1)) / 2**n


def ratios(rounds: Sequence[Mapping[str, float]], over: str, under: str) -> Interval:
    """The interval of the paired ratio of two figures."""
    return interval([r[over] / r[under] for r in rounds])


@dataclass(frozen=True)
class Comparison:
    """One result of a benchmark, as the documentation shows it."""

    what: str
    value: str
    aim: str = ""
    met: bool | None = None  # None: without an aim
    headline: bool = False  # whether the first table of the page has it

    def __str__(self) -> str:
        if self.met is None:
            return f"{self.what}: {self.value}"
        met = "met" if self.met else "NOT met"
        return f"{self.what}: {self.value}, aim {self.aim}: {met}"


def compare(
    what: str,
    value: Interval | float | str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    unit: str = "",
    met: bool | None = None,
    headline: bool = False,
) -> None:
    """Print and record a result. An aim is met if the whole interval meets it."""
    low, high = (
        (value.low, value.high) if isinstance(value, Interval) else (value, value)
    )
    aim = ""
    if at_most is not None:
        aim, met = f"<= {at_most:g}{unit}", high <= at_most
    elif at_least is not None:
        aim, met = f">= {at_least:g}{unit}", low >= at_least
    elif met is not None:
        aim = "all"
    shown = f"{value:.3g}" if isinstance(value, float) else str(value)
    found = Comparison(what, f"{shown}{unit}", aim, met, headline)
    print(found, flush=True)
    if RECORD in os.environ:
        with Path(os.environ[RECORD]).open("a") as file:
            file.write(f"{json.dumps(asdict(found), ensure_ascii=False)}\n")


def run(
    script: str,
    variants: Sequence[str],
    n_rounds: int,
    *arguments: str,
    tries: int = MOST_TRIES,
    kept: bool = False,
) -> list[dict[str, float]]:
    """Run all variants in each round, each in its own process.

    A variant is ``script --variant NAME arguments...``; the last line that it prints is
    a JSON object of figures. Their names get the variant's name as a prefix. A round
    also has the fractions of CPU time that were ``idle`` and ``foreign``. ``kept``
    processes start once and play all rounds, as :func:`serve` does; between their turns
    they wait, with their clusters.
    """
    rounds: list[dict[str, float]] = []
    commands = {
        name: [sys.executable, script, "--variant", name, *arguments]
        for name in variants
    }
    with ExitStack() as processes:
        play: dict[str, Callable[[], dict[str, float]]] = {
            name: processes.enter_context(_kept(command))
            if kept
            else partial(_figures, command, name)
            for name, command in commands.items()
        }
        while len(rounds) < n_rounds:
            turn = len(rounds) % len(variants)
            order = [*variants[turn:], *variants[:turn]]
            for attempt in range(tries):
                figures = _round({name: play[name] for name in order})
                quiet = figures["foreign"] <= MOST_FOREIGN
                print(
                    f"round {len(rounds) + 1}: idle {figures['idle']:.0%}, others "
                    f"{figures['foreign']:.1%}"
                    + ("" if quiet else f", too many others (try {attempt + 1})"),
                    flush=True,
                )
                if quiet:
                    break
            rounds.append(figures)
    return rounds


def serve(rounds: Generator[Mapping[str, float], None, None]) -> None:
    """Play a round for each line of input, and print its figures.

    The first one is ready, but not played, before the first line is read: the
    generator yields nothing at first.
    """
    with closing(rounds):
        next(rounds)
        print(f"{FIGURES}{{}}", flush=True)
        for _ in sys.stdin:
            print(f"{FIGURES}{json.dumps(next(rounds))}", flush=True)


def alternate(
    variants: Mapping[str, Callable[[], float]],
    n_rounds: int,
    *,
    tries: int = MOST_TRIES,
) -> list[dict[str, float]]:
    """Run all variants in each round, in this process and on the same cluster.

    For variants of about a second, for which starting clusters would take too long. A
    variant returns its figure; the rest is as in :func:`run`.
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
    """Fractions of CPU time since ``start``: unused, and used by other processes."""
    total = (perf_counter() - start) * (os.cpu_count() or 1)
    busy = _busy() - busy
    return {
        "idle": max(0.0, 1 - busy / total),
        "foreign": max(0.0, busy - ours) / total,
    }


def _round(play: Mapping[str, Callable[[], dict[str, float]]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    start, busy, ours = perf_counter(), _busy(), _children()
    for name, each in play.items():
        result = each()
        ours -= result.pop(ORPHANS, 0.0)
        figures |= {f"{name}.{k}": v for k, v in result.items()}
    return figures | _shares(start, busy, _children() - ours)


@contextmanager
def _kept(command: Sequence[str]) -> Iterator[Callable[[], dict[str, float]]]:
    """Start a process that serves rounds; yield the function that plays one."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        out = process.stdout

        def answer() -> dict[str, float]:
            for line in out:
                # a library may have printed something without the end of its line
                _, found, figures = line.partition(FIGURES)
                if found:
                    return dict(json.loads(figures))
            raise subprocess.CalledProcessError(process.wait(), command)

        def play() -> dict[str, float]:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return answer()

        answer()
        yield play
        process.stdin.close()
        out.read()


def _figures(command: Sequence[str], name: str) -> dict[str, float]:
    """The figures that a variant printed last.

    Python before 3.14 can abort at exit when a daemon thread runs C++ code ("exception
    not rethrown", CPython issue 87135). The figures are printed before that.
    """
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode == -signal.SIGABRT and last.startswith("{"):
        print(f"{name}: the process aborted after it had printed its figures")
    else:
        done.check_returncode()
    return dict(json.loads(last))


def _busy() -> float:
    """CPU seconds used so far by all processes, with time stolen by other machines."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def _children() -> float:
    """CPU seconds of the processes that this one and its children have started."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = usage.ru_utime + usage.ru_stime
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            t = process.cpu_times()
            used += t.user + t.system + t.children_user + t.children_system
    return used


@contextmanager
def orphans() -> Iterator[dict[str, float]]:
    """CPU seconds of child processes that end without a parent that waits for them.

    The system counts them as foreign. The figure is set at the end. Processes start and
    end during the block, so their times are read repeatedly.
    """
    used: dict[int, float] = {}
    over = Event()

    def read() -> None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                used[process.pid] = _used([process])

    def watch() -> None:
        while not over.wait(ORPHAN_INTERVAL):
            read()

    read()
    before = sum(used.values()) - _children()

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    figures: dict[str, float] = {}
    try:
        yield figures
    finally:
        over.set()
        watcher.join()
        figures[ORPHANS] = max(0.0, sum(used.values()) - _children() - before)


def settle() -> int:
    """Give freed memory back to the system; return the id of the process."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return os.getpid()


def reset_peak() -> None:
    """Restart the measurement of :func:`peak`."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Largest resident memory of this process in bytes, from the kernel."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (x for x in lines if x.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def show(rounds: Sequence[Mapping[str, float]], figures: Mapping[str, str]) -> None:
    """Print median and interval of figures, with their titles."""
    rows = [
        [title, str(interval([r[name] for r in rounds]))]
        for name, title in figures.items()
    ]
    print(tabulate(rows, headers=["figure", "median [95 %]"], disable_numparse=True))


def machine() -> str:
    """CPUs, memory and Python version."""
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} CPUs, {memory:.0f} GiB, Python {platform.python_version()}"
    )
