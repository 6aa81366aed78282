"""Commands of playbooks: ``run`` and ``playbooks``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from distributed import Client
from tabulate import tabulate

from clustertune.cli import examples
from clustertune.cli.options import Consent, Target, on_a_cluster, with_consent
from clustertune.cli.running import (
    format_option,
    once,
    pairs,
    rendered,
    told_usage,
)
from clustertune.cli.running import run as run_on
from clustertune.core.model import Severity
from clustertune.core.wording import printable
from clustertune.errors import PlaybookError
from clustertune.integrations import libraries
from clustertune.operations.playbooks import playing, shelf
from clustertune.operations.playbooks.played import Played


def _complete(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of playbooks, and files."""
    named = [n for n in shelf.available() if n.startswith(incomplete)]
    return [*map(CompletionItem, named), CompletionItem(incomplete, type="file")]


def _values(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    return pairs("--set", given, "KEY=VALUE")


@click.command(
    "run",
    epilog=examples(
        "clustertune run observe tcp://10.0.0.5:8786",
        "clustertune run between-runs --set disrupted_workers=2 --yes",
        "clustertune run before-training --dataset X --dataset y --workload xgboost",
        "clustertune run ./nightly.yaml --dry-run -f json",
    ),
)
@click.argument("playbook", shell_complete=_complete)
@on_a_cluster(manager=True)
@format_option
@click.option(
    "--set", "values", multiple=True, metavar="KEY=VALUE", callback=_values, help="A "
    "value in place of the playbook's, like n_workers=2 or steps[1].holds=5m; may be "
    "given several times."
)  # fmt: skip
@click.option(
    "--dataset", "datasets", multiple=True, metavar="NAME", callback=once,
    help="A published data set that it acts on: the first is X, the second y, and so "
    "on."
)  # fmt: skip
@click.option("--workload", metavar="NAME", help="What will train, like xgboost.")
@click.option(
    "--fail-on", type=click.Choice(["info", "warning", "critical", "never"]),
    default="critical", show_default=True, help="End with exit code 1 if its checks "
    "find something at the end that is at least so bad."
)  # fmt: skip
@with_consent
def run(
    target: Target,
    playbook: str,
    form: str,
    values: Mapping[str, str],
    datasets: tuple[str, ...],
    workload: str | None,
    fail_on: str,
    consent: Consent,
) -> None:
    """Carry out a playbook: checks, and what to do where they find something.

    PLAYBOOK is a name, as `clustertune playbooks` lists them, or a file. One that may
    change something is first gone through without changing anything, and asked about.
    """
    with _wrong_playbooks_told():
        read = shelf.read(playbook, values)
        playing.refuse_without_data(read, datasets or None)
        libraries.choose(workload)

    def play(dry_run: bool) -> Played:
        async def work(client: Client) -> Played:
            # in its client's event loop it is to be awaited
            running: Any = playing.run_on_datasets(
                client,
                read,
                *datasets,
                workload=workload,
                dry_run=dry_run,
                progress=consent.progress,
            )
            played: Played = await running
            return played

        return run_on(target, lambda client: told_usage(work(client)))

    def end(played: Played) -> None:
        click.echo(rendered(played, form))
        least = None if fail_on == "never" else Severity[fail_on]
        sys.exit(played.exit_status(least))

    if read.acts:
        consent.refuse_where_nobody_answers()
    if consent.dry_run or (read.acts and not consent.yes):
        plan = play(dry_run=True)
        if consent.dry_run or not any(s.status == "planned" for s in plan.steps):
            end(plan)
        consent.ask(str(plan))
    end(play(dry_run=False))


@click.command(
    epilog=examples(
        "clustertune playbooks",
        "clustertune playbooks between-runs > nightly.yaml",
    )
)
@click.argument("name", required=False, shell_complete=_complete)
@click.option(
    "-f", "--format", "form", type=click.Choice(["text", "json"]), default="text",
    show_default=True, help="Form of the list.",
)  # fmt: skip
def playbooks(name: str | None, form: str) -> None:
    """The playbooks that there are; with NAME, the text of one.

    They are those of clustertune, and *.yaml in the folder that is configured as
    `clustertune.playbooks`; of the same name, yours.
    """
    with _wrong_playbooks_told():
        if name is not None:
            click.echo(shelf.text_of(name), nl=False)
            return
        listed = [_described(n, path) for n, path in shelf.available().items()]
    if form == "json":
        click.echo(json.dumps({"schema_version": 1, "playbooks": listed}))
        return
    rows = [[printable(x["name"]), printable(x["text"]), x["file"]] for x in listed]
    headers = ["playbook", "what it does", "file"]
    click.echo(tabulate(rows, headers=headers, maxcolwidths=[None, 60, None]))


def _described(name: str, path: Path) -> dict[str, str]:
    """What a list says of a playbook; of one that is wrong, what is."""
    try:
        text = shelf.read(path).description
    except ValueError as error:
        text = f"cannot be used: {str(error).partition(chr(10))[0]}"
    return {"name": name, "text": text, "file": printable(str(path))}


@contextmanager
def _wrong_playbooks_told() -> Iterator[None]:
    """A line for each mistake, as compilers say them; the rest as wrong usage."""
    try:
        yield
    except PlaybookError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
