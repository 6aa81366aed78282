"""How large a cluster to start, before there is one: workers, threads, memory limits.

The decision is pure: from what the data takes (:mod:`~clustertune.operations.dataset`),
what one training library needs (its profile) and what a host offers. It keeps the rules
by which a cluster is judged once it runs: a fit may fill ``memory_fraction`` of a
worker's limit (``fit_memory``); what Dask counts stays below its target, since it
spills from there on; a host has as many threads as CPUs (``thread_count``); and where
one machine would do without Dask, that is said first (``one_machine``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from tabulate import tabulate

from clustertune import checks
from clustertune.checks.memory import USUAL
from clustertune.core import arguments
from clustertune.core.model import Profile
from clustertune.core.wording import bytes_text, plural, printable, times_text
from clustertune.errors import CapacityError, RefusedError
from clustertune.integrations import libraries
from clustertune.operations import dataset
from clustertune.operations.dataset import Dataset
from clustertune.remote.worker import probe

SCHEMA_VERSION = 1
OWN = 0.1  # of a host's memory, for its system, the scheduler and the user's process
LEAST_OWN = 2**29  # bytes
TARGET = 0.6  # Dask's default: of the limit, of managed memory; from there on it spills
TOLERANCE = 0.05  # by which prepare lets the fullest worker have more than its share
AT_ONCE = 2  # pieces of a thread: the one it works on and the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """A cluster to start, and why.

    Attributes
    ----------
    data
        What the fit trains on, as far as it is known before it is loaded.
    eval_bytes
        Bytes of eval sets beside it.
    workload
        Name of the profile whose figures were taken.
    host_cpus, host_memory
        What one host offers; bytes.
    n_hosts
        How many were given; None: as many as needed.
    hosts
        How many are needed, or those that were given if they suffice.
    workers_per_host, threads, memory_limit
        Worker processes of a host; threads and bytes of one worker.
    worker_bytes, worker_data
        Bytes that the fullest worker's process is predicted to have in the fit, and of
        these its data.
    one_machine
        Whether one process without Dask would do, and no slower; as far as the size of
        the data is known.
    reasons
        Why, in words.
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
        """Workers of the whole cluster."""
        return self.hosts * self.workers_per_host

    @property
    def enough(self) -> bool:
        """Whether the hosts that were given suffice; True if none were."""
        return self.n_hosts is None or self.hosts <= self.n_hosts

    @property
    def lines(self) -> Mapping[str, str]:
        """What to paste, by what it starts; for each host, where there are several."""
        limit = size_text(self.memory_limit)
        each, threads = self.workers_per_host, self.threads
        job = size_text(self.memory_limit * each)
        local = (
            f"LocalCluster(n_workers={each}, threads_per_worker={threads}, "
            f'memory_limit="{limit}")'
        )
        slurm = (
            f"cluster = SLURMCluster(cores={each * threads}, processes={each}, "
            f'memory="{job}"); cluster.scale(jobs={self.hosts})'
        )
        worker = (
            f"dask worker tcp://SCHEDULER:8786 --nworkers {each} --nthreads {threads} "
            f'--memory-limit "{limit}"'
        )
        lines = {"LocalCluster": local} if self.hosts == 1 else {}
        return lines | {"SLURMCluster": slurm, "dask worker": worker}

    def __str__(self) -> str:
        title = f"{self._title()}\n"
        why = "\n".join(f"- {printable(reason)}" for reason in self.reasons)
        return f"{title}\nWhy\n{why}\n\nTo paste{self._each()}\n" + "\n".join(
            self.lines.values()
        )

    def __repr__(self) -> str:
        return f"<Sizing: {self._shape()}>"

    def _repr_html_(self) -> str:
        why = "".join(f"<li>{escape(printable(r))}</li>" for r in self.reasons)
        rows = [[name, line] for name, line in self.lines.items()]
        return (
            f'<div class="clustertune"><p>{escape(self._title())}</p><ul>{why}</ul>'
            f"<p>To paste{self._each()}</p>{tabulate(rows, tablefmt='html')}</div>"
        )

    def to_json(self) -> str:
        """All of it as JSON, with ``schema_version``."""
        known: dict[str, Any] = {"schema_version": SCHEMA_VERSION} | asdict(self)
        derived = {"workers": self.workers, "enough": self.enough}
        return json.dumps(known | derived | {"lines": dict(self.lines)})

    def _title(self) -> str:
        if self.one_machine:
            would = "might" if self.data.at_least else "would"
            return f"One machine without Dask {would} do. Else: {self._shape()}"
        if not self.enough:
            given = plural(self.n_hosts or 0, "such host")
            return f"Too large for {given}. It takes: {self._shape()}"
        return self._shape()

    def _shape(self) -> str:
        least = "at least " if self.data.at_least else ""
        return (
            f"{least}{plural(self.workers, 'worker')} x "
            f"{plural(self.threads, 'thread')} x {size_text(self.memory_limit)}, on "
            f"{plural(self.hosts, 'host')} with {plural(self.host_cpus, 'CPU')} and "
            f"{bytes_text(self.host_memory)}"
        )

    def _each(self) -> str:
        several = self.hosts > 1
        return f" (the last line on each of {self.hosts:,} hosts)" if several else ""


