"""dask-ml's and dask-glm's linear models by ``lbfgs``, ``newton`` and gradients.

The solvers ``"lbfgs"``, ``"newton"``, ``"gradient_descent"`` and ``"proximal_grad"``
read all data in every iteration, in many short tasks, and normalise it anew each time;
so the data is loaded before, and there are as few pieces as threads. ``"lbfgs"`` of
dask-glm 0.4.0 fails with SciPy 1.18: it hands over an argument that is no longer there.
"""

from __future__ import annotations

from clustertune.core.estimators import isa, parameter
from clustertune.core.profiles import Profile

PROFILE = Profile(
    name="glm",
    title="linear models (dask-ml, dask-glm)",
    memory_multiple={4: 5.0, 8: 3.0},
    piece_multiple={4: 2.0, 8: 1.0},
    base_bytes=152 * 2**20,
    pieces_per_thread=1,
    max_pieces_per_thread=4,
    max_piece_bytes=2**30,
    random_order=False,
    kinds=("array",),
    packages=("dask-glm",),
    takes=(),
    source="measured with dask-glm 0.4, newton, 1 and 4 pieces a thread; others need "
    "between 17 % less (proximal gradient) and 8 % more (gradient descent)",
)


def matches(estimator: object) -> bool:
    """Whether it is a linear model whose solver is not ``admm``."""
    return is_linear(estimator) and not is_admm(estimator)


def is_linear(estimator: object) -> bool:
    """Whether it is a linear model of dask-ml or dask-glm."""
    return isa(estimator, "dask_ml.linear_model", "_GLM") or isa(
        estimator, "dask_glm.estimators", "_GLM"
    )


def is_admm(estimator: object) -> bool:
    """Whether its solver is ``admm``, as it is by default."""
    return bool(parameter(estimator, "solver") == "admm")
