"""dask-ml's ``Incremental``: one piece after the other goes through ``partial_fit``.

One core of the whole cluster works; the model goes to where the next piece lies, and
other workers only hold data. So pieces are mini-batches, in random order, and more
workers make nothing faster. Each piece is read once.
"""

from __future__ import annotations

from clustertune.core.estimators import isa
from clustertune.core.profiles import Profile

PROFILE = Profile(
    name="incremental",
    title="dask-ml Incremental",
    memory_multiple={4: 1.3, 8: 1.3},
    base_bytes=290 * 2**20,
    persist=False,
    keeps_pieces=True,  # each is a mini-batch
    max_piece_bytes=100 * 2**20,
    random_order=True,
    packages=("dask-ml",),
    takes=(),
    source="the data and a copy of one piece of four; measured with dask-ml 2025.1",
)


def matches(estimator: object) -> bool:
    """Whether it is dask-ml's Incremental."""
    return isa(estimator, "dask_ml.wrappers", "Incremental")