def size(
    *,
    rows: int | None = None,
    columns: int | None = None,
    dtype: Any = None,
    parquet: Any = None,
    workload: str | None = None,
    estimator: object = None,
    eval_fraction: float = 0.0,
    host_cpus: int | None = None,
    host_memory: int | str | None = None,
    memory_fraction: float = 0.7,
    n_hosts: int | None = None,
) -> Sizing:
    """Say how large a cluster a fit needs, before there is one.

    Parameters
    ----------
    rows, columns
        Of all that the fit takes together: features, labels, weights.
    dtype
        Type of the numbers; float64 if none is given. With ``parquet``, the type that
        they get when they are loaded (``prepare(..., dtype=...)``).
    parquet
        Instead of rows and columns: a file, folder, pattern or URL of Parquet data. Its
        footers are read, and of many files those of some.
    workload
        Name of the training library, like ``"xgboost"``; ``estimator`` says it, too.
    estimator
        The estimator that will be fit.
    eval_fraction
        Rows of eval sets beside the data, as a fraction of its rows.
    host_cpus, host_memory
        What one host offers, like ``16`` and ``"64 GiB"``; by default what this machine
        lets this process use.
    memory_fraction
        Part of a worker's memory limit that the fit may fill.
    n_hosts
        How many hosts there are; by default as many as needed.

    Returns
    -------
    Sizing
        Shows itself as text, JSON (``to_json``) and, in notebooks, HTML.

    Raises
    ------
    ValueError
        An argument is not what it can be.
    CapacityError
        No number of such hosts would do.
    RefusedError
        No layout of the data helps the library; the text says what does.

    Examples
    --------
    >>> print(clustertune.size(parquet="data/", workload="xgboost"))  # doctest: +SKIP
    """
    if (parquet is None) == (rows is None and columns is None):
        given = "both were" if parquet is not None else "neither was"
        raise ValueError(
            f"how large is the data? {given} given: give rows and columns, or parquet"
        )
    profile = libraries.choose(workload, estimator)
    host = Host(
        cpus=arguments.count("host_cpus", host_cpus) or probe.usable_cpus(),
        memory=arguments.nbytes("host_memory", host_memory) or probe.host_memory(),
    )
    wanted = {
        "eval_fraction": arguments.fraction("eval_fraction", eval_fraction, zero=True),
        "memory_fraction": arguments.fraction("memory_fraction", memory_fraction),
        "alone": checks.setting("one_machine", "alone"),
    }
    n_hosts = arguments.count("n_hosts", n_hosts)
    if parquet is None:
        data = dataset.dense(rows, columns, dtype)
    else:
        data = dataset.parquet(parquet, dtype)
    return decide(data, profile, host, n_hosts=n_hosts, **wanted)


