"""A cluster is destroyed and recreated: saved data is loaded, losses are listed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from dask_saturn import SaturnCluster
from distributed import Client, LocalCluster, Variable, wait
from distributed.utils_test import async_poll_for

import clustertune
from clustertune.cli import main
from clustertune.errors import RecreateError, RefusedError
from clustertune.integrations.managers import saturn
from clustertune.integrations.managers.saturn import (
    OfferedSize,
    RequestedSizes,
    unknown_size,
)
from clustertune.operations import recreating
from tests.processes import workers_of
from tests.saturn import Saturn, running

PANDAS = pd.DataFrame(
    {"a": range(100), "c": pd.Categorical(list("abcd") * 25)},
    index=pd.Index(range(0, 200, 2), name="k"),
)
RANDOM = da.random.default_rng(0).random((1000, 4), chunks=((300, 50, 650), 4))
VALUES = RANDOM.compute(scheduler="sync")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Saturn]:
    with running(monkeypatch) as server:
        yield server


@pytest.fixture
def client(server: Saturn) -> Iterator[Client]:
    with Client(SaturnCluster()) as client:
        yield client


def loaded(client: Client) -> tuple[da.Array, Any]:
    X = client.persist(RANDOM)
    frame = client.persist(dd.from_pandas(PANDAS, npartitions=3))
    wait([X, frame])
    return X, frame


def resets(server: Saturn) -> list[dict[str, Any]]:
    return [body for path, body in server.asked if path == "/reset"]


# --- what comes back ------------------------------------------------------------------


def test_another_size(client: Client, server: Saturn, tmp_path: Path) -> None:
    """Values, partitions and names stay, on new workers of the given size."""
    X, frame = loaded(client)
    client.publish_dataset(train=frame["a"].persist())
    old = set(workers_of(client))
    found = clustertune.recreate_cluster(
        client, X, frame, worker_size="large", save_to=tmp_path / "save",
        datasets=["train"],
    )  # fmt: skip
    new, X2, frame2, train = found
    with new:
        assert client.status == "closed"
        workers = workers_of(new)
        assert not old & set(workers)
        sizes = [(w["nthreads"], w["memory_limit"]) for w in workers.values()]
        assert sizes == [(2, 2 * 2**30)]
        assert resets(server) == [{"n_workers": 1, "worker_size": "large"}]
        assert X2.chunks == X.chunks
        assert frame2.divisions == frame.divisions
        np.testing.assert_array_equal(X2.compute(), VALUES)
        pd.testing.assert_frame_equal(frame2.compute(), PANDAS)
        pd.testing.assert_series_equal(train.compute(), PANDAS["a"])
        again = new.get_dataset("train")
        pd.testing.assert_series_equal(again.compute(), PANDAS["a"])
        assert [s.status for s in found.report.steps] == ["done"] * 3
        assert "2 threads" in found.report.steps[1].reason
        last = clustertune.last_report(new)
        assert last is not None
        assert last.to_json() == found.report.to_json()
        (event,) = [e for _, e in new.get_events("clustertune") if "by" in e]
        assert (event["action"], event["status"]) == ("recreate", "done")
        assert clustertune.prepare(new, X2).X is not None


def test_awaited(server: Saturn, tmp_path: Path) -> None:
    """An asynchronous client, more workers, and a larger scheduler."""

    async def main() -> None:
        cluster = await asyncio.to_thread(SaturnCluster)
        client = await Client(cluster, asynchronous=True)
        X = client.persist(RANDOM)
        await wait(X)
        found: Any = await clustertune.recreate_cluster(  # type: ignore[misc]
            client, X, scheduler_size="large", n_workers=2, nthreads=1,
            save_to=str(tmp_path),
        )  # fmt: skip
        assert client.status == "closed"
        async with found.client as new:
            (X2,) = found.collections
            np.testing.assert_array_equal(await new.compute(X2), VALUES)
            assert len((await new.scheduler.identity(n_workers=-1))["workers"]) == 2

    asyncio.run(main())
    (asked,) = resets(server)
    assert asked == {"n_workers": 2, "nthreads": 1, "scheduler_size": "large"}


def test_nothing_in_memory(client: Client, server: Saturn) -> None:
    """No permission is needed, and nothing is saved."""
    new, *rest = clustertune.recreate_cluster(client, worker_size="large")
    with new:
        assert rest == []
        assert server.config["worker_size"] == "large"


# --- refused --------------------------------------------------------------------------


def test_losses_need_permission(client: Client, server: Saturn, tmp_path: Path) -> None:
    """Other data of this client, data of others, and names; nothing is done."""
    X, frame = loaded(client)
    size = {"worker_size": "large", "save_to": tmp_path / "save"}
    with pytest.raises(RefusedError, match=r"this client: frompandas \(3 keys.*drop_d"):
        clustertune.recreate_cluster(client, X, **size)
    del frame
    other = Client(server.cluster.scheduler_address, set_as_default=False)
    with other:
        theirs = other.scatter(list(range(5)), hash=False)
        Variable("best", client=other).set(3)
        other.publish_dataset(mine=5)
        match = r"others would lose .* of client Client-.*: int \(5 keys"
        with pytest.raises(RefusedError, match=match) as caught:
            clustertune.recreate_cluster(client, X, **size, drop_data=True)
        for text in ("variable 'best'", "data set 'mine'", "include_other_clients"):
            assert text in str(caught.value)
        plan = clustertune.recreate_cluster(client, X, **size, dry_run=True)
        assert [s.status for s in plan.report.steps] == ["refused"]
        agreed = {"drop_data": True, "include_other_clients": True}
        plan = clustertune.recreate_cluster(client, X, **size, **agreed, dry_run=True)
        save, recreate, load = plan.report.steps
        assert "variable 'best'" in recreate.at_risk
        assert save.predicted_bytes == load.predicted_bytes == VALUES.nbytes
        assert plan.client is client
        assert other.gather(theirs) == list(range(5))
    np.testing.assert_array_equal(X.compute(), VALUES)
    assert not resets(server)
    assert not (tmp_path / "save").exists()


def test_refused(client: Client, server: Saturn, tmp_path: Path) -> None:
    """Wrong sizes, data that files cannot restore, an occupied folder, no consent."""
    X, frame = loaded(client)
    both = {"drop_data": True, "save_to": tmp_path}
    with pytest.raises(ValueError, match=r"medium \(1 core, 1.0 GiB\), large \(2 c"):
        clustertune.recreate_cluster(client, X, worker_size="huge", **both)
    with pytest.raises(ValueError, match="scheduler_size='huge' is not offered"):
        clustertune.recreate_cluster(client, X, scheduler_size="huge", **both)
    with pytest.raises(ValueError, match="no data set train"):
        clustertune.recreate_cluster(
            client, X, worker_size="large", datasets=["train"], **both
        )
    with pytest.raises(RefusedError, match="not in memory"):
        clustertune.recreate_cluster(client, X + 1, worker_size="large", **both)
    with pytest.raises(RefusedError, match="not confirmed"):
        clustertune.recreate_cluster(
            client, X, worker_size="large", confirm=lambda report: False, **both
        )
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(RefusedError, match="holds other files"):
        clustertune.recreate_cluster(client, X, worker_size="large", **both)
    assert not resets(server)
    np.testing.assert_array_equal(X.compute(), VALUES)


def test_data_that_is_loaded_meanwhile(
    client: Client, server: Saturn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that another client loads during the save is not lost."""
    monkeypatch.setattr(recreating, "RELEASE_DELAY", 0.1)
    X, _ = loaded(client)
    address = server.cluster.scheduler_address
    with Client(address, set_as_default=False) as other:

        def confirm(report: Any) -> bool:
            other.theirs = other.scatter([1, 2, 3], hash=False)
            return True

        with pytest.raises(
            RefusedError, match=r"while this call saved.*others would lose"
        ):
            clustertune.recreate_cluster(
                client, X, worker_size="large", drop_data=True, save_to=tmp_path,
                confirm=confirm,
            )  # fmt: skip
        assert other.gather(other.theirs) == [1, 2, 3]
    assert not resets(server)


