"""TensorFlow's distributed strategies."""

from __future__ import annotations

from dataclasses import replace

from clustertune.core.profiles import Profile
from clustertune.integrations.libraries.workload import Workload

MIRRORED = Profile(
    name="tf_mirrored",
    title="TensorFlow MultiWorkerMirroredStrategy",
    memory_multiple={4: 2.0, 8: 2.0},
    exact_rows=True,
    random_order=True,
    packages=("tensorflow", "tensorflow-cpu"),
    threads="worker",
    source="not measured: the data and one copy of it; the model is extra",
)


class Mirrored(Workload):
    """TensorFlow's ``MultiWorkerMirroredStrategy``, with one process on each worker.

    All workers take each step together, so every worker gets exactly as many rows.
    ``training.run_roles`` sets it up, and docs/deep-learning.md has an example. With a
    distributed dataset, each worker drops most of its rows: switch auto-sharding off.
    """

    profile = MIRRORED
    kinds = tuple(
        (module, "Model", "Functional", "Sequential")
        for module in ("keras", "tf_keras", "tensorflow.python.keras")
    )
    unfit = (
        "fit of Keras takes no Dask collections. Prepare the data with "
        "clustertune.prepare, and train with clustertune.training.run_roles"
    )


class ParameterServers(Workload):
    """TensorFlow with parameter servers: workers train, parameter servers do not.

    Workers do not take steps together, so rows may be uneven. A parameter server holds
    no data. Name the workers that train in ``workers=``, or let ``training.run_roles``
    place it.
    """

    profile = replace(
        MIRRORED,
        name="tf_ps",
        title="TensorFlow with parameter servers",
        exact_rows=False,
    )


WORKLOADS: tuple[Workload, ...] = (Mirrored(), ParameterServers())