# --- the decision (pure) --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What one of the machines offers."""

    cpus: int
    memory: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the workers of a host share it."""

    workers: int
    threads: int  # of a worker
    limit: int  # bytes of a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a fit takes of the workers that share its data."""

    shared: float  # bytes of data of which each worker has its share
    copied: float  # bytes of data of which each has all
    base: int  # bytes of a process before any data
    multiple: float  # of its data, that a worker's process has in the fit
    held: int  # times that its data is in memory when it is loaded, cut and packed
    piece: int | None  # bytes of a piece where data is not kept; None: it is kept
    fraction: float  # of the limit that it may fill

    def data(self, n_workers: int, threads: int) -> float:
        """Bytes of data on the fullest of so many workers."""
        uneven = 1 + TOLERANCE if n_workers > 1 else 1
        share = self.shared / n_workers * uneven + self.copied
        streamed = math.inf if self.piece is None else AT_ONCE * threads * self.piece
        return min(share, streamed)

    def process(self, data: float) -> float:
        """Bytes of a worker's process that has this much data."""
        return self.base + max(self.multiple, self.held) * data

    def most(self, limit: int) -> float:
        """Bytes of data that a worker with this limit can have."""
        free = self.fraction * limit - self.base
        lines = [free / max(self.multiple, self.held)]
        lines += [TARGET * limit / self.held] if self.held else []
        return max(0.0, min(lines))

    def hosts(self, shape: Shape) -> int | None:
        """How many hosts it takes; None: no number would do."""
        most = self.most(shape.limit)
        if self.data(shape.workers, shape.threads) <= most:
            return 1
        free = (most - self.copied) * shape.workers
        if free <= 0:
            return None
        # a little more, as rounding must not leave the fullest worker too much
        return max(2, math.ceil(self.shared * (1 + TOLERANCE) / free * (1 + 1e-9)))


