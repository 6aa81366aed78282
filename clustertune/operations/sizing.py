"""``recommend_size``: compute the cluster that a fit needs, before it exists.

``decide`` is pure. Its inputs are the size of the data, the profile of the library, and
one host. It uses the rules of the checks ``fit_memory`` and ``thread_count``, and keeps
managed memory below Dask's spill target.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any

import numpy as np

from clustertune.checks.memory import USUAL
from clustertune.core import arguments, settings
from clustertune.core.model import Profile
from clustertune.core.wording import (
    bytes_text,
    plural,
    printable,
    times_text,
)
from clustertune.errors import CapacityError, RefusedError
from clustertune.integrations import libraries
from clustertune.remote.worker import probe

RESERVED = 0.1  # of a host's memory: for its system, the scheduler, the user's process
MIN_RESERVED = 2**29  # bytes
SPILL_TARGET = 0.6  # of the memory limit: Dask's default target, above which it spills
TOLERANCE = 0.05  # by which prepare lets the fullest worker exceed its share
PARTITIONS_PER_THREAD = 2  # of data read by partition: the current and the next one
MOST = 10**18  # rows, or columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The size of all data for a fit: X, y, weights."""

    rows: int
    columns: int
    nbytes: int  # in memory
    itemsize: int  # bytes of the widest number in a row
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """A recommended cluster, with the reasons; ``n_hosts`` are available."""

    data: Dataset
    eval_bytes: int
    workload: str
    host_cpus: int
    host_memory: int
    n_hosts: int | None
    hosts: int  # as many as needed, or n_hosts if that suffices
    workers_per_host: int
    threads: int  # of a worker
    memory_limit: int  # of a worker
    worker_bytes: int  # of the fullest worker's process in the fit
    worker_data: int
    one_machine: bool  # whether one process without Dask has enough memory
    reasons: tuple[str, ...]

    @property
    def workers(self) -> int:
        return self.hosts * self.workers_per_host

    @property
    def enough(self) -> bool:
        """Whether the available hosts suffice; True if their number is not given."""
        return self.n_hosts is None or self.hosts <= self.n_hosts

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
            "SLURMCluster": f"cluster = SLURMCluster(cores={each * threads}, "
            f'processes={each}, memory="{size_text(self.memory_limit * each)}"); '
            f"cluster.scale(jobs={self.hosts})",
            "dask worker": "dask worker tcp://SCHEDULER:8786 "
            f'--nworkers {each} --nthreads {threads} --memory-limit "{limit}"',
        }

    def __str__(self) -> str:
        why = "\n".join(f"- {printable(reason)}" for reason in self.reasons)
        several = f" (the last line on each of {self.hosts:,} hosts)"
        start = f"Start it with{several if self.hosts > 1 else ''}"
        lines = "\n".join(self.lines.values())
        return f"{self._title()}\n\nReasons\n{why}\n\n{start}\n{lines}"

    def __repr__(self) -> str:
        return f"<Sizing: {self._shape()}>"

    def _repr_html_(self) -> str:
        return f'<div class="clustertune"><pre>{escape(str(self))}</pre></div>'

    def to_json(self) -> str:
        """Return the recommendation as JSON, with ``schema_version``."""
        derived = {"workers": self.workers, "enough": self.enough}
        known = {"schema_version": 1} | asdict(self) | derived
        return json.dumps(known | {"lines": dict(self.lines)})

    def _title(self) -> str:
        if self.one_machine:
            return f"One machine without Dask is enough. Otherwise: {self._shape()}"
        if not self.enough:
            hosts = plural(self.n_hosts or 0, "such host", "such hosts")
            return f"Too large for {hosts}. Needed: {self._shape()}"
        return self._shape()

    def _shape(self) -> str:
        return (
            f"{plural(self.workers, 'worker')} x "
            f"{plural(self.threads, 'thread')} x {size_text(self.memory_limit)}, on "
            f"{plural(self.hosts, 'host')} with {plural(self.host_cpus, 'CPU')} and "
            f"{bytes_text(self.host_memory)}"
        )


