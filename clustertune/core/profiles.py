"""Needs of one training library, as plain frozen data.

Every workload has a profile (see :mod:`clustertune.integrations.libraries`). Checks,
planner and actions read nothing else of a library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

#: beginnings of names of types that are no numbers, except "category"
NOT_NUMBERS = (
    *("object", "str", "string", "large_string", "binary", "list", "struct"),
    *("datetime64", "timedelta64", "timestamp", "duration", "date", "time", "period"),
    *("interval", "complex", "decimal"),
)


class ByteRange(NamedTuple):
    """The least and the most bytes."""

    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingShare:
    """The training data of one worker."""

    rows: float
    all_rows: float  # of all workers
    columns: int
    itemsize: int  # bytes of the widest number
    threads: int
    workers: int  # that train
    outputs: int = 1  # trees of each round: one for each of three or more classes


class FitMemory(Protocol):
    """Memory of the process during a fit, besides the data and the library."""

    def __call__(self, share: TrainingShare) -> ByteRange: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The layout and memory that one training library needs.

    The defaults are for libraries without special needs.
    """

    name: str
    title: str

    # --- memory

    #: peak memory of the fit on a worker, as a multiple of the bytes of its data (which
    #: are included), by the item size of the numbers, with ``partitions_per_thread``
    memory_multiple: Mapping[int, float]
    #: memory by the library's source, instead of the multiple of the training data;
    #: None: it is not known
    fit_memory: FitMemory | None = None
    #: the share of intermediate results, as a multiple of the bytes of the partitions
    #: in work, one per thread; empty: it does not depend on the partitions
    partition_multiple: Mapping[int, float] = field(default_factory=dict)
    #: bytes of a worker's process with the library imported, but without data
    base_bytes: int = 0
    source: str = ""  # source of the figures

    # --- partitions

    #: whether the data is read more than once, so it should be loaded first
    persist: bool = True
    #: partitions per thread above which small partitions cost noticeable time
    max_partitions_per_thread: int = 256
    #: most partitions per thread into which data is cut; more make rows more even
    partitions_per_thread: int = 4
    #: bytes of a partition, over all collections, above which it is cut
    max_partition_bytes: int = 2**29
    #: whether the model depends on the number of partitions; a change is reported
    keeps_partitions: bool = False

    # --- rows

    min_rows: int = 1  # least rows of a worker that has rows; with fewer, the fit fails
    #: whether all workers take each step together, so that each gets an equal share of
    #: the rows; otherwise shares are in proportion to threads
    equal_shares: bool = False
    #: query groups (qid). "": it does not rank; "anywhere": the library sorts the rows
    #: itself; "together": rows of a group are neighbours, on one worker
    groups: str = ""
    #: whether it takes the sizes of groups instead of the group of each row
    group_sizes: bool = False
    #: whether it fails if a worker has no row of some class; None: only classifiers do,
    #: and the estimator is unknown
    needs_all_classes: bool | None = False
    #: whether it takes labels as classes, which must be the integers from 0
    numbered_classes: bool = False
    #: whether each worker needs all rows of eval sets, since it uses partitions next to
    #: its training data
    eval_copies: bool = False
    stops_early: bool = False  # whether the estimator stops early by its scores
    #: whether it fails if a worker has no row of an eval set with categories
    eval_everywhere: bool = False
    #: whether it needs rows in random order; None: unknown
    random_order: bool | None = None

    # --- values

    kinds: tuple[str, ...] = ("array", "dataframe")  # kinds of collections for X
    #: why its fit refuses Arrays, with a fix; "": it takes them
    refuses_arrays: str = ""
    #: whether steps of a pipeline get X first, and the library what they return
    transforms: bool = False
    #: whether it trains on codes of categories, which must be equal on all workers
    categories: bool = False
    #: how the model has to be created for columns of categories; "": it takes them
    category_option: str = ""
    #: beginnings of names of types of columns in X that its fit refuses
    refuses: tuple[str, ...] = ()
    #: whether a classifier takes texts as labels
    text_labels: bool = True
    #: whether a missing or infinite label makes its fit fail, or spoils the model
    needs_labels: bool = True

    # --- processes

    #: distributions, one of which workers need; empty: none is needed
    packages: tuple[str, ...] = ()
    #: its threads: "worker" (all threads of the worker), "pools" (thread pools of BLAS
    #: and OpenMP, as configured there); "": unknown
    threads: str = ""
    #: companions and "eval_set" that its fit takes besides X and y; None: any
    takes: tuple[str, ...] | None = None

    @property
    def whole_groups(self) -> bool:
        """Whether the rows of a group must be neighbours, on one worker."""
        return self.groups == "together"

    @property
    def uses_worker_threads(self) -> bool:
        """Whether one training task can use all threads of its worker."""
        return bool(self.threads)

    def multiple(self, itemsize: int | None) -> float:
        """Return the multiple for an item size; for an unknown one, the largest."""
        return _multiple(self.memory_multiple, itemsize)

    def parts(self, itemsize: int | None) -> tuple[float, float]:
        """Return the multiples for all partitions, and for the partitions in work."""
        of_partitions = _multiple(self.partition_multiple, itemsize)
        per_thread = of_partitions / self.partitions_per_thread
        return self.multiple(itemsize) - per_thread, of_partitions


def _multiple(known: Mapping[int, float], itemsize: int | None) -> float:
    if itemsize is not None and itemsize in known:
        return known[itemsize]
    return max(known.values(), default=0.0)
