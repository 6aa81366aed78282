"""Validate what every public call depends on: settings, the client, its data."""

from __future__ import annotations

import os
from typing import Any

from distributed import Client

from clustertune import checks
from clustertune.collections import inputs
from clustertune.collections.inputs import Given, Inputs
from clustertune.core import settings
from clustertune.errors import AlignmentError
from clustertune.monitor import connection
from clustertune.operations.history import record as history


def refuse_wrong_settings() -> None:
    """Check all settings, and the environment variables that set some.

    Raises
    ------
    ValueError
        A setting does not exist or has a wrong value, or a variable is misspelt.
    """
    settings.refuse_unknown(checks.all_settings())
    try:
        checks.configured()
        history.configured()
    except ValueError as error:
        for name in os.environ:
            # as Dask makes a setting of the variable
            path = name[5:].lower().replace("__", ".")
            if settings.is_ours(name) and path in str(error):
                raise ValueError(f"{error}; {name} sets it") from error
        raise


def check_client(client: Any, given: Inputs = inputs.NOTHING) -> None:
    """Refuse wrong settings, a closed client, and data of another cluster.

    Raises
    ------
    TypeError, ConnectionLostError, ValueError, AlignmentError
        As the case may be.
    """
    refuse_wrong_settings()
    if not isinstance(client, Client):
        raise TypeError(
            f"client must be a dask.distributed.Client; it was {type(client).__name__}"
        )
    connection.refuse_closed(client)
    scheduler: Any = client.scheduler
    ours = scheduler.address
    for x in given:
        _refuse_joined(x)
        _, futures = inputs.pieces(x.collection)
        owner = futures[0].client if futures else client
        theirs = getattr(owner.scheduler, "address", None)
        if theirs is None:
            raise ValueError(
                f"{x.label} was persisted by a client that is closed, and is gone "
                "with it; load it again"
            )
        if futures and futures[0].key not in owner.futures:
            raise ValueError(
                f"{x.label} is released: its pieces are gone, as after "
                "release_inputs=True; give what prepare returned then, or load it again"
            )
        # the same scheduler may be known by two addresses
        if theirs != ours and _scheduler_id(owner) != _scheduler_id(client):
            raise ValueError(
                f"{x.label} is persisted on the cluster {theirs}, but client is "
                f"connected to {ours}; give the client of that cluster"
            )


def _scheduler_id(client: Client) -> object:
    """What a scheduler calls itself; of a client that has lost it, nothing equal."""
    if client.status != "running":
        return object()
    return client.scheduler_info().get("id")


def _refuse_joined(given: Given) -> None:
    lost = inputs.missing(given.collection)
    if lost:
        says = given.collection.npartitions
        raise AlignmentError(
            f"{given.label} says that it has {says} pieces, but {says - lost} were "
            "persisted: Dask joins small pieces of Parquet data when it loads them, "
            f"and nothing can use {given.label} any more; give prepare the lazy "
            f"{given.label}, as it was before it was persisted: it loads all pieces as "
            "they are"
        )
