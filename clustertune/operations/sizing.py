"""``recommend_size``: compute the cluster that a fit needs, before it exists.

The decision is pure. Its inputs are the size of the data (``dataset_size``), the
profile of the library, and one host. It uses the rules of the checks:

- ``fit_memory``: a fit may fill ``memory_fraction`` of the memory limit.
- Managed memory stays below Dask's spill target.
- ``thread_count``: a host has as many threads as CPUs.
- ``one_machine``: one machine without Dask may be enough.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from tabulate import tabulate

from clustertune.checks.memory import USUAL
from clustertune.core import arguments, settings
from clustertune.core.model import Profile
from clustertune.core.wording import bytes_text, plural, printable, times_text
from clustertune.errors import CapacityError, RefusedError
from clustertune.integrations import libraries
from clustertune.operations import dataset_size
from clustertune.operations.dataset_size import Dataset
from clustertune.remote.worker import probe

SCHEMA_VERSION = 1
RESERVED = 0.1  # of a host's memory: for its system, the scheduler, the user's process
MIN_RESERVED = 2**29  # bytes
SPILL_TARGET = 0.6  # of the memory limit: Dask's default target, above which it spills
TOLERANCE = 0.05  # by which prepare lets the fullest worker exceed its share
PARTITIONS_PER_THREAD = 2  # of data read by partition: the current and the next one


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """A recommended cluster, with the reasons.

    Attributes
    ----------
    data
        Training data, as described before it is loaded.
    eval_bytes
        Bytes of the eval sets.
    workload
        Name of the profile.
    host_cpus, host_memory
        CPUs and bytes of one host.
    n_hosts
        Number of available hosts; None: as many as needed.
    hosts
        Number of needed hosts, or ``n_hosts`` if that suffices.
    workers_per_host, threads, memory_limit
        Workers per host; threads and bytes of one worker.
    worker_bytes, worker_data
        Predicted process bytes of the fullest worker in the fit, and the bytes of its
        data.
    one_machine
        Whether the data, by its known size, and its copies fit the memory of one
        host, so that one process without Dask suffices.
    reasons
        Reasons, as sentences.
    """

    data: Dataset
    eval_bytes: int
    workload: str
    host_cpus: int
    host_memory: int
    n_hosts: int | None
    hosts: int
    workers_per_host: int
    threads: int
    memory_limit: int
    worker_bytes: int
    worker_data: int
    one_machine: bool
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
        lines = {}
        if self.hosts == 1:
            lines["LocalCluster"] = (
                f"LocalCluster(n_workers={each}, threads_per_worker={threads}, "
                f'memory_limit="{limit}")'
            )
        lines["SLURMCluster"] = (
            f"cluster = SLURMCluster(cores={each * threads}, processes={each}, "
            f'memory="{size_text(self.memory_limit * each)}"); '
            f"cluster.scale(jobs={self.hosts})"
        )
        lines["dask worker"] = (
            f"dask worker tcp://SCHEDULER:8786 --nworkers {each} --nthreads {threads} "
            f'--memory-limit "{limit}"'
        )
        return lines

    def __str__(self) -> str:
        why = "\n".join(f"- {printable(reason)}" for reason in self.reasons)
        lines = "\n".join(self.lines.values())
        start = f"Start it with{self._where()}\n{lines}"
        return f"{self._title()}\n\nReasons\n{why}\n\n{start}"

    def __repr__(self) -> str:
        return f"<Sizing: {self._shape()}>"

    def _repr_html_(self) -> str:
        why = "".join(f"<li>{escape(printable(r))}</li>" for r in self.reasons)
        rows = [[name, line] for name, line in self.lines.items()]
        return (
            f'<div class="clustertune"><p>{escape(self._title())}</p><ul>{why}</ul>'
            f"<p>Start it with{self._where()}</p>"
            f"{tabulate(rows, tablefmt='html')}</div>"
        )

    def to_json(self) -> str:
        """Return the recommendation as JSON, with ``schema_version``."""
        known: dict[str, Any] = {"schema_version": SCHEMA_VERSION} | asdict(self)
        derived = {"workers": self.workers, "enough": self.enough}
        return json.dumps(known | derived | {"lines": dict(self.lines)})

    def _title(self) -> str:
        if self.one_machine:
            verb = "might be" if self.data.at_least else "is"
            return f"One machine without Dask {verb} enough. Otherwise: {self._shape()}"
        if not self.enough:
            hosts = plural(self.n_hosts or 0, "such host", "such hosts")
            return f"Too large for {hosts}. Needed: {self._shape()}"
        return self._shape()

    def _shape(self) -> str:
        least = "at least " if self.data.at_least else ""
        return (
            f"{least}{plural(self.workers, 'worker')} x "
            f"{plural(self.threads, 'thread')} x {size_text(self.memory_limit)}, on "
            f"{plural(self.hosts, 'host')} with {plural(self.host_cpus, 'CPU')} and "
            f"{bytes_text(self.host_memory)}"
        )

    def _where(self) -> str:
        several = self.hosts > 1
        return f" (the last line on each of {self.hosts:,} hosts)" if several else ""


def recommend_size(
    *,
    rows: int | None = None,
    columns: int | None = None,
    dtype: Any = None,
    parquet: Any = None,
    estimator: object = None,
    eval_fraction: float = 0.0,
    host_cpus: int | None = None,
    host_memory: int | str | None = None,
    n_hosts: int | None = None,
) -> Sizing:
    """Compute the cluster that a fit needs, before the cluster exists.

    Parameters
    ----------
    rows, columns
        Rows of the data; columns of all collections together: features, labels,
        weights.
    dtype
        Type of the numbers; float64 by default. With ``parquet``, their type after
        loading (``prepare(..., dtype=...)``).
    parquet
        File, folder, pattern or URL of Parquet data, instead of rows and columns. Only
        footers are read, and only a sample of them if there are many files.
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
        Shows itself as text, JSON (``to_json``) and, in notebooks, HTML.

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
    ...     parquet="data/", estimator="xgboost")
    """
    if (parquet is None) == (rows is None and columns is None):
        given = "both were" if parquet is not None else "neither was"
        raise ValueError(
            f"how large is the data? {given} given: give rows and columns, or parquet"
        )
    profile = libraries.choose(estimator)
    host = Host(
        cpus=arguments.count("host_cpus", host_cpus) or probe.usable_cpus(),
        memory=arguments.nbytes("host_memory", host_memory) or probe.host_memory(),
    )
    wanted = {
        "eval_fraction": arguments.fraction("eval_fraction", eval_fraction, zero=True),
        "memory_fraction": settings.fractions()["memory_fraction"],
    }
    n_hosts = arguments.count("n_hosts", n_hosts)
    if parquet is None:
        data = dataset_size.dense(rows, columns, dtype)
    else:
        data = dataset_size.parquet(parquet, dtype)
    return decide(data, profile, host, n_hosts=n_hosts, **wanted)


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
    reasons = [
        *_of_data(data, profile, eval_fraction * data.nbytes),
        *_of_fit(fit, profile),
        *_of_shape(profile, shape, host),
        *_of_hosts(fit, shape, hosts, share, n_hosts),
    ]
    least = "at least " if data.at_least else ""
    process = _one_process(f"{least}{bytes_text(single)}", host, fits=one_machine)
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
    widened = max(1.0, data.joined_bytes / data.nbytes)
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


def _of_data(data: Dataset, profile: Profile, evaluated: float) -> Iterator[str]:
    first, *others = data.notes
    least = "at least " if data.at_least else ""
    eval_sets = f", and eval sets {bytes_text(evaluated)}" if evaluated else ""
    yield f"data: {first}, which take {least}{bytes_text(data.nbytes)}{eval_sets}"
    yield from others
    kept, given = profile.feature_bytes, data.itemsize
    if kept is not None and given is not None and given > kept:
        yield (
            f"numbers: {profile.title} keeps {kept} bytes of each, and the widest here "
            f'have {given}; dtype="float32" would make the data smaller'
        )


def _of_fit(fit: Fit, profile: Profile) -> Iterator[str]:
    usual = "" if profile.base_bytes else ", as is usual"
    yield (
        f"memory: with {profile.title} a fit takes {times_text(fit.multiple)} the "
        f"bytes of the data, which are included ({profile.source}), and "
        f"{bytes_text(fit.base)} for each worker's process{usual}; it may fill "
        f"{fit.fraction:.0%} of the limit"
    )
    if fit.held:
        yield (
            f"managed memory: Dask counts the data up to {times_text(fit.held)}: "
            "rechunking keeps old and new partitions for a while, and libraries pack "
            f"partitions for the fit; Dask spills above {SPILL_TARGET:.0%} of the limit"
        )
    if fit.partition is not None:
        yield (
            "data is read partition by partition and not kept: a thread has "
            f"{plural(PARTITIONS_PER_THREAD, 'partition')} of up to "
            f"{bytes_text(fit.partition)}"
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


def _of_shape(profile: Profile, shape: Shape, host: Host) -> Iterator[str]:
    why = (
        "Python code of one process runs on one thread at a time, and whether the "
        "library uses several threads is unknown"
    )
    if profile.threads == "worker":
        why = "one training task takes all threads of its worker"
    elif profile.threads == "pools":
        why = (
            "one training task takes all threads of its worker, as soon as its thread "
            "pools have them: training.run_roles sets torch.set_num_threads"
        )
    instead = ""
    if shape.threads > 1 and not profile.uses_worker_threads:
        instead = "; but with more and smaller workers, more hosts would be needed"
    yield (
        f"threads: {plural(shape.workers, 'worker')} of "
        f"{plural(shape.threads, 'thread')} on each host, since {why}{instead}"
    )
    own = host.memory - shape.workers * shape.limit
    yield (
        f"limit: {bytes_text(own)} of the host's {bytes_text(host.memory)} stay free "
        "for its system, the scheduler and your own process"
    )


def _of_hosts(
    fit: Fit, shape: Shape, hosts: int, share: float, n_hosts: int | None
) -> Iterator[str]:
    yield (
        f"a worker has up to {bytes_text(share)} of data and will take "
        f"{bytes_text(fit.process(share))} of {bytes_text(shape.limit)}"
    )
    if hosts > 1:
        most = (fit.most(shape.limit) - fit.copied) * shape.workers
        given = f" ({plural(n_hosts, 'was', 'were')} given)" if n_hosts else ""
        yield (
            f"hosts: {hosts:,}{given}, as one has room for {bytes_text(most)} of data"
        )


def _one_process(single: str, host: Host, *, fits: bool) -> str:
    needs = f"one process without Dask would need {single}"
    if not fits:
        return f"{needs}, too much for one machine with {bytes_text(host.memory)}"
    return (
        f"{needs} of one machine's {bytes_text(host.memory)}; without the overhead of "
        "tasks and transfers it may be faster"
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
