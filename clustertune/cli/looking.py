"""Commands that change nothing: ``check``, ``watch``, ``report``, ..."""

from __future__ import annotations

import asyncio
import difflib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click
from distributed import Client
from tabulate import tabulate

from clustertune import checks
from clustertune.cli.doctor import examine
from clustertune.cli.examples import examples
from clustertune.cli.running import (
    format_option,
    rendered,
    run,
    seconds_of,
    told,
)
from clustertune.cli.target import Target, on_a_cluster
from clustertune.core.model import Finding, Severity
from clustertune.core.report import Report
from clustertune.core.wording import names_text, plural, printable
from clustertune.errors import ConnectionLostError
from clustertune.integrations import libraries
from clustertune.monitor import inquiry
from clustertune.operations import diagnosis
from clustertune.operations.watcher import Monitor


@click.command(
    epilog=examples(
        "clustertune demo",
        "clustertune demo --parquet flights.parquet --label delay --workers 4",
    )
)
@click.option("--parquet", type=click.Path(), help="A Parquet file or folder to use.")
@click.option("--label", help="The column of it that is to be predicted.")
@click.option(
    "--workers", type=click.IntRange(2), default=2, show_default=True, help="How many "
    "workers the cluster is scaled to."
)  # fmt: skip
def demo(parquet: str | None, label: str | None, workers: int) -> None:
    """Train before and after `prepare`, on a cluster of this machine's own."""
    from clustertune.cli import demo as code  # needs the extra "demo"
    from clustertune.cli.demo_data import DemoError

    if (parquet is None) != (label is None):
        raise click.UsageError("--parquet and --label go together")
    with told():
        try:
            code.run(parquet, label, workers, click.echo)
        except DemoError as error:
            raise click.UsageError(str(error)) from error


@click.command(
    epilog=examples(
        "clustertune doctor tcp://10.0.0.5:8786",
        "clustertune doctor --scheduler-file scheduler.json -f json",
    )
)
@on_a_cluster()
@format_option
def doctor(target: Target, form: str) -> None:
    """What of clustertune will work on this cluster, and what is in the way."""
    found = run(target, examine)
    click.echo(rendered(found, form))
    sys.exit(0 if found.healthy else 1)


@click.command(
    epilog=examples(
        "clustertune report tcp://10.0.0.5:8786",
        "clustertune report -f html > report.html",
    )
)
@on_a_cluster()
@format_option
def report(target: Target, form: str) -> None:
    """The report of what was done last on this cluster."""
    found = run(target, inquiry.last_report)
    if found is None:
        text = "nothing was prepared on this cluster since its scheduler started"
        click.echo(f"clustertune: {text}", err=True)
        sys.exit(1)
    click.echo(rendered(found, form))


_fail_on = click.option(
    "--fail-on", type=click.Choice(["info", "warning", "critical", "never"]),
    default="critical", show_default=True, help="End with exit code 1 if something is "
    "found that is at least so bad."
)  # fmt: skip
_workload = click.option("--workload", help="What will train, like xgboost.")


@click.command(
    epilog=examples(
        "clustertune check tcp://10.0.0.5:8786",
        "clustertune check --workload xgboost --fail-on warning -f json",
    )
)
@on_a_cluster()
@format_option
@_workload
@_fail_on
def check(
    target: Target,
    form: str,
    workload: str | None,
    fail_on: str,
) -> None:
    """What stands between this cluster and a fast, safe training run."""
    profile = _known_workload(workload)

    async def look(client: Client) -> tuple[Report, Sequence[str]]:
        found: Report = await diagnosis.check(client, workload=profile)  # type: ignore[misc]
        there: Any = await client.list_datasets()
        return found, [name for name in there if isinstance(name, str)]

    found, names = run(target, look)
    click.echo(rendered(found, form))
    if names:
        command = target.command("clustertune prepare --dataset NAME --dry-run")
        text = f"how the rows of published data ({names_text(names)}) lie: {command}"
        click.echo(text, err=True)
    sys.exit(_severe(found.found, fail_on))


@click.command(
    epilog=examples(
        "clustertune watch tcp://10.0.0.5:8786",
        "clustertune watch --for 1h -f json > events.jsonl",
    )
)
@on_a_cluster()
@_workload
@click.option(
    "--interval", metavar="TIME", help="Between two looks, like 5s; by default as often"
    " as workers tell of themselves."
)  # fmt: skip
@click.option(
    "--for", "duration", metavar="TIME", help="How long; until ^C by default."
)
@click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json"]), default="text",
    show_default=True, help="Form of the output: a line for each event.",
)  # fmt: skip
def watch(
    target: Target,
    workload: str | None,
    interval: str | None,
    duration: str | None,
    form: str,
) -> None:
    """Say when a condition begins or ends, for as long as it runs.

    It looks at workers, and at growth from run to run; at clients, tasks, names and
    data `clustertune check` and `clustertune prepare` look.
    """
    profile = _known_workload(workload)
    seconds = seconds_of("--for", duration)

    async def follow(client: Client) -> None:
        every = seconds_of("--interval", interval)
        async with Monitor(client, interval=every, workload=profile) as monitor:
            try:
                await asyncio.wait_for(_print_events(monitor, form), seconds)
            except asyncio.TimeoutError:
                return  # as long as was asked for

    run(target, follow)


async def _print_events(monitor: Monitor, form: str) -> None:
    printed = 0
    async for snapshot in monitor:
        if not printed and form == "text":
            n = len(snapshot.workers)
            click.echo(
                f"watching {printable(snapshot.scheduler)}, {plural(n, 'worker')}"
            )
            printed = 1
        for event in monitor.take_events():
            if form == "json":
                click.echo(json.dumps({"schema_version": 1} | asdict(event)))
            else:
                at = (
                    datetime.fromtimestamp(event.time).astimezone().strftime("%H:%M:%S")
                )
                click.echo(f"{at} {printable(str(event))}")
    raise ConnectionLostError(
        "the scheduler is gone, or does not answer any more; nothing is watched"
    )


@click.command(
    epilog=examples("clustertune explain", "clustertune explain uneven_rows")
)
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """The page of a check; without NAME what checks there are."""
    known = checks.available()
    if name is None:
        rows = [[n, checks.title(module)] for n, module in known.items()]
        click.echo(tabulate(rows, headers=["check", "finds"], maxcolwidths=[None, 70]))
        return
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise click.UsageError(
            f"there is no check {name!r}; {hint}`clustertune explain` lists them"
        )
    click.echo(checks.page(name))


def _known_workload(name: str | None) -> str | None:
    try:
        libraries.choose(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return name


def _severe(found: Iterable[Finding], fail_on: str) -> int:
    """1 where a finding is at least as bad as was asked about; unknown is not."""
    if fail_on == "never":
        return 0
    return int(any(f.severity >= Severity[fail_on] for f in found))
