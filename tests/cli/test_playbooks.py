"""The command ``run``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from distributed import Client, LocalCluster

import clustertune
from clustertune.cli import main
from clustertune.operations.playbooks.reading import shipped
from tests.cli.test_cli import no_address, run  # noqa: F401 (a fixture)

HEAD = "version: 1\nname: p\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two workers in this process, whose clients share no objects all the same."""
    options: dict[str, Any] = {"processes": False, "protocol": "tcp://"}
    options["dashboard_address"] = "127.0.0.1:0"
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        yield cluster


# --- without a cluster ----------------------------------------------------------------


def test_the_list() -> None:
    """Names and descriptions of the shipped playbooks."""
    result = run("run", "--list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in shipped())
    assert "Run all checks, and change nothing." in result.stdout


def test_the_text_of_one() -> None:
    """The text of the file, to be copied."""
    result = run("run", "--show", "observe")
    root = Path(clustertune.__file__).parents[1]
    assert result.stdout == (root / "playbooks" / "observe.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run"], "give PLAYBOOK; `clustertune run --list` lists them"),
        (["run", "obsrve"], "(did you mean observe?)"),
        (["run", "/no/such.yaml"], "cannot be read: No such file"),
        (["run", "observe"], "which cluster? give ADDRESS"),
        (["run", "observe", "--estimator", "x"], "choose from"),
        (["run", "before-training", "a"], "call clustertune.run_playbook(client"),
        (["run", "--show", "x"], "the playbook x cannot be read: No such file"),
        (["run", "--lint"], "give PLAYBOOK"),
        (["run", "--lint", "/no.yaml"], "cannot be read: No such file or directory"),
        (["run", "--list", "-f", "json"], "--list prints text only"),
        (["run", "--lint", "observe", "-f", "json"], "--lint prints text only"),
    ],
)
def test_usage(arguments: list[str], text: str) -> None:
    """Wrong usage is reported before the command connects."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stdout == ""


def test_a_playbook_that_is_wrong(tmp_path: Path) -> None:
    """A line for each mistake, and nothing else, as compilers print them."""
    file = tmp_path / "wrong.yaml"
    file.write_text(HEAD + "steps:\n  - do: restrat\n  - check: memroy\n")
    result = run("run", str(file), "tcp://127.0.0.1:1")
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert first.startswith("wrong.yaml:4: steps[0].do: unknown action 'restrat' ")
    assert second.startswith("wrong.yaml:5: steps[1].check: unknown check 'memroy'")


def test_linting(tmp_path: Path) -> None:
    """All problems of a file, with path and line; 1 if there is one."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(HEAD + "steps:\n  - check: all\n")
    bad.write_text(HEAD + "steps:\n  - do: restrat\n  - check: memroy\nlimit: {}\n")
    for name in (str(good), "observe"):
        well = run("run", "--lint", name)
        assert (well.exit_code, well.stdout) == (0, f"{name}: 0 problems\n")
    ill = run("run", "--lint", str(bad))
    assert ill.exit_code == 1
    assert [line.partition("'")[0] for line in ill.stdout.splitlines()] == [
        "bad.yaml:4: steps[0].do: unknown action ",
        "bad.yaml:5: steps[1].check: unknown check ",
        "bad.yaml:6: limit: unknown key ",
    ]


# --- with one -------------------------------------------------------------------------


def test_checks_need_no_consent(cluster: LocalCluster) -> None:
    """They change nothing, so the command does not ask."""
    result = run("run", "observe", cluster.scheduler_address, "-f", "json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert [step["status"] for step in data["steps"]] == ["checked"]


def test_a_change_needs_consent(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command shows a plan, and asks."""
    file = tmp_path / "scale.yaml"
    file.write_text(HEAD + "steps:\n  - do: scale\n    with: {n_workers: 1}\n")
    command = ["run", str(file), cluster.scheduler_address]
    plan = run(*command, "--dry-run")
    assert plan.exit_code == 0, plan.output
    assert "planned" in plan.stdout
    alone = run(*command)
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert "no question can be answered: give --yes" in " ".join(alone.stderr.split())
    monkeypatch.setattr("clustertune.cli.options.is_terminal", lambda: True)
    refused = CliRunner().invoke(main, command, input="n\n")
    assert refused.exit_code == 4
    assert "Go on?" in refused.stderr
    assert len(cluster.scheduler.workers) == 2
    done = CliRunner().invoke(main, command, input="y\n")
    assert done.exit_code == 0, done.stderr
    assert len(cluster.scheduler.workers) == 1
    nothing = run(*command)
    assert nothing.exit_code == 0
    assert "nothing to do" in nothing.stdout


def test_a_file_that_changes_after_the_plan(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command carries out the steps that the user has seen."""
    file = tmp_path / "p.yaml"
    file.write_text(HEAD + "steps:\n  - do: trim\n")

    def ask(*_: Any) -> None:
        file.write_text(HEAD + "steps:\n  - do: restart\n")

    monkeypatch.setattr("clustertune.cli.options.Consent.ask", ask)
    monkeypatch.setattr("clustertune.cli.options.is_terminal", lambda: True)
    done = run("run", str(file), cluster.scheduler_address, "-f", "json")
    assert done.exit_code == 0, done.output
    assert [s["step"] for s in json.loads(done.stdout)["steps"]] == ["trim"]


def test_a_synchronous_client(cluster: LocalCluster) -> None:
    """In a script: the result is there when the call returns."""
    with Client(cluster) as client:
        done = clustertune.run_playbook(client, "observe", progress=False)
        assert done.status == "fine"
        assert "check all" in done._repr_html_()
