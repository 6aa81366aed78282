"""Names that a shell completes: of checks, playbooks, workloads and published data.

A shell calls these functions at each press of the tab key. They print no errors:
without names, there is nothing to complete. Names from a cluster are untrusted, and the
shell puts them on the command line as they are. So names that a shell would not read as
one plain word are left out.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from clustertune.cli.options import Decorator, Target, checked, target_of
from clustertune.core import arguments

TIMEOUT = 2.0  # seconds to connect and to read the names of published data


def _items(names: Iterable[object], incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(name)
        for name in names
        if isinstance(name, str)
        and name.startswith(incomplete)
        and shlex.quote(name) == name
        and not name.startswith("-")
    ]


def check_names(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a check."""
    from clustertune import checks

    return _items(checks.available(), incomplete)


def workload_names(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a workload."""
    from clustertune.integrations import libraries

    return _items(libraries.available(), incomplete)


def playbook_names(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a playbook, or of a file."""
    from clustertune.operations.playbooks import available

    # first, because bash drops the names before it; it offers files if no name matches
    files = CompletionItem(incomplete, type="file")
    try:
        return [files, *_items(available(), incomplete)]
    except ValueError:  # a wrong setting, which the command itself reports
        return [files]


def dataset_names(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of published data, if the line or Dask names the scheduler."""
    try:
        target = target_of(context.params | _positional(context))
        # without an address this fails, before Dask is imported
        if target.cluster or not target.source:
            return []  # asking a manager would take too long
        return _items(asyncio.run(_published(target)), incomplete)
    except Exception:  # noqa: BLE001 - the command itself reports what is wrong
        return []


def _positional(context: click.Context) -> dict[str, str]:
    """Return the arguments, which click does not read if an option has no value.

    Bash passes an address in pieces: ``tcp : //10.0.0.5 : 8786``.
    """
    known = [p.name for p in context.command.params if isinstance(p, click.Argument)]
    words = " ".join(context.args).replace(" : ", ":").split()
    return {name: text for name, text in zip(known, words, strict=False) if name}


async def _published(target: Target) -> Iterable[object]:
    from clustertune.cli import running
    from clustertune.monitor.connection import no_connection_logs

    with no_connection_logs(everything=True):
        asking = running.connected(target, lambda c: c.list_datasets(), TIMEOUT)
        found: Iterable[object] = await asyncio.wait_for(asking, TIMEOUT)
    return found


# --- options with such names ----------------------------------------------------------


def dataset_option(text: str, **more: Any) -> Decorator:
    """Return ``--dataset`` for distinct names of published data."""
    settings = {"shell_complete": dataset_names} | more
    return click.option(
        "--dataset", "datasets", multiple=True, metavar="NAME",
        callback=checked(arguments.distinct), help=text, **settings,
    )  # fmt: skip


def workload_option(*names: str, **more: Any) -> Decorator:
    """Return ``--workload`` with the name of a known workload."""
    return click.option(
        "--workload", *names, callback=checked(_workload),
        shell_complete=workload_names, **more,
    )  # fmt: skip


def _workload(_option: str, name: str) -> str:
    from clustertune.integrations import libraries

    libraries.choose(name)
    return name
