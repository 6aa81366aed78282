"""The examples in the docstrings of public names run."""

from __future__ import annotations

import ast
import doctest
import inspect
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

import clustertune
from clustertune import training
from tests.docs.test_pages import given

#: changes the workers, so the others run first
LAST = ("resize_workers", "scale", "merge_workers")


def examples() -> dict[str, list[str]]:
    """Return the code of the examples, by public name."""
    names = [*clustertune._PUBLIC, "map_reduce", "joblib_backend", "run_roles"]
    found = {}
    for name in [*(n for n in names if n not in LAST), *LAST]:
        of = getattr(training if hasattr(training, name) else clustertune, name)
        parsed = doctest.DocTestParser().get_examples(of.__doc__ or "")
        found[name] = [example.source for example in parsed]
    return found


def names_of_examples(client: Client) -> dict[str, Any]:
    """Return what the examples take for granted, as their texts describe it."""
    import xgboost.dask

    def train(ctx: Any) -> int:
        ctx.report(1.0)
        return sum(len(y) for _, y in ctx.batches())

    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2)
    return {
        **given(client),
        "xgboost": xgboost,
        "gradient": lambda X, y, w: X.T @ (X @ w - y),
        "step": 1e-4,
        "train": train,
        "search": search,
        "map_reduce": training.map_reduce,
        "run_roles": training.run_roles,
    }


@pytest.mark.slow
def test_examples_in_docstrings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = examples()
    assert sum(map(bool, found.values())) > 15
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit="2GiB",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        for name, sources in found.items():
            names = names_of_examples(client)
            names["w"] = (
                np.zeros(4) if name == "map_reduce" else da.ones(400, chunks=100)
            )
            if name == "joblib_backend":
                names["X"], names["y"] = client.gather(
                    client.compute([names["X"], names["y"]])
                )
            for source in sources:
                flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                code = compile(source, name, "exec", flags)
                if not code.co_flags & inspect.CO_COROUTINE:  # as for this client
                    exec(code, names)
            names.clear()  # the next ones get new futures
