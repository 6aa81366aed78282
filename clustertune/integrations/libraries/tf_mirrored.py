"""TensorFlow's ``MultiWorkerMirroredStrategy``: one process of it on each worker.

All workers take each step together, so every worker gets exactly as many rows.
``training.run_roles`` sets it up, and docs/deep-learning.md has an example. Of a
dataset that is distributed, each worker drops most of its own rows: switch
auto-sharding off.
"""

from __future__ import annotations

from clustertune.core.estimators import isa
from clustertune.core.profiles import Profile

PROFILE = Profile(
    name="tf_mirrored",
    title="TensorFlow MultiWorkerMirroredStrategy",
    memory_multiple={4: 2.0, 8: 2.0},
    exact_rows=True,
    random_order=True,
    packages=("tensorflow", "tensorflow-cpu"),
    threads="worker",
    source="not measured: the data and one copy of it; the model is extra",
)


def matches(estimator: object) -> bool:
    """Whether it is a model of Keras."""
    return any(
        isa(estimator, module, "Model", "Functional", "Sequential")
        for module in ("keras", "tf_keras", "tensorflow.python.keras")
    )
