"""``clustertune prepare``: published names point to the prepared data afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, futures_of, wait

from clustertune.monitor import monitor
from clustertune.operations.publishing import (
    DatasetNames,
    backup_names,
    changed_names,
    prepare_datasets,
)
from tests.processes import blocking, until, workers_of
from tests.test_cli import no_address, run  # noqa: F401 (a fixture)

ROWS = 1200


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two workers in separate processes."""
    options: dict[str, Any] = {"threads_per_worker": 1, "memory_limit": "1 GiB"}
    options["dashboard_address"] = "127.0.0.1:0"
    with LocalCluster(n_workers=2, **options) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """The client of another user, who publishes; all names are removed afterwards."""
    with Client(cluster) as client:
        until(lambda: not in_memory(client))
        yield client
        for name in client.list_datasets():
            client.unpublish_dataset(name)
        # distributed 2025.5 keeps data that override=True replaced
        client.run_on_scheduler(lose)


def values() -> tuple[Any, Any]:
    """Rows that can be recognised by their labels."""
    X = np.random.default_rng(1).random((ROWS, 3))
    return X, X[:, 0] * 2


def publish(client: Client, **partitions: int) -> None:
    """X and y on one worker, in chunks of so many rows; no client holds them."""
    first = next(iter(workers_of(client)))
    X, y = values()
    data = {
        "X": da.from_array(X, chunks=(partitions["X"], 3)),
        "y": da.from_array(y, chunks=partitions["y"]),
    }
    options: dict[str, Any] = {"workers": [first], "allow_other_workers": True}
    loaded = dict(zip(data, client.persist(list(data.values()), **options)))
    wait(list(loaded.values()))
    client.publish_dataset(**loaded)


def in_memory(client: Client) -> set[Any]:
    return {key for held in client.has_what().values() for key in held}


def keys_of(client: Client, *datasets: str) -> list[set[Any]]:
    return [{f.key for f in futures_of(client.get_dataset(n))} for n in datasets]


def is_whole(client: Client, X: str = "X", y: str = "y") -> None:
    """Rows and labels equal the published ones."""
    found = client.compute([client.get_dataset(X), client.get_dataset(y)], sync=True)
    for was, now in zip(values(), found):
        np.testing.assert_array_equal(was, now)


def steps(result: Any) -> dict[str, Any]:
    """The steps of a report as JSON, by action."""
    report = json.loads(result.stdout)
    assert report["schema_version"] == 1
    return {step["action"]: step for step in report["steps"]}


def prepared(client: Client, *options: str) -> Any:
    """`clustertune prepare` of X and y, in this process."""
    address = client.scheduler.address
    named = ("--dataset", "X", "--dataset", "y", "-f", "json")
    return run("prepare", *named, *options, address)


# --- pure functions -------------------------------------------------------------------


def test_dataset_names() -> None:
    """Names and collections map to each other in both directions."""
    companions = {"qid": None, "sample_weight": "w"}
    names = DatasetNames.of("a", "b", ["c"], companions, [("v", "b")])
    assert names.all == ["a", "b", "c", "w", "v", "b"]
    assert names.distinct == ("a", "b", "c", "w", "v")
    given, named = names.prepare_arguments({n: n.upper() for n in names.distinct})
    assert given == ["A", "B", "C"]
    assert named == {"sample_weight": "W", "eval_set": [("V", "B")]}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("a", None, ["c"], {}, None), TypeError, "y is None but names follow"),
        (("a", 5, [], {}, None), TypeError, "5 must be the name of a published"),
        (("a", "", [], {}, None), TypeError, "'' must be the name"),
        (("a", None, [], {"qid": 1}, None), TypeError, "1 must be the name"),
        (("a", None, [], {}, [("v",)]), ValueError, "must be a list of pairs of names"),
    ],
)
def test_wrong_names(arguments: Any, error: Any, text: str) -> None:
    """Errors are raised before a cluster is used."""
    with pytest.raises(error, match=text):
        DatasetNames.of(*arguments)


