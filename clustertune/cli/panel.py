"""The command ``panel``: the page of a cluster."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import click
from distributed import Client

from clustertune.cli.examples import examples
from clustertune.cli.running import run
from clustertune.cli.target import Target, on_a_cluster
from clustertune.core.wording import printable
from clustertune.dashboard.panel import add_panel
from clustertune.dashboard.server import CONNECT, Source, serving
from clustertune.monitor.connection import connected

PORT = 8790
LOOPBACK = "127.0.0.1"


@click.command(
    epilog=examples(
        "clustertune panel tcp://10.0.0.5:8786",
        "clustertune panel --serve --port 8790 tcp://10.0.0.5:8786",
    )
)
@on_a_cluster(manager=True)
@click.option(
    "--serve", is_flag=True, help="Serve the page from this machine until ^C, for "
    "schedulers that have no Bokeh, or another Python."
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65535), help="With --serve: 0 for any that is "
    f"free. [default: {PORT}]"
)  # fmt: skip
@click.option(
    "--listen", metavar="ADDRESS", help="With --serve: of this machine. Who reaches it "
    "there can see the page. [default: 127.0.0.1]"
)  # fmt: skip
@click.option(
    "--allow-websocket-origin", "origins", metavar="HOST[:PORT]", multiple=True,
    help="With --serve: a proxy or page that may show it; may be given again."
)  # fmt: skip
def panel(
    target: Target,
    serve: bool,
    port: int | None,
    listen: str | None,
    origins: tuple[str, ...],
) -> None:
    """The page of a cluster: on its dashboard, or served from this machine."""
    if not serve:
        given = {
            "--port": port,
            "--listen": listen,
            "--allow-websocket-origin": origins,
        }
        for name, value in given.items():
            if value:
                raise click.UsageError(f"{name} needs --serve beside it")
        click.echo(printable(run(target, add_panel).url, longest=2000))
        return

    address, number = listen or LOOPBACK, PORT if port is None else port

    async def go_on(client: Client) -> None:
        scheduler: Any = client.scheduler
        connect = partial(
            connected, scheduler.address, security=client.security, seconds=CONNECT
        )
        source = Source(connect)
        try:
            async with serving(
                source, port=number, address=address, origins=origins
            ) as url:
                click.echo(f"{url} shows the cluster until ^C")
                await asyncio.Event().wait()
        except OSError as error:
            raise click.UsageError(
                f"cannot listen on {address}:{number} ({error}); give another --port, "
                "0 for any that is free"
            ) from error

    run(target, go_on)
