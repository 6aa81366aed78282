"""The command line: ``clustertune VERB [ADDRESS]``, also as ``dask tune VERB``.

The module of a command is imported when the command runs. ``clustertune --help`` and
``dask --help`` import none of them.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import Any

import click

from clustertune import __version__
from clustertune.core.wording import near

LOOK = "clustertune.cli.inspection"
CHANGE = "clustertune.cli.workers"
#: by verb, the module that has the command, and the first line of the command's help
COMMANDS = {
    "check": (
        LOOK,
        "Check this cluster for problems that slow down or break training.",
    ),
    "dashboard": (
        LOOK,
        "Show the page of a cluster, on its dashboard or served from this machine.",
    ),
    "demo": (LOOK, "Train before and after `prepare`, on a local cluster."),
    "explain": (LOOK, "Describe a check; without NAME, list all checks by symptom."),
    "history": (LOOK, "List past calls, held blocks and fits."),
    "merge": (
        CHANGE,
        "Replace the workers of each host by one with all their threads and memory.",
    ),
    "resize": (
        CHANGE,
        "Change the threads or memory of workers without losing data.",
    ),
    "restart": (CHANGE, "Restart workers one at a time without losing data."),
    "run": (
        "clustertune.cli.playbooks",
        "Carry out a playbook: run checks, and act on their findings.",
    ),
    "scale": (
        CHANGE,
        "Scale to N_WORKERS workers; leaving workers move their data to the others.",
    ),
    "schedule": (
        CHANGE,
        "Restart workers in a gap between runs; list or cancel such restarts.",
    ),
    "size": (LOOK, "Recommend a cluster for a fit, and print the line that starts it."),
    "trim": (CHANGE, "Return unused memory of workers to the operating system."),
    "watch": (
        LOOK,
        "Print when conditions begin or end, and workers join, leave or die.",
    ),
}


class LazyGroup(click.Group):
    """The commands of the table, which are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click passes it
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        found: click.Command = getattr(import_module(module), cmd_name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a name as click does, and suggest the nearest name for a typo."""
        similar = near(args[0], COMMANDS)
        if similar and args[0] not in COMMANDS and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {args[0]!r}{similar}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; end ^C, and output that cannot be written, with one line."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            click.echo("interrupted", err=True)
            sys.exit(130)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            text = f"clustertune: the output cannot be written: {error.strerror}"
            click.echo(text, err=True)
            # nothing is left to write at the end of the process
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(5)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click passes it
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in COMMANDS.items()])


# Dask lists a command under the command's own name: `dask tune`
@click.group(
    "tune",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExamples:\n"
    "  clustertune check tcp://10.0.0.5:8786\n"
    "  clustertune restart --help",
)
@click.version_option(__version__, package_name="clustertune")
def main() -> None:
    """Prepare a Dask cluster for machine-learning training.

    ADDRESS is the address of a scheduler, like tcp://10.0.0.5:8786. Without ADDRESS,
    Dask's configuration (scheduler-address, DASK_SCHEDULER_ADDRESS) names the cluster.

    Exit codes: 0 success, 1 problems found, or the request would not work, 2 wrong
    usage, 3 the cluster was not reached, 4 refused, 5 failed or done in part, 130
    interrupted.
    """