def test_names_of_old_collections() -> None:
    """One name for one data set; a placeholder for several."""
    assert backup_names(["a", "b"], None) == {}
    assert backup_names(["a"], "old") == {"a": "old"}
    assert backup_names(["a", "b"], "{name}-old") == {"a": "a-old", "b": "b-old"}
    # no other placeholder is filled in
    assert backup_names(["{0.x}"], "{name}{}") == {"{0.x}": "{0.x}{}"}
    with pytest.raises(ValueError, match="one name for 2 data sets; give one with"):
        backup_names(["a", "b"], "old")
    with pytest.raises(ValueError, match="must be a name"):
        backup_names(["a"], "")


def test_changed_names() -> None:
    """Data with other keys, and data that was lazy."""
    before = {"a": [1, 2], "b": [1, 2], "c": None}
    after = {"a": [1, 2], "b": [2, 1], "c": [3]}
    assert changed_names(before, after) == ("b", "c")


# --- what names point to --------------------------------------------------------------

READ = """
import sys, json
from distributed import Client, futures_of
with Client(sys.argv[1]) as client:
    X, y = client.get_dataset("X"), client.get_dataset("y")
    a, b = client.compute([X, y], sync=True)
    print(json.dumps([a.tolist(), b.tolist(), X.chunks[0], y.chunks[0]]))
"""


def test_names_point_to_new_partitions(client: Client, tmp_path: Path) -> None:
    """For all clients, with clustertune or without; the old data is freed."""
    publish(client, X=200, y=300)
    old = keys_of(client, "X", "y")
    result = prepared(client, "--rechunk", "8", "--yes")
    assert result.exit_code == 0, result.stderr
    done = steps(result)
    assert done["publish"]["status"] == "done"
    assert "point X and y to the prepared data" in done["publish"]["summary"]
    new = keys_of(client, "X", "y")
    assert [len(some) for some in new] == [8, 8]
    assert not (old[0] | old[1]) & (new[0] | new[1])
    until(lambda: in_memory(client) == new[0] | new[1])
    read = subprocess.run(
        [sys.executable, "-c", READ, client.scheduler.address],
        env=os.environ | blocking(tmp_path),
        capture_output=True,
        check=True,
        timeout=60,
    )
    X, y, *chunks = json.loads(read.stdout)
    for was, now in zip(values(), (X, y)):
        np.testing.assert_array_equal(was, now)
    assert chunks == [[150] * 8] * 2
    # the last report has the step, too
    last = run("report", "-f", "json", client.scheduler.address)
    assert steps(last) == done


def test_old_collections_are_kept(client: Client) -> None:
    """All given data sets are kept, because they belong together."""
    publish(client, X=100, y=300)
    old = keys_of(client, "X", "y")
    result = prepared(client, "--keep-old", "{name}-old", "--yes")
    assert result.exit_code == 0, result.stderr
    text = "point y to the prepared data; the old data stays as X-old and y-old"
    assert steps(result)["publish"]["summary"] == text
    assert keys_of(client, "X-old", "y-old") == old
    assert keys_of(client, "X") == old[:1]
    is_whole(client)
    is_whole(client, "X-old", "y-old")
    # and again, under names that are there
    before = keys_of(client, "X", "y")
    for option in ("--dry-run", "--yes"):
        again = prepared(client, "--keep-old", "{name}-old", "--rechunk", "6", option)
        assert again.exit_code == 4
        assert "cannot be kept as X-old and y-old" in again.stderr
    assert keys_of(client, "X", "y") == before


def test_partitions_that_are_only_moved(client: Client) -> None:
    """Keys stay the same, so no name changes and nothing is kept."""
    publish(client, X=100, y=100)
    entries = client.run_on_scheduler(entry_ids)
    old = keys_of(client, "X", "y")
    result = prepared(client, "--keep-old", "{name}-old", "--yes")
    assert result.exit_code == 0, result.stderr
    done = steps(result)
    assert done["rebalance"]["status"] == "done"
    assert "publish" not in done
    assert client.run_on_scheduler(entry_ids) == entries
    assert sorted(map(len, client.has_what().values())) == [12, 12]
    assert keys_of(client, "X", "y") == old
    is_whole(client)


def entry_ids(dask_scheduler: Any) -> dict[str, int]:
    datasets = dask_scheduler.extensions["publish"].datasets
    return {name: id(entry) for name, entry in datasets.items()}


