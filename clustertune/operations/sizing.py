"""``recommend_size``: compute the cluster that a fit needs, before it exists.

``decide`` is pure. Its inputs are the size of the data, the profile of the model, and
one host. It uses the rules of the checks ``fit_memory`` and ``thread_count``, and keeps
managed memory below Dask's spill target.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from clustertune.checks.memory import USUAL
from clustertune.core import arguments, settings
from clustertune.core.model import Profile
from clustertune.core.profiles import TrainingShare
from clustertune.core.wording import bytes_text, plural, printable
from clustertune.errors import CapacityError, RefusedError
from clustertune.integrations import libraries
from clustertune.remote.worker import probe

RESERVED = 0.1  # of a host's memory: for its system, the scheduler, the user's process
MIN_RESERVED = 2**29  # bytes
SPILL_TARGET = 0.6  # of the memory limit: Dask's default target, above which it spills
TOLERANCE = 0.05  # by which prepare lets the fullest worker exceed its share
MANAGED = 2  # largest managed memory during a fit, as a multiple of the data
STEP = 2**28  # bytes of which memory limits are multiples
MOST = 10**18  # rows, or columns
MOST_HOSTS = 2**40
SMALLER = "a smaller max_depth, num_leaves or max_bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The size of all data for a fit: X, y, weights, eval sets."""

    rows: int
    columns: int
    nbytes: int  # in memory
    itemsize: int  # bytes of a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Workers of one host."""

    workers_per_host: int
    threads: int  # of a worker
    memory_limit: int  # bytes of a worker


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sizing(Shape):
    """A recommended cluster, with the reasons."""

    data: Dataset
    workload: str
    host_cpus: int
    host_memory: int
    hosts: int
    worker_bytes: int  # of the fullest worker's process in the fit
    worker_data: int
    one_machine: bool  # whether one process without Dask surely has enough
    reasons: tuple[str, ...]

    @property
    def workers(self) -> int:
        return self.hosts * self.workers_per_host

    @property
    def lines(self) -> Mapping[str, str]:
        """Code that starts the cluster, by the class or command; one line per host."""
        limit = size_text(self.memory_limit)
        each, threads = self.workers_per_host, self.threads
        local = (
            f"LocalCluster(n_workers={each}, threads_per_worker={threads}, "
            f'memory_limit="{limit}")'
        )
        return ({"LocalCluster": local} if self.hosts == 1 else {}) | {
            "dask worker": "dask worker tcp://SCHEDULER:8786 "
            f'--nworkers {each} --nthreads {threads} --memory-limit "{limit}"',
        }

    def __repr__(self) -> str:
        alone = "One machine without Dask is enough. Otherwise: "
        several = f" (the last line on each of {self.hosts:,} hosts)"
        shape = (
            f"{plural(self.workers, 'worker')} x {plural(self.threads, 'thread')} x "
            f"{size_text(self.memory_limit)}, on {plural(self.hosts, 'host')} with "
            f"{plural(self.host_cpus, 'CPU')} and {bytes_text(self.host_memory)}"
        )
        why = "\n".join(f"- {printable(reason)}" for reason in self.reasons)
        return (
            f"{alone if self.one_machine else ''}{shape}\n\nReasons\n{why}\n\n"
            f"Start it with{several if self.hosts > 1 else ''}\n"
        ) + "\n".join(self.lines.values())

    def to_json(self) -> str:
        """Return the recommendation as JSON, with ``schema_version``."""
        derived = {"workers": self.workers, "lines": dict(self.lines)}
        return json.dumps({"schema_version": 1} | asdict(self) | derived)


