"""Scheduled restarts: ``restart --between-runs``, and ``schedule``."""

from __future__ import annotations

import asyncio
import html
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from clustertune.cli import FAILED, examples
from clustertune.cli.completion import conditions
from clustertune.cli.options import (
    Consent,
    Target,
    cluster_options,
    format_option,
    refuse_options,
    usage_errors,
)
from clustertune.cli.running import carry_out, run, text_or_json

if TYPE_CHECKING:
    from distributed import Client

    from clustertune.operations.scheduling.schedule import Schedule

#: options of ``restart`` that schedule it
SCHEDULE = (
    click.option("--between-runs", is_flag=True, help="Schedule the restart: the "
        "scheduler waits for the next gap between runs, and this command may end."),
    click.option("--idle-for", metavar="TIME", default="30s", show_default=True,
        help="Between runs: define a gap as this long without a task."),
    click.option("--cron", metavar="EXPRESSION", help="Between runs: restart once "
        'after each of these times, like "0 3 * * *".'),
    click.option("--tz", metavar="ZONE", help="Between runs: set the time zone of "
        "--cron, like Europe/Berlin. Default: this machine's."),
    click.option("--if", "condition", metavar="CONDITION", shell_complete=conditions,
        help="Between runs: restart only if this is true then: leak, memory:critical, "
        "or CHECK[:SEVERITY]."),
    click.option("--expires", metavar="TIME", default="12h", show_default=True,
        help="Between runs: give up after this time."),
    click.option("--stay", is_flag=True, help="Between runs: wait until the restart "
        "has ended, and show its state."),
)  # fmt: skip
#: only with ``--between-runs``
_ONLY_SCHEDULED = ("idle_for", "cron", "tz", "condition", "expires", "stay")
_NEVER_SCHEDULED = (
    "drop_data", "if_needed", "include_other_clients", "max_unavailable", "timeout",
)  # fmt: skip
SCHEDULE_OPTIONS = frozenset(("between_runs", *_ONLY_SCHEDULED))


def take_schedule(options: dict[str, Any], between_runs: bool) -> dict[str, Any]:
    """Remove the options of a scheduled restart from others, and return them.

    Refuse options that do not go together with ``between_runs``.
    """
    when = {name: options.pop(name) for name in _ONLY_SCHEDULED if name in options}
    if between_runs:
        text = "{} and --between-runs do not go together"
        refuse_options(_NEVER_SCHEDULED, text)
    else:
        refuse_options(when, "{} is for --between-runs")
    when["workers"] = options["workers"]
    source = click.get_current_context().get_parameter_source("wait")
    if source is ParameterSource.COMMANDLINE:
        when["wait"] = options["wait"]
    return when


def schedule_between_runs(
    target: Target, form: str, consent: Consent, when: Mapping[str, Any]
) -> None:
    """Plan a scheduled restart, ask, schedule it, and follow it with ``--stay``."""
    from clustertune.operations.scheduling.request import schedule_restart

    options = dict(when)
    stay = options.pop("stay")

    async def make(client: Client, *, dry_run: bool, **_: Any) -> Schedule:
        with usage_errors(ValueError, TypeError):
            answer: Any = schedule_restart(client, dry_run=dry_run, **options)
        made: Schedule = await answer
        if dry_run or not stay:
            return made
        return await _follow(client, made, consent, _cancel_command(made, target))

    made = carry_out(target, make, form, consent, lambda _: True, _rendered)
    if consent.dry_run:
        return
    if not (made.ended or stay or consent.quiet):
        click.echo(f"to cancel it: {_cancel_command(made, target)}", err=True)
    sys.exit(0 if made.state in ("done", "waiting", "running") else FAILED)


def _cancel_command(made: Schedule, target: Target) -> str:
    return target.command(f"clustertune schedule cancel {made.id}")


async def _follow(
    client: Client, made: Schedule, consent: Consent, command: str
) -> Schedule:
    from clustertune.operations.scheduling import schedule as schedules

    def notify(text: str) -> None:
        if not consent.quiet:
            click.echo(text, err=True)

    notify(str(made))
    try:
        return await schedules.follow(client, made, lambda now: notify(now.standing()))
    except asyncio.CancelledError:  # ^C
        click.echo(f"still scheduled; to cancel it: {command}", err=True)
        raise


def _rendered(found: Schedule | Sequence[Schedule], form: str) -> str:
    schedules = found if isinstance(found, Sequence) else [found]
    text = "\n".join(map(str, schedules)) or "no restart is scheduled"
    if form == "html":
        text = f"<pre>{html.escape(text)}</pre>"
    return text_or_json(text, form, {"schedules": [s.plain() for s in schedules]})


@click.group(
    epilog=examples(
        "clustertune restart --between-runs --if leak --yes tcp://10.0.0.5:8786",
        "clustertune schedule list tcp://10.0.0.5:8786",
        "clustertune schedule cancel b8f0a8 tcp://10.0.0.5:8786",
    )
)
def schedule() -> None:
    """List or cancel restarts that wait for a gap between runs."""


@schedule.command(
    "list", epilog=examples("clustertune schedule list -f json tcp://10.0.0.5:8786")
)
@cluster_options()
@format_option
def list_(target: Target, form: str) -> None:
    """List waiting restarts with the reason, and the last ended ones."""
    from clustertune.operations.scheduling import schedule as schedules

    click.echo(_rendered(run(target, schedules.listed), form))


@schedule.command(
    epilog=examples("clustertune schedule cancel b8f0a8 tcp://10.0.0.5:8786")
)
@click.argument("id")
@cluster_options()
@format_option
def cancel(target: Target, id: str, form: str) -> None:
    """Cancel the scheduled restart ID. A worker that is restarting comes back first."""
    from clustertune.operations.scheduling import schedule as schedules

    try:
        found = run(target, lambda client: schedules.cancel(client, id))
    except LookupError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(_rendered(found, form))
