"""Connect commands to a cluster, show plans, ask, and turn errors into exit codes.

Commands import distributed and the modules that need it when they run, so that
``clustertune VERB --help`` starts fast.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from clustertune import errors
from clustertune.cli import FAILED, INTERRUPTED, REFUSED, UNREACHED
from clustertune.cli.options import Consent, Target
from clustertune.core import arguments, rendering
from clustertune.core.findings import Severity, Shell, text_of
from clustertune.core.progress import Progress
from clustertune.core.report import Report, acted, in_shell, text_after
from clustertune.core.wording import printable

if TYPE_CHECKING:
    from distributed import Client

    from clustertune.operations.planfile import PlannedCall

T = TypeVar("T")

CONNECT = 10  # seconds to connect to a scheduler
ATTACH = 60  # seconds to connect through a manager, which may forward a port

_INTERRUPTED: list[str] = []  # finished and remaining work of an interrupted command

format_option = click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json", "html"]),
    default="text", show_default=True, help="Form of the output.",
)  # fmt: skip


def fail_on_option(default: str, text: str) -> Callable[[Any], Any]:
    """Return ``--fail-on``; the command gets a severity, or None for `never`."""

    def severity(_: click.Context, __: click.Parameter, name: str) -> Severity | None:
        return None if name == "never" else Severity[name]

    return click.option(
        "--fail-on", type=click.Choice(["info", "warning", "critical", "never"]),
        default=default, show_default=True, callback=severity, help=text,
    )  # fmt: skip


def parse_part(option: str, text: str) -> float:
    """Parse a number of workers, or a part of all workers."""
    with usage_errors(ValueError):
        return arguments.part(option, text)


def parse_seconds(option: str, text: str | None) -> float | None:
    """Parse a duration, in seconds."""
    with usage_errors(ValueError):
        return None if text is None else arguments.duration(option, text)


def distinct_names(
    _context: click.Context, option: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse duplicate names of an option (a callback)."""
    with usage_errors(ValueError):
        return arguments.distinct(option.opts[0], names)


def parse_pairs(option: str, texts: tuple[str, ...], form: str) -> dict[str, str]:
    """Parse texts like NAME=VALUE with distinct names."""
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise click.UsageError(f"{option} {wrong[0]} is not of the form {form}")
    pairs = [text.partition("=") for text in texts]
    with usage_errors(ValueError):
        arguments.distinct(option, [name for name, _, _ in pairs])
    return {name: value for name, _, value in pairs}


