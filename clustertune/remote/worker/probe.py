"""Facts that a worker and its nanny read about themselves and their host.

Thresholds come from the running memory manager, not from the configuration. CPUs come
from the affinity and from every cgroup level, memory from the host and every cgroup
level. Dask itself reads the leaf cgroup only, so it misses a quota of a parent. Thread
pools are those of the process, because a library may ignore the environment.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from pathlib import Path, PurePosixPath
from socket import gethostname
from time import time
from typing import Any

import psutil
from distributed.protocol.serialize import serialize
from distributed.spill import SpillBuffer
from distributed.utils import offload

ROOT = "/sys/fs/cgroup"
MEMBERSHIP = "/proc/self/cgroup"
BOOT = "/proc/sys/kernel/random/boot_id"
DIGEST_ROWS = 100  # of a partition in its digest
SAMPLED_COLUMNS = 1000  # at least, of the digest of a row of more columns
#: ends of variables that assign threads, CPUs or GPUs to a process
SPECIFIC = ("_NUM_THREADS", "_AFFINITY", "_AFFINITY_MASK", "_VISIBLE_DEVICES")


def worker_facts(dask_worker: Any) -> dict[str, Any]:
    """Thresholds, CPUs and memory of this worker; plain types."""
    manager = dask_worker.memory_manager
    spills = hasattr(dask_worker.data, "memory")  # only a SpillBuffer spills
    return {
        "target": (manager.memory_target_fraction or None) if spills else None,
        "spill": (manager.memory_spill_fraction or None) if spills else None,
        "pause": manager.memory_pause_fraction or None,
        "affinity": sorted(_affinity()),
        "quotas": list(cpu_quotas()),
        "host_memory": host_memory(),
        "memory_limits": [("", psutil.virtual_memory().total), *memory_limits()],
        "machine": machine(),
        "hostname": gethostname(),
        "setup": _setup(dask_worker),
    }


def task_counts(dask_worker: Any) -> dict[str, int]:
    """The number of tasks in each state, as in the worker's heartbeats."""
    return dict(dask_worker.state.task_counter.current_count(by_prefix=False))


def _setup(dask_worker: Any) -> dict[str, str]:
    """Settings that differ between workers that cannot replace each other."""
    resources = dask_worker.state.total_resources
    found = {
        "resources": ", ".join(f"{k}={v:g}" for k, v in sorted(resources.items())),
        "preload modules": ", ".join(p.name for p in dask_worker.preloads),
        "memory limits of control groups": ", ".join(
            f"{name}: {limit}" for name, limit in memory_limits()
        ),
        "containers": _namespace("mnt"),
    }
    found |= {k: v for k, v in os.environ.items() if k.endswith(SPECIFIC)}
    return {name: text for name, text in found.items() if text}


def last_transfer(dask_worker: Any) -> float:
    """The end of the last transfer to this worker; 0: there was none."""
    log = dask_worker.transfer_incoming_log
    return float(log[-1]["stop"]) if log else 0.0


def received_bytes(
    dask_worker: Any, names: Iterable[str], since: Mapping[str, float]
) -> int | None:
    """Bytes of keys with these names (the first part of the key) that arrived here.

    ``since`` has the end of the last transfer before, by the address of a worker. The
    worker's log keeps some transfers only. None: later ones are missing there.
    """
    log, last = dask_worker.transfer_incoming_log, since.get(dask_worker.address)
    wanted, total = set(names), 0
    for transfer in reversed(log):
        if transfer["stop"] == last:
            return total
        for key, nbytes in transfer["keys"].items():
            if isinstance(key, tuple) and key[0] in wanted:
                total += nbytes or 0
    return None if len(log) == log.maxlen else total


def nanny_facts(dask_worker: Any) -> float | None:
    """The fraction of the limit at which this nanny kills its worker."""
    return dask_worker.memory_manager.memory_terminate_fraction or None