def decide(
    data: Dataset,
    profile: Profile,
    host: Host,
    *,
    eval_fraction: float,
    memory_fraction: float,
    alone: float,
    n_hosts: int | None = None,
) -> Sizing:
    """Choose hosts, workers, threads and limits, with the reasons.

    Fewest hosts come first; of several shapes that need as many, the one that suits the
    library: one worker with all threads, or as many workers as there are CPUs.
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
    # of equals the first: shapes come in the order in which they suit
    hosts, shape = min(chosen, key=lambda pair: pair[0])
    share = fit.data(hosts * shape.workers, shape.threads)
    trained = fit.shared + fit.copied
    single = fit.base + fit.multiple * trained
    fits_one = single <= memory_fraction * host.memory
    asked = n_hosts if n_hosts is not None and n_hosts >= hosts else 1
    time = hosts * alone  # of one process, over that of this cluster
    reasons = [
        *_of_data(data, profile, eval_fraction * data.nbytes),
        *_of_fit(fit, profile),
        *_of_shape(profile, shape, host),
        *_of_hosts(fit, shape, hosts, share, n_hosts),
    ]
    least = "at least " if data.at_least else ""
    would = _alone(f"{least}{bytes_text(single)}", host, hosts, time, fits=fits_one)
    one_machine = fits_one and asked * alone <= 1
    reasons.insert(0 if one_machine else len(reasons), would)
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
    """Ways to share a host among workers, the one that suits the library first.

    Every one keeps all CPUs busy with one thread each.
    """
    whole = profile.threads == "worker"
    counts = [n for n in range(1, host.cpus + 1) if host.cpus % n == 0]
    free = host.memory - _own(host)
    for n in counts[:1] if whole else reversed(counts):
        limit = _rounded(free / n)
        if limit > 0:
            yield Shape(workers=n, threads=host.cpus // n, limit=limit)


def _fit(
    data: Dataset, profile: Profile, eval_fraction: float, memory_fraction: float
) -> Fit:
    evaluated = eval_fraction * data.nbytes
    # a library that joins all columns has them as wide as the widest
    widened = max(1.0, data.joined_bytes / data.nbytes)
    return Fit(
        shared=data.nbytes + (0 if profile.eval_copies else evaluated),
        copied=evaluated if profile.eval_copies else 0,
        base=profile.base_bytes or USUAL,
        multiple=profile.multiple(data.itemsize)
        * (widened if profile.one_number_type else 1),
        held=2 if profile.persist else 0,
        piece=None if profile.persist else profile.max_piece_bytes,
        fraction=memory_fraction,
    )


def _own(host: Host) -> float:
    """Bytes of a host that no worker gets."""
    return max(OWN * host.memory, LEAST_OWN)


def _rounded(limit: float) -> int:
    """A memory limit that reads well and is not above this one."""
    step = 2**28 if limit >= 2**32 else 2**20
    return int(limit // step * step)


def size_text(nbytes: int) -> str:
    """Bytes as Dask reads them, exactly: ``"12 GiB"``, ``"2764 MiB"``."""
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
        f"bytes of the data, these included ({profile.source}), and "
        f"{bytes_text(fit.base)} for each worker's process{usual}; it may fill "
        f"{fit.fraction:.0%} of the limit"
    )
    if fit.held:
        yield (
            f"Dask counts the data up to {times_text(fit.held)}: new pieces lie beside "
            "old ones while they are cut, and libraries pack pieces for the fit; "
            f"at {TARGET:.0%} of the limit it would spill"
        )
    if fit.piece is not None:
        yield (
            "data is read piece by piece and not kept: a thread has "
            f"{plural(AT_ONCE, 'piece')} of up to {bytes_text(fit.piece)}"
        )
    if fit.copied:
        yield f"eval sets: each worker has all {bytes_text(fit.copied)} of them"
    if profile.frugal is not None:
        other = f"{profile.frugal.name}: {profile.frugal_parameters}"
        yield f"less memory would do with {other}"
    if profile.starts_processes:
        yield (
            "processes: it starts some below its workers, so set "
            "distributed.worker.daemon to false before they start"
        )


def _of_shape(profile: Profile, shape: Shape, host: Host) -> Iterator[str]:
    if profile.threads == "worker":
        why = "one training task takes all threads of its worker"
    elif profile.threads == "pools":
        why = "the pools of threads in which the library computes have one in Dask"
    else:
        why = (
            "whether the library uses several threads is not known, and in one process "
            "Python code runs on one at a time"
        )
    instead = ""
    if shape.threads > 1 and profile.threads != "worker":
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
        given = ""
        if n_hosts is not None:
            given = f" ({plural(n_hosts, 'was', 'were')} given)"
        yield (
            f"hosts: {hosts:,}{given}, as one has room for {bytes_text(most)} of data"
        )


def _alone(single: str, host: Host, hosts: int, time: float, *, fits: bool) -> str:
    takes = f"one process without Dask would take {single}"
    if not fits:
        return f"{takes}, too much for one machine with {bytes_text(host.memory)}"
    cluster = "with Dask" if hosts == 1 else f"of {hosts:,} hosts with Dask"
    return (
        f"{takes} of one machine's {bytes_text(host.memory)}, and about {time:.0%} of "
        f"the time {cluster}"
    )


def _no_number(fit: Fit, host: Host, profile: Profile) -> str:
    eval_sets = f" and {bytes_text(fit.copied)} of eval sets" if fit.copied else ""
    return (
        f"no number of hosts with {plural(host.cpus, 'CPU')} and "
        f"{bytes_text(host.memory)} would do: {bytes_text(_own(host))} stay the host's "
        f"own, and of the rest, {profile.title} has {bytes_text(fit.base)} in each "
        f"worker's process before its data{eval_sets}; take hosts with more memory "
        "(host_memory), or say if it may fill more (memory_fraction)"
    )
