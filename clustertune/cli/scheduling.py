"""Scheduled restarts: ``restart --between-runs``, and ``schedule``."""

from __future__ import annotations

import asyncio
import html
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from clustertune.cli import FAILED, examples
from clustertune.cli.completion import conditions
from clustertune.cli.options import Consent, Target, cluster_options
from clustertune.cli.running import format_option, run, usage_errors, with_usage_errors

if TYPE_CHECKING:
    from distributed import Client

    from clustertune.operations.scheduling.schedule import Schedule

SCHEMA_VERSION = 1
NOT_FOUND = 1


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """Options of ``--between-runs``, for :func:`clustertune.schedule_restart`."""

    options: dict[str, Any]
    stay: bool


_options = (
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
_NOT_SCHEDULED = (
    "drop_data",
    "if_needed",
    "include_other_clients",
    "max_unavailable",
    "timeout",
)
_WHEN = ("idle_for", "cron", "tz", "condition", "expires")
_ONLY_SCHEDULED = (*_WHEN, "stay")
SCHEDULE_OPTIONS = frozenset(("between_runs", *_ONLY_SCHEDULED))


def with_schedule_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of ``--between-runs``; the command gets ``scheduled``.

    ``scheduled`` is None without ``--between-runs``: the command restarts at once.
    """

    @wraps(command)
    def call(
        *args: Any, between_runs: bool = False, stay: bool = False, **others: Any
    ) -> None:
        wrong = _NOT_SCHEDULED if between_runs else _ONLY_SCHEDULED
        # `plan` has another --expires
        known = {*others, "stay"}
        given = [name for name in wrong if name in known and _is_given(name)]
        if given:
            name = "if" if given[0] == "condition" else given[0]
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(
                f"{option} and --between-runs do not go together"
                if between_runs
                else f"{option} is for --between-runs"
            )
        options = {name: others.pop(name, None) for name in _WHEN}
        if between_runs and _is_given("wait"):
            options["wait"] = others["wait"]
        scheduled = None
        if between_runs:
            scheduled = ScheduleOptions(options=options, stay=stay)
        command(*args, scheduled=scheduled, **others)

    decorated: Callable[..., None] = call
    for option in reversed(_options):
        decorated = option(decorated)
    return decorated


def _is_given(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def between_runs(
    target: Target,
    workers: tuple[str, ...],
    form: str,
    consent: Consent,
    scheduled: ScheduleOptions,
) -> None:
    """Plan a scheduled restart, ask, schedule it, and follow it with ``--stay``."""
    from clustertune.operations.scheduling.request import schedule_restart

    async def call(client: Client, dry: bool) -> Schedule:
        names = list(workers) or None
        with usage_errors(ValueError, TypeError):
            answer: Any = schedule_restart(
                client, workers=names, dry_run=dry, **scheduled.options
            )
        found: Schedule = await with_usage_errors(answer)
        return found

    async def schedule(client: Client) -> Schedule:
        made = await call(client, dry=False)
        if not scheduled.stay:
            return made
        return await _follow(client, made, consent, _cancel_command(made, target))

    if consent.dry_run or not consent.yes:
        plan = run(target, lambda client: call(client, dry=True))
        if consent.dry_run:
            click.echo(_rendered([plan], form))
            return
        consent.ask(str(plan))
    done = run(target, schedule)
    click.echo(_rendered([done], form))
    if not (done.ended or scheduled.stay or consent.quiet):
        click.echo(f"to cancel it: {_cancel_command(done, target)}", err=True)
    sys.exit(0 if done.state in ("done", "waiting", "running") else FAILED)


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


def _rendered(found: Sequence[Schedule], form: str) -> str:
    if form == "json":
        rows = [s.plain() for s in found]
        return json.dumps({"schema_version": SCHEMA_VERSION, "schedules": rows})
    text = "\n".join(map(str, found)) or "no restart is scheduled"
    return f"<pre>{html.escape(text)}</pre>" if form == "html" else text


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

    async def end(client: Client) -> Schedule | str:
        try:
            return await schedules.cancel(client, id)
        except LookupError as error:
            return str(error)

    found = run(target, end)
    if isinstance(found, str):
        click.echo(found, err=True)
        sys.exit(NOT_FOUND)
    click.echo(_rendered([found], form))
