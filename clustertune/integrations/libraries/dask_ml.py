"""dask-ml's and dask-glm's estimators and wrappers, and searches for parameters."""

from __future__ import annotations

from dataclasses import replace

from clustertune.core.profiles import NOT_NUMBERS, Profile
from clustertune.integrations.libraries.workload import Workload, parameter

SEARCH = (
    "a search needs its whole data in one object on each worker; fit it with NumPy or "
    "pandas data in a block of clustertune.training.joblib_backend(client, X, y)"
)
INCREMENTAL_SEARCH = (
    "dask-ml's incremental searches fail with Dask 2025.3 and later "
    "(dask/dask-ml#1016); search with scikit-learn under joblib's Dask backend, or "
    "train one model with dask_ml.wrappers.Incremental"
)
#: modules and classes of searches, and why no layout of the data helps them
REFUSED: tuple[tuple[str, str, str], ...] = (
    ("sklearn.model_selection", "BaseSearchCV", SEARCH),
    ("dask_ml.model_selection", "DaskBaseSearchCV", SEARCH),
    ("dask_ml.model_selection", "BaseIncrementalSearchCV", INCREMENTAL_SEARCH),
)


class Incremental(Workload):
    """dask-ml's ``Incremental``: ``partial_fit`` of one partition after another.

    Only one core of the cluster works. The model moves to the worker of the next
    partition, and other workers only hold data. So partitions are mini-batches in
    random order, and more workers do not make the fit faster. Each partition is read
    once.
    """

    kinds = (("dask_ml.wrappers", "Incremental"),)
    profile = Profile(
        name="incremental",
        title="dask-ml Incremental",
        memory_multiple={4: 1.3, 8: 1.3},
        base_bytes=290 * 2**20,
        persist=False,
        keeps_partitions=True,  # each is a mini-batch
        max_partition_bytes=100 * 2**20,
        random_order=True,
        packages=("dask-ml",),
        takes=(),
        source="the data and a copy of one partition of four; "
        "measured with dask-ml 2025.1",
    )


class KMeans(Workload):
    """dask-ml's ``KMeans``.

    All data is read 10 to 300 times: to find NaN, to choose the first centers, and once
    in every step. So it is loaded before. Centers are summed over one partition after
    another, so there are few partitions.
    """

    kinds = (("dask_ml.cluster", "KMeans"),)
    profile = Profile(
        name="kmeans",
        title="dask-ml KMeans",
        memory_multiple={4: 2.1, 8: 1.1},
        partition_multiple={4: 2.1, 8: 0.1},
        base_bytes=382 * 2**20,
        partitions_per_thread=2,
        max_partitions_per_thread=16,
        random_order=False,
        kinds=("array",),
        refuses=(*NOT_NUMBERS, "category"),
        packages=("dask-ml",),
        takes=(),
        source="measured with dask-ml 2025.1, 8 centres, 1, 2, 8 partitions per thread",
    )


class Gradients(Workload):
    """Linear models of dask-ml and dask-glm, with any solver except ``admm``.

    The solvers ``"lbfgs"``, ``"newton"``, ``"gradient_descent"`` and
    ``"proximal_grad"`` read all data in every iteration, in many short tasks, and
    normalize it each time. So the data is loaded before, and there are as few
    partitions as threads. ``"lbfgs"`` of dask-glm 0.4.0 fails with SciPy 1.18: it
    passes an argument that SciPy removed.
    """

    kinds = (("dask_ml.linear_model", "_GLM"), ("dask_glm.estimators", "_GLM"))
    uses_admm = False
    profile = Profile(
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
        refuses=(*NOT_NUMBERS, "category"),
        packages=("dask-glm",),
        takes=(),
        source="measured with dask-glm 0.4, newton, 1 and 4 partitions per thread; "
        "others between 17 % less (proximal gradient) and 8 % more (gradient descent)",
    )

    def matches(self, estimator: object) -> bool:
        uses_admm = bool(parameter(estimator, "solver") == "admm")
        return super().matches(estimator) and uses_admm is self.uses_admm


class Admm(Gradients):
    """Linear models of dask-ml and dask-glm with ``admm``, their default solver.

    A long task runs for every partition in every iteration. The penalty is divided by
    the number of partitions, so the coefficients depend on it. Give that number with
    ``rechunk``, such as ``rechunk=8``, if runs have to be comparable.
    """

    uses_admm = True
    profile = replace(
        Gradients.profile,
        name="glm_admm",
        title="linear models by admm (dask-ml, dask-glm)",
        keeps_partitions=True,
        memory_multiple={4: 4.8, 8: 2.9},
        partition_multiple={4: 2.8, 8: 1.35},
        base_bytes=172 * 2**20,
        source="measured with dask-glm 0.4, 1, 4 and 16 partitions a thread",
    )


class Predict(Workload):
    """dask-ml's ``ParallelPostFit``: a fitted model predicts or transforms partitions.

    The wrapper puts the model into the task of every partition: 64 partitions and a
    model of 20 MB caused 1.3 GB of traffic. ``client.scatter(model, broadcast=True)``
    sends a large model once to each worker, and ``X.map_blocks`` predicts with it.
    """

    kinds = (("dask_ml.wrappers", "ParallelPostFit"),)
    unfit = (
        "it fits its estimator in this process, which would fetch all data. Fit it "
        "with a sample, as a NumPy array or pandas frame: model.fit(X_sample, "
        "y_sample). Then prepare the data to predict: clustertune.prepare(client, X, "
        "estimator=model)"
    )
    profile = Profile(
        name="predict",
        title="dask-ml ParallelPostFit",
        memory_multiple={4: 1.45, 8: 1.4},
        partition_multiple={4: 1.7, 8: 1.6},
        base_bytes=300 * 2**20,
        persist=False,
        max_partitions_per_thread=32,
        max_partition_bytes=2**28,
        random_order=False,
        packages=("dask-ml",),
        takes=(),
        source="measured with dask-ml 2025.1 and a forest, 1, 4 and 16 partitions "
        "a thread; the model is extra",
    )

    def matches(self, estimator: object) -> bool:
        """Exclude the subclass that has another workload."""
        return super().matches(estimator) and not Incremental().matches(estimator)


WORKLOADS: tuple[Workload, ...] = (
    Admm(),
    Gradients(),
    Incremental(),
    KMeans(),
    Predict(),
)
