"""What a playbook acts on: collections of this client, or data sets by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from distributed import Client

from clustertune.collections import inputs
from clustertune.collections.inputs import COMPANIONS
from clustertune.core.counts import Done
from clustertune.core.report import Report
from clustertune.core.wording import names_text
from clustertune.operations import publishing, release
from clustertune.operations.prepare import prepare
from clustertune.operations.prepared import Prepared


class Material(Protocol):
    """Data of a fit. All but ``prepared`` happens in the client's event loop."""

    prepared: Prepared | None  # what ``prepare`` has handed back last

    async def inputs(self) -> inputs.Inputs:
        """The collections as they are now.

        Raises
        ------
        TypeError, ValueError, RefusedError
            They cannot be what a fit is on, or are published no more.
        """

    async def prepare(self, **options: Any) -> Report:
        """Do what :func:`clustertune.prepare` does with them."""

    async def let_go(self, *, dry_run: bool, **options: Any) -> Report:
        """Want them no more."""


@dataclass(kw_only=True)
class Collections:
    """Collections that the caller holds; each call of ``prepare`` replaces them."""

    client: Client
    X: Any
    y: Any = None
    companions: Mapping[str, Any] = field(default_factory=dict)
    eval_set: Any = None
    prepared: Prepared | None = None

    def gather(self) -> inputs.Inputs:
        """They are checked.

        Raises
        ------
        TypeError, ValueError
            As by :func:`clustertune.prepare`.
        """
        return inputs.gather(
            self.X, self.y, (), dict(self.companions), self.eval_set or None
        )

    async def inputs(self) -> inputs.Inputs:
        return self.gather()

    async def prepare(self, **options: Any) -> Report:
        # of a client in its own event loop it is to be awaited
        preparing: Any = prepare
        done: Prepared = await preparing(
            self.client,
            self.X,
            self.y,
            **self.companions,
            eval_set=self.eval_set or None,
            **options,
        )
        if not options.get("dry_run"):
            self.prepared, self.X, self.y = done, done.X, done.y
            self.companions = {name: getattr(done, name) for name in COMPANIONS}
            self.eval_set = done.eval_set
        return done.report

    async def let_go(self, *, dry_run: bool, **options: Any) -> Report:
        every = [x.collection for x in self.gather()]
        let_go: Any = release.release_collections
        report: Report = await let_go(self.client, *every, dry_run=dry_run, **options)
        return report


@dataclass(kw_only=True)
class DataSets:
    """Published data sets: X, y, and others of the same rows."""

    client: Client
    names: tuple[str, ...]
    prepared: Prepared | None = None

    async def inputs(self) -> inputs.Inputs:
        X, *rest = await publishing.collections(self.client, self.names)
        y, *others = rest or [None]
        return inputs.gather(X, y, others, {}, None)

    async def prepare(self, **options: Any) -> Report:
        preparing: Any = publishing.prepare_datasets
        report: Report = await preparing(self.client, *self.names, **options)
        return report

    async def let_go(self, *, dry_run: bool, **options: Any) -> Report:
        """Unpublish them; what nobody holds is freed then."""
        del options  # there is nothing to wait for
        start = monotonic()
        await publishing.fetch(self.client, self.names)  # refuses names of none
        for name in () if dry_run else self.names:
            unpublish: Any = self.client.unpublish_dataset
            await unpublish(name)
        step = Done(
            action="unpublish",
            summary=f"unpublish {names_text(self.names, most=8)}",
            gain="what nobody else holds is freed",
            status="planned" if dry_run else "done",
            predicted_bytes=0,
            predicted_seconds=None,
            at_risk=f"what only {names_text(self.names, most=8)} hold",
            seconds=None if dry_run else monotonic() - start,
        )
        return Report(status=step.status, seconds=monotonic() - start, steps=(step,))
