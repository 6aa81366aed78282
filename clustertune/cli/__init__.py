"""The command line: ``clustertune VERB [ADDRESS]``, also as ``dask tune VERB``.

The module of a command is imported when the command runs. ``clustertune --help`` and
``dask --help`` import none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from clustertune import __version__

#: exit codes; 0 is success, and click uses 2 for usage errors
UNREACHED, REFUSED, FAILED, INTERRUPTED = 3, 4, 5, 130

# the first line of the help of each command
COMMANDS = {
    "check": "Check this cluster for problems that slow down or break training.",
    "dashboard": (
        "Show the page of a cluster, on its dashboard or served from this machine."
    ),
    "demo": "Train before and after `prepare`, on a local cluster.",
    "explain": "Describe a check; without NAME, list all checks by symptom.",
    "history": "List past calls, held blocks and fits.",
    "merge": (
        "Replace the workers of each host by one with all their threads and memory."
    ),
    "playbooks": "List the playbooks, print the text of NAME, or check playbooks.",
    "prepare": (
        "Prepare published data for a fit; its names then refer to the new data."
    ),
    "release": "Release data in memory, by row, client or prefix.",
    "report": "Show the last report of this cluster.",
    "resize": "Change the threads, memory or variables of workers without losing data.",
    "restart": "Restart workers one at a time without losing data.",
    "run": "Carry out a playbook: run checks, and act on their findings.",
    "scale": (
        "Scale to N_WORKERS workers; leaving workers move their data to the others."
    ),
    "schedule": "List or cancel restarts that wait for a gap between runs.",
    "size": "Recommend a cluster for a fit, and print the line that starts it.",
    "trim": "Return unused memory of workers to the operating system.",
    "watch": "Print when conditions begin or end, and workers join, leave or die.",
}
# the commands of each module
_MODULES = {
    "data": ("prepare", "release"),
    "history": ("history",),
    "inspection": ("check", "dashboard", "demo", "explain", "report", "size", "watch"),
    "playbooks": ("playbooks", "run"),
    "workers": (
        "merge",
        "resize",
        "restart",
        "scale",
        "schedule",
        "trim",
    ),
}


def examples(*lines: str) -> str:
    """Return the examples below the options of a help text."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def command(
    *lines: str, name: str | None = None
) -> Callable[[Callable[..., None]], click.Command]:
    """Return the decorator of a command with these examples."""
    return click.command(name, epilog=examples(*lines))


class LazyGroup(click.Group):
    """A group that imports a command when it is used.

    ``table`` has the first line of the help of each command. The command is the
    attribute of that name of its module.
    """

    def __init__(self, *args: Any, table: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(self.table)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click passes it
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        (module,) = (m for m, names in _MODULES.items() if cmd_name in names)
        found = import_module(f"{__name__}.{module}")
        known: click.Command = getattr(found, cmd_name)
        return known

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a name as click does, and suggest the nearest name for a typo."""
        near = get_close_matches(args[0], self.table, n=1)
        if near and near[0] != args[0] and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {args[0]!r}; did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click passes it
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self.table.items()))


# Dask lists a command under the command's own name: `dask tune`
@click.group(
    "tune",
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "clustertune check tcp://10.0.0.5:8786",
        "clustertune restart --help",
        'eval "$(_CLUSTERTUNE_COMPLETE=bash_source clustertune)"   (completion)',
    ),
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
