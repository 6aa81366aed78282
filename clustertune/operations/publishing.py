"""``prepare`` for collections by the names under which they are published.

The names point to the new pieces afterwards, all of them in the same moment, and only
if nobody has published anything else under them meanwhile. What else Dask could do, one
name after the other, would leave new rows beside old labels when it is interrupted.
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
from clustertune.operations.call import check_client
from clustertune.operations.prepare import prepare
from clustertune.operations.prepared import Prepared
from clustertune.remote import keys

ANSWER = 60.0  # seconds in which the scheduler changes names
PLACE = "{name}"  # in the names of what is kept


# --- the public call ------------------------------------------------------------------


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
    """Do what ``prepare`` does, for published data sets; names point to what is new.

    All names change in one moment, or none does, whatever becomes of this client. Data
    that was published lazily is published as loaded. Where pieces were only moved,
    which keeps their keys, names stay as they are. What takes nobody's place is
    published beside it: ``X-row-order``, ``X-remainder`` (rows left over where every
    worker needs as many), ``X_valid-copies`` (where each worker needs an eval set).

    Reading a published data set unpickles it, which runs code of whoever published it:
    so do ``client.get_dataset`` and everybody who uses the data.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    X, y, *others, sample_weight, qid, base_margin, init_score, eval_set
        Names of data sets, each of which is one Dask Array, DataFrame or Series.
    keep_old
        A name under which the old collections are published, if any is replaced; of
        several it has ``{name}`` in it. None: what nobody else holds is freed.
    dry_run, progress, **options
        As for :func:`clustertune.prepare`.

    Returns
    -------
    Report
        Of ``prepare``, with a step ``publish`` if names have changed.

    Raises
    ------
    ValueError
        There is no such data set; the text says which there are.
    RefusedError
        A data set is not one collection, or cannot be read here; the name for old ones
        is taken; or somebody has published under one of the names meanwhile. No name
        was changed.
    ClustertuneError
        As :func:`clustertune.prepare`; no name was changed.

    Examples
    --------
    >>> prepare_datasets(client, "X", "y", workload="xgboost")  # doctest: +SKIP
    """
    companions = {
        "sample_weight": sample_weight,
        "qid": qid,
        "base_margin": base_margin,
        "init_score": init_score,
    }
    roles = Roles.of(X, y, others, companions, eval_set)
    request = _Request(
        client=client,
        roles=roles,
        kept=kept_names(roles.names, keep_old),
        dry_run=arguments.flag("dry_run", dry_run),
        progress=progress,
        options=options,
    )
    check_client(client)
    # of an asynchronous client it is to be awaited
    report: Report = client.sync(_prepare, request)
    return report


# --- names (pure) ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Which data set is what to ``prepare``."""

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
    ) -> Roles:
        """Roles of what was given, checked.

        Raises
        ------
        TypeError, ValueError
            Something is no name, or y is missing before others.
        """
        if y is None and others:
            raise TypeError(
                "y is None but names follow it; give y, or say what they are"
            )
        pairs = () if eval_set is None else tuple(eval_set)
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            raise ValueError(
                f"eval_set={eval_set!r} must be a list of pairs of names, like "
                "eval_set=[('X_valid', 'y_valid')]"
            )
        roles = cls(
            training=(X, *(() if y is None else (y,)), *others),
            companions={
                k: n for k in COMPANIONS if (n := companions.get(k)) is not None
            },
            eval_set=tuple((a, b) for a, b in pairs),
        )
        for name in roles.all:
            if not (isinstance(name, str) and name):
                raise TypeError(f"{name!r} must be the name of a published data set")
        arguments.distinct("data sets", roles.training)
        for pair in roles.eval_set:
            arguments.distinct("eval_set", pair)
        return roles

    @property
    def all(self) -> list[str]:
        """In the order in which ``prepare`` hands them back, eval sets last."""
        return [
            *self.training,
            *self.companions.values(),
            *chain.from_iterable(self.eval_set),
        ]

    @property
    def names(self) -> tuple[str, ...]:
        """Each once."""
        return tuple(dict.fromkeys(self.all))

    def given(self, collections: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments for ``prepare``."""
        named: dict[str, Any] = {k: collections[n] for k, n in self.companions.items()}
        pairs = [(collections[x], collections[y]) for x, y in self.eval_set]
        named["eval_set"] = pairs or None
        return [collections[name] for name in self.training], named

    def handed_back(self, prepared: Prepared) -> dict[str, Any]:
        """By name what ``prepare`` has made in place of what was published."""
        pairs = chain.from_iterable(prepared.eval_set)
        return dict(zip(self.all, [*prepared, *pairs], strict=True))

    def beside(self, profile: Profile, options: Mapping[str, Any]) -> Beside:
        """Names of what ``prepare`` may make that takes nobody's place."""
        X = self.training[0]
        ordered = options.get("shuffle") or options.get("sort")
        rows = (*self.training, *self.companions.values())
        pairs = chain.from_iterable(self.eval_set)
        return Beside(
            order=f"{X}-row-order" if ordered else "",
            remainder=tuple(f"{n}-remainder" for n in rows if profile.exact_rows),
            copies={n: f"{n}-copies" for n in pairs if profile.eval_copies},
        )


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Names of data sets that are published beside those that there were."""

    order: str  # numbers that rows had; "": they stay in order
    remainder: tuple[str, ...]  # rows that are set aside, of the training data
    copies: Mapping[str, str]  # by eval set: all its rows, once for each worker

    @property
    def names(self) -> tuple[str, ...]:
        order = (self.order,) if self.order else ()
        return (*order, *self.remainder, *self.copies.values())

    def handed_back(self, prepared: Prepared) -> dict[str, Any]:
        """By name what ``prepare`` has made."""
        found = {}
        if self.order and prepared.row_order is not None:
            found[self.order] = prepared.row_order
        if prepared.remainder is not None:
            found |= zip(self.remainder, prepared.remainder, strict=True)
        return found


def kept_names(names: Sequence[str], keep_old: str | None) -> dict[str, str]:
    """By name the one under which what is old is to be kept; empty if it is not.

    Raises
    ------
    ValueError
        Several would have the same.
    """
    if keep_old is None:
        return {}
    if not (isinstance(keep_old, str) and keep_old):
        raise ValueError(f"keep_old={keep_old!r} must be a name, like '{PLACE}-old'")
    if PLACE not in keep_old and len(names) > 1:
        raise ValueError(
            f"keep_old={keep_old!r} is one name for {len(names)} data sets; give one "
            f"with {PLACE} in it, like '{PLACE}-old'"
        )
    return {name: keep_old.replace(PLACE, name) for name in names}


def replaced(
    before: Mapping[str, Sequence[Key] | None], after: Mapping[str, Sequence[Key]]
) -> tuple[str, ...]:
    """Names of which the pieces have other keys now; None: they were not loaded."""
    return tuple(
        n for n in after if (was := before[n]) is None or list(was) != list(after[n])
    )


# --- doing it -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A call, its arguments checked as far as they can be alone."""

    client: Client
    roles: Roles
    kept: Mapping[str, str]
    dry_run: bool
    progress: bool | Notify | None
    options: Mapping[str, Any]  # of prepare


async def _prepare(request: _Request) -> Report:
    client, roles, options = request.client, request.roles, request.options
    profile = libraries.choose(options.get("workload"), options.get("estimator"))
    beside = roles.beside(profile, options)
    await monitor.open_door(client, await monitor.identify(client))
    # before they are read: what is published from now on is noticed
    gone = await monitor.ask(
        client, "note_names", owner=client.id, names=[*roles.names, *beside.names]
    )
    old = dict(zip(roles.names, await fetch(client, roles.names), strict=True))
    _refuse_gone(gone)
    for name, data in old.items():
        _refuse_other(name, data)
    await _refuse_taken(request, beside)
    given, named = roles.given(old)
    preparing: Any = prepare  # in its client's event loop it is to be awaited
    prepared: Prepared = await preparing(
        client,
        *given,
        **named,
        dry_run=request.dry_run,
        progress=request.progress,
        **request.options,
    )
    report = prepared.report
    if request.dry_run:
        steps = (*report.steps, *_planned(request, report))
        return replace(report, steps=steps)
    new = roles.handed_back(prepared)
    before = {name: _loaded_keys(data) for name, data in old.items()}
    after = {name: inputs.pieces(data)[0] for name, data in new.items()}
    # who reads an eval set for anything else wants each row once
    changed = {beside.copies.get(n, n): new[n] for n in replaced(before, after)}
    changed |= beside.handed_back(prepared)
    return await _publish(request, changed, report) if changed else report


def _loaded_keys(collection: Any) -> list[Key] | None:
    names, futures = inputs.pieces(collection)
    return None if futures is None else names


async def fetch(client: Client, names: Sequence[str]) -> list[Any]:
    """What is published under these names.

    Raises
    ------
    ValueError
        There is no such data set.
    RefusedError
        It cannot be unpickled here.
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
    """The collections that are published under these names.

    Raises
    ------
    ValueError
        There is no such data set.
    RefusedError
        It is no collection, or cannot be unpickled here.
    """
    found = await fetch(client, names)
    for name, data in zip(names, found, strict=True):
        _refuse_other(name, data)
    return found


async def _read(client: Client, name: str) -> Any:
    try:
        with _unlogged():
            return await client.get_dataset(name)
    except OSError:
        raise  # the scheduler does not answer
    # of any kind: code of whoever published it runs
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
    """Distributed logs what cannot be unpickled, which is about to be said."""
    logger = logging.getLogger("distributed.protocol")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _refuse_gone(gone: Mapping[str, int]) -> None:
    lost = [name for name, count in gone.items() if count]
    if lost:
        count = sum(gone.values())
        verb = "is" if count == 1 else "are"
        raise IncompleteError(
            f"{names_text(lost)}: {plural(count, 'piece')} {verb} gone, as after "
            "client.restart(); load the data again and publish it: "
            "client.publish_dataset(X, name=..., override=True)"
        )


def _refuse_other(name: str, data: Any) -> None:
    known = isinstance(data, da.Array | dd.DataFrame | dd.Series)
    if known and not isinstance(data, dd.Index):
        return
    holds = type(data).__name__
    if isinstance(data, list | tuple | dict | set):
        holds += f" of {len(data)}"
    raise RefusedError(
        f"the data set {printable(name)} holds a {printable(holds)}, where one Dask "
        "Array, DataFrame or Series is needed; publish each under a name of its own: "
        "client.publish_dataset(X=X, y=y)"
    )


async def _refuse_taken(request: _Request, beside: Beside) -> None:
    there: Any = await request.client.list_datasets()
    taken = [name for name in request.kept.values() if name in there]
    if taken:
        raise RefusedError(_taken(taken))
    if taken := [name for name in beside.names if name in there]:
        raise RefusedError(
            f"{names_text(taken)} {are(taken)} published already, as from a call "
            "before this one; client.unpublish_dataset what is not needed"
        )


def _taken(names: Sequence[str]) -> str:
    return (
        f"old collections cannot be kept as {names_text(names)}, which {are(names)} "
        "published already; give another name, or client.unpublish_dataset it"
    )


# --- publishing -----------------------------------------------------------------------


def _planned(request: _Request, report: Report) -> Iterator[Done]:
    if any(step.status == "planned" for step in report.steps):
        yield _step(request, request.roles.names, "planned", "what is new")


def _step(
    request: _Request, names: Sequence[str], status: str, target: str, **what: Any
) -> Done:
    kept = list(request.kept.values())
    old = (
        f"are kept as {names_text(kept)}" if kept else "are freed unless held elsewhere"
    )
    return Done(
        action="publish",
        summary=f"have {names_text(names, most=8)} point to {target}; the old "
        f"ones {old}",
        gain="whoever asks for these names gets what was prepared",
        status=status,
        predicted_bytes=0,
        predicted_seconds=None,
        at_risk="nothing",
        **what,
    )


async def _publish(request: _Request, new: Mapping[str, Any], report: Report) -> Report:
    """Have the names point to what is new, and say so in the report.

    Raises
    ------
    RefusedError
        Somebody has published under one of the names, or has taken one for what is old.
    IncompleteError
        New pieces were lost with workers.
    TimedOutError
        The scheduler does not answer.
    """
    client, start = request.client, monotonic()
    entries = [
        (name, keys.pack([f.key for f in futures_of(data)]), to_serialize(data))
        for name, data in new.items()
    ]
    asked = monitor.ask(
        client, "point_names", owner=client.id, new=entries, kept=dict(request.kept)
    )
    try:
        hindered = await asyncio.wait_for(asked, ANSWER)
        if hindered:
            raise _hindered(hindered)
    except asyncio.TimeoutError as error:
        raise _with_report(
            TimedOutError(
                f"the scheduler has not said within {ANSWER:g} s whether names were "
                "changed: all of them point to the new pieces, or all to the old ones"
            ),
            report,
        ) from error
    except ClustertuneError as error:
        raise _with_report(error, report) from None
    took = monotonic() - start
    done = _step(request, list(new), "done", "the new pieces", nbytes=0, seconds=took)
    report = replace(report, steps=(*report.steps, done), seconds=report.seconds + took)
    Progress(request.progress).finish([done.summary])
    lease = Lease(client, lambda: ANSWER)
    lease.opened = True
    await lease.quietly("keep", report=report.to_json())
    return report


def _hindered(answer: Mapping[str, Any]) -> ClustertuneError:
    """The error of what the resident says is in the way."""
    if changed := answer["changed"]:
        return RefusedError(
            f"somebody has published or unpublished {names_text(changed)} meanwhile; "
            "no name was changed, and what was made for them is let go; start again"
        )
    if answer["taken"]:
        return RefusedError(_taken(answer["taken"]))
    return IncompleteError(
        f"{plural(answer['gone'], 'piece')} went with a worker before names could "
        "point to them; no name was changed; start again"
    )


def _with_report(error: ClustertuneError, report: Report) -> ClustertuneError:
    error.report = replace(report, status="failed", error=str(error))
    return error
