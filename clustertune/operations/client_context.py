"""Context managers for synchronous and asynchronous clients."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from distributed import Client

from clustertune.monitor.connection import sync

if TYPE_CHECKING:
    from typing_extensions import Self


logger = logging.getLogger("clustertune")


class ClientContext(ABC):
    """A block whose begin and end are coroutines in the event loop of its client."""

    _error: BaseException | None = None  # the error that ended the block
    _ending: asyncio.Task[None] | None = None  # the reference keeps it alive
    _entered = False
    _abandoned = False  # ^C came before the caller knew that the block has begun

    def __init__(self, client: Client):
        self._client = client

    @property
    def client(self) -> Client:
        return self._client

    @abstractmethod
    async def _begin(self) -> None: ...

    @abstractmethod
    async def _end(self) -> None: ...

    def __enter__(self) -> Self:
        self._abandoned = False
        try:
            sync(self.client, self._begin_whole)
        except (KeyboardInterrupt, SystemExit):
            assert self.client.loop is not None  # it has run the call
            self.client.loop.add_callback(self._abandon)
            raise
        return self

    async def _begin_whole(self) -> None:
        self._entered, self._ending = False, None  # a block may begin again
        await self._begin()
        self._entered = True
        if self._abandoned:
            await self._end_whole()

    def _abandon(self) -> None:
        """End the block, now or as soon as it has begun."""
        self._abandoned = True
        if self._entered:
            self._end_whole()

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        self._error = error
        # also while the client reconnects: the block has to end
        if self.client.status in ("closed", "closing"):
            logger.warning(
                "the client was closed in the block, or lost its scheduler for too "
                "long, so nothing was measured or verified; if the scheduler has "
                "ended, the data in memory is lost"
            )
        else:
            try:
                self.client.sync(self._end_whole)
            except (KeyboardInterrupt, SystemExit):
                assert self.client.loop is not None  # the block has begun in it
                self.client.loop.add_callback(self._end_whole)
                raise

    def _end_whole(self) -> Awaitable[None]:
        """Begin to end the block, once; ^C or a cancellation ends the wait only."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        return asyncio.shield(self._ending)

    async def __aenter__(self) -> Self:
        await self._begin_whole()
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        self._error = error
        await self._end_whole()
