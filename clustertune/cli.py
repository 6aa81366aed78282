"""The command line: ``clustertune VERB [ADDRESS]``, also as ``dask tune VERB``.

Exit codes: 0 clean or done, 1 what was asked for will not work or was not found,
2 usage, 3 the cluster was not reached, 4 refused, 5 failed or done in part,
130 interrupted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import dask
from distributed import Client

from clustertune import __version__, errors, monitor
from clustertune.doctor import examine
from clustertune.wording import printable

T = TypeVar("T")

UNREACHED, REFUSED, FAILED = 3, 4, 5
CONNECT = 10  # seconds

_address = click.argument("address", required=False)
_file = click.option(
    "--scheduler-file", type=click.Path(exists=True, dir_okay=False), help="Instead of "
    "ADDRESS: the file that `dask scheduler --scheduler-file` wrote."
)  # fmt: skip
_format = click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json", "html"]),
    default="text", show_default=True, help="Form of the output.",
)  # fmt: skip


# Dask lists a command under the command's own name: `dask tune`
@click.group("tune", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Get a Dask cluster ready for machine-learning training, and keep it so.

    ADDRESS is a scheduler's, like tcp://10.0.0.5:8786; without it, Dask's configuration
    (scheduler-address, DASK_SCHEDULER_ADDRESS) says which.
    """


@main.command()
@click.option("--parquet", type=click.Path(), help="A Parquet file or folder to use.")
@click.option("--label", help="The column of it that is to be predicted.")
@click.option(
    "--workers", type=click.IntRange(2), default=2, show_default=True, help="How many "
    "workers the cluster is scaled to."
)  # fmt: skip
def demo(parquet: str | None, label: str | None, workers: int) -> None:
    """Train before and after `prepare`, on a cluster of this machine's own."""
    from clustertune import demo as code  # needs the extra "demo"
    from clustertune.demo_data import DemoError

    if (parquet is None) != (label is None):
        raise click.UsageError("--parquet and --label go together")
    with _told():
        try:
            code.run(parquet, label, workers, click.echo)
        except DemoError as error:
            raise click.UsageError(str(error)) from error


@main.command()
@_address
@_file
@_format
def doctor(address: str | None, scheduler_file: str | None, form: str) -> None:
    """What of clustertune will work on this cluster, and what is in the way."""
    found = _run(address, scheduler_file, examine)
    click.echo(_render(found, form))
    sys.exit(0 if found.healthy else 1)


@main.command()
@_address
@_file
@_format
def report(address: str | None, scheduler_file: str | None, form: str) -> None:
    """The report of the last `prepare` on this cluster."""
    found = _run(address, scheduler_file, monitor.last_report)
    if found is None:
        text = "nothing was prepared on this cluster since its scheduler started"
        click.echo(f"clustertune: {text}", err=True)
        sys.exit(1)
    click.echo(_render(found, form))


def _render(thing: Any, form: str) -> str:
    if form == "json":
        return str(thing.to_json())
    return str(thing._repr_html_()) if form == "html" else str(thing)


def _run(
    address: str | None,
    scheduler_file: str | None,
    work: Callable[[Client], Awaitable[T]],
) -> T:
    """Connect, work, and turn what goes wrong into one line and an exit code."""
    target = address or dask.config.get("scheduler-address", None)
    if target is None and scheduler_file is None:
        raise click.UsageError(
            "which cluster? give ADDRESS or --scheduler-file, or set "
            "DASK_SCHEDULER_ADDRESS"
        )
    with _told():
        return asyncio.run(_connected(target, scheduler_file, work))


async def _connected(
    target: str | None,
    scheduler_file: str | None,
    work: Callable[[Client], Awaitable[T]],
) -> T:
    try:
        where = _address_in(scheduler_file) if scheduler_file else target
        client = Client(where, asynchronous=True, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreached(scheduler_file or target, error) from error
    try:
        await client
    except (OSError, asyncio.TimeoutError, ValueError) as error:
        await client.close()
        raise _unreached(scheduler_file or target, error) from error
    async with client:
        return await work(client)


def _address_in(scheduler_file: str) -> str:
    return str(json.loads(Path(scheduler_file).read_text())["address"])


def _unreached(where: str | None, error: Exception) -> errors.ConnectionLostError:
    return errors.ConnectionLostError(f"no scheduler answers at {where}: {error!r}")


@contextmanager
def _told() -> Iterator[None]:
    """Errors that a user can mend come out as one line; others are bugs."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except errors.ClustertuneError as error:
        click.echo(f"clustertune: {printable(str(error), longest=2000)}", err=True)
        sys.exit(_code(error))


def _code(error: errors.ClustertuneError) -> int:
    if isinstance(error, errors.ConnectionLostError):
        return UNREACHED
    refused = (
        errors.AlignmentError,
        errors.CapacityError,
        errors.LeaseHeldError,
        errors.NoWorkersError,
        errors.ScaleError,
        errors.VersionMismatchError,
    )
    return REFUSED if isinstance(error, refused) else FAILED
