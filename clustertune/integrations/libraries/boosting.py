"""Boosted trees: how their training continues, and how much memory a fit takes.

A :class:`Continuation` makes the attributes and arguments of one attempt, whose
callbacks report rounds and send checkpoints, and repairs the model after the last one.
Each library has one; without it a training begins again.

The memory of a fit is that of the libraries' source. A fit makes bins of the numbers
first, and then trees. The memory of the first phase is free in the second one, but the
allocator may keep it. So the least is the larger phase. The most is the sum of both; a
smaller second phase uses half of the free memory again. Columns of numbers are assumed
to have at least as many different values as bins.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from os import PathLike
from typing import Any, Protocol

from clustertune.core.profiles import ByteRange, TrainingShare

HISTOGRAM_ENTRY = 16  # bytes: two doubles, the sums of gradients and hessians
#: rows of all workers per node, with which a tree is assumed to have all its nodes
ROWS_PER_NODE = 64


# --- how a training continues ---------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model of the first rounds, and the scores of these rounds."""

    rounds: int  # of the whole training
    model: bytes = field(repr=False)
    history: Any = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt to train: what to set on the model, and to give to its ``fit``."""

    attributes: Mapping[str, Any]  # set during the attempt only
    fit_kwargs: Mapping[str, Any]


class Callbacks(Protocol):
    """Makes callbacks for the training tasks of one attempt."""

    def rounds(self, history: Any) -> Any:
        """Return the callback that reports rounds, and sends checkpoints."""

    def continued(self, inner: Any, *arguments: Any) -> Any:
        """Return another callback, which gets the rounds of the whole training."""


class Continuation(ABC):
    """How one library reports rounds, and continues from a checkpoint."""

    #: the module in ``remote/worker`` with the callbacks of this library
    callbacks: str

    def refusal(self, model: Any, companions: Collection[str] = ()) -> str:
        """Return why a training of this model cannot be continued; or "".

        ``companions`` are names of data that the fit gets with X and y.
        """
        return ""

    @abstractmethod
    def rounds(self, model: Any, fit_kwargs: Mapping[str, Any]) -> int:
        """Return the number of rounds after the training, with those before it."""

    @abstractmethod
    def attempt(
        self,
        model: Any,
        fit_kwargs: Mapping[str, Any],
        callbacks: Callbacks,
        checkpoint: Checkpoint | None,
    ) -> Attempt:
        """Return one attempt, from the start or from a checkpoint."""

    @abstractmethod
    def finish(self, model: Any, checkpoint: Checkpoint) -> None:
        """Give a model that was continued the history of its whole training."""

    @abstractmethod
    def difference(self, model: Any, *, continued: bool = True) -> str:
        """Return why a model may differ with the same placement; or "".

        It was ``continued`` from a checkpoint, or its training began again.
        """


def rounds_before(model: Any, load: Callable[..., Any]) -> int:
    """Return the rounds of a model that the caller continues.

    ``load`` is the library's class of boosters, which reads a file.
    """
    if model is None:
        return 0
    in_file = isinstance(model, str | PathLike)
    booster = load(model_file=model) if in_file else booster_of(model)
    named = "num_boosted_rounds", "current_iteration"
    count = next(getattr(booster, name) for name in named if hasattr(booster, name))
    return int(count())


def booster_of(model: Any) -> Any:
    """Return the booster of an estimator, or the given booster."""
    if hasattr(model, "get_booster"):
        return model.get_booster()
    return getattr(model, "booster_", model)


INVERSE = pow(127, -1, 2**32)  # of the factor in XGBoost's seed of a round


def shifted_seed(seed: Any, rounds: int) -> int:
    """Return the seed with which round i draws what round ``i + rounds`` drew.

    XGBoost seeds round i of a distributed training with ``seed * 127 + i``, modulo
    2**32 (``kRandSeedMagic`` in src/gbm and src/learner.cc).
    """
    own = int(seed) if isinstance(seed, Integral) else 0
    return (own + rounds * INVERSE) % 2**32


# --- memory ---------------------------------------------------------------------------


def phases(first: float, second: float) -> ByteRange:
    """Return the least and the most bytes of two phases."""
    kept = first if second >= first else first / 2
    return ByteRange(max(first, second), max(first, second + kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistMemory:
    """Memory of XGBoost's ``hist`` on CPUs, as in src/common and src/tree of 3.2.

    - Histograms: one entry (``GradientPairPrecise``) for each bin and each node that
      is split, all kept until the next tree (``BoundedHistCollection``), and one more
      for each further thread (``ParallelGHistBuilder``). All classes share them.
    - The matrix by rows (``GHistIndexMatrix``) and by columns (``ColumnMatrix``): a
      byte for each number, two above 256 bins.
    - Gradients and predictions: 12 bytes for each row and output; 4 more for each row.
    - Before that a sketch of each column (``WQuantileSketch``): a queue of 8-byte
      entries and levels of 16-byte entries. Then each worker gets the summaries of all
      workers, up to 8 entries for a bin (``HostSketchContainer::AllReduce``).
    """

    nodes: int  # most that are split in a tree
    bins: int
    may_stop: bool  # whether parameters may end a tree early

    def __call__(self, share: TrainingShare) -> ByteRange:
        rows, columns = share.rows, share.columns
        bins = min(self.bins, share.all_rows)
        matrix = 2 * rows * columns * (1 if bins <= 256 else 2)
        matrix += rows * (4 + 12 * share.outputs)
        least = 1 if self.may_stop else min(self.nodes, share.all_rows / ROWS_PER_NODE)
        most = min(self.nodes, share.all_rows)
        each = columns * bins * HISTOGRAM_ENTRY
        sketches = columns * (self._sketch(rows) + self._summaries(share))
        low = phases(sketches, matrix + each * (max(1, least) + share.threads - 1))
        high = phases(sketches, matrix + each * (most + share.threads - 1))
        return ByteRange(low.least, high.most)

    def _sketch(self, rows: float) -> float:
        """Return the bytes of one column's sketch."""
        size = _sketch_size(rows, self.bins)
        full = int(rows / (2 * size))  # times that the queue is full
        levels = 2 + int(math.log2(full)) if full else 0
        return size * (16 + (32 + 16 * levels if full else 0))

    def _summaries(self, share: TrainingShare) -> float:
        """Return the bytes of one column's summaries, of all workers."""
        own = min(share.rows, 8 * self.bins)
        merged = min(share.all_rows, 8 * self.bins)
        return 16 * (own * (1 + share.workers) + 2 * merged)


