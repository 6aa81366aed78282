"""The command line: ``clustertune VERB [ADDRESS]``, also as ``dask tune VERB``.

A command's module is loaded when the command is used: ``clustertune --help``, and every
``dask --help``, need none of them.
"""

from __future__ import annotations

import click

from clustertune import __version__
from clustertune.cli.examples import examples
from clustertune.cli.lazy import LazyGroup

# By name: the module that has the command, and the first sentence of its help.
COMMANDS = {
    "apply": (
        "planning",
        "Carry out a plan, if cluster and data are still as it saw them.",
    ),
    "check": (
        "looking",
        "What stands between this cluster and a fast, safe training run.",
    ),
    "demo": (
        "looking",
        "Train before and after `prepare`, on a cluster of this machine's own.",
    ),
    "doctor": (
        "looking",
        "What of clustertune will work on this cluster, and what is in the way.",
    ),
    "explain": (
        "looking",
        "The page of a check; without NAME what checks there are.",
    ),
    "history": (
        "histories",
        "Show records of past calls and runs, and trends over them.",
    ),
    "panel": (
        "panel",
        "The page of a cluster: on its dashboard, or served from this machine.",
    ),
    "plan": (
        "planning",
        "Plan a change without making it, for `apply`; without VERB it is `prepare`.",
    ),
    "playbooks": (
        "playing",
        "The playbooks that there are; with NAME, the text of one.",
    ),
    "prepare": (
        "preparing",
        "Get published data ready for a fit; the names point to the new pieces then.",
    ),
    "release": (
        "changing",
        "Let go of data in memory, by the prefix of its keys.",
    ),
    "report": ("looking", "The report of what was done last on this cluster."),
    "reset": (
        "resetting",
        "Destroy this cluster of Saturn Cloud's and make it anew, with other sizes.",
    ),
    "resize": (
        "changing",
        "Give workers other threads, memory or variables, without losing data.",
    ),
    "restart": (
        "changing",
        "Restart workers one after the other, without losing what they hold.",
    ),
    "run": (
        "playing",
        "Carry out a playbook: checks, and what to do where they find something.",
    ),
    "scale": (
        "changing",
        "Have N_WORKERS workers; those that go hand their data to those that stay.",
    ),
    "schedule": (
        "scheduling",
        "Restarts that wait for a gap between runs: list them, or cancel one.",
    ),
    "size": (
        "sizing",
        "Recommend a cluster for a fit, and print the line that starts it.",
    ),
    "trim": (
        "changing",
        "Have workers give memory back that they do not need; nothing is at risk.",
    ),
    "watch": (
        "looking",
        "Say when a condition begins or ends, for as long as it runs.",
    ),
}


# Dask lists a command under the command's own name: `dask tune`
@click.group(
    "tune",
    cls=LazyGroup,
    table=COMMANDS,
    package=__name__,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "clustertune check tcp://10.0.0.5:8786",
        "clustertune restart --help",
        'eval "$(_CLUSTERTUNE_COMPLETE=bash_source clustertune)"   (completion)',
    ),
)
@click.version_option(__version__, package_name="clustertune")
def main() -> None:
    """Get a Dask cluster ready for machine-learning training, and keep it so.

    ADDRESS is a scheduler's, like tcp://10.0.0.5:8786; without it, Dask's configuration
    (scheduler-address, DASK_SCHEDULER_ADDRESS) says which.

    Exit codes: 0 clean or done, 1 findings, or what was asked for will not work or was
    not found, 2 usage, 3 the cluster was not reached, 4 refused, 5 failed or done in
    part, 130 interrupted.
    """
