"""Prepare published data sets; afterwards their names refer to the prepared data.

All names change in one step, if no other client has changed one of them meanwhile. Dask
can only replace one name after another. An interruption would then leave new rows with
old labels.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from time import monotonic
from typing import Any

import dask.array as da
import dask.dataframe as dd
from distributed import Client, futures_of
from distributed.protocol.serialize import to_serialize

from clustertune.actions.cluster.lease import Lease
from clustertune.collections import inputs
from clustertune.collections.inputs import COMPANIONS
from clustertune.core import arguments
from clustertune.core.counts import Done
from clustertune.core.model import Key, Notify, Profile
from clustertune.core.progress import Progress
from clustertune.core.report import Report
from clustertune.core.wording import are, names_text, plural, printable
from clustertune.errors import (
    ClustertuneError,
    IncompleteError,
    RefusedError,
    TimedOutError,
)
from clustertune.integrations import libraries
from clustertune.monitor import monitor
from clustertune.monitor.connection import sync
from clustertune.operations.call import check_client
from clustertune.operations.prepare import prepare
from clustertune.operations.prepared import Prepared
from clustertune.remote import keys

ANSWER_TIMEOUT = 60.0  # seconds for the scheduler to change the names
PLACEHOLDER = "{name}"  # placeholder in keep_old


def prepare_datasets(
    client: Client,
    X: str,
    y: str | None = None,
    *others: str,
    sample_weight: str | None = None,
    qid: str | None = None,
    base_margin: str | None = None,
    init_score: str | None = None,
    eval_set: Sequence[tuple[str, str]] | None = None,
    keep_old: str | None = None,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    **options: Any,
) -> Report:
    """Prepare published data sets; their names then refer to the prepared data.

    All names change in one step, or none does, even if this client ends. Lazy data is
    published as persisted data. If partitions were only moved, their keys and
    the names stay the same. Additional results are published under new names:
    ``X-row-order``, ``X-remainder`` (rows left out to make workers exactly even), and
    ``X_valid-copies`` (an eval set with one copy for each worker).

    Reading a published data set unpickles it, which runs code of its publisher. The
    same happens in ``client.get_dataset``.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    X, y, *others, sample_weight, qid, base_margin, init_score, eval_set
        Names of data sets; each is one Dask Array, DataFrame or Series.
    keep_old
        A name under which replaced collections are published. For several it contains
        ``{name}``. None: the scheduler frees them unless a client holds them.
    dry_run, progress, **options
        As for :func:`clustertune.prepare`.

    Returns
    -------
    Report
        The report of ``prepare``, with a step ``publish`` if names changed.

    Raises
    ------
    ValueError
        A data set does not exist; the text lists the existing ones.
    RefusedError
        A data set is not one collection, or cannot be read here; the name in
        ``keep_old`` exists; or another client changed a name meanwhile. No name was
        changed.
    ClustertuneError
        As for :func:`clustertune.prepare`. No name was changed.

    Examples
    --------
    >>> prepare_datasets(client, "X", "y", estimator="xgboost")  # doctest: +SKIP
    """
    companions = {
        "sample_weight": sample_weight,
        "qid": qid,
        "base_margin": base_margin,
        "init_score": init_score,
    }
    names = DatasetNames.of(X, y, others, companions, eval_set)
    kept = backup_names(names.distinct, keep_old)
    options["dry_run"] = arguments.flag("dry_run", dry_run)
    options["progress"] = progress
    check_client(client)
    # an asynchronous client returns an awaitable
    report: Report = sync(client, _prepare, client, names, kept, options)
    return report


# --- names (pure) ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DatasetNames:
    """Names of data sets by their arguments of ``prepare``."""

    training: tuple[str, ...]  # X, y and others
    companions: Mapping[str, str]
    eval_set: tuple[tuple[str, str], ...]

    @classmethod
    def of(
        cls,
        X: str,
        y: str | None,
        others: Sequence[str],
        companions: Mapping[str, str | None],
        eval_set: Sequence[tuple[str, str]] | None,
    ) -> DatasetNames:
        """Check the names; raise TypeError or ValueError."""
        if y is None and others:
            raise TypeError("y is None but names follow it; give y, or name them")
        pairs = () if eval_set is None else tuple(eval_set)
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            raise ValueError(
                f"eval_set={eval_set!r} must be a list of pairs of names, like "
                "eval_set=[('X_valid', 'y_valid')]"
            )
        names = cls(
            training=(X, *(() if y is None else (y,)), *others),
            companions={
                k: n for k in COMPANIONS if (n := companions.get(k)) is not None
            },
            eval_set=tuple((a, b) for a, b in pairs),
        )
        for name in names.all:
            if not (isinstance(name, str) and name):
                raise TypeError(f"{name!r} must be the name of a published data set")
        arguments.distinct("data sets", names.training)
        for pair in names.eval_set:
            arguments.distinct("eval_set", pair)
        return names

    @property
    def all(self) -> list[str]:
        """Names in the order of the results of ``prepare``; eval sets are last."""
        return [
            *self.training,
            *self.companions.values(),
            *chain.from_iterable(self.eval_set),
        ]

    @property
    def distinct(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.all))

    def prepare_arguments(
        self, collections: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        named: dict[str, Any] = {k: collections[n] for k, n in self.companions.items()}
        pairs = [(collections[x], collections[y]) for x, y in self.eval_set]
        named["eval_set"] = pairs or None
        return [collections[name] for name in self.training], named

    def collections(self, prepared: Prepared) -> dict[str, Any]:
        pairs = chain.from_iterable(prepared.eval_set)
        return dict(zip(self.all, [*prepared, *pairs], strict=True))

    def extra_names(
        self, profile: Profile, options: Mapping[str, Any]
    ) -> ExtraDatasets:
        """Return names for additional results of ``prepare``."""
        X = self.training[0]
        ordered = options.get("shuffle") or options.get("sort")
        rows = (*self.training, *self.companions.values())
        pairs = chain.from_iterable(self.eval_set)
        return ExtraDatasets(
            order=f"{X}-row-order" if ordered else "",
            remainder=tuple(f"{n}-remainder" for n in rows if profile.exact_rows),
            copies={n: f"{n}-copies" for n in pairs if profile.eval_copies},
        )


@dataclass(frozen=True, kw_only=True)
class ExtraDatasets:
    """Names of data sets that ``prepare_datasets`` publishes in addition."""

    order: str  # previous row numbers; "": rows stay in order
    remainder: tuple[str, ...]  # rows left out of the training data
    copies: Mapping[str, str]  # by eval set: all its rows, once for each worker

    @property
    def names(self) -> tuple[str, ...]:
        order = (self.order,) if self.order else ()
        return (*order, *self.remainder, *self.copies.values())

    def collections(self, prepared: Prepared) -> dict[str, Any]:
        """Return the additional collections by name, except eval sets."""
        found = {}
        if self.order and prepared.row_order is not None:
            found[self.order] = prepared.row_order
        if prepared.remainder is not None:
            found |= zip(self.remainder, prepared.remainder, strict=True)
        return found


def backup_names(names: Sequence[str], keep_old: str | None) -> dict[str, str]:
    """Return the new name of each replaced collection; empty if they are not kept."""
    if keep_old is None:
        return {}
    if not (isinstance(keep_old, str) and keep_old):
        raise ValueError(
            f"keep_old={keep_old!r} must be a name, like '{PLACEHOLDER}-old'"
        )
    if PLACEHOLDER not in keep_old and len(names) > 1:
        raise ValueError(
            f"keep_old={keep_old!r} is one name for {len(names)} data sets; give one "
            f"with {PLACEHOLDER} in it, like '{PLACEHOLDER}-old'"
        )
    return {name: keep_old.replace(PLACEHOLDER, name) for name in names}


def changed_names(
    before: Mapping[str, Sequence[Key] | None], after: Mapping[str, Sequence[Key]]
) -> tuple[str, ...]:
    """Return the names whose data has other keys than before, or was not persisted."""
    return tuple(name for name in after if before[name] != after[name])


# --- the call -------------------------------------------------------------------------


async def _prepare(
    client: Client,
    names: DatasetNames,
    kept: Mapping[str, str],
    options: Mapping[str, Any],
) -> Report:
    """Prepare the data sets; ``options`` are further arguments of ``prepare``."""
    profile = libraries.choose(options.get("estimator"))
    extra_names = names.extra_names(profile, options)
    await monitor.install_plugin(client, await monitor.identify(client))
    found = await present(client, names.distinct, extra_names.names)
    old = dict(zip(names.distinct, found, strict=True))
    await _refuse_taken(client, kept, extra_names)
    given, named = names.prepare_arguments(old)
    preparing: Any = prepare  # returns an awaitable in the event loop
    prepared: Prepared = await preparing(client, *given, **named, **options)
    report = prepared.report
    if options["dry_run"]:
        if any(step.status == "planned" for step in report.steps):
            step = _step(kept, names.distinct, "planned")
            report = replace(report, steps=(*report.steps, step))
        return report
    new = names.collections(prepared)
    before = {name: _loaded_keys(data) for name, data in old.items()}
    after = {name: inputs.partitions(data)[0] for name, data in new.items()}
    # other uses of an eval set need each row once, so its own name stays
    changed = {
        extra_names.copies.get(n, n): new[n] for n in changed_names(before, after)
    }
    changed |= extra_names.collections(prepared)
    if not changed:
        return report
    return await _publish(client, changed, kept, report, options["progress"])


def _loaded_keys(collection: Any) -> list[Key] | None:
    names, futures = inputs.partitions(collection)
    return None if futures is None else names


async def fetch(client: Client, names: Sequence[str]) -> list[Any]:
    """Read published data sets.

    Raise ValueError if a data set does not exist, and RefusedError if it cannot be
    unpickled here.
    """
    there: Any = await client.list_datasets()
    unknown = [name for name in names if name not in there]
    if unknown:
        known = names_text(sorted(map(str, there)), most=8) or "none"
        raise ValueError(
            f"there is no data set {names_text(unknown)}; published are {known}"
        )
    return [await _read(client, name) for name in names]


async def collections(client: Client, names: Sequence[str]) -> list[Any]:
    """Read published collections; raise RefusedError for data of other types."""
    found = await fetch(client, names)
    for name, data in zip(names, found, strict=True):
        _refuse_other_types(name, data)
    return found


async def present(
    client: Client, names: Sequence[str], new: Sequence[str] = ()
) -> list[Any]:
    """Read published collections; raise IncompleteError if partitions are gone.

    Before, the scheduler begins to note changes of these names and of ``new`` names.
    """
    if not names:
        return []
    noted = [*names, *new]
    gone = await monitor.ask(client, "record_names", owner=client.id, names=noted)
    found = await collections(client, names)
    _refuse_gone(gone)
    return found


async def _read(client: Client, name: str) -> Any:
    try:
        with _unlogged():
            return await client.get_dataset(name)
    except OSError:
        raise  # the scheduler does not answer
    # any type: unpickling runs code of the publisher
    except Exception as error:
        module = getattr(error, "name", None)
        missing = isinstance(error, ModuleNotFoundError) and module
        why = f"it needs the module {module!r}: install it here" if missing else error
        raise RefusedError(
            f"the data set {printable(name)} cannot be read here: "
            f"{printable(str(why), longest=300)}"
        ) from error


@contextmanager
def _unlogged() -> Iterator[None]:
    """Hide Distributed's log of an unpickling error: this module raises the error."""
    logger = logging.getLogger("distributed.protocol")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _refuse_gone(gone: Mapping[str, int]) -> None:
    if lost := [name for name, count in gone.items() if count]:
        count = sum(gone.values())
        verb = "is" if count == 1 else "are"
        raise IncompleteError(
            f"{names_text(lost)}: {plural(count, 'partition')} {verb} gone, as after "
            "client.restart(); load the data again and publish it: "
            "client.publish_dataset(X, name=..., override=True)"
        )