def recommend_size(
    *collections: Any,
    rows: int | None = None,
    columns: int | None = None,
    dtype: Any = None,
    estimator: object = None,
    eval_fraction: float = 0.0,
    host_cpus: int | None = None,
    host_memory: int | str | None = None,
    n_hosts: int | None = None,
) -> Sizing:
    """Compute the cluster that a fit needs, before the cluster exists.

    Parameters
    ----------
    *collections
        X, y and others as Dask collections, lazy or persisted; no data is loaded.
    rows, columns
        Instead of collections: rows, and columns of all data together.
    dtype
        Type of the numbers; float64, or the types of the collections, by default.
    estimator
        The model, or the name of a workload, like ``"xgboost"``.
    eval_fraction
        Rows of eval sets, as a fraction of the rows of the data.
    host_cpus, host_memory
        CPUs and memory of one host, like ``16`` and ``"64 GiB"``. The default is the
        part of this machine that this process may use.
    n_hosts
        Number of available hosts; by default as many as needed.

    Returns
    -------
    Sizing
        A frozen record of bytes and peaks, with ``lines`` to start the cluster.

    Raises
    ------
    ValueError
        An argument is invalid, or the size of the data is unknown.
    CapacityError
        No number of such hosts suffices.
    RefusedError
        No layout of the data helps the library; the message names an alternative.

    Examples
    --------
    >>> clustertune.recommend_size(X, y, estimator="xgboost")      # doctest: +SKIP
    """
    profile = libraries.choose(estimator)
    host = Host(
        cpus=arguments.count("host_cpus", host_cpus) or probe.usable_cpus(),
        memory=arguments.nbytes("host_memory", host_memory) or probe.host_memory(),
    )
    if collections and (rows is not None or columns is not None):
        raise ValueError("give collections, or rows and columns, and not both")
    return decide(
        measured(collections, dtype) if collections else dense(rows, columns, dtype),
        profile,
        host,
        eval_fraction=arguments.fraction("eval_fraction", eval_fraction, zero=True),
        memory_fraction=settings.fractions()["memory_fraction"],
        n_hosts=arguments.count("n_hosts", n_hosts),
    )


def dense(rows: object, columns: object, dtype: object) -> Dataset:
    """Return the size of an array of one number type."""
    n_rows = arguments.count("rows", rows, MOST)
    n_columns = arguments.count("columns", columns, MOST)
    if n_rows is None or n_columns is None:
        raise ValueError(
            f"rows={rows!r} and columns={columns!r} go together: give both, or Dask "
            "collections"
        )
    name = arguments.number_type("dtype", dtype) or "float64"
    width = np.dtype(name).itemsize
    if (nbytes := n_rows * n_columns * width) >= 2**63:
        raise ValueError(
            f"rows={rows!r} and columns={columns!r} are {nbytes:.1e} bytes, more than "
            "any cluster has; give the number of rows and the number of columns"
        )
    return Dataset(
        rows=n_rows,
        columns=n_columns,
        nbytes=nbytes,
        itemsize=width,
        type=name if dtype is not None else f"{name}, the default type",
    )


def measured(collections: Sequence[Any], dtype: object) -> Dataset:
    """Return the size of Dask collections by their metadata."""
    from clustertune.collections import inputs, loading, metadata

    found: list[Dataset] = []
    for label, x in ((g.label, g.collection) for g in inputs.of_rows(collections)):
        rows = loading.lengths(x, asynchronous=True)  # runs no tasks
        known = metadata.describe(label, x, (), loaded=False, rows=rows)
        if rows is None or not (known.columns and known.itemsize and known.total_bytes):
            raise ValueError(
                f"the bytes of {label} are unknown by its metadata: only tasks can "
                "count its rows, or values have no fixed width; give rows= and "
                "columns= of the numbers instead of collections"
            )
        found.append(
            Dataset(
                rows=int(rows.sum()),
                columns=known.columns,
                nbytes=known.total_bytes,
                itemsize=known.itemsize,
                type="their types",
            )
        )
    if len({x.rows for x in found}) > 1:
        raise ValueError("the collections have different numbers of rows")
    columns = sum(x.columns for x in found)
    if arguments.number_type("dtype", dtype):
        return dense(found[0].rows, columns, dtype)
    return replace(
        found[0],
        columns=columns,
        nbytes=sum(x.nbytes for x in found),
        itemsize=max(x.itemsize for x in found),
    )