def _sketch_size(rows: float, bins: int) -> float:
    """Return the entries of a level (``LimitSizeLevel`` in src/common/quantile.h)."""
    level, size = 0, 0.0
    while 2**level * size < rows:
        level += 1
        size = min(rows, level * 8 * min(bins, rows) + 1)
    return max(1.0, size)


def hist_memory(params: Mapping[str, Any]) -> HistMemory | None:
    """Return the memory for parameters of an estimator; None: not modelled."""
    if params.get("device") not in {None, "cpu"} or params.get("booster") == "gblinear":
        return None
    depth, leaves = params.get("max_depth"), params.get("max_leaves") or 0
    depth = 6 if depth is None else depth
    least = params.get("min_child_weight")
    ends = bool(params.get("gamma")) or (least is not None and least > 1)
    nodes = 2 ** min(depth or 64, 64) - 1
    if leaves:
        nodes = min(nodes, 2 * leaves - 1)
    return HistMemory(nodes=nodes, bins=params.get("max_bin") or 256, may_stop=ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """Memory of LightGBM on CPUs, as in src/treelearner, src/io and src/c_api.cpp.

    - A copy of all partitions in one (``_concat`` in lightgbm/dask.py).
    - Histograms: one entry (two ``hist_t``) for each bin, for each leaf
      (``HistogramPool``) or as many as ``histogram_pool_size`` MiB hold. Two more to
      exchange them (``DataParallelTreeLearner``), and one for each thread.
    - The bins by columns and by rows (``GetShareStates``): a byte for each number.
    - Gradients and scores: 16 bytes for each row and output; 24 more for each row.
    - Before that samples for the bins, of up to ``bin_construct_sample_cnt`` rows: a
      double and an index for each number (``LGBM_DatasetCreateFromMats``).
    """

    leaves: int
    bins: int
    pool: float  # MiB; 0: any
    samples: int  # rows

    def __call__(self, share: TrainingShare) -> ByteRange:
        rows, columns = share.rows, share.columns
        bins = min(self.bins, rows / 3 + 1)  # min_data_in_bin
        each = columns * bins * HISTOGRAM_ENTRY
        cached = float(self.leaves)
        if self.pool > 0:
            cached = min(cached, max(2, self.pool * 2**20 // each))
        copied = rows * columns * share.itemsize
        sampled = 12 * columns * min(rows, self.samples)
        trees = 2 * rows * columns + rows * (24 + 16 * share.outputs)
        trees += each * (cached + 2 + share.threads)
        least, most = phases(sampled, trees)
        return ByteRange(copied + least, copied + most)


def pool_memory(params: Mapping[str, Any]) -> PoolMemory | None:
    """Return the memory for parameters of an estimator; None: not modelled."""

    def value(default: Any, *names: str) -> Any:
        found = [params[name] for name in names if params.get(name) is not None]
        return found[-1] if found else default

    device = value("cpu", "device", "device_type")
    quantized = value(False, "use_quantized_grad")
    bins = value(255, "max_bin", "max_bins")
    if device != "cpu" or quantized or bins > 255:
        return None
    leaves = value(31, "num_leaves", "num_leaf", "max_leaves", "max_leaf_nodes")
    return PoolMemory(
        leaves=leaves,
        bins=bins,
        pool=value(-1, "histogram_pool_size", "hist_pool_size"),
        samples=value(200_000, "bin_construct_sample_cnt", "subsample_for_bin"),
    )