def named_data(
    datasets: Sequence[str], options: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """Return the options that name data and the workload, by variable in Python."""
    words = [("--dataset", name) for name in datasets]
    given: dict[str, tuple[str, ...]] = dict(zip(("X", "y"), words, strict=False))
    given["*others"] = tuple(word for option in words[2:] for word in option)
    names = ("sample_weight", "qid", "base_margin", "init_score")
    options_of = {name: f"--{name.replace('_', '-')}" for name in names}
    for variable, option in (options_of | {"model": "--workload"}).items():
        value = options.get("estimator" if variable == "model" else variable)
        if value:
            given[variable] = (option, value)
    if pairs := options.get("eval_set"):
        each = [("--eval-set", *pair) for pair in pairs]
        given["eval_set"] = tuple(word for option in each for word in option)
    return given


def shell_of(target: Target, call: PlannedCall) -> Shell:
    """Return the words of commands for the cluster and the data of a call."""
    datasets = call.names if call.verb == "prepare" else ()
    return target.shell(named_data(datasets, call.options))


def render(thing: Any, form: str) -> str:
    """Format a report or a diagnosis as text, JSON or an HTML page."""
    if form == "json":
        return str(thing.to_json())
    return rendering.to_page(thing._repr_html_()) if form == "html" else str(thing)


@contextmanager
def usage_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into usage errors."""
    try:
        yield
    except kinds as error:
        raise click.UsageError(printable(str(error), longest=2000)) from error


async def with_usage_errors(work: Awaitable[T]) -> T:
    """Turn a ValueError, such as an unknown worker, into a usage error."""
    with usage_errors(ValueError):
        return await work


def run(target: Target, work: Callable[[Client], Awaitable[T]]) -> T:
    """Connect and call a function; turn errors into one line and an exit code."""
    from clustertune.monitor.connection import no_connection_logs
    from clustertune.operations.call import refuse_wrong_settings

    with usage_errors(ValueError):
        refuse_wrong_settings()
    _INTERRUPTED.clear()
    with exit_on_error(), no_connection_logs():
        if target.cluster:
            return asyncio.run(_attached(*target.cluster, work, _at_most(ATTACH)))
        return asyncio.run(connected(target, work, _at_most(2 * CONNECT)))


def _at_most(seconds: float) -> float:
    """Limit seconds to the ``--timeout`` of the running command."""
    context = click.get_current_context(silent=True)
    given = None if context is None else context.params.get("timeout")
    limit = parse_seconds("--timeout", given)
    return seconds if limit is None else min(seconds, limit)


async def connected(
    target: Target, work: Callable[[Client], Awaitable[T]], seconds: float
) -> T:
    """Call a function with a client that connects within some seconds."""
    from clustertune.monitor import connection

    source = target.source
    try:
        address = _address_in(source) if target.scheduler_file else source
    except (OSError, ValueError, LookupError, TypeError) as error:
        text = f"no scheduler answers at {source}: {error!r}"
        raise errors.ConnectionLostError(text) from error
    try:
        client = await connection.connected(
            address, security=target.security, seconds=seconds
        )
    except errors.ConnectionLostError as error:
        if target.scheduler_file:
            error.args = (f"{source}: {error}",)
        raise
    async with client:
        return await _call(client, work)


async def _call(client: Client, work: Callable[[Client], Awaitable[T]]) -> T:
    """Call a function; turn Dask's errors about a lost connection into ours."""
    from clustertune.monitor import connection

    try:
        return await work(client)
    except asyncio.CancelledError as error:  # ^C; KeyboardInterrupt loses this text
        _INTERRUPTED[:] = map(str, error.args)
        raise
    except Exception as error:
        lost = connection.lost(client, error)
        if lost is None:
            raise
        raise lost from error


async def _attached(
    kind: str, name: str, work: Callable[[Client], Awaitable[T]], seconds: float
) -> T:
    from clustertune.integrations import managers

    async with AsyncExitStack() as stack:
        try:
            attaching = managers.attach(kind, name, stack)
            client = await with_usage_errors(asyncio.wait_for(attaching, seconds))
        except (OSError, asyncio.TimeoutError) as error:
            raise errors.ConnectionLostError(
                f"no scheduler answers at {kind}:{name}: {error!r}"
            ) from error
        return await _call(client, work)


def _address_in(scheduler_file: str) -> str:
    return str(json.loads(Path(scheduler_file).read_text())["address"])


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print errors of clustertune in one line and exit; all other errors are bugs."""
    try:
        yield
    except KeyboardInterrupt:
        lines = "; ".join(["interrupted", *map(printable, _INTERRUPTED)])
        click.echo(lines, err=True)
        sys.exit(INTERRUPTED)
    except errors.ClustertuneError as error:
        click.echo(f"clustertune: {printable(str(error), longest=2000)}", err=True)
        sys.exit(exit_code(error))


@contextmanager
def _errors_in_shell(shell: Shell) -> Iterator[None]:
    """Make the remedies in errors command lines, where there are any."""
    try:
        yield
    except errors.ClustertuneError as error:
        if parts := error.remedy_parts:
            remedy = text_of(shell.translate(parts))
            error.args = (str(error).replace(text_of(parts), remedy),)
        raise


def exit_code(error: errors.ClustertuneError) -> int:
    """Return the exit code for an error."""
    if isinstance(error, errors.ConnectionLostError):
        return UNREACHED
    changed = isinstance(error, errors.ChangedError) and not acted(error.report)
    return REFUSED if changed or isinstance(error, errors.REFUSALS) else FAILED


# --- plan, ask, change ----------------------------------------------------------------


@dataclass(frozen=True)
class PlanOnly:
    """The context object of ``clustertune plan``: handles a call without making it."""

    do: Callable[[Target, PlannedCall, str, Consent], None]


def change(
    target: Target,
    verb: str,
    options: Mapping[str, Any],
    form: str,
    consent: Consent,
    names: tuple[str, ...] = (),
) -> None:
    """Make a call, or only plan it as a command of ``clustertune plan``."""
    from clustertune.operations.planfile import PlannedCall

    call = PlannedCall(verb=verb, names=names, options=options)
    instead = click.get_current_context().find_object(PlanOnly)
    if instead is not None:
        instead.do(target, call, form, consent)
    else:
        carry_out_call(target, call, call.make, form, consent)


def carry_out_call(
    target: Target,
    call: PlannedCall,
    make: Callable[..., Awaitable[Report]],
    form: str,
    consent: Consent,
) -> None:
    """Plan a call, ask, make it, and exit with the code of its report."""

    def code(report: Report) -> int:
        if report.status == "planned":
            return REFUSED if call.refused(report) else 0
        return 0 if report.status in ("done", "fine") else FAILED

    def acts(plan: Report) -> bool:
        return bool(plan.steps) and not call.refused(plan)

    async def make_in_shell(client: Client, **how: Any) -> Report:
        shell = shell_of(target, call)
        with _errors_in_shell(shell):
            return in_shell(await make(client, **how), shell)

    carry_out(target, make_in_shell, form, consent, acts=acts, code=code)


def carry_out(
    target: Target,
    make: Callable[..., Awaitable[T]],
    form: str,
    consent: Consent,
    *,
    acts: Callable[[T], bool],
    code: Callable[[T], int],
) -> None:
    """Show the plan, ask, carry it out, and exit with the code of the result.

    Parameters
    ----------
    make
        Makes the call with a client, ``dry_run`` and ``progress``.
    acts
        Returns whether a plan has something to carry out.
    code
        Returns the exit code of a plan or a result.
    """

    def call(dry: bool) -> T:
        async def work(client: Client) -> T:
            shown = Progress(consent.progress)
            making = make(client, dry_run=dry, progress=shown.notify)
            try:
                return await with_usage_errors(making)
            finally:
                shown.finish(())  # the printed report has the results

        return run(target, work)

    def end(result: T, plan: T | None = None) -> None:
        below_plan = form == "text" and sys.stdout.isatty()
        if below_plan and isinstance(result, Report) and isinstance(plan, Report):
            click.echo(text_after(result, plan))
        else:
            click.echo(render(result, form))
        sys.exit(code(result))

    plan = None
    if consent.dry_run or not consent.yes:
        plan = call(dry=True)
        if consent.dry_run or not acts(plan):
            end(plan)
        consent.ask(str(plan))
    end(call(dry=False), plan)
