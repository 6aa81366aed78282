"""``history``: what was noted of calls and runs; only ``collect`` asks a cluster."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click
from click.core import ParameterSource

from clustertune.cli import examples
from clustertune.cli.options import Target, on_a_cluster
from clustertune.cli.running import run, told, typed
from clustertune.core.snapshots import Unknown
from clustertune.core.wording import plural, printable
from clustertune.operations.history import histories, noting
from clustertune.operations.history.trends import WhatIf

COMMANDLINE = ParameterSource.COMMANDLINE

_form = click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json"]), default="text",
    show_default=True, help="Form of the output.",
)  # fmt: skip
_job = click.option("--job", metavar="NAME", help="Only what was noted of this job.")
_path = click.option(
    "--path", type=click.Path(dir_okay=False), help="The file; by default as "
    "clustertune.history.path of Dask's configuration says."
)  # fmt: skip
_kind = click.option(
    "--kind", type=click.Choice(histories.KINDS), help="Only calls or runs of this "
    "kind: `fit` is a held run, `run` one as the scheduler has seen it."
)  # fmt: skip
_last = click.option(
    "--last", type=click.IntRange(1), metavar="N", help="Only the last ones."
)


def _selecting(command: Callable[..., None]) -> Callable[..., None]:
    for option in (_form, _path, _last, _kind, _job):
        command = option(command)
    return command


@contextmanager
def _checked() -> Iterator[None]:
    """What was typed or set wrongly is a usage error; a file's fault is said."""
    with told(), typed(ValueError):
        try:
            yield
        except LookupError as error:
            click.echo(f"clustertune: {printable(error.args[0])}", err=True)
            sys.exit(1)


@click.group(
    invoke_without_command=True,
    epilog=examples(
        "clustertune history --job nightly",
        "clustertune history what-if --job nightly --workers 2,4,8,16",
    ),
)
@_selecting
@click.pass_context
def history(
    context: click.Context,
    job: str | None,
    kind: str | None,
    last: int | None,
    path: str | None,
    form: str,
) -> None:
    """What was noted of past calls and runs, and what follows from it.

    Without a command it lists them, the latest last.
    """
    command = context.invoked_subcommand
    if command is None:
        _list(job, kind, last, path, form)
    elif any(context.get_parameter_source(p) is COMMANDLINE for p in context.params):
        raise click.UsageError(
            f"options go behind the command: clustertune history {command} --..."
        )


@history.command(
    "list",
    epilog=examples("clustertune history list --job nightly --kind fit --last 10"),
)
@_selecting
def list_(
    job: str | None, kind: str | None, last: int | None, path: str | None, form: str
) -> None:
    """List calls and runs, the latest last."""
    _list(job, kind, last, path, form)


def _list(
    job: str | None, kind: str | None, last: int | None, path: str | None, form: str
) -> None:
    with _checked():
        found = histories.history(job, kind=kind, last=last, path=path)
        if form == "json":
            click.echo(found.to_json())
        _refuse_missing(found)
    if form == "text":
        click.echo(str(found))


def _refuse_missing(found: histories.History) -> None:
    """Raise if no record matches the request, although there are others.

    Raises
    ------
    LookupError
        The text says which jobs or kinds there are.
    """
    if found.missing:
        raise LookupError(found.missing)


_id = click.IntRange(1)


@history.command(epilog=examples("clustertune history show 12"))
@click.argument("number", type=_id)
@_path
@_form
def show(number: int, path: str | None, form: str) -> None:
    """Show all that is known of record NUMBER."""
    with _checked():
        record = histories.history(path=path).record(number)
    if form == "json":
        click.echo(json.dumps({"schema_version": 1, "record": asdict(record)}))
    else:
        click.echo(histories.details(record))


@history.command(epilog=examples("clustertune history compare 11 12"))
@click.argument("first", type=_id)
@click.argument("second", type=_id)
@_path
@_form
def compare(first: int, second: int, path: str | None, form: str) -> None:
    """Show the records FIRST and SECOND side by side."""
    with _checked():
        found = histories.history(path=path).compare(first, second)
    if form == "json":
        rows = [asdict(d) for d in found]
        click.echo(json.dumps({"schema_version": 1, "differences": rows}))
    else:
        click.echo(histories.differences(found))


def _numbers(
    _context: click.Context, _parameter: click.Parameter, text: str
) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[1-9]\d{0,8}", part, re.ASCII) for part in parts):
        raise click.BadParameter(f"{text!r} is no list of numbers like 2,4,8")
    return tuple(int(part) for part in parts)


@history.command(
    "what-if",
    epilog=examples("clustertune history what-if --job nightly --workers 2,4,8"),
)
@click.option(
    "--workers", required=True, metavar="N,N,...", callback=_numbers, help="Numbers "
    "of workers, each like those of the last run."
)  # fmt: skip
@_job
@_path
@_form
def what_if(
    workers: tuple[int, ...], job: str | None, path: str | None, form: str
) -> None:
    """Predict how long a fit takes on other numbers of workers.

    From the held runs of the job, or of the last one's. First comes how far off the
    prediction is where the time is known. Exit code 1: there were too few runs.
    """
    with _checked():
        past = histories.history(job, path=path)
        _refuse_missing(past)
        found = past.what_if(workers)
    if form == "json":
        key = "unknown" if isinstance(found, Unknown) else "what_if"
        data = found.reason if isinstance(found, Unknown) else _with_errors(found)
        click.echo(json.dumps({"schema_version": 1, key: data}))
    else:
        click.echo(str(found))
    sys.exit(1 if isinstance(found, Unknown) else 0)


def _with_errors(found: WhatIf) -> dict[str, object]:
    known = [asdict(k) | {"error": k.error} for k in found.known]
    errors = {"error": found.error, "worst": found.worst, "known": known}
    return asdict(found) | errors


@history.command(epilog=examples("clustertune history trends --job nightly"))
@_job
@_path
@_form
def trends(job: str | None, path: str | None, form: str) -> None:
    """Say what grows from run to run, and how many workers would do."""
    with _checked():
        past = histories.history(job, path=path)
        _refuse_missing(past)
        found = past.trends()
    click.echo(found.to_json() if form == "json" else str(found))


@history.command(epilog=examples("clustertune history collect tcp://10.0.0.5:8786"))
@on_a_cluster()
def collect(target: Target) -> None:
    """Note the runs that the scheduler has seen while nobody of ours looked.

    It keeps the last 50 since clustertune first asked it anything: when they were, and
    the memory of every worker in and after them.
    """
    with _checked():
        found = run(target, noting.collect)
    click.echo(f"{plural(found, 'run')} noted")
