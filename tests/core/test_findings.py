"""A call in a remedy becomes Python code, or the command that does the same."""

from __future__ import annotations

import pytest

from clustertune.core.findings import Call, Remedy, Shell, command, sentences

SHELL = Shell(
    cluster=("--scheduler-file", "my file.json"),
    variables={"X": ("--dataset", "flights"), "y": ("--dataset", "delay")},
)
END = "--scheduler-file 'my file.json'"
DATA = ("X", "y")


@pytest.mark.parametrize(
    ("call", "code", "line"),
    [
        (
            Call(function="scale", arguments={"n_workers": 2}),
            "clustertune.scale(client, 2)",
            "scale 2",
        ),
        (
            Call(
                function="resize_workers",
                arguments={"memory_limit": "1.5 GiB", "workers": (3, "a b")},
            ),
            (
                'clustertune.resize_workers(client, memory_limit="1.5 GiB", '
                'workers=[3, "a b"])'
            ),
            "resize --memory-limit '1.5 GiB' --worker 3 --worker 'a b'",
        ),
        (
            Call(function="resize_workers", arguments={"env": {"OMP": "1"}}),
            'clustertune.resize_workers(client, env={"OMP": "1"})',
            "resize --env OMP=1",
        ),
        (
            Call(
                function="prepare",
                names=DATA,
                arguments={"estimator": "xgboost", "sort": True, "rechunk": 8},
                results=DATA,
            ),
            (
                'X, y = clustertune.prepare(client, X, y, estimator="xgboost", '
                "sort=True, rechunk=8)"
            ),
            (
                "prepare --dataset flights --dataset delay --workload xgboost --sort "
                "--rechunk 8"
            ),
        ),
    ],
)
def test_a_call(call: Call, code: str, line: str) -> None:
    """The command names the cluster and the data as the user did."""
    assert str(call) == code
    assert command(call, SHELL) == f"clustertune {line} {END}"


@pytest.mark.parametrize(
    "call",
    [
        Call(function="release_data", variables={"keep": "[X]"}),
        Call(function="prepare", names=("X",), variables={"estimator": "model"}),
        Call(function="trim_memory", arguments={"workers": ("\x1b[2J",)}),
    ],
    ids=lambda call: call.function,
)
def test_a_call_without_a_command(call: Call) -> None:
    """Python stays where no command does the same, or a name cannot be shown."""
    (part,) = SHELL.translate((call,))
    assert str(part) == str(call)
    assert str(call).isprintable()


def test_an_address_cannot_start_workers() -> None:
    """Such a call has a command only with ``--cluster``."""
    call = Call(function="scale", arguments={"n_workers": 5}, starts_workers=True)
    assert not command(call, SHELL)
    shell = Shell(cluster=("--cluster", "gateway:a"))
    assert command(call, shell) == "clustertune scale 5 --cluster gateway:a"


@pytest.mark.parametrize(
    ("rechunk", "argument", "option"),
    [(False, "rechunk=False", "--no-rechunk"), (40, "rechunk=40", "--rechunk 40")],
)
def test_an_argument_to_omit(rechunk: int, argument: str, option: str) -> None:
    """A shell names the option."""
    call = Call(function="prepare", names=("X",), omitted={"rechunk": rechunk})
    assert call.text == f"`clustertune.prepare(client, X)` without `{argument}`"
    (part,) = SHELL.translate((call,))
    assert isinstance(part, Call)
    line = f"clustertune prepare --dataset flights {END}"
    assert part.text == f"`{line}` without `{option}`"


def test_sentences() -> None:
    """A sentence ends in the text, also next to a call."""
    call = Call(function="trim_memory")
    remedy = Remedy("Run ", call, ".", " If it stays,", " run ", call, "; then look.")
    assert [len(s) for s in sentences(remedy.parts)] == [3, 3, 1]
    assert Remedy(remedy, " More.").parts[-1] == "; then look. More."
