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
from clustertune.cli.running import carry_out
from clustertune.core.report import with_commands
from clustertune.core.tables import Section, Table, to_text
from clustertune.core.wording import printable

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
    estimator: str | None,
    consent: Consent,
) -> None:
    """Carry out a playbook: run checks, and act on their findings.

    PLAYBOOK is a name of `clustertune run --list`, or a file. If it may change
    something, the command first shows a plan and asks. Exit with code 1 if the last
    checks find something critical.
    """
    from clustertune.operations.call import refuse_wrong_settings
    from clustertune.operations.playbooks import reading, running

    if only and form == "json":
        raise click.UsageError(f"--{only} prints text only: leave --format out")
    with usage_errors(ValueError):
        refuse_wrong_settings()
        if only == "list":
            rows = tuple((n, reading.read(n).description) for n in reading.shipped())
            table = Table(("playbook", "what it does"), rows)
            click.echo(to_text([Section("Shipped playbooks", (table,))]))
            return
        if playbook is None:
            raise click.UsageError("give PLAYBOOK; `clustertune run --list` lists them")
        if only == "show":
            lines = reading.content(playbook)[1].decode(errors="replace").splitlines()
            click.echo("\n".join(map(printable, lines)))
            return
        try:
            read = reading.read(playbook)
        except reading.PlaybookError as error:
            click.echo(str(error), err=only is None)
            sys.exit(PROBLEMS if only else 2)
        if only == "lint":
            click.echo(f"{printable(playbook)}: 0 problems")
            return
        running.refuse_without_data(read, playbook)

    async def make(client: Client, **how: Any) -> PlaybookResult:
        # the file may change after the plan was shown
        own = running.PlaybookRun(
            client=client, playbook=read, data={}, estimator=estimator, **how
        )
        result = await own.run()
        steps = (
            replace(s, report=s.report and with_commands(s.report, target.words))
            for s in result.steps
        )
        return replace(result, steps=tuple(steps))

    def acts(plan: PlaybookResult) -> bool:
        return any(s.status == "planned" for s in plan.steps)

    if not any(step.do for step in read.steps):
        consent = replace(consent, yes=True)  # checks need no consent
    sys.exit(carry_out(target, make, form, consent, acts).exit_status())
