"""The commands ``run`` and ``playbooks``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from tabulate import tabulate

from clustertune.cli import command
from clustertune.cli.completion import dataset_option, playbook_names, workload_option
from clustertune.cli.options import (
    Consent,
    Target,
    checked,
    cluster_options,
    fail_on_option,
    format_option,
    pairs,
    text_format_option,
    usage_errors,
    with_consent,
)
from clustertune.cli.running import carry_out, text_or_json
from clustertune.core.model import Severity
from clustertune.core.wording import plural, printable
from clustertune.errors import PlaybookError

if TYPE_CHECKING:
    from distributed import Client

    from clustertune.operations.playbooks.playbook import PlaybookResult


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Print a line for each mistake in a playbook; other errors are wrong usage."""
    with usage_errors(ValueError):
        try:
            yield
        except PlaybookError as error:
            click.echo(str(error), err=True)
            sys.exit(2)


@command(
    "clustertune run observe tcp://10.0.0.5:8786",
    "clustertune run between-runs --set disrupted_workers=2 --yes",
    "clustertune run before-training --dataset X --dataset y --workload xgboost",
    "clustertune run ./nightly.yaml --dry-run -f json",
    name="run",
)
@click.argument("playbook", shell_complete=playbook_names)
@cluster_options(manager=True)
@format_option
@click.option(
    "--set", "values", multiple=True, metavar="KEY=VALUE",
    callback=checked(partial(pairs, form="KEY=VALUE")),
    help="Replace a value of the playbook, like n_workers=2 or steps[1].holds=5m. "
    "Repeat for several values.",
)  # fmt: skip
@dataset_option("Use a published data set: first X, then y, then others.")
@workload_option("estimator", metavar="NAME", help="Name the workload, like xgboost.")
@fail_on_option(
    "critical", "Exit with code 1 if the last checks find at least this severity."
)
@with_consent
def run(
    target: Target,
    playbook: str,
    form: str,
    values: Mapping[str, str],
    datasets: tuple[str, ...],
    estimator: str | None,
    fail_on: Severity | None,
    consent: Consent,
) -> None:
    """Carry out a playbook: run checks, and act on their findings.

    PLAYBOOK is a name of `clustertune playbooks`, or a file. If it may change
    something, the command first shows a plan and asks.
    """
    from clustertune.operations.playbooks import library, running

    with _usage_errors():
        read = library.read(playbook, values)
        running.refuse_without_data(read, datasets or None)

    async def make(client: Client, **how: Any) -> PlaybookResult:
        # in the client's event loop this returns an awaitable
        call: Any = running.run_on_datasets
        result: PlaybookResult = await call(
            client, read, *datasets, estimator=estimator, **how
        )
        return result.with_commands(target.words)

    if read.acts:
        consent.refuse_without_terminal()
    else:
        consent = replace(consent, yes=True)  # checks need no consent

    def acts(plan: PlaybookResult) -> bool:
        return any(s.status == "planned" for s in plan.steps)

    sys.exit(carry_out(target, make, form, consent, acts).exit_status(fail_on))


@command(
    "clustertune playbooks",
    "clustertune playbooks between-runs > nightly.yaml",
    "clustertune playbooks --lint nightly.yaml weekly.yaml",
    "clustertune playbooks --schema > playbook-schema.json",
)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=playbook_names)
@text_format_option("Form of the list, and of the problems.")
@click.option(
    "--lint", is_flag=True, help="Check each NAME without a cluster, and print all "
    "problems with file and line. Exit with code 1 if there is one."
)  # fmt: skip
@click.option(
    "--schema", "as_schema", is_flag=True,
    help="Print the JSON schema of playbooks, for editors.",
)  # fmt: skip
def playbooks(names: tuple[str, ...], form: str, lint: bool, as_schema: bool) -> None:
    """List the playbooks, print the text of NAME, or check playbooks.

    NAME is a name of the list, or a file. The list has the shipped playbooks, and the
    *.yaml files in the folder that `clustertune.playbooks` names in Dask's
    configuration. Your own playbooks override shipped ones with the same name.
    """
    from clustertune.operations.playbooks import available, library, schema

    if lint:
        _lint(names, form)
    with _usage_errors():
        if as_schema:
            click.echo(json.dumps(schema.schema(), indent=2))
            return
        if len(names) > 1:
            raise click.UsageError("give one NAME, or --lint to check several")
        if names:
            click.echo(library.text_of(names[0]), nl=False)
            return
        found = [_described(n, path) for n, path in available().items()]
    rows = [[printable(x["name"]), printable(x["text"]), x["file"]] for x in found]
    headers = ["playbook", "what it does", "file"]
    table = tabulate(rows, headers=headers, maxcolwidths=[None, 60, None])
    click.echo(text_or_json(table, form, {"playbooks": found}))


def _lint(names: tuple[str, ...], form: str) -> NoReturn:
    """Print all problems of playbooks, and exit with 1 if there is one."""
    from clustertune.operations.playbooks import library

    if not names:
        raise click.UsageError("--lint needs the files to check")
    found = {name: library.problems(name) for name in names}
    problems = [line for lines in found.values() for line in lines]
    total = f"{plural(len(found), 'playbook')}: {plural(len(problems), 'problem')}"
    rows = [{"file": name, "problems": lines} for name, lines in found.items()]
    click.echo(text_or_json("\n".join([*problems, total]), form, {"playbooks": rows}))
    sys.exit(1 if problems else 0)


def _described(name: str, path: Path) -> dict[str, str]:
    """A row of the list; for a bad playbook, its first mistake."""
    from clustertune.operations.playbooks import library

    try:
        text = library.read(path).description
    except ValueError as error:
        text = f"cannot be used: {str(error).partition(chr(10))[0]}"
    return {"name": name, "text": text, "file": printable(str(path))}
