"""Context managers for synchronous and asynchronous clients."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from distributed import Client

from clustertune.monitor.connection import sync

if TYPE_CHECKING:
    from typing_extensions import Self


class ClientContext(ABC):
    """A block whose begin and end are coroutines in the event loop of its client."""

    _error: BaseException | None = None  # the error that ended the block
    _ending: asyncio.Task[None] | None = None  # the reference keeps it alive

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
        sync(self.client, self._begin)
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        self._error = error
        # also while the client reconnects: the block has to end
        if self.client.status not in ("closed", "closing"):
            self.client.sync(self._end_whole)

    def _end_whole(self) -> Awaitable[None]:
        """Begin to end the block; ^C, or a cancellation, ends the wait only."""
        self._ending = asyncio.ensure_future(self._end())
        return asyncio.shield(self._ending)

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        self._error = error
        await self._end_whole()
