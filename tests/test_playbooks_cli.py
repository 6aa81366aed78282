"""The commands ``run`` and ``playbooks``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest
from click.testing import CliRunner
from distributed import Client, LocalCluster, wait

import clustertune
from clustertune.cli import main
from clustertune.operations.playbooks import schema
from tests.test_cli import no_address, run  # noqa: F401 (a fixture)

HEAD = "version: 1\nname: p\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two workers in this process, whose clients share no objects all the same."""
    options: dict[str, Any] = {"processes": False, "protocol": "tcp://"}
    options["dashboard_address"] = "127.0.0.1:0"
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        yield cluster


@pytest.fixture
def rebalance(tmp_path: Path) -> str:
    """A playbook that rebalances uneven data."""
    file = tmp_path / "mine.yaml"
    file.write_text(HEAD + "steps:\n  - do: rebalance\n  - check: all\n")
    return str(file)


# --- without a cluster ----------------------------------------------------------------


def test_the_list(tmp_path: Path) -> None:
    """Names, descriptions and files; or the mistake in a file."""
    (tmp_path / "odd.yaml").write_text("steps: 3")
    with dask.config.set({"clustertune.playbooks": str(tmp_path)}):
        result = run("playbooks", "-f", "json")
        text = run("playbooks").stdout
    assert result.exit_code == 0
    listed = {x["name"]: x for x in json.loads(result.stdout)["playbooks"]}
    assert {"observe", "memory-rescue", "odd"} <= listed.keys()
    assert listed["odd"]["text"].startswith("cannot be used: odd.yaml:1: ")
    assert all(x["name"] in text for x in listed.values())


def test_the_text_of_one() -> None:
    """The text of the file, to be copied."""
    result = run("playbooks", "observe")
    root = Path(clustertune.__file__).parents[1]
    assert result.stdout == (root / "playbooks" / "observe.yaml").read_text()


def test_the_schema() -> None:
    """As JSON, for an editor."""
    result = run("playbooks", "--schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == schema.schema()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run"], "Missing argument 'PLAYBOOK'"),
        (["run", "obsrve"], "(did you mean observe?)"),
        (["run", "/no/such.yaml"], "cannot be read: No such file"),
        (["run", "observe", "--set", "x"], "--set x is not of the form KEY=VALUE"),
        (["run", "observe", "--set", "x=1", "--set", "x=2"], "'x' is given 2 times"),
        (
            ["run", "observe", *["--dataset", "X"] * 2],
            "--dataset: 'X' is given 2 times",
        ),
        (["run", "observe", "--set", "x=1"], "--set x=1: 'x' is not in this playbook"),
        (["run", "observe"], "which cluster? give ADDRESS"),
        (["run", "observe", "--workload", "x"], "choose from"),
        (["run", "before-training", "a"], "give X and y, or --dataset NAME"),
        (["run", "between-runs", "a"], "no question can be answered: give --yes"),
        (["playbooks", "x"], "unknown playbook 'x'"),
        (["playbooks", "observe", "x"], "give one NAME, or --lint to check several"),
        (["playbooks", "--lint"], "--lint needs the files to check"),
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
    assert first.startswith("wrong.yaml:4: steps[0].do: unknown action 'restrat'; ")
    assert second.startswith("wrong.yaml:5: steps[1].check: unknown check 'memroy'")


def test_linting(tmp_path: Path) -> None:
    """All problems of all files, with path and line; 1 if there is one."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(HEAD + "steps:\n  - check: all\n")
    bad.write_text(HEAD + "steps:\n  - do: restrat\n  - check: memroy\nlimit: {}\n")
    well = run("playbooks", "--lint", str(good), "observe")
    assert (well.exit_code, well.stdout) == (0, "2 playbooks: 0 problems\n")
    ill = run("playbooks", "--lint", str(good), str(bad), str(tmp_path / "no.yaml"))
    assert ill.exit_code == 1
    assert [line.partition("'")[0] for line in ill.stdout.splitlines()] == [
        f"{bad}:4: steps[0].do: unknown action ",
        f"{bad}:5: steps[1].check: unknown check ",
        f"{bad}:6: limit: unknown key ",
        f"the playbook {tmp_path}/no.yaml cannot be read: No such file or directory",
        "3 playbooks: 4 problems",
    ]
    as_json = run("playbooks", "--lint", str(good), str(bad), "-f", "json")
    assert as_json.exit_code == 1
    found = json.loads(as_json.stdout)["playbooks"]
    assert [(x["file"], len(x["problems"])) for x in found] == [
        (str(good), 0),
        (str(bad), 3),
    ]


# --- with one -------------------------------------------------------------------------


def test_checks_need_no_consent(cluster: LocalCluster) -> None:
    """They change nothing, so the command does not ask."""
    result = run("run", "observe", cluster.scheduler_address, "-f", "json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert [step["status"] for step in data["steps"]] == ["checked"]
    level = ["--fail-on", "info"]
    assert run("run", "observe", cluster.scheduler_address, *level).exit_code == 1


def test_data_sets(
    cluster: LocalCluster, rebalance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command takes published data, shows a plan, and asks."""
    address = cluster.scheduler_address
    with Client(cluster) as client:
        first = cluster.scheduler.workers
        X = client.persist(
            da.ones((80, 2), chunks=(10, 2)), workers=[next(iter(first))]
        )
        wait(X)
        client.publish_dataset(X=X)

        def spread() -> list[int]:
            return sorted(len(ws.has_what) for ws in cluster.scheduler.workers.values())

        command = ["run", rebalance, address, "--dataset", "X"]
        plan = run(*command, "--dry-run")
        assert plan.exit_code == 0, plan.output
        assert "move " in plan.stdout
        assert "planned" in plan.stdout
        monkeypatch.setattr("clustertune.cli.options.is_terminal", lambda: True)
        refused = CliRunner().invoke(main, command, input="n\n")
        assert refused.exit_code == 4
        assert "Go on?" in refused.stderr
        assert spread() == [0, 8]
        done = CliRunner().invoke(main, command, input="y\n")
        assert done.exit_code == 0, done.stderr
        assert spread() == [4, 4]
        nothing = run(*command)
        assert nothing.exit_code == 0
        assert "nothing to do" in nothing.stdout

        missing = run("run", rebalance, address, "--dataset", "Z", "--yes")
        assert missing.exit_code == 2
        assert "there is no data set Z; published are X" in missing.stderr
        client.publish_dataset(odd=[X])
        odd = run("run", rebalance, address, "--dataset", "odd", "--yes")
        assert odd.exit_code == 4
        assert "the data set odd is a list of 1" in odd.stderr

        gone = run("run", "after-training", address, "--dataset", "X", "--yes")
        assert gone.exit_code == 0
        assert client.list_datasets() == ("odd",)
        assert len(cluster.scheduler.workers) == 1
        client.unpublish_dataset("odd")


def test_a_synchronous_client(cluster: LocalCluster) -> None:
    """In a script: the result is there when the call returns."""
    with Client(cluster) as client:
        done = clustertune.run_playbook(client, "observe", progress=False)
        assert done.status == "fine"
        assert "check all" in done._repr_html_()
