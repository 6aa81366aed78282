"""PyTorch's ``DistributedDataParallel`` and skorch: one process of it on each worker.

All workers take each step together, so one that has a batch less than the others lets
them wait until they time out: every worker gets exactly as many rows. PyTorch has as
many threads as its pool says, which is 1 below a nanny: ``torch.set_num_threads(n)``.
"""

from __future__ import annotations

from clustertune.core.estimators import isa
from clustertune.core.profiles import Profile
from clustertune.integrations.libraries import tf_mirrored

PROFILE = Profile(
    name="torch_ddp",
    title="PyTorch DistributedDataParallel",
    memory_multiple={4: 2.0, 8: 2.0},
    base_bytes=450 * 2**20,
    exact_rows=True,
    random_order=True,
    packages=("torch",),
    threads="pools",
    source="the data and one copy of it, in a tensor; weights, gradients and the "
    "optimiser's state are extra, four times the model with Adam",
)


def matches(estimator: object) -> bool:
    """Whether it is a module of PyTorch or a net of skorch."""
    net = isa(estimator, "torch.nn", "Module") or isa(estimator, "skorch", "NeuralNet")
    # Keras with PyTorch below it makes modules of its models
    return net and not tf_mirrored.matches(estimator)
