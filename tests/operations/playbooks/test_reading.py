"""Reading playbooks: files, values, and the messages for mistakes (pure)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from time import process_time

import pytest

import clustertune
from clustertune.core.model import Severity
from clustertune.operations.playbooks import reading
from clustertune.operations.playbooks.reading import (
    CALLS,
    MAX_BYTES,
    PlaybookError,
    arguments_of,
    load,
    shipped,
)

EXAMPLE = """\
version: 1
name: between-runs
description: Trim, and restart what still leaks; one worker at a time.
steps:
  - check: [memory_pressure, paused_workers]
  - when: unmanaged_memory
    at_least: warning
    holds: 1m
    do: trim
  - when: unmanaged_memory
    at_least: critical
    do: restart
    with: {workers: named, timeout: 2 minutes}
limits: {disrupted_workers: 25%, settle: 30s}
on_failure: stop
"""


def wrong(text: str | bytes) -> list[str]:
    """The message for a bad playbook, by line."""
    with pytest.raises(PlaybookError) as error:
        load(text, "p.yaml")
    return str(error.value).splitlines()


def with_step(step: str) -> str:
    """A playbook with one step, on line 4."""
    return f"version: 1\nname: p\nsteps:\n  - {step}\n"


# --- good playbooks -------------------------------------------------------------------


def test_an_example() -> None:
    """Every key of the language."""
    read = load(EXAMPLE, "p.yaml")
    look, trim, restart = read.steps
    assert look.check == ("memory_pressure", "paused_workers")
    assert (trim.when, trim.at_least, trim.holds) == (
        "unmanaged_memory",
        Severity.warning,
        60,
    )
    assert restart.options == {"workers": "named", "timeout": "2 minutes"}
    assert str(restart) == (
        "restart (workers: named, timeout: 2 minutes), when unmanaged_memory is at "
        "least critical"
    )
    assert (read.disrupted_workers, read.settle) == (0.25, 30)
    assert read.on_failure == "stop"


def test_defaults() -> None:
    """Only a few keys are required."""
    read = load(with_step("check: all"), "p.yaml")
    assert (read.disrupted_workers, read.settle) == (1, 5)
    assert str(read.steps[0]) == "check all"


@pytest.mark.parametrize("name", shipped())
def test_shipped_playbooks(name: str) -> None:
    """Each is valid, has the name of its file, and a description."""
    read = reading.read(name)
    assert read.name == name
    assert len(read.description) > 20


# --- bad playbooks --------------------------------------------------------------------


def test_all_mistakes_are_reported() -> None:
    """Each with its line, the allowed values and a close match."""
    text = EXAMPLE.replace("do: restart", "do: restrat").replace("1m", "soon")
    first, second, third = wrong(text.replace("on_failure: stop", "on_fail: stop"))
    assert first == (
        "p.yaml:8: steps[1].holds: holds='soon' must be a duration, like "
        '"10 minutes", "30s" or 90'
    )
    assert second == (
        "p.yaml:12: steps[2].do: unknown action 'restrat' (did you mean restart?); "
        "choose from merge, prepare, release, resize, restart, scale, trim"
    )
    assert third.startswith(
        "p.yaml:15: on_fail: unknown key 'on_fail' (did you mean on_failure?); choose "
    )


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ("check: memory_presure", "(did you mean memory_pressure?)"),
        ("check: memroy", "unknown check 'memroy'"),
        ("check: []", "names no check"),
        ("check: 3", "unknown check 3"),
        ("{check: all, do: trim}", "either check or do"),
        ("{check: all, with: {}}", "steps[0].with: belongs to do"),
        ("{check: all, holds: 3s}", "steps[0].holds: belongs to when"),
        ("{do: trim, holds: 3s}", "steps[0].holds: belongs to when"),
        ("{do: trim, when: memory}", "unknown check 'memory'"),
        ("{do: trim, when: [memory_growth]}", "unknown check ['memory_growth']"),
        ("{do: trim, when: memory_growth, at_least: bad}", "choose from info, warning"),
        ("{do: trim, with: {workers: named}}", "give when"),
        ("{do: trim, with: {workers: a}}", "must be a list of names"),
        ("{do: trim, with: {timeout: .inf}}", "timeout=inf must be a dur"),
        (f"{{do: trim, with: {{timeout: {'9' * 320}s}}}}", "must be a duration"),
        ("{do: trim, with: {timeout: -3}}", "must be a duration"),
        ("{do: trim, with: {timeout: s}}", "must be a duration"),
        ("{do: trim, with: {timeout: }}", "has no value"),
        ("{do: trim, with: }", "has no value"),
        ("{do: trim, with: 3}", "must be a mapping, with keys among timeout, workers"),
        ("{do: restart, with: {drop_data: true}}", "unknown key 'drop_data'"),
        ("{do: scale}", "steps[0].with: the key 'n_workers' is missing"),
        ("{do: scale, with: {n_workers: 0}}", "whole number of at least 1"),
        ("{do: resize}", "steps[0].with: needs nthreads or memory_limit"),
        ("{do: resize, with: {wait: 3s}}", "needs nthreads or memory_limit"),
        ("{do: prepare, with: {release_inputs: true}}", "unknown key"),
        ("{do: resize, with: {memory_limit: 1e999GiB}}", "size of at least 1 MiB"),
        ("{do: resize, with: {env: {BROWSER: x}}}", "unknown key 'env'"),
        ("{do: load}", "unknown action 'load'"),
        ("{do: release, with: {prefixes: x}}", "unknown key 'prefixes'"),
        ("{do: release, with: {keep: X}}", "unknown key 'keep'"),
        ("{do: prepare, with: {include_other_clients: true}}", "unknown key"),
        ("{do: [trim]}", "unknown action ['trim']"),
        ("trim", "must be a mapping"),
        ("{do: trim, do: trim}", "the key 'do' is there twice"),
        ("{do: !!python/name:os.system x}", "and tags are not allowed"),
        ("{do: 2020-01-01}", "unknown action '2020-01-01'"),
        ("{? [a] : b}", "a key must be plain text"),
        ("{do: 0b_}", "unknown action '0b_'"),
        ("{do: !!int ''}", "and tags are not allowed"),
        ("{do: !!bool x}", "and tags are not allowed"),
        ("{do: *a}", "found undefined alias"),
        ("{do: &a trim, when: *a}", "anchors, aliases and tags"),
        ("&a [*a]", "anchors, aliases and tags"),
        ("{&a do: trim}", "anchors, aliases and tags"),
        ("{do: &a trim}", "anchors, aliases and tags are not allowed"),
        ("[[[[[[[[[a]]]]]]]]]", "must be a mapping"),
        ("{do: '\\\x1b[31m'}", "special characters are not allowed"),
    ],
)
def test_bad_steps(step: str, text: str) -> None:
    """The message has the line of the mistake."""
    (line,) = wrong(with_step(step))
    assert text in line
    assert line.startswith(("p.yaml:4: ", "p.yaml: cannot be read: unacceptable"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.yaml: cannot be read: it is empty"),
        ("[" * 30_000, "p.yaml: cannot be read: maximum recursion depth exceeded"),
        ("- a\n", "p.yaml:1: must be a mapping"),
        ("null", "p.yaml:1: must be a mapping"),
        (
            "&a {name: p}",
            "p.yaml:1: cannot be read: anchors, aliases and tags are not allowed",
        ),
        ("a: [", "p.yaml:1: cannot be read: expected the node content"),
        ("a: b\n---\nc: d\n", "p.yaml:2: cannot be read: but found another document"),
        (
            "version: 2\nname: x\nsteps: [check: all]",
            "p.yaml:1: version: unknown version '2'; choose from 1",
        ),
        (
            "version: 1\nname: 3\nsteps: [check: all]",
            "p.yaml:2: name: name=3 must be a text",
        ),
        (
            "version: 1\nname: x\nsteps: []",
            "p.yaml:3: steps: must be a list of at least 1",
        ),
        ("version: 1\nname: x", "p.yaml:1: the key 'steps' is missing"),
        (b"\xff\xfe\xfa", "p.yaml: cannot be read: 'utf-8' codec"),
        ("x" * (MAX_BYTES + 1), "p.yaml: has more than 65,536 bytes"),
        (
            with_step("check: all") + "limits: {settle: -1}",
            "limits.settle: settle=-1 must be",
        ),
        (with_step("check: all") + "limits: {settle: false}", "settle=False must be"),
        ('a: "\\UFFFFFFFF"', "p.yaml: cannot be read: "),
        (with_step(f"0x{'f' * 5000}"), "p.yaml: cannot be read: Exceeds the limit"),
    ],
)
def test_bad_files(text: str | bytes, message: str) -> None:
    """One line explains the mistake."""
    (line,) = wrong(text)
    assert message in line
    assert line.count("p.yaml") == 1


@pytest.mark.parametrize("none", ["0", "0s"])
def test_no_pause(none: str) -> None:
    read = load(with_step("check: all") + f"limits: {{settle: {none}}}", "p.yaml")
    assert read.settle == 0


def test_lines_of_mistakes() -> None:
    """Each is the line of the value, or that of the mapping without the key."""
    step = """do: trim
    with:
      timeout: soon
      workers: named
  - do: scale
    holds: 1m
  - do: scale
    with:
      timeout: 1m