def _refuse_other_types(name: str, data: Any) -> None:
    known = isinstance(data, da.Array | dd.DataFrame | dd.Series)
    if known and not isinstance(data, dd.Index):
        return
    holds = type(data).__name__
    if isinstance(data, list | tuple | dict | set):
        holds += f" of {len(data)}"
    raise RefusedError(
        f"the data set {printable(name)} is a {printable(holds)}, but prepare needs "
        "one Dask Array, DataFrame or Series; publish each under its own name: "
        "client.publish_dataset(X=X, y=y)"
    )


async def _refuse_taken(
    client: Client, kept: Mapping[str, str], extra_names: ExtraDatasets
) -> None:
    there: Any = await client.list_datasets()
    if taken := [name for name in kept.values() if name in there]:
        raise RefusedError(_taken_text(taken))
    if taken := [name for name in extra_names.names if name in there]:
        raise RefusedError(
            f"{names_text(taken)} {are(taken)} published already, for example by a "
            "previous call; unpublish with client.unpublish_dataset"
        )


def _taken_text(names: Sequence[str]) -> str:
    return (
        f"old collections cannot be kept as {names_text(names)}, which {are(names)} "
        "published already; give another name, or client.unpublish_dataset it"
    )


# --- publishing -----------------------------------------------------------------------


