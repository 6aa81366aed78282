"""What ``prepare`` hands over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from distributed import Client

from clustertune.blocks import Block
from clustertune.holding import Hold
from clustertune.inputs import COMPANIONS, Inputs
from clustertune.journal import Journal
from clustertune.model import Layout, Plan
from clustertune.report import Report


@dataclass(frozen=True, kw_only=True)
class Again:
    """What can be done again for the same data, as coroutines."""

    client: Client
    prepare: Callable[[], Awaitable[Prepared]]
    verify: Callable[[Journal], Awaitable[Report]]
    put_bounds_back: Callable[[], Awaitable[None]]  # of adaptive scaling


class Prepared(Block):
    """The prepared collections and the report; unpacks into what was given, in order.

    Attributes
    ----------
    X, y, others, sample_weight, qid, base_margin, init_score
        The collections; None (``others``: empty) where none was given.
    eval_set : list of pairs
        As given, prepared.
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
        self._given = [given.collection(label) for label in given.training]
        self._journal = journal
        self._again = again
        self.X: Any = given.collection("X")
        self.y: Any = given.collection("y")
        self.others = tuple(
            given.collection(x) for x in given.training if x.startswith("others[")
        )
        for name in COMPANIONS:
            setattr(self, name, given.collection(name))
        self.eval_set = [
            (given.collection(x), given.collection(y)) for x, y in given.eval_set
        ]
        self.report = report

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

        Returns
        -------
        Report
            Of the cluster and the data as they are now (to be awaited with an
            asynchronous client).

        Raises
        ------
        VerificationError
            Something is lost, has other rows or is apart from its pair; the text
            says what.
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
        self.hold = Hold(self.client, label="a fit", predicted=predicted)
        await self.hold.__aenter__()

    async def _end(self) -> None:
        await self.hold.__aexit__(None, None, None)
        await self._again.put_bounds_back()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._given)

    def __repr__(self) -> str:
        names = ["X", "y"][: 1 + (self.y is not None)]
        names += [n for n in COMPANIONS if getattr(self, n) is not None]
        return f"<Prepared: {', '.join(names)}; {self.report.status}>"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(_UNPACK)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name!r}: {_UNPACK}")


_UNPACK = (
    "this is what clustertune.prepare returned, not an array or a frame; unpack it: "
    "X, y = clustertune.prepare(client, X, y), or take its .X and .y"
)
