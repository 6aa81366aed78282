"""The client of a command: nothing of it runs when its event loop ends."""

from __future__ import annotations

from typing import Any

from distributed import Client

from clustertune.cli.options import Target
from clustertune.cli.running import connected
from tests.in_process import gen_cluster


@gen_cluster(nthreads=[])
async def test_a_connection_that_ends_before_the_client(s: Any) -> None:
    """Dask's task that sends messages has ended, and its errors are read."""
    used: list[Client] = []

    async def lose_connection(client: Client) -> None:
        used.append(client)
        client._send_to_scheduler({"op": "heartbeat-client"})
        sending: Any = client.scheduler_comm
        sending.comm.abort()

    await connected(Target(address=s.address), lose_connection, 20)
    sending: Any = used[0].scheduler_comm
    assert sending.stopped.is_set()
