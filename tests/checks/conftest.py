"""Each call in a remedy fits its function, and each of its commands parses."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator
from dataclasses import replace

import click
import pytest
from dask.utils import parse_bytes

import clustertune
from clustertune.cli import main
from clustertune.core.findings import Call, Finding, Shell, command

NAMED = ("sample_weight", "qid", "base_margin", "init_score")
SHELL = Shell(
    cluster=("tcp://10.0.0.5:8786",),
    variables={
        "X": ("--dataset", "X"),
        "y": ("--dataset", "y"),
        "*others": ("--dataset", "w"),
        "eval_set": ("--eval-set", "X_valid", "y_valid"),
        "model": ("--workload", "xgboost"),
        **{name: (f"--{name.replace('_', '-')}", name) for name in NAMED},
    },
)


@pytest.fixture(autouse=True)
def valid_remedies(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Check the calls in all remedies that a test makes."""
    calls: list[Call] = []
    keep_parts = Finding.__post_init__

    def note(self: Finding) -> None:
        keep_parts(self)
        calls.extend(part for part in self.remedy_parts if isinstance(part, Call))

    monkeypatch.setattr(Finding, "__post_init__", note)
    yield
    has_toy_workers = request.node.path.name == "test_fit.py"
    for call in calls:
        known = realistic(call, has_toy_workers)
        bind(known)
        parse(command(known, SHELL))


def realistic(call: Call, has_toy_workers: bool) -> Call:
    """Return the call with X, a known workload and a limit that workers can have."""
    known = {}
    if call.arguments.get("estimator") == "t":
        known["estimator"] = "xgboost"
    limit = call.arguments.get("memory_limit")
    if has_toy_workers and limit is not None and parse_bytes(limit) < 2**20:
        known["memory_limit"] = "1 GiB"
    names = call.names if call.function != "prepare" else call.names or ("X",)
    variables = {k: v for k, v in call.variables.items() if k.isidentifier()}
    arguments = {**call.arguments, **known}
    return replace(call, names=names, variables=variables, arguments=arguments)


def bind(call: Call) -> None:
    """Fail if the public function does not take these arguments."""
    signature = inspect.signature(getattr(clustertune, call.function))
    signature.bind(None, *call.names, **call.variables, **call.arguments)
    compile(str(call), "remedy", "exec")


def parse(line: str) -> None:
    """Fail if click does not accept the line."""
    if line:
        _, verb, *words = shlex.split(line)
        # a command keeps the help options of its first context
        context = click.Context(main, **main.context_settings)
        found = main.get_command(context, verb)
        assert found is not None
        found.make_context(verb, words, parent=context)
