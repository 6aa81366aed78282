"""What ``prepare`` hands over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from time import time
from typing import Any, NoReturn

from distributed import Client

from clustertune.collections.inputs import COMPANIONS, Inputs
from clustertune.core.model import ORDER, Layout, Plan, Profile
from clustertune.core.report import Report
from clustertune.core.wording import plural
from clustertune.integrations import libraries
from clustertune.integrations.libraries import Handed
from clustertune.operations.blocks import Block
from clustertune.operations.history import noting
from clustertune.operations.holding import Hold
from clustertune.operations.journal import Journal


@dataclass(frozen=True, kw_only=True)
class Again:
    """What can be done again for the same data, as coroutines."""

    client: Client
    prepare: Callable[[], Awaitable[Prepared]]
    verify: Callable[[Journal], Awaitable[Report]]
    put_bounds_back: Callable[[], Awaitable[None]]  # of adaptive scaling
    workload: Profile
    estimator: object = None
    aside: Mapping[str, Any] = field(default_factory=dict)  # rows left over, by label
    #: sizes of groups, by label of what names the groups
    group_sizes: Mapping[str, Any] = field(default_factory=dict)


class Prepared(Block):
    """The prepared collections and the report; unpacks into what was given, in order.

    Eval sets are not among what it unpacks into: they are in ``eval_set``, and in
    ``fit_kwargs`` as the library takes them.

    Attributes
    ----------
    X, y, others, sample_weight, qid, base_margin, init_score
        The collections; None (``others``: empty) where none was given.
    group
        The sizes of groups in new partitions, where ``group=`` was given; else None.
    eval_set : list of tuples
        As given, prepared. For LightGBM each has its rows once for every worker.
    remainder : list or None
        Where every worker needs as many rows, those that are left over, fewer than
        there are workers: collections in the order in which this unpacks. They are not
        in X and y; whether to leave them out is the caller's choice. None: there are
        none.
    row_order : dask.array.Array or None
        After ``sort=`` or ``shuffle=``, for every row of X the number that it had:
        ``prediction[np.argsort(row_order)]`` is in the order that was given. (rows,)
        of int64. None: rows are in the order in which they came.
    fit_kwargs, estimator_params : dict
        For the library that trains: ``model.set_params(**prepared.estimator_params)``
        and ``model.fit(X, y, **prepared.fit_kwargs)``. Empty where it needs nothing.
    before, after : Layout
        Where the training data lay and where it lies.
    plan : tuple of Plan
        What was planned, a phase each; after a dry run what would be done first.
    report : Report
        Printable; ``to_json()``; shows itself in a notebook.
    hold : Hold
        Of ``with prepare(...) as (X, y):``; its ``measures`` say what the run took.

    Examples
    --------
    >>> X, y, w = clustertune.prepare(client, X, y, sample_weight=w)  # doctest: +SKIP
    """

    def __init__(self, given: Inputs, journal: Journal, report: Report, again: Again):
        self._inputs = given
        self._sizes = {x: _sizes(given, x, again.group_sizes) for x in given.sizes}
        self._given = [
            self._sizes.get(label, given.collection(label)) for label in given.training
        ]
        self._journal = journal
        self._again = again
        self.X: Any = given.collection("X")
        self.y: Any = given.collection("y")
        self.others = tuple(
            given.collection(x) for x in given.training if x.startswith("others[")
        )
        for name in COMPANIONS:
            setattr(self, name, given.collection(name))
        self.group: Any = self._sizes.get("qid")
        self.eval_set = [
            _as_given(given, labels, self._sizes) for labels in given.eval_sets
        ]
        self.row_order = given.collection(ORDER)
        aside = again.aside
        self.remainder = [aside[given.same[x]] for x in given.training if aside] or None
        self.report = report

    @property
    def _handed(self) -> Handed:
        given, sizes = self._inputs, self._again.group_sizes
        return Handed(
            training=_rows(given, given.training, sizes),
            eval_sets=tuple(_rows(given, x, sizes) for x in given.eval_sets),
            estimator=self._again.estimator,
        )

    @cached_property
    def fit_kwargs(self) -> dict[str, Any]:
        return libraries.fit_kwargs(self._again.workload, self._handed)

    @cached_property  # a model that is shared is shared once
    def estimator_params(self) -> dict[str, Any]:
        return libraries.estimator_params(self._again.workload, self._handed)

    @property
    def before(self) -> Layout:
        return self._journal.views[0].layouts[0]

    @property
    def after(self) -> Layout:
        return self._journal.views[-1].layouts[0]

    @property
    def plan(self) -> tuple[Plan, ...]:
        return tuple(p for p in self._journal.plans if p.steps or p.refused)

    def verify(self) -> Any:
        """Look again whether every piece is where it was put, with rows and pair.

        One look takes a fraction of a second, so call this before each fit. If a
        computation has copied pieces to other workers, this waits up to 5 s until
        Dask's memory manager has dropped the copies.

        Returns
        -------
        Report
            Of the cluster and the data as they are now (to be awaited with an
            asynchronous client).

        Raises
        ------
        LayoutChanged
            Something is lost, has other rows, is apart from its pair or on another
            worker, or a worker lacks its copy of an eval set; the text names it.
        """
        return self._again.client.sync(self._again.verify, self._journal)

    def apply(self) -> Any:
        """Do what a dry run has planned: looks again, plans again, and acts.

        Returns
        -------
        Prepared
            As if ``prepare`` had been called without ``dry_run`` (to be awaited with
            an asynchronous client).
        """
        return self._again.client.sync(self._again.prepare)

    # --- hold -------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        return self._again.client

    async def _begin(self) -> None:
        """Hold the cluster for the block: see :func:`clustertune.hold`."""
        predicted = max(self.report.forecast.values(), default=None)
        about = partial(noting.of_call, "fit", self._journal, self.report, time())
        self.hold = Hold(self.client, label="a fit", predicted=predicted, about=about)
        await self.hold.__aenter__()

    async def _end(self) -> None:
        await self.hold.__aexit__(None, self._error, None)
        await self._again.put_bounds_back()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._given)

    def __repr__(self) -> str:
        names = ["X", "y"][: 1 + (self.y is not None)]
        names += [n for n in COMPANIONS if getattr(self, n) is not None]
        if self.eval_set:
            names.append(plural(len(self.eval_set), "eval set"))
        return f"<Prepared: {', '.join(names)}; {self.report.status}>"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(_UNPACK)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name!r}: {_UNPACK}")


def _sizes(given: Inputs, label: str, made: Mapping[str, Any]) -> Any:
    """Sizes of groups in the partitions that there are; after a dry run as given."""
    return made.get(given.same[label], given.sizes[label])


def _as_given(
    given: Inputs, labels: tuple[str, ...], sizes: Mapping[str, Any]
) -> tuple[Any, ...]:
    """An eval set in the form in which it was given."""
    X, y, *companions = labels
    named = {
        "group" if x in sizes else x.rpartition(".")[2]: sizes.get(
            x, given.collection(x)
        )
        for x in companions
    }
    pair = given.collection(X), given.collection(y)
    return (*pair, named) if named else pair


def _rows(
    given: Inputs, labels: tuple[str, ...], sizes: Mapping[str, Any]
) -> libraries.Rows:
    named = {x.rpartition(".")[2]: x for x in labels if not x.startswith("others[")}
    found = {name: given.collection(label) for name, label in named.items()}
    qid = named.get("qid")
    return libraries.Rows(
        **found, group_sizes=sizes.get(given.same[qid]) if qid else None
    )


_UNPACK = (
    "this is what clustertune.prepare returned, not an array or a frame; unpack it: "
    "X, y = clustertune.prepare(client, X, y), or take its .X and .y"
)
