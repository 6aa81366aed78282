"""Rows of X and y after a scale-up from one to four hosts, over links of two rates.

The hosts are network namespaces with a worker each, behind links with a limited rate
(`tests/hosts/lab.py`; needs root on Linux). All rows are on the first host, and then
each host gets a quarter. `ours` is `prepare`. `recipe` rechunks X and y into even
partitions, persists them, and calls `client.rebalance`. `p2p` rechunks them with Dask's
P2P shuffle. `reload` reads the data again from Parquet files (plain, as random
values are), which another host serves over a link of the same rate; each host reads a
quarter. The limit of the seconds is the time in which three quarters of the data leave
the first host. `even rows` are the rows of the fullest host / a quarter; a variant with
uneven rows is no alternative, and is not compared. Then `restart_workers` restarts all
hosts one after the other, with the data on all of them. A round before the others, in
which modules are loaded, is not counted.

Options: `--rounds 6`, `--mb 300`, `--rates 1gbit,200mbit`, `--partitions 40`.
"""

import argparse
import io
import re
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from urllib.request import urlopen

import dask
import numpy as np
import pandas as pd
from distributed import futures_of, wait
from measure import compare, interval, machine, ratios, show

import clustertune
from tests.hosts import lab as labs
from tests.hosts.clusters import Cluster, assert_intact, load
from tests.processes import until

HOSTS = ("h1", "h2", "h3", "h4")
NEW = 16  # partitions of the recipe and of P2P
EVEN = 1.1  # rows of the fullest host / a quarter
PORT = 8800  # of the host that serves files


def ours(cluster, client, X, y):
    new = clustertune.prepare(client, X, y, estimator="xgboost", progress=False)
    return tuple(new)


def recipe(cluster, client, X, y, method="tasks"):
    chunks = -(-len(X) // NEW)
    X, y = (a.rechunk((chunks, *a.shape[1:]), method=method) for a in (X, y))
    X, y = client.persist([X, y])
    wait([X, y])
    if method == "tasks":
        client.rebalance([X, y])
    return X, y


def reload(cluster, client, X, y):
    workers = cluster.on(client, *HOSTS)
    some = [
        client.submit(
            read, url(cluster, i), workers=workers[i % len(HOSTS)], pure=False
        )
        for i in range(X.numblocks[0])
    ]
    wait(some)
    return some, None


def url(cluster, number):
    return f"http://{cluster.lab['client'].address}:{PORT}/{number:03}.parquet"


def read(url):
    with urlopen(url) as opened:
        return pd.read_parquet(io.BytesIO(opened.read()))


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
        frame.assign(y=2 * rows).to_parquet(
            folder / f"{i:03}.parquet", compression=None, use_dictionary=False
        )


def serve(cluster, folder):
    """Serve the files of a folder on the host of this process."""
    host = cluster.lab["client"]
    options = ("--bind", host.address, "--directory", folder)
    host.start(sys.executable, "-m", "http.server", PORT, *options)
    until(lambda: _answers(url(cluster, 0)))


def _answers(url):
    with suppress(OSError), urlopen(url):
        return True


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


def start(cluster, options, *on):
    """X and y on these hosts."""
    client = cluster.start(**{name: {"memory": "2GiB"} for name in HOSTS})
    X, y = load(
        client,
        mib=options.mb * 10**6 // 2**20,
        partitions=options.partitions,
        workers=cluster.on(client, *on),
    )
    return client, X, y


def measure(cluster, rate, variant, options):
    """Seconds, bytes that crossed, the fewest bytes, and evenness of one variant."""
    client, X, y = start(cluster, options, HOSTS[0])
    for name in (*HOSTS, "client"):
        cluster.lab[name].rate(rate)
    with cluster.lab.crossing() as crossed:
        begun = perf_counter()
        new, _ = VARIANTS[variant](cluster, client, X, y)
        seconds = perf_counter() - begun
    cluster.lab["client"].repair()
    load_of = rows_by_host(cluster, client, new)
    even = max(load_of.values()) / (sum(load_of.values()) / len(HOSTS))
    nbytes = sum(crossed[name] for name in (*HOSTS, "client"))
    fewest = (X.nbytes + y.nbytes) * 3 / 4
    cluster.repair()
    return seconds, nbytes, fewest, even


def restart(cluster, options):
    """Seconds of a rolling restart, and bytes that crossed / those of the data."""
    client, X, y = start(cluster, options, *HOSTS)
    with cluster.lab.crossing() as crossed:
        begun = perf_counter()
        report = clustertune.restart_workers(client, X, y, progress=False)
        seconds = perf_counter() - begun
    assert report.status == "done", report
    assert_intact(client, X, y)
    cluster.repair()
    nbytes = sum(crossed[name] for name in HOSTS)
    return {"seconds": seconds, "crossed": nbytes / (X.nbytes + y.nbytes)}


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
        serve(cluster, data)
        try:
            one_round(cluster, labs.LINK, 0, options)  # loads modules, installs plugins
            for rate in options.rates.split(","):
                rounds = [
                    one_round(cluster, rate, number, options)
                    for number in range(options.rounds)
                ]
                report(rate, rounds)
            rounds = [restart(cluster, options) for _ in range(options.rounds)]
            show(rounds, {"seconds": "rolling restart, s"})
            compare(
                "rolling restart: bytes that crossed / bytes of the data",
                interval([r["crossed"] for r in rounds]),
                at_most=0.01,
                headline=True,
            )
        finally:
            cluster.repair()
            cluster.stop()


def one_round(cluster, rate, number, options):
    """Figures of each variant; another one is the first in each round."""
    names = [*VARIANTS]
    first = number % len(names)
    found = {}
    for v in names[first:] + names[:first]:
        seconds, nbytes, fewest, even = measure(cluster, rate, v, options)
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
        for v in ("recipe", "p2p", "reload")
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
        f"{rate}: bytes that crossed, ours / fewest",
        ratios(rounds, "ours.mb", "fewest"),
        at_most=1.05,
    )


if __name__ == "__main__":
    main()
