"""PyTorch's DistributedDataParallel: effects of uneven rows."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from distributed import futures_of
from distributed.utils import open_port

import clustertune
from tests.processes import until
from tests.rules.placing import cut, placed, workers

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

BATCH = 20
A, B = 0, 1  # workers


def train(
    rank: int, n_ranks: int, port: int, partitions: list[Any], join: bool
) -> list[list[float]]:
    """Train a linear model on the rows of this process.

    Workers can import this file.
    """
    import torch.distributed as dist
    from torch.distributed.algorithms.join import Join
    from torch.nn import Linear, functional
    from torch.nn.parallel import DistributedDataParallel

    if dist.is_initialized():
        dist.destroy_process_group()
    store = dist.TCPStore("127.0.0.1", port, n_ranks, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n_ranks)
    torch.manual_seed(0)
    model = DistributedDataParallel(Linear(partitions[0].shape[1], 1))
    descent = torch.optim.SGD(model.parameters(), lr=0.3)
    X, y = (
        torch.from_numpy(np.concatenate(p)) for p in (partitions[::2], partitions[1::2])
    )
    for _ in range(30):
        with Join([model]) if join else nullcontext():
            for rows, labels in zip(X.split(BATCH), y.split(BATCH)):
                descent.zero_grad()
                functional.mse_loss(model(rows)[:, 0], labels).backward()
                descent.step()
    return [p.detach().numpy().tolist() for p in model.parameters()]


def ranks(client: Any, X: Any, y: Any, join: bool = False) -> list[Any]:
    """Return futures of a process on each worker, with the partitions there."""
    own: dict[str, list[Any]] = {address: [] for address in workers(client)}
    holders = client.who_has(X)
    for features, labels in zip(futures_of(X), futures_of(y)):
        own[holders[features.key][0]] += [features, labels]
    port = open_port()
    return [
        client.submit(train, i, len(own), port, p, join, workers=[address], pure=False)
        for i, (address, p) in enumerate(own.items())
    ]


def test_rows_are_even_within_the_tolerance(doomed: Any) -> None:
    """A worker with one more batch waits for the other forever, except in ``Join``."""
    X = np.random.default_rng(1).random((401, 3)).astype("f4")
    y = X @ np.array([1, -2, 3], "f4") + 1
    rows = (200, 61, 140)  # a batch more on the second worker
    given = [placed(doomed, cut(x, *rows), (A, B, B)) for x in (X, y)]
    p = clustertune.prepare(doomed, *given, estimator=torch.nn.Linear)
    assert p.report.after[0].imbalance <= 1.05
    for X2, y2 in (given, (p.X, p.y)):
        weight, bias = doomed.gather(ranks(doomed, X2, y2, join=True))[0]
        assert np.allclose(weight, [[1, -2, 3]], atol=0.01)
        assert np.allclose(bias, 1, atol=0.01)

    shorter, longer = ranks(doomed, *given)
    until(shorter.done)
    assert shorter.status == "finished"
    # the other waits for a step that this one will not take
    with pytest.raises(TimeoutError):
        longer.result(timeout=3)
