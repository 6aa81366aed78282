"""``clustertune plan`` writes a plan; ``clustertune apply`` carries it out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import pytest
from click.testing import CliRunner
from distributed import Client, LocalCluster, wait

from clustertune.cli import main
from clustertune.operations.planfile import PlannedCall, StoredPlan
from tests.processes import workers_of
from tests.test_cli import no_address, run  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A scheduler and two workers that other clients can reach."""
    options: dict[str, Any] = {"processes": False, "protocol": "tcp"}
    options["dashboard_address"] = "127.0.0.1:0"
    with LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        yield cluster


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "plan.json")


def noted(cluster: LocalCluster) -> list[Any]:
    """Completed calls in the event log."""
    with Client(cluster, set_as_default=False) as client:
        events = client.get_events("clustertune")
    return [(e["action"], e["reason"]) for _, e in events if "by" in e]


def test_there_and_back(cluster: LocalCluster, file: str) -> None:
    """The file has all options; apply needs no address."""
    address = cluster.scheduler_address
    planned = run("plan", "trim", "--worker", "0", "-o", file, "--reason", "R", address)
    assert planned.exit_code == 0
    assert planned.stdout.startswith("plan: trim(workers=['0'])\n")
    assert f"carry it out: clustertune apply {file}" in planned.stderr
    assert noted(cluster) == []
    tried = run("apply", "--dry-run", file)
    assert (tried.exit_code, noted(cluster)) == (0, [])
    done = run("apply", file, "--yes", "-f", "json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["steps"][0]["status"] == "done"
    assert noted(cluster) == [("trim", "R")]


def test_published_data(cluster: LocalCluster, file: str) -> None:
    """Without a verb it plans ``prepare``; the second time the data has changed."""
    address = cluster.scheduler_address
    with Client(cluster) as client:
        first = next(iter(workers_of(client)))
        X = client.persist(da.ones((40, 2), chunks=(10, 2)), workers=[first])
        wait(X)
        client.publish_dataset(X=X)
    named = ("--dataset", "X", "--no-rechunk", "--quiet", "-f", "json")
    planned = run("plan", *named, "-o", file, address)
    assert (planned.exit_code, planned.stderr) == (0, "")
    assert StoredPlan.from_json(planned.stdout) == StoredPlan.load(file)
    assert run("apply", "-y", file, address).exit_code == 0
    again = run("apply", "-y", file, address)
    assert again.exit_code == 4
    assert "nothing was done: X is on other workers" in again.stderr


def test_what_is_refused(cluster: LocalCluster, file: str) -> None:
    """Workers without nannies cannot be restarted, so no file is written."""
    refused = run("plan", "restart", "-o", file, cluster.scheduler_address)
    assert refused.exit_code == 4
    assert "it has no nanny" in " ".join(refused.stdout.split())
    assert "the file was not written" in refused.stderr
    assert not Path(file).exists()


def test_plans_that_are_not_carried_out(cluster: LocalCluster, file: str) -> None:
    """Each has its own message, before the command asks."""
    run("plan", "trim", "-o", file, "-q", cluster.scheduler_address)
    text = Path(file).read_text()

    def tried(found: str, *, code: int) -> str:
        Path(file).write_text(found)
        result = run("apply", file, "--yes")
        assert (result.exit_code, result.stdout) == (code, "")
        return result.stderr.splitlines()[-1]

    plan = StoredPlan.from_json(text)
    edited = text.replace('"reason": ""', '"reason": "mine"', 1)
    assert f"{file}: the plan was edited" in tried(edited, code=4)
    assert "not JSON" in tried(text[:-3], code=2)
    stale = replace(plan, made=1.0, expires=61.0)
    assert "and expired after 60 s; plan again" in tried(stale.to_json(), code=4)
    other = replace(plan, seen=replace(plan.seen, scheduler="Scheduler-0"))
    assert "was restarted after the plan was made" in tried(other.to_json(), code=4)
    gone = PlannedCall(verb="trim", options={"workers": ["7"]})
    assert "there is no 7" in tried(replace(plan, call=gone).to_json(), code=4)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["plan", "divine"], "No such command 'divine'"),
        (["plan", "--workload", "xgboost"], "Missing option '--dataset'"),
        (["plan", *["--dataset", "X"] * 2, "a"], "--dataset: 'X' is given 2 times"),
        (["plan", "trim", "--dry-run"], "No such option"),
        (["plan", "trim", "--expires", "soon"], "--expires='soon' must be a duration"),
        (["plan", "trim", "--expires", "800 days"], "'800 days' is more than a year"),
        # not the option of a restart between runs
        (["plan", "restart", "--expires", "2h"], "which cluster? give ADDRESS"),
        (["plan", "release", "a"], "no data is named: give --row, --client or"),
        (["plan", "trim"], "which cluster? give ADDRESS"),
        (["apply", "/no/such/plan.json"], "does not exist"),
        (["apply", __file__], "this is not JSON"),
    ],
)
def test_usage(arguments: list[str], text: str) -> None:
    """Wrong usage exits with 2 before a cluster is used."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize("verb", ["trim", "apply", "scale", "release"])
def test_nobody_is_waited_for(
    verb: str, cluster: LocalCluster, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal the command exits with 2 and changes nothing."""
    address = cluster.scheduler_address
    before = noted(cluster)
    run("plan", "trim", "-o", file, "-q", address)
    with Client(cluster) as client:
        kept = client.persist(da.ones(5, chunks=5))
        wait(kept)
        arguments = {
            "apply": [file],
            "scale": ["1"],
            "release": ["--prefix", "ones_like", "--include-other-clients"],
        }
        typed = [verb, *arguments.get(verb, []), address]
        monkeypatch.setattr("click.confirm", _never)
        result = CliRunner().invoke(main, typed, input="y\n")
    assert result.exit_code == 2, result.output
    assert "no question can be answered: give --yes or --dry-run" in result.stderr
    assert noted(cluster) == before


def _never(*_: Any, **__: Any) -> bool:
    raise AssertionError("it asks")
