"""Context managers for synchronous and asynchronous clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from distributed import Client

from clustertune.monitor.connection import sync

if TYPE_CHECKING:
    from typing_extensions import Self


class ClientContext(ABC):
    """A block whose begin and end are coroutines in the event loop of its client."""

    _error: BaseException | None = None  # the error that ended the block

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
            sync(self.client, self._end)

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        self._error = error
        await self._end()