limits:
  settle: soon
  more: 1"""
    found = [line.split(": ")[:2] for line in wrong(with_step(step))]
    assert found == [
        ["p.yaml:6", "steps[0].with.timeout"],
        ["p.yaml:7", "steps[0].with.workers"],
        ["p.yaml:8", "steps[1].with"],
        ["p.yaml:9", "steps[1].holds"],
        ["p.yaml:12", "steps[2].with"],
        ["p.yaml:14", "limits.settle"],
        ["p.yaml:15", "limits.more"],
    ]
    (line,) = wrong("version: 1\nname: p\nsteps:\n  - check: all\n  - trim\n")
    assert line.startswith("p.yaml:5: steps[1]: must be a mapping")


def test_many_mistakes_take_little_time() -> None:
    """A value with many errors is explained once."""
    begin = process_time()
    step = "{do: trim, with: {workers: [" + "{}," * 20_000 + "]}}"
    (line,) = wrong(with_step(step))
    assert "must be a list of names or addresses of workers" in line
    assert process_time() - begin < 20


def test_messages_are_escaped() -> None:
    """A playbook may come from another user."""
    (line,) = wrong(with_step('{do: "\\e[31m", when: memory_growth}'))
    assert "\x1b" not in line
    (line,) = wrong(with_step('{"\\e[2J": 1, do: trim}'))
    assert "\x1b" not in line


# --- files ----------------------------------------------------------------------------


def test_own_playbooks(tmp_path: Path) -> None:
    """A file is given by its path, also with the name of a shipped playbook."""
    own = tmp_path / "observe.yaml"
    own.write_text(with_step("check: memory_pressure"))
    assert reading.read(own) == reading.read(str(own))
    assert reading.read(own).steps[0].check == ("memory_pressure",)
    assert reading.read("observe").steps[0].check == ("all",)


@pytest.mark.parametrize(
    ("which", "text"),
    [
        (
            "betwen-runs",
            r"cannot be read: No such file.*\(did you mean between-runs\?\)",
        ),
        ("x", "; choose from after-training, .*, or give the path of a file"),
        ("./no/such.yaml", "cannot be read: No such file"),
        ("/tmp/", "cannot be read: it is not a regular file"),
        ("~absent-user/a.yaml", "cannot be read: "),
        ("a\0.yaml", "cannot be read: embedded null"),
    ],
)
def test_unknown_playbooks(which: str, text: str) -> None:
    """The message has the known playbooks, or the reason."""
    with pytest.raises(ValueError, match=text):
        reading.read(which)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """To read a pipe may never end."""
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ValueError, match="it is not a regular file"):
        reading.read(tmp_path / "pipe.yaml")


def test_the_wheel_has_them(tmp_path: Path) -> None:
    """An installed package finds the shipped playbooks."""
    root = Path(clustertune.__file__).parents[1]
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d"]
    subprocess.run(
        [*command, str(tmp_path)], cwd=root, check=True, capture_output=True, timeout=60
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "there")
    code = (
        "import clustertune; "
        "from clustertune.operations.playbooks.reading import shipped; "
        "print(clustertune.__file__); print(*shipped().values(), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "there",
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(tmp_path / "there")},
    )
    package, *files = done.stdout.splitlines()
    assert package.startswith(str(tmp_path))
    inside = Path(package).parent / "playbooks"
    assert {Path(f) for f in files} == set(inside.glob("*.yaml"))
    assert {f.name for f in inside.iterdir()} == {
        p.name for p in (root / "playbooks").iterdir()
    }


# --- the language ---------------------------------------------------------------------


def test_arguments_of_actions() -> None:
    """Each is an argument of the public function, and none loses data."""
    assert set(arguments_of("scale")) == {"n_workers", "timeout", "wait"}
    for action in CALLS:
        lossy = {"drop_data", "include_other_clients", "end_tasks"}
        assert not lossy & {*arguments_of(action)}


def test_the_page() -> None:
    """The page of the documentation has all playbooks, actions and arguments."""
    page = (Path(__file__).parents[3] / "docs" / "playbooks.md").read_text()
    for name in shipped():
        assert f"### {name}\n" in page
    for name in CALLS:
        (row,) = [x for x in page.splitlines() if x.startswith(f"| `{name}` |")]
        assert re.findall(r"`(\w+)`", row.split("|")[-2]) == [*arguments_of(name)]


def test_kinds_of_values() -> None:
    """Quoted values and dates are text."""
    text = with_step("{do: trim, with: {workers: [1, '1', 2020-01-01, 2020-13-41]}}")
    found = load(text, "p.yaml").steps[0].options["workers"]
    assert found == [1, "1", "2020-01-01", "2020-13-41"]
