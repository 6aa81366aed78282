"""What one training library needs of the data's layout, as plain frozen data.

Every workload has one (see :mod:`clustertune.integrations.libraries`); checks, planner
and actions read nothing else of a library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one training library needs of the layout, and what its fit takes.

    Where a library needs nothing in particular, the default says so.
    """

    name: str
    title: str

    # --- memory

    #: peak memory of the fit on a worker, as a multiple of the bytes of its data
    #: (the data included), by the item size of the numbers, with ``pieces_per_thread``
    memory_multiple: Mapping[int, float]
    #: what of that is for intermediate results of pieces in work, one a thread, as a
    #: multiple of the bytes of these; empty: it does not depend on the pieces
    piece_multiple: Mapping[int, float] = field(default_factory=dict)
    #: bytes of a worker's process that has imported the library, before any data
    base_bytes: int = 0
    #: bytes of each number that the library keeps of the features; None: unknown
    feature_bytes: int | None = None
    #: workload that trains the same model with less memory; None: no other one does
    frugal: Profile | None = None
    #: parameters of the library that select it
    frugal_parameters: str = ""
    #: source of the figures
    source: str = ""

    # --- pieces

    #: whether the data is read more than once, so that it is loaded before
    persist: bool = True
    #: pieces per thread above which small pieces cost noticeable time
    max_pieces_per_thread: int = 256
    #: most pieces per thread into which data is cut: some, for rows to lie evenly
    pieces_per_thread: int = 4
    #: bytes of a piece above which it is cut into more, of all members together
    max_piece_bytes: int = 2**29
    #: whether the model depends on the number of pieces, which is kept between runs
    keeps_pieces: bool = False

    # --- rows

    #: rows without which a worker that holds some fails
    min_rows: int = 1
    #: whether every worker needs exactly as many rows as the others
    exact_rows: bool = False
    #: what rows of a group (qid) need. "": nothing; "together": to be neighbours, on
    #: one worker; "sorted": so, in the order of their groups
    groups: str = ""
    #: whether it sorts rows by group itself where they are not in order
    sorts_groups: bool = False
    #: whether it wants the sizes of the groups instead of each row's group
    group_sizes: bool = False
    #: whether it fails where a worker holds no row of some class; None: only if it is
    #: a classifier, and the estimator is not known
    needs_all_classes: bool | None = False
    #: whether each worker needs all rows of eval sets, of which the pieces are taken
    #: beside those of the training data
    eval_copies: bool = False
    #: whether the estimator is known to stop early by its scores
    stops_early: bool = False
    #: whether it fails where a worker has no row of an eval set with categories
    eval_everywhere: bool = False
    #: whether it needs rows in an order that says nothing of them; None: unknown
    random_order: bool | None = None

    # --- values

    #: kinds of collections that it takes as X
    kinds: tuple[str, ...] = ("array", "dataframe")
    #: whether it makes one array of all columns, as wide as the widest
    one_number_type: bool = False
    #: whether it trains on the codes of categories, which must be the same everywhere
    categories: bool = False

    # --- processes

    #: distributions of which workers need one; empty: none in particular
    packages: tuple[str, ...] = ()
    #: whose threads it takes: "worker" (as many as the worker has), "pools" (those of
    #: BLAS and OpenMP, as they are set there); "": unknown
    threads: str = ""
    #: whether it starts processes below a worker
    starts_processes: bool = False
    #: why no layout helps it, and what to do instead; "": prepare takes it
    refused: str = ""
    #: what its fit takes beside X and y, of companions and "eval_set"; None: anything
    takes: tuple[str, ...] | None = None

    def multiple(self, itemsize: int | None) -> float:
        """The multiple for this item size; for one that is not listed, the largest."""
        return _multiple(self.memory_multiple, itemsize)

    def parts(self, itemsize: int | None) -> tuple[float, float]:
        """The multiples of all pieces, and of those in work beside."""
        of_pieces = _multiple(self.piece_multiple, itemsize)
        return self.multiple(itemsize) - of_pieces / self.pieces_per_thread, of_pieces


def _multiple(known: Mapping[int, float], itemsize: int | None) -> float:
    if itemsize is not None and itemsize in known:
        return known[itemsize]
    return max(known.values(), default=0.0)