def test_lazy_data(client: Client) -> None:
    """It is published as persisted data, with companions and eval sets."""
    frame = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60.0)})
    data = dd.from_pandas(frame, npartitions=6)
    weights = dd.from_pandas(frame["b"] + 1, npartitions=4)
    client.publish_dataset(X=data[["a"]], y=data["b"], w=weights)
    client.publish_dataset(v=data[["a"]] + 1, l=data["b"] + 1)
    assert not in_memory(client)
    names = ("--sample-weight", "w", "--eval-set", "v", "l", "--to", "array")
    result = prepared(client, *names, "--yes")
    assert result.exit_code == 0, result.stderr
    names = ("X", "y", "w", "v", "l")
    new = set().union(*keys_of(client, *names))
    until(lambda: in_memory(client) == new)
    X, y, w, v, l = (client.get_dataset(name) for name in names)  # noqa: E741
    assert X.chunks[0] == y.chunks[0] == w.chunks[0]
    assert (X.dtype, X.ndim) == (np.dtype("float64"), 2)
    found = client.compute([X, y, w, v, l], sync=True)
    expected = frame["b"].to_numpy()
    assert [x.ravel().tolist() for x in found] == [
        (expected + n).tolist() for n in (0, 0, 1, 1, 1)
    ]


def test_from_python(client: Client) -> None:
    """The function of the command, with both kinds of clients."""
    publish(client, X=200, y=300)
    report = prepare_datasets(client, "X", "y", rechunk=8, progress=False)
    assert report.steps[-1].action == "publish"

    async def again() -> Any:
        address = client.scheduler.address
        async with Client(address, asynchronous=True, set_as_default=False) as other:
            return await prepare_datasets(other, "X", "y", rechunk=6)

    report = asyncio.run(again())
    assert report.steps[-1].action == "publish"
    assert [len(some) for some in keys_of(client, "X", "y")] == [6, 6]
    is_whole(client)


# --- what changes nothing -------------------------------------------------------------


@pytest.fixture
def unchanged(client: Client) -> Iterator[None]:
    """X and y, which must be the same afterwards."""
    publish(client, X=200, y=300)
    before = client.run_on_scheduler(entry_ids), in_memory(client)
    where = client.has_what()
    yield
    assert (client.run_on_scheduler(entry_ids), in_memory(client)) == before
    assert client.has_what() == where


def test_a_dry_run(client: Client, unchanged: None) -> None:
    """It shows the steps."""
    result = prepared(client, "--dry-run")
    assert result.exit_code == 0
    planned = steps(result)
    assert {step["status"] for step in planned.values()} == {"planned"}
    assert "point X and y to the prepared data" in planned["publish"]["summary"]


def test_no_terminal(client: Client, unchanged: None) -> None:
    """The plan is shown; without a terminal the command does not wait."""
    result = prepared(client)
    assert result.exit_code == 2
    assert "point X and y to the prepared data" in result.stderr
    assert "give --yes or --dry-run" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--dataset", "Z"), 2, "there is no data set Z; published are X and y"),
        (("--dataset", "X", "--qid", "q"), 2, "there is no data set q"),
        (("--dataset", "X", "--dataset", "y", "--keep-old", "o"), 2, "{name} in it"),
        (("--dataset", "X", "--keep-old", "y"), 4, "as y, which is published already"),
        (("--dataset", "X", "--worker", "absent"), 2, "there is no absent in this"),
        (("--dataset", "X", "--n-workers", "3"), 4, "no cluster object"),
        (
            ("--dataset", "X", "--dataset", "y", "--no-rechunk"),
            4,
            "are cut at different rows",
        ),
    ],
)
def test_refused(
    client: Client, unchanged: None, arguments: Any, code: int, text: str
) -> None:
    """The error lists the allowed values, and nothing is changed."""
    result = run("prepare", *arguments, "--yes", client.scheduler.address)
    assert result.exit_code == code
    assert text in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "Missing option '--dataset'"),
        (("--workload", "x"), "choose from generic"),
        (("--n-workers", "few"), "--n-workers='few' must be a whole number"),
        (("--n-workers", "0"), "--n-workers=0 must be a whole number"),
        (("--dtype", "text"), "--dtype='text' must be float32"),
        (("--on-low-memory", "stop"), "'stop' is not one of"),
        (("--timeout", "long"), "--timeout='long' must be a duration"),
        (("--rechunk", "0"), "0 is not in the range"),
        (("--rechunk", "8", "--no-rechunk"), "exclude each other"),
        (("--restart", "some"), "'some' is not one of"),
        (("--eval-set", "v"), "requires 2 arguments"),
    ],
)
def test_wrong_options(arguments: Any, text: str) -> None:
    """Errors are raised before a cluster is used."""
    named = ("--dataset", "X") if arguments else ()
    result = run("prepare", *named, *arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())


