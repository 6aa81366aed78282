"""Public call ``release``: release keys in memory that are not needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from distributed import Client, futures_of

from clustertune.actions import release as releasing
from clustertune.actions.cluster.live import LookOptions
from clustertune.core import arguments
from clustertune.core.model import Key, Notify, Step, View
from clustertune.core.report import Report
from clustertune.core.wording import names_text
from clustertune.errors import RefusedError
from clustertune.operations.procedure import Steps, operate


def release_data(
    client: Client,
    *prefixes: str,
    rows: Sequence[str] = (),
    keep: Any = (),
    include_other_clients: bool = False,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "1 minute",
) -> Report:
    """Release data in memory that is not needed.

    Parameters
    ----------
    client, progress, timeout
        As for :func:`clustertune.prepare`.
    *prefixes
        Prefixes of keys, as a dry run lists them: ``"random_sample"``. None: all keys
        that only this client holds, except those in ``keep``.
    rows
        Ids of rows of the listing of ``clustertune release``: data of one prefix that
        the same clients use. An id changes with the keys and with the clients. If one
        has changed, nothing is released.
    keep
        Collections or futures, or a list of them, whose keys stay.
    include_other_clients
        Release published keys and keys that other clients hold, too. Their futures are
        cancelled, and their published names removed.
    dry_run
        Change nothing; the report lists the keys by prefix.

    Returns
    -------
    Report
        Its steps have for each prefix the number of released keys and bytes. Futures
        and collections of these keys are cancelled; later use raises an error.

    Raises
    ------
    TypeError
        Neither prefixes nor ``keep`` are given: all data would be released.
    ValueError
        No keys have such a prefix; the text lists the prefixes in memory.
    RefusedError
        Only other clients hold keys with the prefix, or a row has changed; nothing was
        changed.
    ConnectionLostError, LeaseHeldError, VersionMismatchError, TimedOutError
        As for :func:`clustertune.restart_workers`.

    Examples
    --------
    >>> print(clustertune.release_data(client, dry_run=True))        # doctest: +SKIP
    >>> clustertune.release_data(client, keep=[X, y])                # doctest: +SKIP
    """
    wanted = arguments.texts("prefixes", prefixes)
    listed = arguments.distinct("rows", arguments.texts("rows", rows))
    kept = tuple(f.key for f in futures_of(keep))
    others = arguments.flag("include_other_clients", include_other_clients)
    if listed and (wanted or kept or others):
        raise TypeError(
            "rows name the data and its clients, so they do not combine with prefixes, "
            "keep or include_other_clients"
        )
    if not (wanted or listed or kept) and not arguments.flag("dry_run", dry_run):
        raise TypeError(
            "release_data() would release all data of this client. Give prefixes "
            "(a dry run lists them), or the data to keep: keep=[X, y]"
        )
    if not wanted and others:
        raise TypeError(
            "include_other_clients=True needs prefixes; a dry run lists them"
        )

    def steps(view: View, *_: object) -> Iterator[Step]:
        holdings = view.now.key_groups or ()
        if listed:
            ids = Counter(h.row for h in holdings)
            _refuse_changed([row for row in listed if ids[row] != 1])
            yield releasing.row_step(view, listed)
            return
        there = sorted({h.prefix for h in holdings if h.keys and h.prefix})
        unknown = [p for p in wanted if p not in there]
        if unknown:
            raise ValueError(_unknown_prefixes(unknown, there))
        yield from releasing.steps(view, wanted, kept, include_other_clients=others)

    return _release(
        client, steps, kept, dry_run=dry_run, progress=progress, timeout=timeout
    )


def _refuse_changed(rows: Sequence[str]) -> None:
    """Refuse rows that are not in the listing any more."""
    if rows:
        raise RefusedError(
            f"no data in memory is row {names_text(rows)}: its keys or their clients "
            "have changed, or the id is wrong, so nothing was released. Run "
            "`clustertune release`, which lists all rows again"
        )


def _unknown_prefixes(unknown: Sequence[str], there: Sequence[str]) -> str:
    which = f"no data in memory has the prefix {names_text(unknown)}"
    if not there:
        return f"prefixes: {which}, since no data is in memory. Nothing was released"
    return (
        f"prefixes: {which}, so nothing was released. Prefixes in memory: "
        f"{names_text(there, most=20)}"
    )


def release_collections(
    client: Client,
    *collections: Any,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "1 minute",
) -> Report:
    """Release collections, except keys that another client or future holds.

    Parameters, return value and errors are as for :func:`release`.
    """
    own = Counter(f.key for f in {id(f): f for f in futures_of(collections)}.values())
    counts = dict(client.refcount)
    kept = tuple(key for key in client.futures if counts.get(key, 0) != own[key])

    def steps(view: View, *_: object) -> Iterator[Step]:
        yield from releasing.steps(view, (), kept)

    return _release(
        client, steps, kept, dry_run=dry_run, progress=progress, timeout=timeout
    )


def _release(
    client: Client, steps: Steps, kept: tuple[Key, ...], **options: Any
) -> Report:
    look = LookOptions(holdings=True, kept=kept)
    return operate(client, "release", steps, look=look, needs=(), **options)
