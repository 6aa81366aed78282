"""Whether a change may be made, and what is said of it: options of what changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click
import dask

from clustertune.cli.running import INTERRUPTED, REFUSED


@dataclass(frozen=True, kw_only=True)
class Consent:
    """What the user said of changes.

    Attributes
    ----------
    dry_run
        Plan, and change nothing.
    yes
        Do not ask.
    quiet
        Say nothing but what comes out, and what must be asked.
    """

    dry_run: bool
    yes: bool
    quiet: bool

    @property
    def progress(self) -> bool | None:
        """As the functions of clustertune take it."""
        return False if self.quiet else None

    def refuse_where_nobody_answers(self) -> None:
        """Before anything is looked at that could not be carried out anyway."""
        if not (self.dry_run or self.yes or is_terminal()):
            raise click.UsageError(NOBODY)

    def ask(self, plan: str) -> None:
        """Show what is planned and go on only if that is wanted."""
        if self.yes:
            return
        click.echo(plan, err=True)
        if not is_terminal():
            raise click.UsageError(NOBODY)
        try:
            agreed = click.confirm("Go on?", err=True)
        except click.Abort:
            click.echo("interrupted; nothing was changed", err=True)
            sys.exit(INTERRUPTED)
        if not agreed:
            click.echo("nothing was changed", err=True)
            sys.exit(REFUSED)


NOBODY = "nobody can be asked here: give --yes, or --dry-run"

_options = (
    click.option("--dry-run", is_flag=True, help="Show what would be done, and change "
        "nothing."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask."),
    click.option("-q", "--quiet", is_flag=True, help="No progress: print only what "
        "came out, and the plan if it must be asked about."),
    click.option("--reason", metavar="TEXT", help="Why; it goes to Dask's event log "
        "with what is done."),
)  # fmt: skip


def with_consent(command: Callable[..., None]) -> Callable[..., None]:
    """Options of what changes a cluster; the command gets ``consent``."""

    @wraps(command)
    def call(
        *args: Any,
        dry_run: bool,
        yes: bool,
        quiet: bool,
        reason: str | None,
        **others: Any,
    ) -> None:
        consent = Consent(dry_run=dry_run, yes=yes, quiet=quiet)
        with because(reason):
            command(*args, consent=consent, **others)

    decorated: Callable[..., None] = call
    for option in reversed(_options):
        decorated = option(decorated)
    return decorated


@contextmanager
def because(reason: str | None) -> Iterator[None]:
    """Changes within are made for this reason."""
    if reason is None:
        yield
        return
    with dask.config.set({"clustertune.reason": reason}):
        yield


def is_terminal() -> bool:
    """Whether somebody can answer."""
    return sys.stdin.isatty()