def _step(
    kept: Mapping[str, str], names: Sequence[str], status: str, **what: Any
) -> Done:
    old = "is freed unless a client holds it"
    if kept:
        old = f"stays as {names_text(list(kept.values()))}"
    return Done(
        action="publish",
        summary=f"point {names_text(names, most=8)} to the prepared data; the old data "
        f"{old}",
        gain="readers of these names get the prepared data",
        status=status,
        predicted_bytes=0,
        at_risk="nothing",
        **what,
    )


async def _publish(
    client: Client,
    new: Mapping[str, Any],
    kept: Mapping[str, str],
    report: Report,
    progress: bool | Notify | None,
) -> Report:
    """Publish the new data under the names and add the step to the report."""
    start = monotonic()
    entries = [
        (name, keys.pack([f.key for f in futures_of(data)]), to_serialize(data))
        for name, data in new.items()
    ]
    named = {"owner": client.id, "new": entries, "kept": dict(kept)}
    asked = monitor.ask(client, "replace_names", **named)
    try:
        if refused := await asyncio.wait_for(asked, ANSWER_TIMEOUT):
            raise _refusal(refused)
    except asyncio.TimeoutError as error:
        late = TimedOutError(
            f"the scheduler did not answer within {ANSWER_TIMEOUT:g} s. All names "
            "refer to the new data, or all still refer to the old data; check with "
            "client.get_dataset"
        )
        raise _with_report(late, report) from error
    except ClustertuneError as error:
        raise _with_report(error, report) from None
    took = monotonic() - start
    done = _step(kept, list(new), "done", nbytes=0, seconds=took)
    report = replace(report, steps=(*report.steps, done), seconds=report.seconds + took)
    Progress(progress).finish([done.summary])
    lease = Lease(client, lambda: ANSWER_TIMEOUT)
    lease.opened = True
    await lease.quietly("store", report=report.to_json())
    return report


def _refusal(answer: Mapping[str, Any]) -> ClustertuneError:
    if changed := answer["changed"]:
        return RefusedError(
            f"another client published or unpublished {names_text(changed)} meanwhile, "
            "so no name was changed, and the prepared data is released; run the call "
            "again"
        )
    if answer["taken"]:
        return RefusedError(_taken_text(answer["taken"]))
    return IncompleteError(
        f"{plural(answer['gone'], 'partition')} of the prepared data was lost with a "
        "worker, so no name was changed; run the call again"
    )


def _with_report(error: ClustertuneError, report: Report) -> ClustertuneError:
    error.report = replace(report, status="failed", error=str(error))
    return error
