"""Data that is let go on purpose: released by prefix, or dropped with all workers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from distributed import Client

from clustertune import monitor
from clustertune.errors import ClustertuneError
from clustertune.model import Drop, Notify, Release, Result
from clustertune.remote import keys
from clustertune.wording import bytes_text, plural, printable

logger = logging.getLogger("clustertune")

POLL = 0.05  # seconds between two questions how far it is


async def release(client: Client, token: str, release: Release) -> Result:
    """Have clients want keys no more; their futures are cancelled."""
    count, nbytes = await monitor.ask(
        client,
        "release_keys",
        token=token,
        owner=client.id,
        prefix=release.prefix,
        kept=keys.pack(release.kept),
        others=release.include_other_clients,
    )
    return Result(
        nbytes=0, said=f"{plural(count, 'key')} ({bytes_text(nbytes)}) let go"
    )


async def drop(client: Client, token: str, drop: Drop, notify: Notify) -> Result:
    """Restart all workers at once, as the resident carries it out."""
    job = await monitor.ask(
        client,
        "drop",
        token=token,
        owner=client.id,
        others=drop.include_other_clients,
        wait=drop.wait,
        timeout=drop.timeout,
    )
    try:
        while not (state := await _progress(client, token, job))["finished"]:
            notify(str(state["doing"]), None)
            await asyncio.sleep(POLL)
    except BaseException:
        await asyncio.shield(_stopped(client, job))
        raise
    if state["error"]:
        return Result(nbytes=0, undone=printable(state["error"], longest=500))
    lost = f"{plural(state['keys'], 'key')} ({bytes_text(state['nbytes'])}) dropped"
    return Result(nbytes=0, said=lost)


async def _progress(client: Client, token: str, job: str) -> dict[str, Any]:
    state: dict[str, Any] = await monitor.ask(client, "progress", job=job, token=token)
    return state


async def _stopped(client: Client, job: str) -> None:
    try:
        await monitor.ask(client, "stop", job=job)
    except ClustertuneError as error:
        logger.warning("clustertune could not stop a restart: %r", error)
