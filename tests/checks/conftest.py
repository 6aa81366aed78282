"""Each call in a remedy fits its function, and each of its commands parses."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest

import clustertune
from clustertune.cli import main
from clustertune.core.model import Finding

ADDRESS = "tcp://10.0.0.5:8786"


@pytest.fixture(autouse=True)
def valid_remedies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check the calls in all remedies that a test makes."""
    made: list[Finding] = []
    initialize = Finding.__init__

    def note(self: Finding, *args: Any, **fields: Any) -> None:
        initialize(self, *args, **fields)
        made.append(self)

    monkeypatch.setattr(Finding, "__init__", note)
    yield
    monkeypatch.undo()
    for finding in made:
        for line in calls(finding.remedy):
            parse(line) if line.startswith("clustertune ") else bind(line)
        for line in calls(
            finding.as_command(ADDRESS).remedy if finding.command else ""
        ):
            assert ADDRESS in line
            parse(line)


def calls(text: str) -> list[str]:
    """Return the calls and commands of clustertune in a text."""
    found = re.findall(r"`([^`]*)`", text)
    return [line for line in found if re.search(r"(^|[ =])clustertune[. ]", line)]


def bind(line: str) -> None:
    """Fail if a public function does not take the arguments of a call."""
    for call in ast.walk(ast.parse(f"{line} pass" if line.endswith(":") else line)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("clust"):
            function = getattr(clustertune, ast.unparse(call.func).split(".")[1])
            names = {k.arg: None for k in call.keywords if k.arg}
            # the data of some tests has no X
            given = max(len(call.args), 2 if function is clustertune.prepare else 0)
            inspect.signature(function).bind(*[None] * given, **names)


def parse(line: str) -> None:
    """Fail if click does not accept the line."""
    _, verb, *words = shlex.split(line)
    # a command keeps the help options of its first context
    context = click.Context(main, **main.context_settings)
    found = main.get_command(context, verb)
    assert found is not None
    found.make_context(verb, words, parent=context)