def recommend_size(
    *,
    rows: int,
    columns: int,
    dtype: Any = None,
    estimator: object = None,
    host_cpus: int | None = None,
    host_memory: int | str | None = None,
) -> Sizing:
    """Compute the cluster that a fit needs, before the cluster exists.

    Parameters
    ----------
    rows, columns
        Rows, and columns of all data together: features, labels, weights.
    dtype
        The type of the numbers, by default float64.
    estimator
        The model, or the name of a workload, like ``"xgboost"``.
    host_cpus, host_memory
        CPUs and memory of one host, like ``16`` and ``"64 GiB"``. The default is the
        part of this machine that this process may use.

    Returns
    -------
    Sizing
        A frozen record of bytes and peaks, with ``lines`` to start the cluster.

    Raises
    ------
    ValueError
        An argument is invalid.
    CapacityError
        No number of such hosts suffices.
    RefusedError
        No layout of the data helps the library; the message names an alternative.

    Examples
    --------
    >>> clustertune.recommend_size(                                # doctest: +SKIP
    ...     rows=10**8, columns=51, dtype="float32", estimator="xgboost")
    """
    profile = libraries.choose(estimator)
    cpus = arguments.count("host_cpus", host_cpus) or probe.usable_cpus()
    memory = arguments.nbytes("host_memory", host_memory) or probe.host_memory()
    data = dense(rows, columns, dtype)
    memory_fraction = settings.fractions()["memory_fraction"]
    return decide(data, profile, cpus, memory, memory_fraction=memory_fraction)


def dense(rows: int, columns: int, dtype: object) -> Dataset:
    """Return the size of an array of one number type."""
    n_rows = arguments.number("rows", rows, most=MOST)
    n_columns = arguments.number("columns", columns, most=MOST)
    width = arguments.number_size("dtype", dtype)
    nbytes = n_rows * n_columns * width
    return Dataset(rows=n_rows, columns=n_columns, nbytes=nbytes, itemsize=width)


# --- the decision (pure) --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Memory that a fit needs."""

    data: Dataset
    profile: Profile
    fraction: float  # of the memory limit that the fit may fill
    surely: bool = True  # by the most that the profile allows; False: by the least

    @property
    def base(self) -> int:  # bytes of a process without data
        return self.profile.base_bytes or USUAL

    def share(self, n_workers: int) -> float:
        """Return the part of the data on the fullest of ``n_workers`` workers."""
        return (1 + TOLERANCE if n_workers > 1 else 1) / n_workers

    def fit_bytes(self, n_workers: int, threads: int) -> float:
        """Return the bytes of the fullest worker's fit besides its data."""
        data, profile, share = self.data, self.profile, self.share(n_workers)
        if profile.fit_memory is None:
            multiple = profile.multiple(data.itemsize)
            return share * (multiple * data.nbytes - data.nbytes)
        part = TrainingShare(
            rows=share * data.rows,
            all_rows=data.rows,
            columns=data.columns,
            itemsize=data.itemsize,
            threads=threads,
            workers=n_workers,
        )
        least, most = profile.fit_memory(part)
        return most if self.surely else least

    def process(self, n_workers: int, threads: int) -> float:
        """Return the bytes of the fullest worker's process in the call of ``fit``."""
        nbytes = self.share(n_workers) * self.data.nbytes
        extra = max(self.fit_bytes(n_workers, threads), (MANAGED - 1) * nbytes)
        return self.base + nbytes + extra

    def suffices(self, shape: Shape, hosts: int) -> bool:
        """Return whether the fullest worker on so many hosts has enough memory."""
        n, limit = hosts * shape.workers_per_host, shape.memory_limit
        if MANAGED * self.share(n) * self.data.nbytes > SPILL_TARGET * limit:
            return False
        return self.process(n, shape.threads) <= self.fraction * limit

    def hosts(self, shape: Shape) -> float:
        """Return the number of needed hosts; infinity: no number suffices."""
        few = n = 0
        while n < MOST_HOSTS:
            # short steps: what XGBoost keeps for all workers grows with their number
            few, n = n + 1, n + n // 16 + 1
            if self.suffices(shape, n):
                between = range(few, n)
                rest = bisect_left(between, True, key=lambda n: self.suffices(shape, n))
                return few + int(rest)
        return math.inf