def test_other_managers(local_cluster: Any) -> None:
    """The error names the class and an alternative."""
    cluster, client = local_cluster(1)
    with pytest.raises(RefusedError, match=r"LocalCluster .*clustertune\.resize"):
        clustertune.recreate_cluster(client, worker_size="large")
    with (
        Client(cluster.scheduler_address, set_as_default=False) as bare,
        pytest.raises(RefusedError, match="only the scheduler's address"),
    ):
        clustertune.recreate_cluster(bare, worker_size="large")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({}, TypeError, "there is nothing to change"),
        ({"worker_size": 3}, TypeError, "worker_size=3"),
        ({"n_workers": 0}, ValueError, "n_workers=0"),
        ({"worker_size": "a", "datasets": "x"}, TypeError, "list of names"),
        ({"worker_size": "a", "datasets": ["x"]}, TypeError, "save_to is missing"),
        ({"worker_size": "a", "save_to": 5}, TypeError, "path of a folder"),
        ({"worker_size": "a", "save_to": "/"}, ValueError, "must be a separate folder"),
        ({"worker_size": "a", "save_to": "no://x"}, ValueError, "cannot be used"),
    ],
)
def test_wrong_arguments(options: Any, error: type[Exception], match: str) -> None:
    """Errors are raised before Saturn is asked."""
    with pytest.raises(error, match=match):
        clustertune.recreate_cluster(Client.__new__(Client), **options)


# --- what goes wrong ------------------------------------------------------------------


def test_the_manager_refuses(client: Client, server: Saturn, tmp_path: Path) -> None:
    """The error has the reason, the path of the data, and the call that loads it."""
    X, _ = loaded(client)
    server.refusing = "no \x1b[31mquota"
    with pytest.raises(RecreateError, match=r"no \\x1b\[31mquota; the data") as caught:
        clustertune.recreate_cluster(
            client, X, worker_size="large", drop_data=True, save_to=tmp_path
        )
    assert f"clustertune.load_data(client, {str(tmp_path)!r})" in str(caught.value)
    assert [s.status for s in caught.value.report.steps] == ["done", "failed"]
    (X2,) = clustertune.load_data(client, tmp_path)
    np.testing.assert_array_equal(X2.compute(), VALUES)
    np.testing.assert_array_equal(X.compute(), VALUES)


