"""Data whose values are computed from row numbers, so that errors can be seen."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, wait

CLASSES = 3
GROUP = 5  # rows


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Row-aligned collections that can be recomputed."""

    seed: int
    kind: str  # "array" or "dataframe"
    rows: int
    columns: int
    partitions: int
    other_partitions: int  # of y and rows; if equal, boundaries match
    place: str  # "lazy", "one" worker, or "anywhere"
    bound: bool = False  # to the addresses of the first workers


def draw(rng: Random, seed: int) -> Spec:
    partitions = rng.randint(3, 24)
    return Spec(
        seed=seed,
        kind=rng.choice(("array", "array", "dataframe")),
        rows=rng.choice((60, 500, 3000, 12_000)),
        columns=rng.choice((3, 20, 40)),
        partitions=partitions,
        other_partitions=rng.choice((partitions, partitions, rng.randint(3, 24))),
        place=rng.choice(("lazy", "one", "one", "anywhere")),
    )


@dataclass
class Data:
    """The collections: features, classes and row numbers."""

    spec: Spec
    X: Any
    y: Any
    rows: Any

    def __iter__(self) -> Any:
        return iter((self.X, self.y, self.rows))


def make(spec: Spec, client: Client) -> Data:
    """Make the collections, and load them unless they are lazy."""
    features, classes, numbers = _functions(spec)
    if spec.kind == "array":
        edges = (
            _sizes(spec.rows, spec.partitions),
            _sizes(spec.rows, spec.other_partitions),
        )
        index, other = (da.arange(spec.rows, chunks=(e,), dtype="i8") for e in edges)
        columns = spec.columns
        X = index.map_blocks(
            features, dtype="f8", new_axis=1, chunks=(edges[0], (columns,))
        )
        y, rows = other.map_blocks(classes, dtype="i8"), other.map_blocks(numbers)
    else:
        X = _frame(
            spec, spec.partitions, features, [f"x{i}" for i in range(spec.columns)]
        )
        both = _frame(
            spec,
            spec.other_partitions,
            lambda r: np.column_stack([classes(r), numbers(r)]),
            ["y", "row"],
            dtype="i8",
        )
        y, rows = both["y"], both["row"]
    if spec.place == "lazy":
        return Data(spec, X, y, rows)
    on = [next(iter(client.nthreads()))] if spec.place == "one" else None
    where: dict[str, Any] = {}
    if spec.bound:
        where = {"workers": list(client.nthreads()), "allow_other_workers": False}
    elif on:
        where = {"workers": on, "allow_other_workers": True}
    made = client.persist([X, y, rows], **where)
    wait(made, timeout=60)
    return Data(spec, *made)


def _functions(spec: Spec) -> tuple[Any, Any, Any]:
    """Features, classes and numbers of rows, as closures."""
    seed, width = spec.seed, spec.columns

    def features(rows: Any) -> Any:
        return (np.asarray(rows)[:, None] * 31.0 + np.arange(width) * 17 + seed) % 997

    def classes(rows: Any) -> Any:
        return np.asarray(rows) % CLASSES

    def numbers(rows: Any) -> Any:
        return np.asarray(rows) + 0

    return features, classes, numbers


def _frame(
    spec: Spec, partitions: int, values: Any, columns: list[str], dtype: str = "f8"
) -> Any:
    edges = np.cumsum([0, *_sizes(spec.rows, partitions)]).tolist()

    def load(start: int, stop: int) -> pd.DataFrame:
        rows = np.arange(start, stop)
        return pd.DataFrame(values(rows), index=rows, columns=columns).astype(dtype)

    meta = load(0, 0)
    return dd.from_map(load, edges[:-1], edges[1:], meta=meta)


def _sizes(rows: int, partitions: int) -> tuple[int, ...]:
    return tuple(
        np.diff([rows * i // partitions for i in range(partitions + 1)]).tolist()
    )


def wrong(spec: Spec, values: tuple[Any, Any, Any]) -> list[str]:
    """Problems of X, y and row numbers that came back from a cluster."""
    X, y, rows = (np.asarray(v) for v in values)
    features, classes, _ = _functions(spec)
    found = []
    if not np.array_equal(rows, np.arange(spec.rows)):
        found.append(
            f"{len(rows)} rows, {len(set(rows.tolist()))} different; {spec.rows} were "
            "given in order"
        )
    if not np.array_equal(y, classes(rows)):
        found.append("rows have the labels of other rows")
    if X.shape != (len(rows), spec.columns) or not np.allclose(X, features(rows)):
        found.append("rows have the features of other rows")
    return found