def digests(dask_worker: Any, keys: list[Any]) -> list[str]:
    """Digests of rows of each of these partitions; "" if it is not in memory here.

    Some rows at equal distances suffice: a source that draws at random changes all.
    """
    from dask.base import tokenize

    data = getattr(dask_worker.data, "memory", dask_worker.data)
    found = []
    for key in keys:
        partition: Any = data.get(key) if key in data else None
        one = same = ""
        with suppress(Exception):  # types of other packages raise any
            if partition is not None:
                n_rows = rows(partition)
                sample = _by_number(partition)[:: max(1, n_rows // DIGEST_ROWS)]
                one, same = (tokenize(n_rows, sample) for _ in "12")
        # Dask gives a random token to what it does not know
        found.append(one if one == same else "")
    return found


def _by_number(partition: Any) -> Any:
    """Return the partition in a form that takes rows by their numbers."""
    if type(partition).__name__.startswith(("coo_", "bsr_", "dia_")):  # of SciPy
        return partition.tocsr()
    return getattr(partition, "iloc", partition)


def row_digests(
    dask_worker: Any, keys: list[Any], rows: list[list[int]]
) -> list[list[str]]:
    """Digests of rows of each of these partitions; [] if it is not in memory here.

    The digest of a row does not depend on the partition that has it, nor on its types:
    a missing value makes numbers of a column wider in some partitions only. Numbers
    have six digits, since another CPU may compute another last one.
    """
    data = getattr(dask_worker.data, "memory", dask_worker.data)
    found = []
    for key, numbers in zip(keys, rows, strict=True):
        partition: Any = data.get(key) if key in data else None
        try:
            found.append([] if partition is None else _row_digests(partition, numbers))
        except Exception:  # noqa: BLE001, types of other packages raise any
            found.append([])
    return found


def _row_digests(partition: Any, numbers: list[int]) -> list[str]:
    import hashlib

    rows = _by_number(partition)[numbers]
    if len(rows.shape) > 1 and rows.shape[1] > SAMPLED_COLUMNS:
        step = rows.shape[1] // SAMPLED_COLUMNS
        rows = getattr(rows, "iloc", rows)[:, ::step]
    if hasattr(rows, "to_numpy"):  # a frame, whose missing numbers stay missing
        values = rows.to_numpy(object)
    else:
        values = rows.toarray() if hasattr(rows, "toarray") else rows
    found = []
    for row in values.tolist():
        texts = map(_as_text, row if isinstance(row, list) else [row])
        packed = "\0".join(texts).encode()
        found.append(hashlib.blake2b(packed, digest_size=8).hexdigest())
    return found


def _as_text(value: Any) -> str:
    text = f"{float(value):.6g}" if isinstance(value, Real) else str(value)
    return "" if text in ("nan", "None", "<NA>", "NaT") else text


def rows(partition: Any) -> int:
    """Number of rows of a partition of any type."""
    shape = getattr(partition, "shape", None)
    return int(shape[0] if shape else len(partition))


def cpu_quotas() -> Iterator[tuple[str, float]]:
    """(cgroup, CPUs) for every level at or above this process that has a quota."""
    for name, folder in _levels("cpu"):
        limit = _cpu_limit(folder)
        if limit is not None:
            yield name, limit


def memory_limits() -> Iterator[tuple[str, int]]:
    """(cgroup, bytes) for every level at or above this process that has a limit."""
    for name, folder in _levels("memory"):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        if limit is not None:
            yield name, limit


def usable_cpus() -> int:
    """Whole CPUs that this process may use, by its affinity and every quota."""
    quotas = [cpus for _, cpus in cpu_quotas()]
    return max(1, int(min([len(_affinity()), *quotas])))


def host_memory() -> int:
    """Bytes that a process on this host could use at most."""
    limits = [limit for _, limit in memory_limits()]
    return min([psutil.virtual_memory().total, *limits])


def available_memory() -> int:
    """Bytes that this process can still take, by the host and every cgroup level."""
    free = [psutil.virtual_memory().available]
    for _, folder in _levels("memory"):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            free.append(limit - used + _reclaimable(folder))
    return max(0, min(free))


def machine() -> str:
    """An id of this machine until its next boot, also in containers; "": unknown."""
    return _read(Path(BOOT)).strip()


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _levels(controller: str) -> Iterator[tuple[str, Path]]:
    """The cgroup of this process and its ancestors: name, unique per host, and folder.

    Version 1 has a hierarchy for each controller, version 2 has one.
    """
    for line in _read(Path(MEMBERSHIP)).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = Path(ROOT, controllers) if controllers else Path(ROOT)
        # two containers on a host may both use "/"
        namespace = _namespace("cgroup")
        leaf = PurePosixPath(path)
        for level in (leaf, *leaf.parents):
            folder = mount / level.relative_to("/")
            if folder.is_dir():
                yield f"{namespace}:{level}", folder


def _namespace(kind: str) -> str:
    """The kernel's namespace of this process; empty if there is none."""
    try:
        return str(Path("/proc/self/ns", kind).readlink())
    except OSError:
        return ""


def _cpu_limit(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    if not quota:
        quota = _read(folder / "cpu.cfs_quota_us")
        period = _read(folder / "cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return int(quota) / int(period)
    return None


def _number(folder: Path, *files: str) -> int | None:
    """The first of these files that has a number."""
    texts = (_read(folder / file) for file in files)
    return next((int(text) for text in texts if text.isdigit()), None)


def _reclaimable(folder: Path) -> int:
    """Bytes of the page cache that count as used but can be reclaimed."""
    lines = (line.split() for line in _read(folder / "memory.stat").splitlines())
    found = {name: int(n) for name, n in lines}
    return found.get("total_inactive_file", found.get("inactive_file", 0))


def _read(file: Path) -> str:
    """The text of a file of the kernel; empty if it does not exist."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def worker_details(dask_worker: Any, packages: Iterable[str]) -> dict[str, Any]:
    """Thread pools, free disk, lifetime and packages; plain types."""
    return {
        "pools": pools(),
        "disk_free": psutil.disk_usage(dask_worker.local_directory).free,
        "lifetime": _left(dask_worker, psutil.Process()),
        "cancelled": _cancelled(dask_worker),
        "packages": installed(packages),
    }


def _cancelled(dask_worker: Any) -> float | None:
    """Seconds for which a cancelled task has run that cannot be stopped, or None."""
    tasks = dask_worker.state.tasks
    running = [tasks[key] for key in dask_worker.active_keys if key in tasks]
    began = [ts.start_time for ts in running if ts.state == "cancelled"]
    return max((time() - moment for moment in began if moment), default=None)


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions of installed distributions, by name."""
    found: dict[str, str | None] = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)  # None if its metadata has no version
    return {name: text for name, text in found.items() if text is not None}


def pools() -> list[int] | None:
    """Threads of the pool of each native library; None without threadpoolctl."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return None
    return [
        int(p["num_threads"])
        for p in threadpool_info()
        if p["num_threads"]  # None: the library does not say
    ]


def disk(path: str) -> list[Any]:
    """Kind of file system and free bytes of the spill directory."""
    free = psutil.disk_usage(path).free
    inside = [
        p
        for p in psutil.disk_partitions(all=True)
        if os.path.commonpath([p.mountpoint, os.path.realpath(path)]) == p.mountpoint
    ]
    # the last mount at a place hides the others: a disk hides its automount
    nearest = max(reversed(inside), key=lambda p: len(p.mountpoint), default=None)
    return [nearest.fstype if nearest else "", free]


def _left(dask_worker: Any, process: psutil.Process) -> float | None:
    """Seconds of its lifetime, counted from the start of its process."""
    lifetime = dask_worker.lifetime
    return process.create_time() + lifetime - time() if lifetime else None


# --- keys that cannot be sent ---------------------------------------------------------

#: packages whose values can be sent; pickling all of them would take long
TRUSTED = ("numpy", "pandas", "pyarrow", "scipy", "cupy", "cudf")
MAX_PROBLEM = 200  # characters


async def unsendable(
    dask_worker: Any, keys: Collection[Any] | None = None
) -> list[list[Any]]:
    """Return key, problem and whether the value can be read, of unsendable keys.

    Without ``keys`` the values of well-known packages are trusted. With ``keys`` each
    of these values is pickled once.
    """
    data = dask_worker.data
    found = []
    for key in list(data) if keys is None else keys:
        if key not in data:
            continue
        if missing := _missing_file(data, key):
            found.append([key, missing, False])
            continue
        if _is_on_disk(data, key):  # it was pickled when it was written
            continue
        value = data[key]
        if keys is None and _is_trusted(value):
            continue
        if problem := await offload(_pickling_problem, value):
            found.append([key, problem, True])
    return found


def _is_on_disk(data: Any, key: Any) -> bool:
    return isinstance(data, SpillBuffer) and key not in data.fast


def _missing_file(data: Any, key: Any) -> str:
    """Return why a spilled value cannot be read, or an empty text."""
    linked = getattr(data, "linked", {}).get(key)
    if linked is not None:
        path = linked.path
    elif not isinstance(data, SpillBuffer) or key in data.fast:
        return ""
    else:
        slow: Any = data.slow
        files = slow.data.d
        # a value that a task still uses is not read from its file
        if key in slow.cache or key not in files.filenames:
            return ""
        path = Path(files.directory, files.filenames[key])
    return (
        "" if path.exists() else f"its spill file is gone ({path.name})"[:MAX_PROBLEM]
    )


def _is_trusted(value: Any) -> bool:
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    # arrays of objects may hold anything
    return package in TRUSTED and str(getattr(value, "dtype", "")) != "object"


def _pickling_problem(value: Any) -> str:
    try:
        serialize(value, on_error="raise")
    except Exception as error:  # noqa: BLE001, objects raise any error
        cause = error.__cause__ or error
        return f"a {type(value).__name__}: {cause}"[:MAX_PROBLEM]
    return ""
