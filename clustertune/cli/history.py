"""``history``: show records of past calls and runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click
from click.core import ParameterSource

from clustertune.cli import examples
from clustertune.cli.options import (
    Target,
    cluster_options,
    fail_on_option,
    text_format_option,
    usage_errors,
    with_options,
)
from clustertune.cli.running import exit_on_error, run, text_or_json
from clustertune.core.findings import Severity
from clustertune.core.wording import plural, printable
from clustertune.operations.history import query

COMMANDLINE = ParameterSource.COMMANDLINE

_form = text_format_option("Print the output in this form.")
_job = click.option("--job", metavar="NAME", help="Select records of this job.")
_path = click.option(
    "--path", type=click.Path(dir_okay=False), help="Read this history file. By "
    "default clustertune.history.path of Dask's configuration."
)  # fmt: skip
_cluster = click.option(
    "--cluster", metavar="ADDRESS", help="Select records of the cluster whose "
    "scheduler has this address, like tcp://10.0.0.5:8786."
)  # fmt: skip
_selecting = with_options(
    _job,
    _cluster,
    click.option("--kind", type=click.Choice(query.KINDS), help="Select one kind of "
        "records: `fit` is a held run, `run` is a run that the scheduler plugin has "
        "seen."),
    click.option("--last", type=click.IntRange(1), metavar="N", help="Show the last N "
        "records."),
    _path,
    _form,
)  # fmt: skip


@contextmanager
def _checked() -> Iterator[None]:
    """Turn invalid options and settings into usage errors, and print other errors."""
    with exit_on_error(), usage_errors(ValueError):
        try:
            yield
        except LookupError as error:
            click.echo(f"clustertune: {printable(error.args[0])}", err=True)
            sys.exit(1)


@click.group(
    invoke_without_command=True,
    epilog=examples(
        "clustertune history --job nightly",
        "clustertune history trends --job nightly",
    ),
)
@_selecting
@click.pass_context
def history(context: click.Context, /, **options: Any) -> None:
    """Show records of past calls and runs, and trends over them.

    Without a command, list the records, the latest last.
    """
    command = context.invoked_subcommand
    if command is None:
        context.invoke(list_, **options)
    elif any(context.get_parameter_source(p) is COMMANDLINE for p in context.params):
        raise click.UsageError(
            f"put the options after the command: clustertune history {command} --..."
        )


@history.command(
    "list",
    epilog=examples("clustertune history list --job nightly --kind fit --last 10"),
)
@_selecting
def list_(form: str, **selection: Any) -> None:
    """List calls and runs, the latest last."""
    with _checked():
        found = query.history(**selection)
        if form == "json":
            click.echo(found.to_json())
        _refuse_missing(found)
    if form == "text":
        click.echo(str(found))


def _refuse_missing(found: query.History) -> None:
    """Raise LookupError if there are records, but none matches."""
    if found.missing:
        raise LookupError(found.missing)


_id = click.IntRange(1)


@history.command(epilog=examples("clustertune history show 12"))
@click.argument("number", type=_id)
@_path
@_form
def show(number: int, path: str | None, form: str) -> None:
    """Show all values of record NUMBER."""
    with _checked():
        record = query.history(path=path).record(number)
    plain = {"record": asdict(record)}
    click.echo(text_or_json(query.details(record), form, plain))


@history.command(epilog=examples("clustertune history compare 11 12"))
@click.argument("first", type=_id)
@click.argument("second", type=_id)
@_path
@_form
def compare(first: int, second: int, path: str | None, form: str) -> None:
    """Show the records FIRST and SECOND side by side."""
    with _checked():
        found = query.history(path=path).compare(first, second)
    plain = {"differences": [asdict(d) for d in found]}
    click.echo(text_or_json(query.differences(found), form, plain))


@history.command(
    epilog=examples(
        "clustertune history trends --job nightly",
        "clustertune history trends --job nightly --fail-on warning",
    )
)
@_job
@_cluster
@_path
@_form
@fail_on_option("never", "Exit with code 1 if a trend has at least this severity.")
def trends(form: str, fail_on: Severity | None, **selection: Any) -> None:
    """Show memory leaks, regressions, and how many workers would be enough.

    A leak is critical if the next run fills the memory limit of its worker, a warning
    if one of the next ten runs does, otherwise information. A regression is a warning.
    """
    with _checked():
        past = query.history(**selection)
        _refuse_missing(past)
        found = past.trends()
    click.echo(found.to_json() if form == "json" else str(found))
    sys.exit(found.exit_status(fail_on))


@history.command(epilog=examples("clustertune history collect tcp://10.0.0.5:8786"))
@cluster_options()
def collect(target: Target) -> None:
    """Add the runs that the scheduler plugin has seen to the history.

    The plugin keeps the last 50 runs since clustertune first connected to the
    scheduler: their times, and the memory of every worker in and after them.
    """
    from clustertune.operations.history import recording

    with _checked():
        found = run(target, recording.collect)
    click.echo(f"{plural(found, 'run')} added")
