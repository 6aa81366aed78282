"""``Prepared``: the result of ``prepare``."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from time import monotonic
from typing import Any, NoReturn

import numpy as np
from dask.base import annotate

from clustertune import checks
from clustertune.actions.cluster.live import LiveCluster, LookOptions
from clustertune.collections import contents
from clustertune.collections.inputs import COMPANIONS
from clustertune.core.model import CollectionInfo, Layout, Plan, View
from clustertune.core.report import Report
from clustertune.core.wording import plural, seconds_text
from clustertune.errors import IncompleteError, TimedOutError, VerificationError
from clustertune.integrations import libraries
from clustertune.integrations.libraries import FitInputs
from clustertune.monitor import monitor
from clustertune.monitor.connection import ClientContext, sync
from clustertune.operations import history
from clustertune.operations.call import Call, RunningCall
from clustertune.operations.hold import Hold
from clustertune.operations.journal import Journal
from clustertune.operations.surviving import FitWatch, Loss
from clustertune.planner import layouts, suitability
from clustertune.planner import plan as planner
from clustertune.remote.ending import within

DROP_SECONDS = 5.0  # in which Dask's memory manager drops surplus replicas
#: sampled rows of a collection, and of their values with many columns
MOST_SAMPLED, LEAST_SAMPLED, SAMPLED_VALUES = 500, 16, 2**18
LOOK_INTERVAL = 0.25  # seconds between two looks for surplus replicas


class Prepared(ClientContext):
    """The prepared collections and the report; unpacks in the order of the arguments.

    Eval sets are not unpacked. They are in ``eval_set``, and in ``fit_kwargs`` in the
    form that the library takes.

    Attributes
    ----------
    X, y, others, sample_weight, qid, base_margin, init_score
        The collections; None (``others``: empty) if not given.
    group
        Group sizes in new partitions if ``group=`` was given, else None.
    eval_set : list of tuples
        The prepared eval sets. For LightGBM each worker has all their rows.
    fit_kwargs, estimator_params : dict
        Arguments of the library: ``model.set_params(**prepared.estimator_params)``
        and ``model.fit(X, y, **prepared.fit_kwargs)``. Empty if it needs none.
    n_threads : int or None
        Threads of a training task, where :func:`clustertune.fit` has placed the data on
        one worker of each host. None: as many as its worker has.
    before, after : Layout
        Layout of the training data before and after the call.
    plan : tuple of Plan
        The plans, one for each phase; after a dry run the first phase only.
    report : Report
        It prints, has ``to_json()``, and displays as HTML in a notebook.
    hold : Hold
        The hold of ``with prepare(...) as (X, y):``; ``measures`` has time and memory.

    Examples
    --------
    >>> X, y, w = clustertune.prepare(client, X, y, sample_weight=w)  # doctest: +SKIP
    """

    def __init__(
        self,
        call: Call,
        cluster: LiveCluster,
        journal: Journal,
        report: Report,
        estimator: object,
    ):
        """Keep a finished call, which has the new collections instead of the old."""
        super().__init__(call.client)
        self._call = call
        self._cluster = cluster
        self._estimator = estimator
        self._inputs = given = call.given
        # group sizes in the current partitions; after a dry run as given
        made = cluster.data.group_sizes
        self._sizes = {x: made.get(given.same[x], n) for x, n in given.sizes.items()}
        self._given = [
            self._sizes.get(label, given.collection(label)) for label in given.training
        ]
        self._journal = journal
        self.X: Any = given.collection("X")
        self.y: Any = given.collection("y")
        self.others = tuple(
            given.collection(x) for x in given.training if x.startswith("others[")
        )
        for name in COMPANIONS:
            setattr(self, name, given.collection(name))
        self.group: Any = self._sizes.get("qid")
        self.eval_set = [self._as_given(labels) for labels in given.eval_sets]
        self.report = report
        self.watch: FitWatch | None = None  # of the block; set before it begins

    def _as_given(self, labels: tuple[str, ...]) -> tuple[Any, ...]:
        """An eval set in the form of the argument."""
        X, y, *companions = labels
        named = {x.rpartition(".")[2]: self._inputs.collection(x) for x in companions}
        for label in self._sizes.keys() & labels:
            del named[label.rpartition(".")[2]]
            named["group"] = self._sizes[label]
        pair = self._inputs.collection(X), self._inputs.collection(y)
        return (*pair, named) if named else pair

    @property
    def _fit_inputs(self) -> FitInputs:
        given = self._inputs
        return FitInputs(
            training=self._rows(given.training),
            eval_sets=tuple(self._rows(labels) for labels in given.eval_sets),
            estimator=self._estimator,
            n_threads=self.n_threads,
        )

    @cached_property
    def n_threads(self) -> int | None:
        return suitability.threads_of_task(self._journal.views[-1])

    def _rows(self, labels: tuple[str, ...]) -> libraries.Rows:
        given, sizes = self._inputs, self._cluster.data.group_sizes
        named = {x.rpartition(".")[2]: x for x in labels if not x.startswith("others[")}
        found = {name: given.collection(label) for name, label in named.items()}
        qid = named.get("qid")
        return libraries.Rows(
            **found, group_sizes=sizes.get(given.same[qid]) if qid else None
        )

    @cached_property
    def fit_kwargs(self) -> dict[str, Any]:
        return libraries.fit_kwargs(self._call.goal.workload, self._fit_inputs)

    @cached_property  # a shared model is sent to the workers once
    def estimator_params(self) -> dict[str, Any]:
        workload = self._call.goal.workload
        return libraries.estimator_params(workload, self._fit_inputs)

    @property
    def before(self) -> Layout:
        return self._journal.views[0].layouts[0]

    @property
    def after(self) -> Layout:
        return self._journal.views[-1].layouts[0]

    @property
    def placement(self) -> Mapping[str, tuple[str | int | None, ...]]:
        """The worker of each partition, by the label of its layout."""
        view = self._journal.views[-1]
        return {x.label: layouts.home_ids(x, view) for x in view.layouts if x.loaded}

    @cached_property
    def partition_keys(self) -> frozenset[Any]:
        """The keys of the partitions of all collections."""
        view = self._journal.views[-1]
        return frozenset(k for x in view.layouts for m in x.collections for k in m.keys)

    async def digests(self, former: Iterable[Prepared] = ()) -> dict[Any, str]:
        """Return digests of the partitions of all collections, as far as known.

        Partitions of ``former`` results are among them. Lost ones are computed again
        first, within the time limit of their call.
        """
        keys = self.partition_keys
        for prepared in former:
            if not prepared.partition_keys <= keys:
                await prepared.recomputed()
                keys |= prepared.partition_keys
        return await contents.digests(
            self.client, list(keys), monitor.known(self.client).addresses
        )

    async def recomputed(self) -> None:
        """Wait until lost partitions are computed again, if that is possible."""
        run = RunningCall(replace(self._call, look=LookOptions(task_seconds=0.0)))
        looking = run.cluster.look(lambda *_: None)
        try:
            # what cannot be computed again cannot have other values
            with suppress(IncompleteError):
                await within(looking, self._call.timeout)
        except asyncio.TimeoutError as late:
            raise self._late("their values could not be compared") from late

    def _late(self, consequence: str) -> TimedOutError:
        """The error of a look that has waited for partitions for too long."""
        return TimedOutError(
            "partitions that were lost were not computed again within "
            f"{seconds_text(self._call.timeout)}, or others not counted, so "
            f"{consequence}; give prepare a longer timeout"
        )

    async def samples(self) -> dict[str, Any]:
        """Return rows, and digests of some, of each collection, by label.

        The sampled rows depend on the number of rows only, not on the partitions. The
        digest of a row that is not in memory is "". Of replicas, one counts.
        """
        every = [
            _one_replica(m, x) if layouts.is_copied(x) else m
            for x in self._journal.views[-1].layouts
            for m in x.collections
        ]
        picked = {m.label: _sampled(m) for m in every}
        rows: dict[Any, list[int]] = {}
        for parts in picked.values():
            rows |= parts
        found = await contents.row_digests(
            self.client, rows, monitor.known(self.client).addresses
        )
        return {
            m.label: {
                "rows": None if m.rows is None else int(m.rows.sum()),
                "digests": [
                    digest
                    for key, numbers in picked[m.label].items()
                    for digest in found.get(key) or [""] * len(numbers)
                ],
            }
            for m in every
        }

    @property
    def members(self) -> tuple[tuple[str, str | int], ...]:
        """Addresses and ids of the workers that hold partitions of the training data.

        A worker that leaves now is known by its id afterwards.
        """
        there = set(self.placement.get(self.after.label, ()))
        workers = self._journal.views[-1].now.workers
        return tuple((w.address, w.id) for w in workers if w.id in there)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(address for address, _ in self.members)

    def held_only_by(self, workers: Collection[str | int]) -> int:
        """Return the number of training partitions of which only these have a copy."""
        homes = self.placement.get(self.after.label, ())
        copied = layouts.replicated(self.after)
        return sum(
            home in workers and not copy
            for home, copy in zip(homes, copied, strict=False)
        )

    @property
    def named_workers(self) -> frozenset[str | int] | None:
        """The ids of the workers that the caller named; None: all."""
        return self._call.goal.workers

    @property
    def plan(self) -> tuple[Plan, ...]:
        return tuple(p for p in self._journal.plans if p.steps or p.refused)

    def verify(self) -> Any:
        """Check that every partition has its rows, its companions and its worker.

        This takes a fraction of a second, so call it before each fit. If a computation
        has replicated partitions, it takes up to 5 s, until Dask's memory manager has
        dropped the replicas.

        Returns
        -------
        Report
            Current state of cluster and data (awaitable with an asynchronous client).

        Raises
        ------
        VerificationError
            A partition is lost, has other rows, is apart from its companions or on
            another worker, or a worker lacks its replica of an eval set.
        TimedOutError
            Within the ``timeout`` of the call, lost partitions were not computed again,
            or spilled ones not counted.
        """
        return sync(self.client, self.verified, DROP_SECONDS)

    async def verified(self, drop_seconds: float = 0.0) -> Report:
        """Compare the data with the end of the call; see :meth:`verify`."""
        run, start = RunningCall(self._call), monotonic()
        looking = _settled(run.cluster, drop_seconds)
        try:
            now = suitability.chosen(await within(looking, self._call.timeout))
        except IncompleteError as gone:
            raise VerificationError(f"looking again found: {gone}") from gone
        except asyncio.TimeoutError as late:
            raise self._late("the data could not be verified") from late
        run.journal.add(now, checks.run(now, run.settings))
        # memory is not compared: other work may have taken some since
        was = self._journal.views[-1]
        lost = planner.lost_rows(was, now)
        uncounted = planner.uncounted_rows(was, now)
        moved = (*uncounted, *planner.separations(was, now), *planner.moves(was, now))
        wrong = "; ".join((*lost, *moved))
        status = "failed" if wrong else "fine"
        report = run.journal.report(status, monotonic() - start, wrong)
        if wrong:
            error = VerificationError(f"looking again found: {wrong}")
            error.report, error.rows_changed = report, bool(lost)
            raise error
        return report

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Bind tasks to the workers of the data if one worker of each host trains.

        Dask could give the tasks that pack partitions to idle workers of the host.
        """
        if self.n_threads is None:
            yield
            return
        with warnings.catch_warnings(), annotate(workers=list(self.addresses)):
            # frames ignore it, and are in memory; the tasks that pack them do not
            warnings.filterwarnings("ignore", "Dask annotations ", UserWarning)
            yield

    def drop_copies(self) -> None:
        """Release copies of the given data that were made for the time of a fit."""
        self._cluster.data.drop_copies()

    async def lost(self, error: Exception) -> Loss | None:
        """Return what a fit that failed in the block had lost; free its workers."""
        if self.watch is None:
            return None
        return await self.watch.ended(self.hold.monitor, error)

    # --- hold -------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Hold the cluster for the block: see :func:`clustertune.hold`."""
        predicted = self.report.predicted_peak
        about = partial(history.of_data, self._journal, self.report)
        self.hold = Hold(
            self.client,
            label="a fit",
            predicted=predicted,
            about=about,
            watch=self.watch,
        )
        try:
            await self.hold.__aenter__()
        except BaseException:
            await asyncio.shield(self._cluster.put_bounds_back())
            raise

    async def _end(self) -> None:
        try:
            await self.hold.__aexit__(None, self._error, None)
        finally:
            await self._cluster.put_bounds_back()

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


