"""Linear models of dask-ml and dask-glm."""

from __future__ import annotations

from dataclasses import replace

from clustertune.core.estimators import parameter
from clustertune.core.profiles import Profile
from clustertune.integrations.libraries.workload import Workload

GRADIENTS = Profile(
    name="glm",
    title="linear models (dask-ml, dask-glm)",
    memory_multiple={4: 5.0, 8: 3.0},
    partition_multiple={4: 2.0, 8: 1.0},
    base_bytes=152 * 2**20,
    partitions_per_thread=1,
    max_partitions_per_thread=4,
    max_partition_bytes=2**30,
    random_order=False,
    kinds=("array",),
    packages=("dask-glm",),
    takes=(),
    source="measured with dask-glm 0.4, newton, 1 and 4 partitions per thread; others "
    "between 17 % less (proximal gradient) and 8 % more (gradient descent)",
)
ADMM = replace(
    GRADIENTS,
    name="glm_admm",
    title="linear models by admm (dask-ml, dask-glm)",
    keeps_partitions=True,
    memory_multiple={4: 4.8, 8: 2.9},
    partition_multiple={4: 2.8, 8: 1.35},
    base_bytes=172 * 2**20,
    source="measured with dask-glm 0.4, 1, 4 and 16 partitions a thread",
)


def _uses_admm(estimator: object) -> bool:
    return bool(parameter(estimator, "solver") == "admm")


class Gradients(Workload):
    """Linear models of dask-ml and dask-glm, with any solver except ``admm``.

    The solvers ``"lbfgs"``, ``"newton"``, ``"gradient_descent"`` and
    ``"proximal_grad"`` read all data in every iteration, in many short tasks, and
    normalize it each time. So the data is loaded before, and there are as few
    partitions as threads. ``"lbfgs"`` of dask-glm 0.4.0 fails with SciPy 1.18: it
    passes an argument that SciPy removed.
    """

    profile = GRADIENTS
    kinds = (("dask_ml.linear_model", "_GLM"), ("dask_glm.estimators", "_GLM"))

    def matches(self, estimator: object) -> bool:
        return super().matches(estimator) and not _uses_admm(estimator)


class Admm(Workload):
    """Linear models of dask-ml and dask-glm with ``admm``, their default solver.

    A long task runs for every partition in every iteration. The penalty is divided by
    the number of partitions, so the coefficients depend on it. That number is kept
    between runs.
    """

    profile = ADMM
    kinds = Gradients.kinds

    def matches(self, estimator: object) -> bool:
        return super().matches(estimator) and _uses_admm(estimator)


WORKLOADS: tuple[Workload, ...] = (Gradients(), Admm())
