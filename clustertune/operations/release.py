"""Public call ``release_data``: release keys in memory that are not needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from distributed import Client, futures_of

from clustertune.actions import release as releasing
from clustertune.actions.cluster.live import LookOptions
from clustertune.core import arguments
from clustertune.core.model import Notify, Step, View
from clustertune.core.report import Report
from clustertune.core.wording import plural
from clustertune.errors import RefusedError
from clustertune.operations.procedure import operate


def release_data(
    client: Client,
    *collections: Any,
    keep: Any = (),
    dry_run: bool = False,
    progress: bool | Notify | None = None,
    timeout: str | float = "1 minute",
) -> Report:
    """Release data in memory: the given collections, or all except those to keep.

    Keys that another client, a published name or another collection of this process
    holds stay in memory.

    Parameters
    ----------
    client, progress, timeout
        As for :func:`clustertune.prepare`.
    *collections
        Collections or futures to release.
    keep
        Instead of collections to release: collections or futures, or a list of them,
        whose keys stay. All other keys that only this client holds are released.
    dry_run
        Change nothing; the report lists the keys by prefix. Without collections and
        ``keep``, it lists all keys of this client.

    Returns
    -------
    Report
        Its steps have for each prefix the number of released keys and bytes. Futures
        and collections of these keys are cancelled; later use raises an error.

    Raises
    ------
    TypeError
        Collections and ``keep`` are both given, or neither.
    RefusedError
        All keys of the collections are also needed elsewhere; nothing was changed.
    ConnectionLostError, LeaseHeldError, VersionMismatchError, TimedOutError
        As for :func:`clustertune.restart_workers`.

    Examples
    --------
    >>> print(clustertune.release_data(client, dry_run=True))        # doctest: +SKIP
    >>> clustertune.release_data(client, keep=[X, y])                # doctest: +SKIP
    >>> clustertune.release_data(client, X, y)                       # doctest: +SKIP
    """
    kept = {f.key for f in futures_of(keep)}
    going = Counter(f.key for f in {id(f): f for f in futures_of(collections)}.values())
    if collections and kept:
        raise TypeError("give the data to release, or keep=[...], and not both")
    if not (collections or kept) and not arguments.flag("dry_run", dry_run):
        raise TypeError(
            "release_data(client) would release all data of this client. Give the data "
            "to release, or the data to keep: keep=[X, y]"
        )
    if collections:
        counts = dict(client.refcount)
        kept = {key for key in client.futures if counts.get(key, 0) != going[key]}
        if going and kept.issuperset(going):
            raise RefusedError(
                "refused, and nothing was changed: other collections in this process "
                f"hold all of the {plural(len(going), 'key')}; delete them, or give "
                "them, too"
            )
    excluded = tuple(kept)

    def steps(view: View, *_: object) -> Iterator[Step]:
        yield from releasing.steps(view, excluded, named=bool(collections))

    return operate(
        client,
        "release",
        steps,
        look=LookOptions(holdings=True, kept=excluded),
        needs=(),
        dry_run=dry_run,
        progress=progress,
        timeout=timeout,
    )
