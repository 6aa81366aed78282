"""The command ``run``: carry out, list, show or check playbooks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tabulate import tabulate

from clustertune.cli.options import (
    PROBLEMS,
    Consent,
    Target,
    cluster_options,
    command,
    estimator_option,
    fail_on_option,
    format_option,
    usage_errors,
    with_consent,
    with_options,
)
from clustertune.cli.running import carry_out, text_or_json
from clustertune.core.model import Severity
from clustertune.core.wording import plural, printable
from clustertune.operations.playbooks import PlaybookError

if TYPE_CHECKING:
    from distributed import Client

    from clustertune.operations.playbooks.results import PlaybookResult


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
    "clustertune run --list",
    "clustertune run observe tcp://10.0.0.5:8786",
    "clustertune run between-runs --yes",
    "clustertune run ./nightly.yaml --dry-run -f json",
    "clustertune run --show between-runs > nightly.yaml",
    "clustertune run --lint nightly.yaml",
)
@click.argument("playbook", required=False)
@cluster_options(manager=True)
@with_options(
    format_option,
    click.option("--list", "listing", is_flag=True, help="List the playbooks."),
    click.option("--show", is_flag=True, help="Print the text of PLAYBOOK."),
    click.option("--lint", is_flag=True, help="Check PLAYBOOK without a cluster, and "
        "print all problems with file and line. Exit with code 1 if there is one."),
    estimator_option("Name the kind of estimator, like xgboost."),
    fail_on_option("critical", "Exit with code 1 if the last checks find at least this "
        "severity."),
)  # fmt: skip
@with_consent
def run(
    target: Target,
    playbook: str | None,
    form: str,
    listing: bool,
    show: bool,
    lint: bool,
    estimator: str | None,
    fail_on: Severity | None,
    consent: Consent,
) -> None:
    """Carry out a playbook: run checks, and act on their findings.

    PLAYBOOK is a name of `clustertune run --list`, or a file. If it may change
    something, the command first shows a plan and asks. The list has the shipped
    playbooks, and the *.yaml files in the folder that `clustertune.playbooks` names in
    Dask's configuration. Your own playbooks override shipped ones with the same name.
    """
    if listing + show + lint > 1:
        raise click.UsageError("--list, --show and --lint exclude each other")
    if listing:
        _list(form)
    elif playbook is None:
        raise click.UsageError("give PLAYBOOK; `clustertune run --list` lists them")
    elif show:
        _show(playbook)
    elif lint:
        _lint(playbook, form)
    else:
        _run(target, playbook, estimator, form, fail_on, consent)


def _run(
    target: Target,
    playbook: str,
    estimator: str | None,
    form: str,
    fail_on: Severity | None,
    consent: Consent,
) -> None:
    from clustertune.operations.playbooks import reading, running

    with _usage_errors():
        read = reading.read(playbook)
        running.refuse_without_data(read)

    async def make(client: Client, **how: Any) -> PlaybookResult:
        own = running.PlaybookRun(
            client=client, playbook=read, estimator=estimator, **how
        )
        return (await own.run()).with_commands(target.words)

    if read.acts:
        consent.refuse_without_terminal()
    else:
        consent = replace(consent, yes=True)  # checks need no consent

    def acts(plan: PlaybookResult) -> bool:
        return any(s.status == "planned" for s in plan.steps)

    sys.exit(carry_out(target, make, form, consent, acts).exit_status(fail_on))


def _list(form: str) -> None:
    from clustertune.operations.playbooks import available

    with _usage_errors():
        found = [_described(n, path) for n, path in available().items()]
    rows = [[printable(x["name"]), printable(x["text"]), x["file"]] for x in found]
    headers = ["playbook", "what it does", "file"]
    table = tabulate(rows, headers=headers, maxcolwidths=[None, 60, None])
    click.echo(text_or_json(table, form, {"playbooks": found}))


def _described(name: str, path: Path) -> dict[str, str]:
    """A row of the list; for a bad playbook, its first mistake."""
    from clustertune.operations.playbooks import reading

    try:
        text = reading.read(path).description
    except ValueError as error:
        text = f"cannot be used: {str(error).partition(chr(10))[0]}"
    return {"name": name, "text": text, "file": printable(str(path))}


def _show(playbook: str) -> None:
    from clustertune.operations.playbooks import reading

    with _usage_errors():
        click.echo(reading.text_of(playbook), nl=False)


def _lint(playbook: str, form: str) -> None:
    """Print all problems of a playbook, and exit with 1 if there is one."""
    from clustertune.operations.playbooks import reading

    found = reading.problems(playbook)
    text = "\n".join(
        [*found, f"{printable(playbook)}: {plural(len(found), 'problem')}"]
    )
    click.echo(text_or_json(text, form, {"file": playbook, "problems": found}))
    sys.exit(PROBLEMS if found else 0)
