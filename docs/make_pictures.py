"""Make the pictures of the dashboard page: before ``prepare`` and after it.

``python -m docs.make_pictures`` writes docs/dashboard-before.png and
docs/dashboard-after.png. It needs the extra ``test`` and Chromium.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import dask
import dask.array as da
from distributed import Client, LocalCluster, wait
from PIL import Image

import clustertune
from tests.browser import Tab, chromium

FOLDER = Path(__file__).parent
#: findings that depend on the machine that makes the pictures
QUIET = {
    "clustertune.checks.blocked_event_loops.max_seconds": 60.0,
    "clustertune.checks.thread_count.tolerance": 4.0,
}


async def make() -> None:
    """Start four workers with rows on two of them; prepare."""
    async with (
        LocalCluster(
            n_workers=4,
            threads_per_worker=1,
            memory_limit="1 GiB",
            dashboard_address="127.0.0.1:0",
            asynchronous=True,
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
        chromium() as tab,
    ):
        first, second, *_ = [w.worker_address for w in cluster.workers.values()]
        X = da.random.random((400_000, 20), chunks=(20_000, 20))
        y = (X[:, 0] > X[:, 1]).astype(int)
        X, y = client.persist([X, y], workers=[first, second])
        await wait([X, y])
        page = await clustertune.dashboard_page(client)
        await clustertune.check(client, X, y, estimator="xgboost")
        await tab.look_at(page.url, width=1400)
        await tab.shows("empty_workers")
        await picture(tab, "before")
        X, y = await clustertune.prepare(client, X, y, estimator="xgboost")
        await clustertune.check(client, X, y, estimator="xgboost")
        await tab.shows("prepare: Ready")
        await picture(tab, "after")


async def picture(tab: Tab, name: str) -> None:
    """Write a picture when the page shows the memory of the last heartbeats."""
    await asyncio.sleep(3)
    file = FOLDER / f"dashboard-{name}.png"
    await tab.picture(file)
    with Image.open(file) as image:  # 256 colours take a third of the bytes
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
            file, optimize=True
        )


if __name__ == "__main__":
    with dask.config.set(QUIET):
        asyncio.run(make())
