"""The command ``run``: carry out, list, show or check playbooks."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from clustertune.cli.options import (
    PROBLEMS,
    Consent,
    Target,
    cluster_options,
    command,
    estimator_option,
    format_option,
    usage_errors,
    with_consent,
    with_options,
)
from clustertune.cli.running import carry_out, text_or_json
from clustertune.core.tables import Section, Table, to_text
from clustertune.core.wording import plural, printable

if TYPE_CHECKING:
    from distributed import Client

    from clustertune.operations.playbooks.running import PlaybookResult


@command(
    "clustertune run --list",
    "clustertune run observe tcp://10.0.0.5:8786",
    "clustertune run between-runs --yes",
    "clustertune run ./nightly.yaml --dry-run -f json",
    "clustertune run --show between-runs > nightly.yaml",
    "clustertune run --lint nightly.yaml",
)
@click.argument("playbook", required=False)
@cluster_options
@with_options(
    format_option,
    click.option("--list", "only", flag_value="list", help="List the playbooks."),
    click.option("--show", "only", flag_value="show", help="Print the text of "
        "PLAYBOOK."),
    click.option("--lint", "only", flag_value="lint", help="Check PLAYBOOK without a "
        "cluster, and print all problems with file and line. Exit with code 1 if there "
        "is one."),
    estimator_option("Name the kind of estimator, like xgboost."),
)  # fmt: skip
@with_consent
def run(
    target: Target,
    playbook: str | None,
    form: str,
    only: str | None,
    **options: Any,
) -> None:
    """Carry out a playbook: run checks, and act on their findings.

    PLAYBOOK is a name of `clustertune run --list`, or a file. If it may change
    something, the command first shows a plan and asks. Exit with code 1 if the last
    checks find something critical.
    """
    from clustertune.operations.call import refuse_wrong_settings
    from clustertune.operations.playbooks import reading

    with usage_errors(ValueError):
        refuse_wrong_settings()
    if only and form == "html":
        raise click.UsageError(f"--{only} prints no HTML")
    if only == "list":
        found = {name: reading.read(name).description for name in reading.shipped()}
        table = Table(("playbook", "what it does"), tuple(found.items()))
        text = to_text([Section("Shipped playbooks", (table,))])
        click.echo(text_or_json(text, form, {"playbooks": found}))
    elif playbook is None:
        raise click.UsageError("give PLAYBOOK; `clustertune run --list` lists them")
    elif only == "lint":
        _lint(playbook, form)
    elif only == "show":
        with usage_errors(ValueError):
            lines = reading.content(playbook)[1].decode(errors="replace").splitlines()
        click.echo("\n".join(map(printable, lines)))
    else:
        _run(target, playbook, form, **options)


def _run(
    target: Target,
    name: str,
    form: str,
    estimator: str | None,
    consent: Consent,
) -> None:
    from clustertune.operations.playbooks import reading, running

    with usage_errors(ValueError):
        try:
            playbook = reading.read(name)
        except reading.PlaybookError as error:
            click.echo(str(error), err=True)
            sys.exit(2)
        running.refuse_without_data(playbook, name)

    async def make(client: Client, **how: Any) -> PlaybookResult:
        # the file may change after the plan was shown
        own = running.PlaybookRun(
            client=client, playbook=playbook, data={}, estimator=estimator, **how
        )
        return (await own.run()).with_commands(target.words)

    def acts(plan: PlaybookResult) -> bool:
        return any(s.status == "planned" for s in plan.steps)

    if any(step.do for step in playbook.steps):
        consent.refuse_without_terminal()
    else:
        consent = replace(consent, yes=True)  # checks need no consent
    sys.exit(carry_out(target, make, form, consent, acts).exit_status())


def _lint(playbook: str, form: str) -> None:
    """Print all problems of a playbook, and exit with 1 if there is one."""
    from clustertune.operations.playbooks import reading

    found: list[str] = []
    try:
        reading.read(playbook)
    except ValueError as error:  # a PlaybookError has a line for each mistake
        found = str(error).splitlines()
    summary = f"{printable(playbook)}: {plural(len(found), 'problem')}"
    text = "\n".join([*found, summary])
    click.echo(text_or_json(text, form, {"file": playbook, "problems": found}))
    sys.exit(PROBLEMS if found else 0)
