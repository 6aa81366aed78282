"""Rows of X and y after a scale-up from one to four hosts, over links of two rates.

The hosts are network namespaces with a worker each, behind links with a limited rate
(`tests/hosts/lab.py`; needs root on Linux). All rows are on the first host, and then
each host gets a quarter. `ours` is `prepare`. `recipe` rechunks X and y into even
partitions, persists them, and calls `client.rebalance`. `p2p` rechunks them with Dask's
P2P shuffle. `reload` reads the data again from Parquet files. All hosts read them from
the same disk, so no byte of them crosses a link here; on a shared folder all of them
do. The limit of the seconds is the time in which three quarters of the data leave the
first host. `even rows` are the rows of the fullest host / a quarter; a variant with
uneven rows is no alternative, and is not compared.

Options: `--rounds 6`, `--mb 300`, `--rates 1gbit,200mbit`, `--partitions 40`.
"""

import argparse
import re
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import futures_of, wait
from measure import compare, interval, machine, ratios, show

import clustertune
from tests.hosts import lab as labs
from tests.hosts.clusters import Cluster, load

HOSTS = ("h1", "h2", "h3", "h4")
NEW = 16  # partitions of the recipe and of P2P
EVEN = 1.1  # rows of the fullest host / a quarter


def ours(client, X, y, folder):
    return clustertune.prepare(client, X, y, estimator="xgboost", progress=False)


def recipe(client, X, y, folder, method="tasks"):
    chunks = -(-len(X) // NEW)
    X, y = (a.rechunk((chunks, *a.shape[1:]), method=method) for a in (X, y))
    X, y = client.persist([X, y])
    wait([X, y])
    if method == "tasks":
        client.rebalance([X, y])
    return X, y


def reload(client, X, y, folder):
    frame = client.persist(dd.read_parquet(folder))
    wait(frame)
    return frame, frame["y"]


VARIANTS = {
    "ours": ours,
    "recipe": recipe,
    "p2p": partial(recipe, method="p2p"),
    "reload": reload,
}


def write(folder, mib, partitions):
    """Write the rows of `load` to Parquet files."""
    total = mib * 2**20 // 32 // 8
    for i, rows in enumerate(np.array_split(np.arange(total, dtype="f8"), partitions)):
        values = rows[:, None] + np.arange(32) * 0.5
        frame = pd.DataFrame(values, columns=[f"x{c}" for c in range(32)])
        frame.assign(y=2 * rows).to_parquet(folder / f"{i:03}.parquet")


def rows_by_host(cluster, client, X):
    """Rows of X on each host, by one replica of each partition."""
    futures = futures_of(X)
    lengths = client.gather(client.map(len, futures, pure=False))
    holders = client.who_has(futures)
    load = dict.fromkeys(HOSTS, 0)
    for future, rows in zip(futures, lengths, strict=True):
        (host,) = (n for n in HOSTS if holders[future.key][0] in cluster.on(client, n))
        load[host] += rows
    return load


def measure(cluster, rate, variant, options, folder):
    """Seconds, bytes that crossed, the fewest bytes, and evenness of one variant."""
    client = cluster.start(**{name: {"memory": "2GiB"} for name in HOSTS})
    X, y = load(
        client,
        mib=options.mb * 10**6 // 2**20,
        partitions=options.partitions,
        workers=cluster.on(client, "h1"),
    )
    for name in HOSTS:
        cluster.lab[name].rate(rate)
    with cluster.lab.crossing() as crossed:
        begun = perf_counter()
        new = VARIANTS[variant](client, X, y, str(folder))
        seconds = perf_counter() - begun
    cluster.lab[HOSTS[0]].repair()
    load_of = rows_by_host(
        cluster, client, next(iter(new)) if variant == "ours" else new[0]
    )
    even = max(load_of.values()) / (sum(load_of.values()) / len(HOSTS))
    nbytes = sum(crossed[name] for name in HOSTS)
    fewest = (X.nbytes + y.nbytes) * 3 / 4
    cluster.repair()
    return seconds, nbytes, fewest, even


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rates", default="1gbit,200mbit")
    parser.add_argument("--partitions", type=int, default=40)
    options = parser.parse_args()
    if reason := labs.missing():
        raise SystemExit(reason)
    machine()
    dask.config.set({"distributed.admin.system-monitor.gil.enabled": False})
    with TemporaryDirectory() as folder, labs.opened(Path(folder, "lab")) as lab:
        data = Path(folder, "data")
        data.mkdir()
        write(data, options.mb * 10**6 // 2**20, options.partitions)
        cluster = Cluster(lab)
        try:
            for rate in options.rates.split(","):
                rounds = [
                    one_round(cluster, rate, number, options, data)
                    for number in range(options.rounds)
                ]
                report(rate, rounds)
        finally:
            cluster.repair()
            cluster.stop()


def one_round(cluster, rate, number, options, data):
    """Figures of each variant; another one is the first in each round."""
    names = [*VARIANTS]
    first = number % len(names)
    found = {}
    for v in names[first:] + names[:first]:
        seconds, nbytes, fewest, even = measure(cluster, rate, v, options, data)
        found |= {
            f"{v}.seconds": seconds,
            f"{v}.mb": nbytes / 1e6,
            f"{v}.even": even,
            "fewest": fewest / 1e6,
            "limit": fewest / per_second(rate),
        }
    return found


def per_second(rate):
    """Bytes that a link of this rate carries in a second."""
    number, unit = re.fullmatch("([0-9]+)([gm])bit", rate).groups()
    return int(number) * {"g": 1e9, "m": 1e6}[unit] / 8


def report(rate, rounds):
    figures = {"seconds": "s", "mb": "MB crossed", "even": "even rows"}
    show(
        rounds,
        {f"{v}.{k}": f"{rate}: {v}, {what}" for v in VARIANTS for k, what in
         figures.items()} | {"limit": f"{rate}: limit of the link, s"},
    )  # fmt: skip
    compare(
        f"{rate}: seconds, ours / limit of the link",
        ratios(rounds, "ours.seconds", "limit"),
        at_most=1.25,
        headline=True,
    )
    even = [
        v
        for v in ("recipe", "p2p")
        if interval([r[f"{v}.even"] for r in rounds]).high <= EVEN
    ]
    for v in even:
        compare(
            f"{rate}: seconds, ours / {v}",
            ratios(rounds, "ours.seconds", f"{v}.seconds"),
            at_most=0.8,
            headline=True,
        )
    compare(
        f"{rate}: seconds, ours / reload without a link",
        ratios(rounds, "ours.seconds", "reload.seconds"),
    )
    compare(
        f"{rate}: bytes that crossed, ours / fewest",
        ratios(rounds, "ours.mb", "fewest"),
        at_most=1.05,
    )


if __name__ == "__main__":
    main()
