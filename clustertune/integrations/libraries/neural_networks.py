"""TensorFlow's mirrored strategy, PyTorch's distributed training, and skorch."""

from __future__ import annotations

from clustertune.core.profiles import Profile
from clustertune.integrations.libraries.workload import Workload


class Mirrored(Workload):
    """TensorFlow's ``MultiWorkerMirroredStrategy``, with one process on each worker.

    All workers take each step together, so every worker gets an equal share of rows,
    within the tolerance. Take as many batches on each worker as the shortest share has:
    ``dataset.take(n_batches)``. ``training.run_roles`` sets it up, and
    docs/deep-learning.md has an example. With a distributed dataset, each worker drops
    most of its rows: switch auto-sharding off.
    """

    kinds = tuple(
        (module, "Model", "Functional", "Sequential")
        for module in ("keras", "tf_keras", "tensorflow.python.keras")
    )
    profile = Profile(
        name="tf_mirrored",
        title="TensorFlow MultiWorkerMirroredStrategy",
        memory_multiple={4: 2.0, 8: 2.0},
        equal_shares=True,
        random_order=True,
        needs_labels=False,
        packages=("tensorflow", "tensorflow-cpu"),
        threads="worker",
        source="not measured: the data and one copy of it; the model is extra",
    )
    unfit = (
        "fit of Keras takes no Dask collections. Prepare the data with "
        "clustertune.prepare, and train with clustertune.training.run_roles"
    )


class DistributedDataParallel(Workload):
    """PyTorch's ``DistributedDataParallel`` and skorch, one process on each worker.

    All workers take each step together, so every worker gets an equal share of rows,
    within the tolerance. A worker with one batch less makes the others wait until they
    time out: train in a block of ``torch.distributed.algorithms.join.Join([model])``.
    PyTorch uses the threads of its pool, which has one thread below a nanny:
    ``torch.set_num_threads(n)``.
    """

    kinds = (("torch.nn", "Module"), ("skorch", "NeuralNet"))
    profile = Profile(
        name="torch_ddp",
        title="PyTorch DistributedDataParallel",
        memory_multiple={4: 2.0, 8: 2.0},
        base_bytes=450 * 2**20,
        equal_shares=True,
        random_order=True,
        needs_labels=False,
        packages=("torch",),
        threads="pools",
        source="the data and one copy of it, in a tensor; weights, gradients and the "
        "optimiser's state are extra, four times the model with Adam",
    )

    unfit = (
        "every worker trains its own replica, and the model has no fit for Dask "
        "collections. Prepare the data with clustertune.prepare, and train with "
        "clustertune.training.run_roles"
    )

    def matches(self, estimator: object) -> bool:
        """Exclude models of Keras, which are modules of PyTorch with that backend."""
        return super().matches(estimator) and not Mirrored().matches(estimator)


WORKLOADS: tuple[Workload, ...] = (Mirrored(), DistributedDataParallel())
