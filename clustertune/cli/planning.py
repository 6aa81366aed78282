"""``plan`` stores a command in a file; ``apply`` carries it out."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clustertune.cli import COMMANDS, REFUSED, LazyGroup, command, examples
from clustertune.cli.options import (
    Consent,
    Target,
    checked,
    cluster_options,
    format_option,
    usage_errors,
    with_consent,
)
from clustertune.cli.running import (
    PlanOnly,
    carry_out_call,
    exit_on_error,
    render,
    run,
    shell_of,
    with_usage_errors,
)
from clustertune.cli.workers import SCHEDULE_OPTIONS
from clustertune.core import arguments
from clustertune.core.report import Report, acted, in_shell
from clustertune.errors import ChangedError

if TYPE_CHECKING:
    from distributed import Client

    from clustertune.operations.planfile import PlannedCall, StoredPlan

DEFAULT = "prepare"
# a plan changes nothing, and a restart between runs cannot be planned
_LEFT_OUT = {"dry_run", "yes", *SCHEDULE_OPTIONS}


def _lifetime(option: str, text: str) -> float:
    from clustertune.operations.planfile import LONGEST

    seconds = arguments.duration(option, text)
    if seconds > LONGEST:
        raise click.BadParameter(f"{text!r} is more than a year")
    return seconds


_options = (
    click.Option(["-o", "--output"], type=click.Path(dir_okay=False), metavar="FILE",
        help="File for the plan, for `clustertune apply FILE`; by default the plan is "
        "only shown."),
    click.Option(["--expires"], metavar="TIME", default="1 hour", show_default=True,
        callback=checked(_lifetime), help="Time until the plan expires."),
)  # fmt: skip


class _Verbs(LazyGroup):
    """The commands that change a cluster; here they only plan."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        return None if found is None else _planned(found)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # options without a verb belong to `prepare`
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


def _planned(verb: click.Command) -> click.Command:
    """Return the same command, which only plans its call."""
    original = verb.callback
    assert original is not None

    def call(*, output: str | None, expires: float, **others: Any) -> None:
        plan_only = PlanOnly(partial(_store, output, expires))
        click.get_current_context().obj = plan_only
        original(dry_run=True, yes=False, **others)

    kept = [p for p in verb.params if p.name not in _LEFT_OUT]
    name = verb.name or ""
    first, *rest = (verb.help or "").splitlines()
    return click.Command(
        name,
        params=[*kept, *_options],
        callback=call,
        help="\n".join([f"Plan without changing anything: {first}", *rest]),
        epilog=examples(f"clustertune plan {name}{_EXAMPLES[name]} -o plan.json"),
    )


#: by planned verb the options of an example
_EXAMPLES = {
    "merge": "",
    "prepare": " --dataset X --dataset y",
    "release": " --prefix add --include-other-clients",
    "resize": " --nthreads 4",
    "restart": " --worker 3",
    "scale": " 4",
    "trim": "",
}


@click.group(
    cls=_Verbs,
    table={verb: COMMANDS[verb] for verb in _EXAMPLES},
    subcommand_metavar="[VERB] ...",
    epilog=examples(
        "clustertune plan --dataset X --dataset y -o plan.json tcp://10.0.0.5:8786",
        "clustertune plan restart --expires 12h -o restart.json",
        "clustertune apply plan.json",
    ),
)
def plan() -> None:
    """Plan a change without making it, for `apply`; without VERB plan `prepare`.

    Each VERB has the options of the command with that name. The plan is shown. With -o
    it is also saved in a file, with its expiry and with a fingerprint of the cluster
    and the data.
    """


def _store(
    output: str | None,
    expires: float,
    target: Target,
    call: PlannedCall,
    form: str,
    consent: Consent,
) -> None:
    """Plan a call, show the plan and write its file."""
    from clustertune.operations import planning

    def work(client: Client) -> Awaitable[StoredPlan]:
        made: Any = planning.make_plan(
            client,
            call.verb,
            *call.names,
            expires=expires,
            progress=consent.progress,
            **call.options,
        )
        return with_usage_errors(made)

    made = run(target, work)
    # JSON is the plan itself
    in_words = in_shell(made.report, shell_of(target, call))
    shown = made if form == "json" else replace(made, report=in_words)
    click.echo(render(shown, form))
    if made.refused:
        text = "" if output is None else ", so the file was not written"
        click.echo(f"clustertune: apply would refuse this plan{text}", err=True)
        sys.exit(REFUSED)
    if output is not None:
        try:
            made.save(output)
        except OSError as error:
            raise click.UsageError(f"the plan cannot be written: {error}") from error
        if not consent.quiet:
            click.echo(f"carry it out: clustertune apply {output}", err=True)


@command(
    "clustertune apply plan.json",
    "clustertune apply --dry-run plan.json tcp://10.0.0.5:8786",
    "clustertune apply --yes --reason 'leaks since Monday' plan.json",
)
@click.argument("plan", type=click.Path(exists=True, dir_okay=False))
@cluster_options(manager=True)
@format_option
@with_consent
def apply(target: Target, plan: str, form: str, consent: Consent) -> None:
    """Carry out a plan if the cluster and the data have not changed since.

    PLAN is a file of `clustertune plan`. A plan that has expired, was edited, belongs
    to another cluster or does not match the cluster is refused (exit code 4), and
    nothing is done. If the cluster changes during the call, it stops (exit code 5).
    Without ADDRESS, the address is taken from Dask's configuration, or else from the
    plan.
    """
    from clustertune.operations import planning
    from clustertune.operations.planfile import StoredPlan

    with exit_on_error(), usage_errors(OSError, ValueError):
        stored = StoredPlan.load(Path(plan))

    async def make(client: Client, **how: Any) -> Report:
        try:
            work: Any = planning.apply_plan(client, stored, **how)
            report: Report = await work
        except ChangedError as error:
            if error.report is not None and acted(error.report):
                click.echo(render(error.report, form))
            raise
        return report

    target = target.or_address(stored.seen.address)
    carry_out_call(target, stored.call, make, form, consent)