def _one_replica(collection: CollectionInfo, layout: Layout) -> CollectionInfo:
    """Return a collection with the first partition that has rows only."""
    ((full, _, _),) = layouts.original(layout)
    key, rows = collection.keys[full], collection.rows
    return replace(collection, keys=(key,), rows=None if rows is None else rows[[full]])


def _sampled(collection: CollectionInfo) -> dict[Any, list[int]]:
    """Return numbers of rows within partitions, at equal distances, by key."""
    if collection.rows is None or collection.column_blocks > 1:
        return {}
    ends = np.cumsum(collection.rows)
    values = SAMPLED_VALUES // max(1, collection.columns or 1)
    count = min(int(ends[-1]), max(LEAST_SAMPLED, min(MOST_SAMPLED, values)))
    picked = np.linspace(0, int(ends[-1]) - 1, count).astype(np.int64)
    where = np.searchsorted(ends, picked, side="right")
    within = picked - (ends - collection.rows)[where]
    found: dict[Any, list[int]] = {}
    for partition, number in zip(where.tolist(), within.tolist(), strict=True):
        found.setdefault(collection.keys[partition], []).append(number)
    return found


async def _settled(cluster: LiveCluster, seconds: float) -> View:
    """Look until Dask's memory manager has dropped surplus replicas, or for so long."""
    await cluster.open(None)
    end = monotonic() + seconds
    while True:
        view = await cluster.look(lambda *_: None)
        known = [x for x in view.layouts if x.loaded and x.aligned]
        surplus = any(layouts.replicated(x).any() for x in known)
        if not surplus or not view.now.memory_manager or monotonic() >= end:
            return view
        await asyncio.sleep(LOOK_INTERVAL)


_UNPACK = (
    "this is the result of clustertune.prepare, not an array or a frame; unpack it: "
    "X, y = clustertune.prepare(client, X, y), or take its .X and .y"
)
