"""``plan``: a command of those that change a cluster is kept as a file; ``apply``."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Any

import click
from distributed import Client

from clustertune.cli import COMMANDS, REFUSED, LazyGroup, examples
from clustertune.cli.changes import Instead, carry_out
from clustertune.cli.options import Consent, Target, on_a_cluster, with_consent
from clustertune.cli.running import (
    format_option,
    rendered,
    run,
    seconds_of,
    told,
    told_usage,
    typed,
)
from clustertune.cli.scheduling import LATER
from clustertune.core.report import Report, acted
from clustertune.errors import ChangedError
from clustertune.operations import calls, planning
from clustertune.operations.planfile import LONGEST, StoredPlan

DEFAULT = "prepare"
# a plan changes nothing, and what is to be between runs is planned when that is so
_LEFT_OUT = {"dry_run", "yes", *LATER}


def _expires(_context: click.Context, option: click.Parameter, text: str) -> float:
    seconds = seconds_of(option.opts[0], text)
    assert seconds is not None
    if seconds > LONGEST:
        raise click.BadParameter(f"{text!r} is more than a year")
    return seconds


_options = (
    click.Option(["-o", "--output"], type=click.Path(dir_okay=False), metavar="FILE",
        help="Where the plan is kept, for `clustertune apply FILE`; by default it is "
        "only shown."),
    click.Option(["--expires"], metavar="TIME", default="1 hour", show_default=True,
        callback=_expires, help="For how long the plan may be carried out."),
)  # fmt: skip


class _Verbs(LazyGroup):
    """The commands that change a cluster, which plan here and change nothing."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        return None if command is None else _planned(command)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # what begins with an option is of `prepare`
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


def _planned(command: click.Command) -> click.Command:
    """The same command, which keeps what it would call."""
    own = command.callback
    assert own is not None

    def call(*, output: str | None, expires: float, **others: Any) -> None:
        instead = Instead(partial(_store, output, expires))
        click.get_current_context().obj = instead
        own(dry_run=True, yes=False, **others)

    taken = [p for p in command.params if p.name not in _LEFT_OUT]
    name = command.name or ""
    first, *rest = (command.help or "").splitlines()
    return click.Command(
        name,
        params=[*taken, *_options],
        callback=call,
        help="\n".join([f"Plan, and change nothing: {first}", *rest]),
        epilog=examples(f"clustertune plan {name}{_EXAMPLES[name]} -o plan.json"),
    )


_EXAMPLES = {
    "prepare": " --dataset X --dataset y",
    "release": " --prefix add --include-other-clients",
    "resize": " --nthreads 4",
    "restart": " --worker 3",
    "scale": " 4",
    "trim": "",
}


@click.group(
    cls=_Verbs,
    table={verb: COMMANDS[verb] for verb in calls.VERBS},
    subcommand_metavar="[VERB] ...",
    epilog=examples(
        "clustertune plan --dataset X --dataset y -o plan.json tcp://10.0.0.5:8786",
        "clustertune plan restart --expires 12h -o restart.json",
        "clustertune apply plan.json",
    ),
)
def plan() -> None:
    """Plan a change without making it, for `apply`; without VERB it is `prepare`.

    Each VERB takes what the command of that name takes. The plan is shown, and kept
    with -o: with what it was made from, and until when it may be carried out.
    """


def _store(
    output: str | None,
    expires: float,
    target: Target,
    call: calls.Call,
    form: str,
    consent: Consent,
) -> None:
    """Plan a call, show the plan and write its file."""

    def work(client: Client) -> Awaitable[StoredPlan]:
        made: Any = planning.plan(
            client,
            call.verb,
            *call.names,
            expires=expires,
            progress=consent.progress,
            **call.options,
        )
        return told_usage(made)

    made = run(target, work)
    click.echo(rendered(made, form))
    if made.refused:
        text = "it would be refused" if output is None else "it is not kept"
        click.echo(f"clustertune: this cannot be carried out: {text}", err=True)
        sys.exit(REFUSED)
    if output is not None:
        try:
            made.save(output)
        except OSError as error:
            raise click.UsageError(f"the plan cannot be written: {error}") from error
        if not consent.quiet:
            click.echo(f"carry it out: clustertune apply {output}", err=True)


@click.command(
    epilog=examples(
        "clustertune apply plan.json",
        "clustertune apply --dry-run plan.json tcp://10.0.0.5:8786",
        "clustertune apply --yes --reason 'leaks since Monday' plan.json",
    )
)
@click.argument("plan", type=click.Path(exists=True, dir_okay=False))
@on_a_cluster(manager=True)
@format_option
@with_consent
def apply(target: Target, plan: str, form: str, consent: Consent) -> None:
    """Carry out a plan, if cluster and data are still as it saw them.

    PLAN is a file of `clustertune plan`. Refused (exit code 4), with nothing done, if
    it is too old, was edited, is of another cluster, or if things have changed; it
    stops (exit code 5) if they change while it is carried out. Without ADDRESS it is
    the cluster that Dask's configuration names, else that of the plan.
    """
    with told(), typed(OSError, ValueError):
        stored = StoredPlan.load(Path(plan))

    async def make(client: Client, **how: Any) -> Report:
        try:
            work: Any = planning.apply(client, stored, **how)
            report: Report = await work
        except ChangedError as error:
            if error.report is not None and acted(error.report):
                click.echo(rendered(error.report, form))
            raise
        return report

    target = target.otherwise(stored.seen.address)
    carry_out(target, make, stored.call.refused, form, consent)
