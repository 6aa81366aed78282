"""Record what healthy clusters look like: ``python -m tests.recordings``.

Each is started, used as a user would, looked at, and written to ``tests/recordings``.
What checks say of these files must stay free of warnings.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
from distributed import Client, LocalCluster, wait

import clustertune
from clustertune.collections import inputs
from clustertune.core.model import View
from clustertune.operations import check as diagnosis
from clustertune.operations.call import Call
from tests import recordings


def view(client: Client, *collections: Any) -> View:
    """Return the view that ``check`` uses."""
    given = inputs.gather(*collections) if collections else inputs.NOTHING
    call = Call(
        client=client,
        name="check",
        given=given,
        timeout=60,
        dry_run=True,
        progress=False,
    )
    seen: list[View] = []
    client.sync(diagnosis.see, call, seen, deep=False)
    return seen[-1]


@contextmanager
def local(**options: Any) -> Iterator[Client]:
    settings = {"dashboard_address": "127.0.0.1:0", **options}
    with LocalCluster(**settings) as cluster, Client(cluster) as client:
        yield client


def stock() -> View:
    """A ``LocalCluster`` with default options."""
    with local() as client:
        client.submit(sum, [1, 2]).result()
        return view(client)


def one_worker() -> View:
    with local(n_workers=1) as client:
        return view(client)


def threads() -> View:
    """No processes: client, scheduler and worker in one."""
    with local(processes=False) as client:
        return view(client)


def adaptive() -> View:
    with local(n_workers=1, threads_per_worker=1) as client:
        client.cluster.adapt(minimum=1, maximum=2)
        client.wait_for_workers(1)
        return view(client)


def no_nanny() -> View:
    """Workers that are started like those of a batch system."""
    from distributed import Worker
    from distributed.deploy.spec import SpecCluster
    from distributed.scheduler import Scheduler

    workers = {
        i: {"cls": Worker, "options": {"nthreads": 1, "memory_limit": "1 GiB"}}
        for i in range(2)
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": "127.0.0.1:0"}}
    with SpecCluster(workers, scheduler) as cluster, Client(cluster) as client:
        return view(client)


def after_a_fit() -> View:
    """Prepared data is in memory, after XGBoost has trained on it."""
    from xgboost.dask import DaskXGBRegressor

    with local(n_workers=2, threads_per_worker=1) as client:
        X = da.random.random((20_000, 20), chunks=(2_500, 20))
        X, y = clustertune.prepare(client, X, X[:, 0] * 2, progress=False)
        model = DaskXGBRegressor(n_estimators=5)
        model.client = client
        model.fit(X, y)
        return view(client, X, y)


def by_hand() -> View:
    """``dask scheduler`` and ``dask worker`` in separate processes."""
    from tests.processes import cluster

    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(Path(folder), 2) as file,
        Client(scheduler_file=file) as client,
    ):
        client.wait_for_workers(2)
        X = da.ones((100, 2), chunks=(10, 2)).persist()
        wait(X)
        return view(client)


CLUSTERS: Mapping[str, Callable[[], View]] = {
    f.__name__: f
    for f in (
        stock,
        one_worker,
        threads,
        adaptive,
        no_nanny,
        after_a_fit,
        by_hand,
    )
}


def main(names: list[str]) -> None:
    for name in names or CLUSTERS:
        file = recordings.FOLDER / f"{name}.json"
        file.write_text(recordings.dumps(CLUSTERS[name]()) + "\n")
        sys.stdout.write(f"{file.name}: {file.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