def test_destroyed_and_not_started(
    client: Client, server: Saturn, tmp_path: Path
) -> None:
    """The saved data can be loaded on a later cluster."""
    X, _ = loaded(client)
    server.breaking = True
    match = r"not recreated: .*no machines.*\.load_data\("
    with pytest.raises(RecreateError, match=match):
        clustertune.recreate_cluster(
            client, X, worker_size="large", drop_data=True, save_to=tmp_path
        )
    assert server.cluster is None
    server.breaking = False
    with Client(SaturnCluster()) as new:
        (X2,) = clustertune.load_data(new, tmp_path)
        np.testing.assert_array_equal(X2.compute(), VALUES)


def test_workers_that_do_not_join(
    client: Client, server: Saturn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting ends, and the error has the path of the data."""
    monkeypatch.setattr(recreating, "RESERVE", 118)
    X, _ = loaded(client)
    server.lacking = 1
    with pytest.raises(RecreateError, match=r"clustertune\.load"):
        clustertune.recreate_cluster(
            client, X, worker_size="large", drop_data=True, save_to=tmp_path,
            n_workers=2, timeout="2 minutes",
        )  # fmt: skip
    assert resets(server)


def test_a_cancelled_call_closes_the_new_client(
    server: Saturn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller does not have this client, so nothing else could close it."""
    clients: list[Client] = []

    async def load(_: Any, client: Client) -> Any:
        clients.append(client)
        await asyncio.Event().wait()

    async def main() -> None:
        cluster = await asyncio.to_thread(SaturnCluster)
        async with Client(cluster, asynchronous=True) as client:
            X = client.persist(RANDOM)
            await wait(X)
            call: Any = clustertune.recreate_cluster(
                client, X, worker_size="large", save_to=tmp_path
            )
            work = asyncio.ensure_future(call)
            await async_poll_for(lambda: clients, 60)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert clients[0].status == "closed"

    monkeypatch.setattr(recreating._Recreation, "_load", load)
    asyncio.run(main())


# --- the command line -----------------------------------------------------------------


def test_command_line(server: Saturn, tmp_path: Path) -> None:
    """Data is published again under its name; other data needs permission."""
    with Client(SaturnCluster()) as client:
        _, frame = loaded(client)
        client.publish_dataset(train=frame, other=5)
        del frame  # its futures would also count as this client's
    options = ["recreate", "--worker-size", "large"]
    saved = [*options, "--dataset", "train", "--save-to", str(tmp_path)]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        code = "from clustertune.cli import main; main()"
        command = [sys.executable, "-c", code, *saved, *more]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip

    asked = CliRunner().invoke(main, saved)
    assert asked.exit_code == 2
    assert "give --yes or --dry-run" in asked.stderr
    wrong = CliRunner().invoke(main, [*options, "--dataset", "train", "--yes"])
    assert wrong.exit_code == 2
    assert "save_to is missing" in wrong.stderr
    refused = run("--yes")
    assert refused.returncode == 4, refused.stderr
    assert "published data set 'other'" in refused.stderr
    assert not resets(server)
    done = run("--include-other-clients", "--yes", "-f", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "done"
    assert len(resets(server)) == 1
    with Client(SaturnCluster()) as new:
        assert new.list_datasets() == ("train",)
        again = new.get_dataset("train")
        pd.testing.assert_frame_equal(again.compute(), PANDAS)


def test_no_cluster_of_saturn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of Saturn there is no cluster."""
    monkeypatch.delenv("SATURN_BASE_URL", raising=False)
    found = CliRunner().invoke(main, ["recreate", "--worker-size", "large", "--yes"])
    assert found.exit_code == 3
    assert "SATURN_BASE_URL" in found.stderr


# --- pure functions -------------------------------------------------------------------


def test_sizes() -> None:
    """Descriptions of sizes are parsed as far as possible."""
    text = "T4-XLarge - 4 cores - 16 GB RAM - 1 GPU"
    assert saturn._offered_size("g", text) == OfferedSize(
        name="g", cores=4, memory=16 * 2**30
    )
    assert saturn._offered_size("g", "Big\x1b") == OfferedSize(name="g")
    offers = [OfferedSize(name="a"), OfferedSize(name="b", cores=0.5)]
    text = unknown_size(RequestedSizes(worker_size="c"), offers)
    assert text == "worker_size='c' is not offered; sizes are: a, b (0.5 cores)"
    assert (
        unknown_size(RequestedSizes(worker_size="a", scheduler_size="b"), offers)
        is None
    )


def test_a_saturn_cluster_is_known() -> None:
    """By its class; other clusters do not match."""
    assert saturn.matches(SaturnCluster.__new__(SaturnCluster))
    assert not saturn.matches(LocalCluster.__new__(LocalCluster))
    assert not saturn.matches(None)
