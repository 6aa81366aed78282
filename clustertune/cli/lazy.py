"""A group whose commands are loaded when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Commands by name, each in a module of a package.

    Parameters
    ----------
    table
        By name of command: the module, and the first sentence of the command's help.
        The command is the module's attribute of that name, with ``_`` for ``-``.
    package
        Where the modules are.
    """

    def __init__(
        self,
        *args: Any,
        table: Mapping[str, tuple[str, str]],
        package: str,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.table = table
        self.package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.table, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"{self.package}.{self.table[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; of a name that was mistyped, say what it may have been."""
        name, known = args[0], self.list_commands(ctx)
        near = get_close_matches(name, known, n=1)
        if near and near[0] != name and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {name!r}; did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - as click calls it
        formatter: click.HelpFormatter,
    ) -> None:
        rows = [(name, self.table[name][1]) for name in sorted(self.table)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