# --- the decision (pure) --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Resources of one host."""

    cpus: int
    memory: int  # bytes

    @property
    def reserved(self) -> float:
        """Bytes that no worker gets."""
        return max(RESERVED * self.memory, MIN_RESERVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Workers of one host."""

    workers: int
    threads: int  # of a worker
    limit: int  # bytes of a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Memory that a fit needs."""

    shared: float  # bytes of data that all workers share
    copied: float  # bytes of data that every worker has
    base: int  # bytes of a process without data
    multiple: float  # process bytes in the fit, as a multiple of the worker's data
    held: int  # largest managed memory, as a multiple of the worker's data
    partition: int | None  # bytes of a partition of data not kept; None: it is kept
    fraction: float  # of the memory limit that the fit may fill

    def data(self, n_workers: int, threads: int) -> float:
        """Return the bytes of data on the fullest of ``n_workers`` workers."""
        uneven = 1 + TOLERANCE if n_workers > 1 else 1
        share = self.shared / n_workers * uneven + self.copied
        if self.partition is None:
            return share
        return min(share, PARTITIONS_PER_THREAD * threads * self.partition)

    def process(self, data: float) -> float:
        """Return the bytes of the process of a worker that has ``data`` bytes."""
        return self.base + max(self.multiple, self.held) * data

    def most(self, limit: int) -> float:
        """Return the largest data, in bytes, for which a memory limit suffices."""
        free = self.fraction * limit - self.base
        lines = [free / max(self.multiple, self.held)]
        lines += [SPILL_TARGET * limit / self.held] if self.held else []
        return max(0.0, min(lines))

    def hosts(self, shape: Shape) -> int | None:
        """Return the number of needed hosts; None: no number suffices."""
        most = self.most(shape.limit)
        if self.data(shape.workers, shape.threads) <= most:
            return 1
        free = (most - self.copied) * shape.workers
        if free <= 0:
            return None
        # the last factor keeps rounding from overfilling the fullest worker
        return max(2, math.ceil(self.shared * (1 + TOLERANCE) / free * (1 + 1e-9)))


def decide(
    data: Dataset,
    profile: Profile,
    host: Host,
    *,
    eval_fraction: float,
    memory_fraction: float,
    n_hosts: int | None = None,
) -> Sizing:
    """Choose hosts, workers, threads and memory limits.

    The fewest hosts win. Of equal numbers, the shape that suits the library wins: one
    worker with all threads, or as many workers as CPUs.
    """
    if profile.refused:
        raise RefusedError(
            f"no size of a cluster follows from the data for {profile.title}: "
            f"{profile.refused}"
        )
    fit = _fit(data, profile, eval_fraction, memory_fraction)
    found = [(fit.hosts(shape), shape) for shape in shapes(profile, host)]
    chosen = [(max(n, n_hosts or 1), shape) for n, shape in found if n is not None]
    if not chosen:
        raise CapacityError(_no_number(fit, host, profile))
    # of equals the first: shapes are ordered by how well they suit
    hosts, shape = min(chosen, key=lambda pair: pair[0])
    share = fit.data(hosts * shape.workers, shape.threads)
    single = fit.base + fit.multiple * (fit.shared + fit.copied)
    one_machine = single <= memory_fraction * host.memory
    process = f"one process without Dask would need {bytes_text(single)}"
    if one_machine:
        process += f" of one machine's {bytes_text(host.memory)}; it may be faster"
    else:
        process += f", too much for one machine with {bytes_text(host.memory)}"
    reasons = [*_of_fit(data, fit, profile), *_of_shape(profile, shape)]
    reasons.append(
        f"a worker has up to {bytes_text(share)} of data and will take "
        f"{bytes_text(fit.process(share))} of {bytes_text(shape.limit)}"
    )
    if hosts > 1:
        given = f" ({plural(n_hosts, 'was', 'were')} given)" if n_hosts else ""
        most = (fit.most(shape.limit) - fit.copied) * shape.workers
        room = f"one has room for {bytes_text(most)} of data"
        reasons.append(f"hosts: {hosts:,}{given}, as {room}")
    reasons.insert(0 if one_machine else len(reasons), process)
    return Sizing(
        data=data,
        eval_bytes=round(eval_fraction * data.nbytes),
        workload=profile.name,
        host_cpus=host.cpus,
        host_memory=host.memory,
        n_hosts=n_hosts,
        hosts=hosts,
        workers_per_host=shape.workers,
        threads=shape.threads,
        memory_limit=shape.limit,
        worker_bytes=round(fit.process(share)),
        worker_data=round(share),
        one_machine=one_machine,
        reasons=tuple(reasons),
    )


def shapes(profile: Profile, host: Host) -> Iterator[Shape]:
    """Yield the ways to use all CPUs of a host; the first suits the library best."""
    counts = [n for n in range(1, host.cpus + 1) if host.cpus % n == 0]
    for n in counts[:1] if profile.uses_worker_threads else reversed(counts):
        limit = _rounded((host.memory - host.reserved) / n)
        if limit > 0:
            yield Shape(workers=n, threads=host.cpus // n, limit=limit)


def _fit(
    data: Dataset, profile: Profile, eval_fraction: float, memory_fraction: float
) -> Fit:
    evaluated = eval_fraction * data.nbytes
    # a library that joins all columns converts them to the widest type
    widened = max(1.0, data.rows * data.columns * data.itemsize / data.nbytes)
    return Fit(
        shared=data.nbytes + (0 if profile.eval_copies else evaluated),
        copied=evaluated if profile.eval_copies else 0,
        base=profile.base_bytes or USUAL,
        multiple=profile.multiple(data.itemsize)
        * (widened if profile.one_number_type else 1),
        held=2 if profile.persist else 0,
        partition=None if profile.persist else profile.max_partition_bytes,
        fraction=memory_fraction,
    )


def _rounded(limit: float) -> int:
    step = 2**28 if limit >= 2**32 else 2**20
    return int(limit // step * step)


def size_text(nbytes: int) -> str:
    """Return text that Dask reads as exactly these bytes: ``"12 GiB"``."""
    if nbytes >= 2**30 and nbytes % 2**28 == 0:
        return f"{nbytes / 2**30:.15g} GiB"
    return f"{nbytes / 2**20:.15g} MiB"


# --- the reasons ----------------------------------------------------------------------


def _of_fit(data: Dataset, fit: Fit, profile: Profile) -> Iterator[str]:
    yield (
        f"data: {plural(data.rows, 'row')} of {plural(data.columns, 'column')} of "
        f"{data.type}, {bytes_text(data.nbytes)}; with eval sets "
        f"{bytes_text(fit.shared + fit.copied)}"
    )
    kept, given = profile.feature_bytes, data.itemsize
    if kept is not None and given > kept:
        yield (
            f"numbers: {profile.title} keeps {kept} bytes of each, and the widest here "
            f'have {given}; dtype="float32" would make the data smaller'
        )
    yield (
        f"memory: with {profile.title} a fit takes {times_text(fit.multiple)} the "
        f"bytes of the data, which are included ({profile.source}), and "
        f"{bytes_text(fit.base)} for each worker's process; it may fill "
        f"{fit.fraction:.0%} of the limit"
    )
    if fit.held:
        yield (
            f"managed memory: Dask counts the data up to {times_text(fit.held)}, and "
            f"spills above {SPILL_TARGET:.0%} of the limit"
        )
    if fit.partition is not None:
        yield (
            "data is read partition by partition and not kept: a thread has "
            f"{PARTITIONS_PER_THREAD} of up to {bytes_text(fit.partition)}"
        )
    if fit.copied:
        yield f"eval sets: each worker has all {bytes_text(fit.copied)} of them"
    if profile.frugal is not None:
        other = f"{profile.frugal.name}: {profile.frugal_parameters}"
        yield f"less memory: {other} needs less"
    if profile.starts_processes:
        yield (
            "processes: the library starts child processes of workers, so set "
            "distributed.worker.daemon to false before the workers start"
        )


def _of_shape(profile: Profile, shape: Shape) -> Iterator[str]:
    why = "Python code of one process runs on one thread at a time"
    if profile.uses_worker_threads:
        why = "one training task takes all threads of its worker"
    if profile.threads == "pools":
        why += ", if its pools have them: training.run_roles sets torch.set_num_threads"
    if shape.threads > 1 and not profile.uses_worker_threads:
        why += "; but with more and smaller workers, more hosts would be needed"
    yield (
        f"threads: {plural(shape.workers, 'worker')} of "
        f"{plural(shape.threads, 'thread')} on each host, since {why}"
    )


def _no_number(fit: Fit, host: Host, profile: Profile) -> str:
    eval_sets = f", and {bytes_text(fit.copied)} of eval sets" if fit.copied else ""
    return (
        f"no number of hosts with {plural(host.cpus, 'CPU')} and "
        f"{bytes_text(host.memory)} is enough: {bytes_text(host.reserved)} are "
        f"reserved on each host, and with {profile.title} each worker's process has "
        f"{bytes_text(fit.base)} before its data{eval_sets}; take hosts with more "
        "memory (host_memory), or let the fit fill more of it (memory_fraction)"
    )
