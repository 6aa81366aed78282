"""Commands that change nothing: ``check``, ``watch``, ``history``, ``size``, ..."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
from tabulate import tabulate

from clustertune import checks
from clustertune.cli.options import (
    PROBLEMS,
    Target,
    cluster_options,
    command,
    estimator_option,
    form_option,
    format_option,
    quiet_option,
    refuse_options,
    time_option,
    usage_errors,
    with_options,
)
from clustertune.cli.running import (
    exit_on_error,
    print_report,
    render,
    run,
    text_or_json,
)
from clustertune.core import tables
from clustertune.core.model import Severity
from clustertune.core.report import with_commands
from clustertune.core.tables import Section, Table
from clustertune.core.wording import (
    bytes_text,
    near,
    plural,
    printable,
    rounds_text,
    seconds_text,
    time_text,
)
from clustertune.errors import ConnectionLostError
from clustertune.remote.ending import within

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distributed import Client

    from clustertune.core.report import Report
    from clustertune.operations.watch import Monitor

FIT_INTERVAL = 10.0  # seconds between two lines about the same fit

_estimator = estimator_option("Check for this kind of estimator, like xgboost.")


# --- check ----------------------------------------------------------------------------


@command(
    "clustertune check tcp://10.0.0.5:8786",
    "clustertune check --estimator xgboost --fail-on warning -f json",
)
@cluster_options
@format_option
@_estimator
@click.option(
    "--fail-on", type=click.Choice(["info", "warning", "critical", "never"]),
    default="critical", show_default=True, help="Exit with code 1 if a finding has at "
    "least this severity.",
)  # fmt: skip
@quiet_option
def check(
    target: Target,
    form: str,
    estimator: str | None,
    fail_on: str,
    quiet: bool,
) -> None:
    """Check this cluster for problems that slow down or break training.

    In Python, `clustertune.check(client, X, y)` checks data, too.
    """
    from clustertune.operations import check as checking

    async def make(client: Client) -> Report:
        making: Any = checking.check(client, estimator=estimator)
        with usage_errors(ValueError):
            report: Report = await making
        return with_commands(report, target.words)

    report = run(target, make)
    print_report(report, form, quiet=quiet)
    bad = fail_on != "never" and any(
        f.severity >= Severity[fail_on] for f in report.found
    )
    sys.exit(PROBLEMS if bad else 0)


# --- watch, report, explain -----------------------------------------------------------


@command(
    "clustertune watch tcp://10.0.0.5:8786",
    "clustertune watch --for 1h -f json > events.jsonl",
)
@cluster_options
@with_options(
    _estimator,
    time_option("--interval", help="Read the cluster this often, like 5s; at most 5 "
        "minutes. By default at the interval of heartbeats."),
    time_option("--for", "duration", help="End after this time. By default with ^C."),
    form_option,
)  # fmt: skip
def watch(
    target: Target,
    form: str,
    estimator: str | None,
    interval: float | None,
    duration: float | None,
) -> None:
    """Print when conditions begin or end, and workers join, leave or die.

    A running `clustertune.fit` has a line with its round every ten seconds. A worker's
    message has the reason that Dask recorded, the lost keys, and the rows of
    prepared data that each worker holds now. The command watches workers, and growth of
    memory from run to run. Only `clustertune check` and `prepare` read clients,
    tasks, names and data.
    """
    from clustertune.operations.watch import Monitor

    async def follow(client: Client) -> None:
        with usage_errors(ValueError):
            made = Monitor(client, interval=interval, estimator=estimator)
        async with made as monitoring:
            try:
                printing = _print_events(monitoring, form, target.words)
                await within(printing, duration)
            except asyncio.TimeoutError:
                return  # the time of --for is over

    run(target, follow)


async def _print_events(monitoring: Monitor, form: str, cluster: str) -> None:
    begun = False
    fits = -math.inf  # when their lines were printed, monotonic
    async for snapshot in monitoring:
        if not begun and form == "text":
            workers = plural(len(snapshot.workers), "worker")
            click.echo(f"watching {printable(snapshot.scheduler)}, {workers}")
        begun = True
        for taken in monitoring.take_events():
            event = replace(taken, finding=taken.finding.as_command(cluster))
            at = datetime.fromtimestamp(event.time).astimezone()
            text = f"{at:%H:%M:%S %Z} {printable(str(event))}"
            line = asdict(event)
            # a word, as in the JSON of a report
            line["finding"]["severity"] = str(event.finding.severity)
            click.echo(text_or_json(text, form, line))
        if monitoring.fits and monotonic() - fits >= FIT_INTERVAL:
            fits = monotonic()
            at = datetime.fromtimestamp(snapshot.time).astimezone()
            for fit in monitoring.fits:
                text = f"{at:%H:%M:%S %Z} training: {printable(rounds_text(fit))}"
                line = {"time": snapshot.time, "kind": "training", "fit": dict(fit)}
                click.echo(text_or_json(text, form, line))
    raise ConnectionLostError("the scheduler does not answer, so nothing is watched")


@command("clustertune explain", "clustertune explain uneven_rows")
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """Describe a check; without NAME, list all checks by symptom."""
    known = checks.explained()
    if name is None:
        found = checks.by_symptom().items()
        sections = [
            Section(symptom, (Table(("check", "problem"), _rows(names)),))
            for symptom, names in found
        ]
        click.echo(tables.to_text(sections))
        return
    if name not in known:
        raise click.UsageError(
            f"there is no check {name!r}{near(name, known)}; `clustertune explain` "
            "lists them"
        )
    click.echo(checks.page(name))


def _rows(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    known = checks.available()
    return tuple((name, checks.title(known[name])) for name in names)


# --- history --------------------------------------------------------------------------

MAX_SHOWN = 50  # records in the table


@command(
    "clustertune history --call fit --label nightly",
    "clustertune history --since 7days -f json",
    "clustertune history --last tcp://10.0.0.5:8786",
)
@cluster_options
@with_options(
    click.option("--last", is_flag=True, help="Show the last report that the scheduler "
        "has, by any client. Exit with code 1 if it has none."),
    click.option("--call", metavar="NAME", help="Select one kind of call, like prepare "
        "or restart; fit is a block that held the workers for prepared data."),
    click.option("--label", metavar="TEXT", help="Select the label of a hold, or "
        "clustertune.history.label of Dask's configuration."),
    time_option("--since", help="Select the records of the last time, like 7days."),
    format_option,
)  # fmt: skip
def history(target: Target, form: str, last: bool, **selection: Any) -> None:
    """List past calls, held blocks and fits.

    The records are in a file on this machine (clustertune.history.path of Dask's
    configuration). Only --last asks the cluster, and only it takes --verbose.
    """
    if last:
        refuse_options(selection, "{} and --last do not go together")
        _show_last(target, form)
        return
    if target != Target() or form == "details":
        raise click.UsageError("a cluster and --verbose need --last")
    _list(form, **selection)


def _show_last(target: Target, form: str) -> None:
    from clustertune.monitor import inquiry

    found = run(target, inquiry.last_report)
    if found is None:
        text = "this cluster has no report since its scheduler started"
        click.echo(f"clustertune: {text}", err=True)
        sys.exit(PROBLEMS)
    click.echo(render(with_commands(found, target.words), form))


def _list(form: str, **selection: Any) -> None:
    from clustertune.operations.history import history as read

    with exit_on_error(), usage_errors(ValueError):
        found = read(**selection)
    if skipped := found.attrs["skipped"]:
        click.echo(f"clustertune: {plural(skipped, 'line')} cannot be read", err=True)
    if form == "json":
        records = json.loads(found.to_json(orient="records", date_format="iso"))
        plain = {"schema_version": 1, "skipped": skipped, "records": records}
        click.echo(json.dumps(plain))
        return
    if found.empty:
        click.echo("there is no such record")
        return
    if (more := len(found) - MAX_SHOWN) > 0:
        click.echo(f"({plural(more, 'older record')})")
    columns = _columns(found.tail(MAX_SHOWN))
    click.echo(tabulate(columns, headers="keys", disable_numparse=True))


def _columns(found: Any) -> dict[str, Any]:
    """Return the columns of the table by header, as text."""
    texts = {
        "when": found.began.map(lambda t: time_text(t.timestamp(), unit="minutes")),
        "call": found.call,
        "label": found.label,
        "status": found.status,
        "took": found.seconds.map(seconds_text),
        "workers": found.workers.map("{}".format, na_action="ignore"),
        "rows": found.rows.map("{:,}".format, na_action="ignore"),
        "peak": (found.peak / found.limit).map("{:.0%}".format, na_action="ignore"),
        "spilled": found.spilled.map(bytes_text, na_action="ignore"),
        "CPUs": found.busy.map("{:.2g}".format, na_action="ignore"),
        "cluster": found.cluster,
    }
    return {name: column.astype(object).fillna("") for name, column in texts.items()}


# --- size -----------------------------------------------------------------------------

_count = click.IntRange(1)


@command(
    "clustertune size --rows 100000000 --columns 50 --estimator xgboost",
)
@with_options(
    click.option("--rows", type=_count, required=True, help="Set the rows of the "
        "data."),
    click.option("--columns", type=_count, required=True, help="Set the columns: "
        "features, labels, weights."),
    click.option("--dtype", help="Set the type of the numbers, like float32. By "
        "default float64."),
    estimator_option("Recommend for this kind of estimator, like xgboost."),
    click.option("--host-cpus", type=_count, help="Set the CPUs of one host. By "
        "default this machine's."),
    click.option("--host-memory", metavar="SIZE", help="Set the memory of one host, "
        "like 64GiB. By default this machine's."),
    form_option,
)  # fmt: skip
def size(form: str, **options: Any) -> None:
    """Recommend a cluster for a fit, and print the line that starts it."""
    from clustertune.operations import sizing

    with exit_on_error(), usage_errors(ValueError):
        found = sizing.recommend_size(**options)
    click.echo(found.to_json() if form == "json" else str(found))


# --- the page, the demo ---------------------------------------------------------------


@command(
    "clustertune dashboard tcp://10.0.0.5:8786",
    "clustertune dashboard --serve tcp://10.0.0.5:8786",
)
@cluster_options
@with_options(
    click.option("--serve", is_flag=True, help="Serve the page from this machine until "
        "^C. Use it for schedulers without Bokeh."),
    click.option("--port", type=click.IntRange(0, 65535), default=8790,
        show_default=True, help="With --serve: listen on this port of 127.0.0.1; 0 "
        "chooses a free one."),
    click.option("--allow-websocket-origin", "origins", metavar="HOST[:PORT]",
        multiple=True, help="With --serve: let this proxy or page show it; may be "
        "given several times."),
)  # fmt: skip
def dashboard(target: Target, serve: bool, port: int, origins: tuple[str, ...]) -> None:
    """Show the page of a cluster, on its dashboard or served from this machine."""
    if not serve:
        from clustertune.dashboard.show import add_page

        refuse_options(("port", "origins"), "{} needs --serve")
        click.echo(printable(run(target, add_page).url, longest=2000))
        return
    from clustertune.dashboard.show import allowed_hosts

    with usage_errors(ValueError):
        allowed_hosts(origins)
    run(target, partial(_serve, port=port, origins=origins))


async def _serve(client: Client, *, port: int, origins: tuple[str, ...]) -> None:
    from clustertune.dashboard import show
    from clustertune.monitor import connection

    scheduler: Any = client.scheduler
    connect = partial(
        connection.connected,
        scheduler.address,
        security=client.security,
        seconds=show.CONNECT,
    )
    try:
        async with show.serving(connect, port=port, origins=origins) as url:
            click.echo(f"{url} shows the cluster until ^C")
            await asyncio.Event().wait()
    except OSError as error:
        raise click.UsageError(
            f"cannot listen on port {port} ({error}); give another --port, or 0 for a "
            "free one"
        ) from error


@command("clustertune demo", "clustertune demo --workers 4")
@click.option(
    "--workers", type=click.IntRange(2), default=2, show_default=True, help="Scale the "
    "cluster to this number of workers."
)  # fmt: skip
def demo(workers: int) -> None:
    """Train before and after `prepare`, on a local cluster."""
    from clustertune.cli import demo as code  # imports NumPy

    with exit_on_error():
        code.run(workers, click.echo)