def decide(
    data: Dataset, profile: Profile, cpus: int, memory: int, *, memory_fraction: float
) -> Sizing:
    """Choose hosts, workers, threads and memory limits.

    The fewest hosts win. Of equal numbers, the shape that suits the library wins: one
    worker with all threads, or as many workers as CPUs.
    """
    if not profile.persist:
        raise RefusedError(
            f"{profile.title} reads partition by partition and keeps none, so a worker "
            "needs memory for two partitions per thread, whatever the size of the data"
        )
    for surely in (True, False):
        fit = Fit(data=data, profile=profile, fraction=memory_fraction, surely=surely)
        # of equals the first: shapes are ordered by how well they suit
        shape = min(shapes(profile, cpus, memory), key=fit.hosts, default=None)
        if shape is not None and fit.hosts(shape) < math.inf:
            break
    else:
        trees, smaller = "", ""
        if profile.fit_memory is not None:
            trees, smaller = " and its trees", f"train with {SMALLER}, "
        raise CapacityError(
            f"no number of hosts with {plural(cpus, 'CPU')} and {bytes_text(memory)} "
            f"is enough: {bytes_text(_reserved(memory))} of each are reserved, and a "
            f"worker's process has {bytes_text(fit.base)}{trees} before its data; take "
            f"hosts with more memory (host_memory), {smaller}or let the fit fill more "
            "of it (memory_fraction)"
        )
    hosts = int(fit.hosts(shape))
    n_workers = hosts * shape.workers_per_host
    share = fit.share(n_workers) * data.nbytes
    process = fit.process(n_workers, shape.threads)
    single = fit.base + data.nbytes + fit.fit_bytes(1, cpus)
    bound = "up to" if fit.surely else "at least"
    why = "Python code of one process runs on one thread at a time"
    if profile.uses_worker_threads:
        why = "one training task takes all threads of its worker"
    elif shape.threads > 1:
        why += "; but with more and smaller workers, more hosts would be needed"
    reasons = {
        "one process without Dask": "would need "
        f"{'' if fit.surely else 'at least '}{bytes_text(single)} of one machine's "
        f"{bytes_text(memory)}",
        "data": f"{plural(data.rows, 'row')} of {plural(data.columns, 'column')} of "
        f"{data.itemsize} bytes, {bytes_text(data.nbytes)}",
        "memory": f"with {profile.title} a worker takes {bound} "
        f"{bytes_text(fit.fit_bytes(n_workers, shape.threads))} besides its data "
        f"({profile.source}), and {bytes_text(fit.base)} for its process; it may fill "
        f"{fit.fraction:.0%} of the limit",
        "threads": f"{plural(shape.workers_per_host, 'worker')} of "
        f"{plural(shape.threads, 'thread')} on each host, since {why}",
        "a worker": f"has up to {bytes_text(share)} of data and will take {bound} "
        f"{bytes_text(process)} of {bytes_text(shape.memory_limit)}",
    }
    if not fit.surely:
        most = replace(fit, surely=True).process(n_workers, shape.threads)
        reasons["trees"] = (
            f"a worker takes up to {bytes_text(most)} if they have all nodes that the "
            f"model allows, and keeps what it frees; {SMALLER} is safer"
        )
    return Sizing(
        **asdict(shape),
        data=data,
        workload=profile.name,
        host_cpus=cpus,
        host_memory=memory,
        hosts=hosts,
        worker_bytes=round(process),
        worker_data=round(share),
        one_machine=fit.surely and single <= fit.fraction * memory,
        reasons=tuple(f"{what}: {text}" for what, text in reasons.items()),
    )


def shapes(profile: Profile, cpus: int, memory: int) -> Iterator[Shape]:
    """Yield the ways to use all CPUs of a host; the first suits the library best."""
    counts = [n for n in range(1, cpus + 1) if cpus % n == 0]
    for n in counts[:1] if profile.uses_worker_threads else reversed(counts):
        limit = int((memory - _reserved(memory)) / n // STEP * STEP)
        if limit > 0:
            yield Shape(workers_per_host=n, threads=cpus // n, memory_limit=limit)


def _reserved(memory: int) -> float:
    return max(RESERVED * memory, MIN_RESERVED)


def size_text(nbytes: int) -> str:
    """Return text that Dask reads as exactly these bytes: ``"12.25 GiB"``."""
    return f"{nbytes / 2**30:.15g} GiB"
