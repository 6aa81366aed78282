"""Connect to a scheduler by its address, explain failures, and let ^C end calls.

The bytes of a foreign server make Dask raise any kind of error: ``MemoryError`` for the
banner of an SSH server, ``struct.error`` for zeros. All of them become a
:class:`~clustertune.errors.ConnectionLostError`.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from distributed import Client
from distributed.comm.core import CommClosedError

from clustertune.core.wording import printable
from clustertune.errors import ClustertuneError, ConnectionLostError
from clustertune.remote.ending import within

if TYPE_CHECKING:
    from typing_extensions import Self


#: loggers of Dask, and of the libraries through which it communicates
NOISY = ("distributed", "tornado", "asyncio")
END_TIMEOUT = 1.0  # seconds in which Dask's sender of messages ends
#: errors of Dask for the bytes of another protocol, and for a silent server
FOREIGN = (
    asyncio.TimeoutError,
    EOFError,
    MemoryError,
    struct.error,
    UnicodeDecodeError,
)


def sync(
    client: Client, function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
) -> Any:
    """Do the same as ``client.sync``, but ^C always cancels the call.

    Dask cancels nothing if ^C comes before the first step of the call, which would go
    on without its caller, and hold the cluster.
    """
    if client.asynchronous:
        return client.sync(function, *args, **kwargs)
    loop: Any = client.loop
    if loop.asyncio_loop.is_closed():  # it has ended with the client
        refuse_closed(client)
    work: asyncio.Future[Any] | None = None
    stopped = False

    async def call() -> Any:
        nonlocal work
        if stopped:
            raise asyncio.CancelledError
        work = asyncio.ensure_future(function(*args, **kwargs))
        # Dask may cancel this call, and a second cancellation would end the cleanup
        return await asyncio.shield(work)

    def stop() -> None:
        nonlocal stopped
        stopped = True
        if work is not None:
            work.cancel()

    try:
        return client.sync(call)
    except (KeyboardInterrupt, SystemExit):
        assert client.loop is not None  # it has run the call
        client.loop.add_callback(stop)
        raise


async def connected(address: str, *, security: Any = None, seconds: float) -> Client:
    """Return an asynchronous client of a scheduler, within some seconds.

    Without ``security``, the certificates are those of Dask's configuration. No
    connection stays open after an error.
    """
    client: Client | None = None
    try:
        with no_connection_logs(everything=True):
            client = Client(
                address,
                asynchronous=True,
                # shorter than the total limit: Dask's own error explains more
                timeout=seconds / 2,
                set_as_default=False,
                security=security,
            )
            await within(client, seconds)
    except BaseException as error:
        if client is not None:
            await client.close()
        # bytes of a foreign server raise errors of any kind
        if isinstance(error, Exception):
            raise ConnectionLostError(_explained(address, error)) from error
        raise
    return client


def lost(client: Client, error: BaseException) -> ConnectionLostError | None:
    """Return the error for a lost connection, or None if it was not lost."""
    if isinstance(error, ClustertuneError) or not isinstance(error, Exception):
        return None
    closed = client.status != "running" or client.scheduler is None
    is_lost = closed or isinstance(error, CommClosedError)
    return ConnectionLostError(not_answering(error)) if is_lost else None


def refuse_closed(client: Client) -> None:
    """Refuse a client that was closed, or has lost its scheduler, or has none yet."""
    if client.status == "newly-created":
        raise ConnectionLostError(
            "the client is not connected yet; wait for it first: client = await client"
        )
    if client.status == "connecting":
        why = ConnectionResetError("the client lost its connection to it")
        raise ConnectionLostError(not_answering(why))
    if client.status != "running" or client.scheduler is None:
        raise ConnectionLostError(
            f"the client is {client.status}, not connected; make a new one: "
            "Client(address)"
        )


def not_answering(error: BaseException) -> str:
    """Return the message for a scheduler that has stopped answering."""
    cause = error.__cause__ or error
    why = printable(str(cause) or type(cause).__name__, longest=200)
    return (
        f"the scheduler does not answer any more: {why}. If it has ended, the data in "
        "memory is lost; connect to the new one: Client(address)"
    )


def _explained(address: str, error: Exception) -> str:
    where, why = printable(address, longest=200), _text(error)
    tls = address.startswith("tls://")
    fix = "Give a scheduler's own address, like tcp://10.0.0.5:8786"
    if tls and "ssl_context" in why:
        problem = f"{where} needs certificates, and none were given"
        fix = "Give --tls-ca-file, --tls-cert and --tls-key, or Security(...)"
    elif "encryption required" in why:
        problem = f"certificates were given, but connections to {where} have no TLS"
        fix = "The address of a scheduler with TLS begins with tls://"
    elif "CERTIFICATE_VERIFY_FAILED" in why:
        problem = f"another CA has signed the certificate of {where}: {why}"
        fix = "Give its CA certificate: --tls-ca-file or Security(tls_ca_file=...)"
    elif tls and "SSL" in why:
        problem = f"no TLS connection to {where} was made: {why}"
        fix = f"If its scheduler has no TLS, give {where.replace('tls', 'tcp', 1)}"
    elif isinstance(error, CommClosedError):
        problem = f"the server at {where} closed the connection: {why}"
        if not tls:
            address = where.rpartition("://")[2]
            fix += f"; if it is one with TLS, give tls://{address} and certificates"
    elif isinstance(error, FOREIGN) and not str(error).startswith("Timed out"):
        problem = f"the server at {where} does not answer as a scheduler does"
        fix = "Is that the dashboard's port? A scheduler's own is 8786 by default"
    else:
        problem = f"no scheduler answers at {where}: {why}"
    return f"{problem}. {fix}"


def _text(error: BaseException) -> str:
    """Return the texts of an error and its causes, which often explain more."""
    texts = [f"{type(error).__name__}: {error}" if str(error) else repr(error)]
    cause = error.__cause__
    while cause is not None:
        if str(cause) not in texts[0]:
            texts.append(str(cause))
        cause = cause.__cause__
    return printable(" because of ".join(texts), longest=400)


@contextmanager
def no_shuffle_logs() -> Iterator[None]:
    """Keep Dask's warnings that a P2P shuffle began and ended out of this process.

    Both are no problem. A scheduler in another process logs them as before.
    """

    def wanted(record: logging.LogRecord) -> bool:
        usual = ("Shuffle %s initialized by task", "Shuffle %s deactivated due to")
        return not str(record.msg).startswith(usual)

    logger = logging.getLogger("distributed.shuffle._scheduler_plugin")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


@contextmanager
def no_connection_logs(*, everything: bool = False) -> Iterator[None]:
    """Keep log records about a failing connection away from the terminal.

    Dask logs a traceback for a connection that fails, and raises the error as well.
    Records about anything else are logged as before, unless ``everything`` is set.
    """

    def wanted(record: logging.LogRecord) -> bool:
        if not record.name.startswith(NOISY):
            return True
        error = record.exc_info[1] if record.exc_info else None
        failed = OSError, asyncio.TimeoutError, asyncio.CancelledError
        # Dask logs the end of its attempts without the error
        ended = str(record.msg).startswith("Failed to reconnect to scheduler")
        return not (everything or ended or isinstance(error, failed))

    root = logging.getLogger()
    found = [logging.lastResort, *root.handlers]
    for name, logger in list(root.manager.loggerDict.items()):
        if name.startswith(NOISY) and isinstance(logger, logging.Logger):
            found += logger.handlers
    handlers = [h for h in dict.fromkeys(found) if h is not None]
    for handler in handlers:
        handler.addFilter(wanted)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(wanted)


async def end_sending(client: Client) -> None:
    """Wait for the end of Dask's task that sends the messages of a closed client.

    Dask leaves this task running if the scheduler closes the connection first. Then the
    end of the event loop would log "Future exception was never retrieved".
    """
    sending: Any = client.scheduler_comm
    if sending is None or sending.comm is None:
        return
    sending.abort()
    with suppress(asyncio.TimeoutError):
        await within(sending.stopped.wait(), END_TIMEOUT)


# --- blocks ---------------------------------------------------------------------------

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
        if self.client.asynchronous:  # the block would not wait for its begin
            raise TypeError("the client is asynchronous; begin the block: async with")
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
        if not self.client.asynchronous:  # it has another event loop
            raise TypeError("the client is synchronous; begin the block: with")
        await self._begin_whole()
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        self._error = error
        await self._end_whole()
