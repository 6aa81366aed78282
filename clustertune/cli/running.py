"""Connect commands to a cluster, show plans, ask, and turn errors into exit codes.

Commands import distributed and the modules that need it when they run, so that
``clustertune VERB --help`` starts fast.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from clustertune import errors
from clustertune.cli.options import (
    FAILED,
    INTERRUPTED,
    REFUSED,
    UNREACHED,
    Consent,
    Target,
    usage_errors,
)
from clustertune.core.progress import Progress
from clustertune.core.report import Report, is_refused, with_commands
from clustertune.core.sections import headlines
from clustertune.core.wording import printable

if TYPE_CHECKING:
    from distributed import Client


T = TypeVar("T")

CONNECT = 10  # seconds to connect to a scheduler
MAX_BYTES = 2**24  # of a scheduler file, which lists all workers

_INTERRUPTED: list[str] = []  # finished and remaining work of an interrupted command


def render(thing: Any, form: str) -> str:
    """Format a report or a diagnosis as text, details or JSON."""
    if form == "details":
        return str(getattr(thing, "details", thing))
    return str(thing.to_json() if form == "json" else thing)


def print_report(report: Report, form: str, *, quiet: bool) -> None:
    """Print a report; without its text, the answer goes to stderr unless ``quiet``."""
    click.echo(render(report, form))
    if form == "json" and not quiet:
        click.echo("\n".join(headlines(report)), err=True)


def text_or_json(text: str, form: str, plain: Mapping[str, Any]) -> str:
    """Return a text, or plain data as JSON with a schema version."""
    return json.dumps({"schema_version": 1, **plain}) if form == "json" else text


def run(target: Target, work: Callable[[Client], Awaitable[T]]) -> T:
    """Connect and call a function; turn errors into one line and an exit code."""
    from clustertune.monitor.connection import no_connection_logs
    from clustertune.operations.call import refuse_wrong_settings

    with usage_errors(ValueError):
        refuse_wrong_settings()
    _INTERRUPTED.clear()
    with exit_on_error(), no_connection_logs():
        return asyncio.run(connected(target, work, _at_most(2 * CONNECT)))


def _at_most(seconds: float) -> float:
    """Limit seconds to the ``--timeout`` of the running command."""
    context = click.get_current_context(silent=True)
    limit = context.params.get("timeout") if context else None
    return seconds if limit is None else min(seconds, limit)


async def connected(
    target: Target, work: Callable[[Client], Awaitable[T]], seconds: float
) -> T:
    """Call a function with a client that connects within some seconds."""
    from clustertune.monitor import connection

    source = target.source
    try:
        address = _address_in(source) if target.scheduler_file else source
    # also JSON that is nested too deeply
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        text = f"no scheduler answers at {source}: {error!r}"
        raise errors.ConnectionLostError(text) from error
    try:
        client = await connection.connected(
            address, security=target.security, seconds=seconds
        )
    except errors.ConnectionLostError as error:
        if target.scheduler_file:
            error.args = (f"{source}: {error}",)
        raise
    try:
        async with client:
            return await _call(client, work)
    finally:
        await connection.end_sending(client)


async def _call(client: Client, work: Callable[[Client], Awaitable[T]]) -> T:
    """Call a function; turn Dask's errors about a lost connection into ours."""
    from clustertune.monitor import connection

    try:
        return await work(client)
    except asyncio.CancelledError as error:  # ^C; KeyboardInterrupt loses this text
        _INTERRUPTED[:] = map(str, error.args)
        raise
    except Exception as error:
        lost = connection.lost(client, error)
        if lost is None:
            raise
        raise lost from error


def _address_in(scheduler_file: str) -> str:
    with Path(scheduler_file).open("rb") as file:
        text = file.read(MAX_BYTES)
    return str(json.loads(text)["address"])


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print errors of clustertune in one line and exit; all other errors are bugs."""
    try:
        yield
    except KeyboardInterrupt:
        lines = "; ".join(["interrupted", *map(printable, _INTERRUPTED)])
        click.echo(lines, err=True)
        sys.exit(INTERRUPTED)
    except errors.ClustertuneError as error:
        click.echo(f"clustertune: {printable(str(error), longest=2000)}", err=True)
        sys.exit(exit_code(error))


def exit_code(error: errors.ClustertuneError) -> int:
    """Return the exit code for an error."""
    if isinstance(error, errors.ConnectionLostError):
        return UNREACHED
    return REFUSED if isinstance(error, errors.REFUSALS) else FAILED


# --- plan, ask, change ----------------------------------------------------------------


def change(
    target: Target,
    call: Callable[..., Any],
    options: Mapping[str, Any],
    form: str,
    consent: Consent,
) -> None:
    """Plan a call, ask, make it, and exit with the code of its report."""

    def code(report: Report) -> int:
        if report.status == "planned":
            return REFUSED if is_refused(report) else 0
        return 0 if report.status in ("done", "fine") else FAILED

    def acts(plan: Report) -> bool:
        return bool(plan.steps) and not is_refused(plan)

    async def make(client: Client, **how: Any) -> Report:
        report: Report = await call(client, **options, **how)
        return with_commands(report, target.words)

    sys.exit(code(carry_out(target, make, form, consent, acts)))


def carry_out(
    target: Target,
    make: Callable[..., Awaitable[T]],
    form: str,
    consent: Consent,
    acts: Callable[[T], bool],
    show: Callable[[T, str], str] = render,
) -> T:
    """Show the plan, ask, and carry it out; print and return the result or the plan.

    Parameters
    ----------
    make
        Makes the call with a client, ``dry_run`` and ``progress``.
    acts
        Returns whether a plan has something to carry out.
    show
        Formats a plan or a result.
    """

    def call(dry: bool) -> T:
        async def work(client: Client) -> T:
            shown = Progress(False if consent.quiet else None)
            try:
                with usage_errors(ValueError):  # such as an unknown worker
                    return await make(client, dry_run=dry, progress=shown.notify)
            finally:
                shown.finish(())  # the printed report has the results

        return run(target, work)

    plan = None
    if consent.dry_run or not consent.yes:
        plan = call(dry=True)
        if consent.dry_run or not acts(plan):
            click.echo(show(plan, form))
            return plan
        consent.ask(str(plan))
    result = call(dry=False)
    if isinstance(result, Report):
        print_report(result, form, quiet=consent.quiet)
    else:
        click.echo(show(result, form))
    return result
