"""The examples of docs/training.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import wait
from sklearn.linear_model import LogisticRegression

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
PENALTY = 2.0


def examples() -> dict[str, str]:
    """Return the code blocks by name."""
    blocks = r"<!-- glm: (\w+) -->\n```python\n(.*?)```"
    return dict(re.findall(blocks, PAGE.read_text(), flags=re.DOTALL))


@pytest.mark.slow
def test_examples_converge_to_the_answer_of_scikit_learn(local_cluster: Any) -> None:
    """The partitions are uneven, and each method weighs them correctly."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((1200, 4))
    y = (X @ [1.0, -2.0, 0.5, 0.0] + rng.logistic(size=1200) > 0).astype(float)
    model = LogisticRegression(C=1 / PENALTY, fit_intercept=False, tol=1e-10)
    expected = model.fit(X, y).coef_[0]

    _, client = local_cluster(2, processes=False)
    rows = (500, 100, 400, 200)
    data = da.from_array(X, chunks=(rows, 4)), da.from_array(y, chunks=(rows,))
    data = client.persist(data)
    wait(data)
    found = examples()
    assert list(found) == ["shared", "gradient_descent", "newton", "admm"]
    code: dict[str, Any] = {"__name__": "of_the_page"}
    for block in found.values():
        exec(block, code)
    for method in list(found)[1:]:
        w = code[method](client, *data, penalty=PENALTY)
        assert np.allclose(w, expected, atol=1e-3), method
