"""``history``: list past calls, held blocks and fits; show the last report."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from tabulate import tabulate

from clustertune.cli.options import (
    PROBLEMS,
    Target,
    cluster_options,
    command,
    format_option,
    refuse_options,
    time_option,
    usage_errors,
    with_options,
)
from clustertune.cli.running import exit_on_error, render, run
from clustertune.core.report import with_commands
from clustertune.core.wording import bytes_text, plural, seconds_text, time_text

MAX_SHOWN = 50  # records in the table


@command(
    "clustertune history --call fit --label nightly",
    "clustertune history --since 7days -f json",
    "clustertune history --last -f html tcp://10.0.0.5:8786 > report.html",
)
@cluster_options()
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
    configuration). Only --last asks the cluster.
    """
    if last:
        refuse_options(selection, "{} and --last do not go together")
        _show_last(target, form)
        return
    if target != Target() or form == "html":
        raise click.UsageError("a cluster and --format html need --last")
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
