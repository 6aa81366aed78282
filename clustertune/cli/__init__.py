"""The command line: ``clustertune VERB [ADDRESS]``, also as ``dask tune VERB``.

Exit codes: 0 clean or done, 1 findings, or what was asked for will not work or was not
found,
2 usage, 3 the cluster was not reached, 4 refused, 5 failed or done in part,
130 interrupted.
"""

from __future__ import annotations

import click

from clustertune import __version__
from clustertune.cli import changing, looking, preparing, sizing


# Dask lists a command under the command's own name: `dask tune`
@click.group("tune", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Get a Dask cluster ready for machine-learning training, and keep it so.

    ADDRESS is a scheduler's, like tcp://10.0.0.5:8786; without it, Dask's configuration
    (scheduler-address, DASK_SCHEDULER_ADDRESS) says which.
    """


for command in (
    looking.demo,
    looking.doctor,
    looking.report,
    looking.check,
    looking.watch,
    looking.explain,
    preparing.prepare,
    sizing.size,
    changing.resize,
    changing.restart,
    changing.reset,
    changing.scale,
    changing.trim,
    changing.release,
):
    main.add_command(command)