def test_data_sets_that_are_not_collections(client: Client) -> None:
    """The error has the type, and the call that publishes correctly."""
    X = client.persist(da.ones((10, 1)))
    client.publish_dataset(X, X, name="both")
    client.publish_dataset(future=client.submit(int), index=dd.from_pandas(
        pd.DataFrame({"a": [1]}), npartitions=1).index)  # fmt: skip
    address = client.scheduler.address
    for name, what in (
        ("both", "tuple of 2"),
        ("future", "Future"),
        ("index", "Index"),
    ):
        result = run("prepare", "--dataset", name, "--yes", address)
        assert result.exit_code == 4
        text = f"the data set {name} is a {what}, but prepare needs one Dask Array"
        assert text in result.stderr


class Strange:
    """Pickled with a module that does not exist here."""


def test_unreadable_data_sets(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the module, in one line."""
    module = ModuleType("a_module_of_theirs")
    module.Strange = Strange  # type: ignore[attr-defined]
    monkeypatch.setattr(Strange, "__module__", module.__name__)
    with monkeypatch.context() as theirs:
        theirs.setitem(sys.modules, module.__name__, module)
        client.publish_dataset(strange=Strange())
    result = run("prepare", "--dataset", "strange", "--yes", client.scheduler.address)
    assert result.exit_code == 4
    assert result.stderr == (
        "clustertune: the data set strange cannot be read here: it needs the module "
        "'a_module_of_theirs': install it here\n"
    )


def test_names_of_data_that_is_gone(client: Client, cluster: LocalCluster) -> None:
    """The command does not wait for the lost data."""
    future = client.scatter(np.ones((10, 1)))
    X = da.from_delayed(future, shape=(10, 1), dtype=float)
    client.publish_dataset(X=client.persist(X))
    client.run_on_scheduler(lose)
    result = run("prepare", "--dataset", "X", "--yes", client.scheduler.address)
    assert result.exit_code == 5
    assert "X: 1 partition is gone" in result.stderr


def lose(dask_scheduler: Any) -> None:
    """Release all keys of all clients, as a restart of all workers does."""
    for client, cs in dask_scheduler.clients.items():
        gone = [ts.key for ts in cs.wants_what]
        dask_scheduler.client_releases_keys(keys=gone, client=client)


# --- others at the same time ----------------------------------------------------------


@pytest.fixture
def before_names_change(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call a function after preparing, before the names change."""

    def install(happen: Callable[[], None]) -> None:
        ask = monitor.ask

        async def asking(client: Client, method: str, **arguments: Any) -> Any:
            if method == "replace_names":
                await asyncio.to_thread(happen)
            return await ask(client, method, **arguments)

        monkeypatch.setattr(monitor, "ask", asking)

    return install


@pytest.mark.parametrize("name", ["X", "y"])
def test_another_client_publishes_meanwhile(
    client: Client, before_names_change: Callable[..., None], name: str
) -> None:
    """The other client's data stays, also under a name that we do not change."""
    publish(client, X=100, y=300)  # only y is rechunked
    theirs = client.persist(da.ones((ROWS,), chunks=100))
    before_names_change(
        lambda: client.publish_dataset(theirs, name=name, override=True)
    )
    result = prepared(client, "--yes")
    assert result.exit_code == 4
    assert f"another client published or unpublished {name} meanwhile" in result.stderr
    assert client.get_dataset(name).chunks == ((100,) * 12,)
    assert client.get_dataset(name).sum().compute(scheduler=client) == ROWS
    rest = next(iter({"X", "y"} - {name}))
    assert len(client.get_dataset(rest).chunks[0]) == {"X": 12, "y": 4}[rest]


def test_the_name_for_old_collections_is_taken(
    client: Client, before_names_change: Callable[..., None]
) -> None:
    """No name is changed."""
    publish(client, X=200, y=300)
    old = keys_of(client, "X", "y")
    before_names_change(lambda: client.publish_dataset(**{"y-old": da.ones(3)}))
    result = prepared(client, "--rechunk", "8", "--keep-old", "{name}-old", "--yes")
    assert result.exit_code == 4
    assert "cannot be kept as y-old, which is published already" in result.stderr
    assert keys_of(client, "X", "y") == old
    assert client.list_datasets() == ("X", "y", "y-old")
    until(lambda: in_memory(client) == old[0] | old[1])


# --- ends in the middle ---------------------------------------------------------------

ENDING = """
import asyncio, os, signal, sys
from clustertune.cli import main
from clustertune.monitor import monitor

method, when, how, *arguments = sys.argv[1:]
real = monitor.ask


def end():
    os.kill(os.getpid(), getattr(signal, how))


async def ask(client, asked, **named):
    if asked != method:
        return await real(client, asked, **named)
    if when == "before":
        end()
        await asyncio.sleep(0)
    work = asyncio.ensure_future(real(client, asked, **named))
    if when == "sent":
        for _ in range(3):
            await asyncio.sleep(0)
        end()
    answer = await work
    if when == "after":
        end()
        await asyncio.sleep(0)
    return answer


monitor.ask = ask
main(arguments)
"""


@pytest.mark.parametrize(
    ("method", "when", "how"),
    [
        ("replace_names", "before", "SIGKILL"),
        ("replace_names", "sent", "SIGKILL"),
        ("replace_names", "after", "SIGKILL"),
        ("pin", "after", "SIGINT"),  # while partitions are cut
        ("replace_names", "sent", "SIGINT"),
    ],
)
def test_it_ends_in_the_middle(
    client: Client, method: str, when: str, how: str
) -> None:
    """All names are old or all are new, data is complete, and nothing else is left."""
    publish(client, X=200, y=300)
    old = keys_of(client, "X", "y")
    codes = {-signal.SIGKILL} if how == "SIGKILL" else {130}
    codes |= {0} if (when, how) == ("sent", "SIGINT") else set()  # it was done by then
    ended = subprocess.run(
        [
            sys.executable, "-c", ENDING, method, when, how, "prepare", "--yes",
            "--dataset", "X", "--dataset", "y", "--rechunk", "8",
            client.scheduler.address,
        ],
        check=False, capture_output=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode in codes, ended.stderr.decode()
    if when == "sent":  # it may have gone, or not
        until(lambda: len(in_memory(client)) in (8 + 8, 6 + 4))
    new = keys_of(client, "X", "y")
    both = [len(some) for some in new]
    if (method, when) == ("replace_names", "after"):
        assert both == [8, 8]
    elif when == "sent":
        assert both == [8, 8] or (new == old and ended.returncode)
    else:
        assert new == old
    until(lambda: in_memory(client) == new[0] | new[1])
    is_whole(client)


def test_names_that_cannot_be_used(client: Client) -> None:
    """Left out rows and row numbers are published under new names."""
    rows = np.arange(1201 * 2.0).reshape(-1, 2)
    data = client.persist(
        [da.from_array(rows, chunks=(200, 2)), da.from_array(rows[:, 0], chunks=300)]
    )
    wait(data)
    client.publish_dataset(**dict(zip("Xy", data, strict=True)))
    options = ("--workload", "torch_ddp", "--shuffle", "rows", "--yes")
    result = prepared(client, *options)
    assert result.exit_code == 0, result.stderr
    names = {"X", "y", "X-remainder", "y-remainder", "X-row-order"}
    assert set(client.list_datasets()) == names
    even, left, order = (
        client.get_dataset(n).compute() for n in ("X", "X-remainder", "X-row-order")
    )
    assert (len(even), len(left)) == (1200, 1)
    assert (even == rows[order]).all()
    assert sorted([*even[:, 0], *left[:, 0]]) == rows[:, 0].tolist()
    again = prepared(client, *options)
    assert again.exit_code == 4
    assert "X-row-order" in again.stderr
