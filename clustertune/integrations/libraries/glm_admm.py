"""dask-ml's and dask-glm's linear models by ``admm``, which is their default solver.

A task of some length runs for every piece in every iteration. The penalty is divided by
the number of pieces, so the coefficients depend on it: it is kept between runs.
"""

from __future__ import annotations

from dataclasses import replace

from clustertune.integrations.libraries import glm

PROFILE = replace(
    glm.PROFILE,
    name="glm_admm",
    title="linear models by admm (dask-ml, dask-glm)",
    keeps_pieces=True,
    memory_multiple={4: 4.8, 8: 2.9},
    piece_multiple={4: 2.8, 8: 1.35},
    base_bytes=172 * 2**20,
    source="measured with dask-glm 0.4, 1, 4 and 16 pieces a thread",
)


def matches(estimator: object) -> bool:
    """Whether it is a linear model whose solver is ``admm``."""
    return glm.is_linear(estimator) and glm.is_admm(estimator)
