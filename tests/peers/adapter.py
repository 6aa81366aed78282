"""Put ``clustertune.prepare`` in front of every fit of a library.

``Adapter.installed`` replaces the ``fit`` methods of one library. The replacement hands
all rows of the call to ``prepare``, then calls the original with what it returned.
It compares the values of every collection before and after ``prepare``.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, wraps
from time import monotonic
from typing import Any

import dask.array as da
import dask.dataframe as dd
from distributed import default_client
from values import Values, ValuesChangedError, compare, read

import clustertune

#: one call of ``prepare`` may take this long
TIMEOUT = "150 s"


@dataclass
class Rows:
    """The row-aligned collections of one fit, by the names that ``prepare`` uses."""

    X: Any
    y: Any = None
    others: tuple[Any, ...] = ()
    companions: dict[str, Any] = field(default_factory=dict)
    group: Any = None  # sizes of groups, as LightGBM takes them
    eval_sets: list[Rows] = field(default_factory=list)

    def named(self, prefix: str = "") -> dict[str, Any]:
        """Every collection by its label."""
        found = {"X": self.X, "y": self.y, "group": self.group, **self.companions}
        found |= {f"others[{i}]": other for i, other in enumerate(self.others)}
        found = {f"{prefix}{n}": c for n, c in found.items() if c is not None}
        for i, rows in enumerate(self.eval_sets):
            found |= rows.named(f"eval_set[{i}].")
        return found


@dataclass
class Call:
    """One fit that was prepared, or that ``prepare`` refused."""

    fit: str
    seconds: float = 0.0
    labels: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    error: str = ""


# --- how each library names its rows --------------------------------------------------


def _xgboost(arguments: Mapping[str, Any]) -> Rows:
    """Rows in the arguments of an XGBoost estimator."""
    of_set = partial(_of_set, arguments)
    return Rows(
        X=arguments["X"],
        y=arguments["y"],
        companions=_given(arguments, "sample_weight", "base_margin", "qid"),
        eval_sets=[
            Rows(
                X=X,
                y=y,
                companions=_present(
                    sample_weight=of_set("sample_weight_eval_set", i),
                    base_margin=of_set("base_margin_eval_set", i),
                    qid=of_set("eval_qid", i),
                ),
            )
            for i, (X, y) in enumerate(arguments.get("eval_set") or ())
        ],
    )


def _xgboost_matrix(arguments: Mapping[str, Any]) -> Rows:
    """Rows in the arguments of a ``DaskDMatrix``."""
    names = ("label", "label_lower_bound", "label_upper_bound")
    y, *others = _given(arguments, *names).values()
    companions = _given(arguments, "base_margin", "qid")
    companions |= _present(sample_weight=arguments.get("weights"))
    return Rows(X=arguments["data"], y=y, others=tuple(others), companions=companions)


def _lightgbm(arguments: Mapping[str, Any]) -> Rows:
    """Rows in the arguments of a LightGBM estimator."""
    pairs = list(arguments.get("eval_set") or ())
    if arguments.get("eval_X") is not None:
        X, y = arguments["eval_X"], arguments["eval_y"]
        alone = not isinstance(X, tuple)
        pairs += [(X, y)] if alone else list(zip(X, y))
    of_set = partial(_of_set, arguments)
    return Rows(
        X=arguments["X"],
        y=arguments["y"],
        companions=_given(arguments, "sample_weight", "init_score"),
        group=arguments.get("group"),
        eval_sets=[
            Rows(
                X=X,
                y=y,
                companions=_present(
                    sample_weight=of_set("eval_sample_weight", i),
                    init_score=of_set("eval_init_score", i),
                ),
                group=of_set("eval_group", i),
            )
            for i, (X, y) in enumerate(pairs)
        ],
    )


def _dask_ml(arguments: Mapping[str, Any]) -> Rows:
    """Rows in the arguments of a dask-ml estimator."""
    return Rows(X=arguments["X"], y=arguments.get("y"))


def _of_set(arguments: Mapping[str, Any], name: str, number: int) -> Any:
    """One of the collections that an argument has for all eval sets."""
    every = arguments.get(name)
    return None if every is None else every[number]


def _given(arguments: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return _present(**{name: arguments.get(name) for name in names})


def _present(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


@dataclass(frozen=True)
class Library:
    """Where the fits of a library are, and how to read their arguments."""

    read: Callable[[Mapping[str, Any]], Rows]
    fits: tuple[str, ...]  # module:Class.method
    rows: tuple[str, ...] = ()  # arguments of fit that hold rows, beyond X and y
    matrices: tuple[str, ...] = ()  # what takes the data where fit is a function
    takes_arrays: bool = False  # some of its estimators take no frames


LIBRARIES = {
    "xgboost": Library(
        read=_xgboost,
        fits=(
            "xgboost.dask:DaskXGBRegressor.fit",
            "xgboost.dask:DaskXGBClassifier.fit",
            "xgboost.dask:DaskXGBRanker.fit",
        ),
        rows=(
            *("sample_weight", "base_margin", "qid", "eval_set", "eval_qid"),
            *("sample_weight_eval_set", "base_margin_eval_set"),
        ),
        matrices=("xgboost.dask:DaskDMatrix._map_local_data",),
    ),
    "lightgbm": Library(
        read=_lightgbm,
        fits=(
            "lightgbm.dask:DaskLGBMClassifier.fit",
            "lightgbm.dask:DaskLGBMRegressor.fit",
            "lightgbm.dask:DaskLGBMRanker.fit",
        ),
        rows=(
            *("sample_weight", "init_score", "group"),
            *("eval_set", "eval_X", "eval_y"),
            *("eval_sample_weight", "eval_init_score", "eval_group"),
        ),
    ),
    "dask-ml": Library(
        read=_dask_ml,
        takes_arrays=True,
        fits=(
            "dask_ml.cluster.k_means:KMeans.fit",
            "dask_ml.linear_model.glm:_GLM.fit",
            "dask_ml.naive_bayes:GaussianNB.fit",
            "dask_ml.wrappers:ParallelPostFit.fit",
            "dask_ml.wrappers:Incremental.fit",
        ),
    ),
}


# --- prepare, and the comparison ------------------------------------------------------


class Adapter:
    """Prepares the fits of one library and keeps a record of each."""

    def __init__(self, library: str) -> None:
        self.library = LIBRARIES[library]
        self.calls: list[Call] = []
        #: What prepare returned for a fit. Users keep it, as tests keep X and y. A
        #: matrix keeps its own data.
        self.held: list[Any] = []
        #: set inside a fit, whose own matrices hold prepared data
        self.inside: ContextVar[bool] = ContextVar("inside", default=False)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the fits of the library in this process for a block."""
        replaced = []
        for place, wrap in self._places():
            module, _, path = place.partition(":")
            kind, _, method = path.partition(".")
            owner = getattr(importlib.import_module(module), kind)
            original = getattr(owner, method)
            replaced.append((owner, method, original))
            setattr(owner, method, wrap(original, path))
        try:
            yield
        finally:
            for owner, method, original in replaced:
                setattr(owner, method, original)

    def _places(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        for place in self.library.fits:
            yield place, self._fit
        for place in self.library.matrices:
            yield place, self._matrix

    def _fit(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A fit that prepares its data."""
        signature = inspect.signature(original)

        @wraps(original)
        def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            arguments = _bound(signature, model, args, kwargs)
            if self.inside.get() or not _is_dask(arguments["X"]):
                return original(model, *args, **kwargs)
            client = _client_of(model)

            async def prepared() -> dict[str, Any]:
                rows = self.library.read(arguments)
                result, before = await self._prepare(
                    client, rows, name, estimator=model
                )
                self.held.append(result)
                model.set_params(**result.estimator_params)
                rest = {
                    k: v for k, v in arguments.items() if k not in self.library.rows
                }
                new = rest | {"X": result.X} | result.fit_kwargs
                if rows.y is not None:
                    new["y"] = result.y
                await self._compare(client, before, self.library.read(new))
                return new

            async def both() -> Any:
                new = await prepared()
                with self._is_inside():
                    return await original(model, **new)

            if client.asynchronous:
                return both()
            new = client.sync(prepared)
            with self._is_inside():
                return original(model, **new)

        fit.__signature__ = signature  # type: ignore[attr-defined]
        return fit

    def _matrix(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Prepare the data of a matrix that ``xgboost.dask.train`` gets."""
        from xgboost.dask import DaskQuantileDMatrix

        @wraps(original)
        async def map_local_data(matrix: Any, **arguments: Any) -> Any:
            labels = ("label", "label_lower_bound", "label_upper_bound")
            is_to_predict = not _given(arguments, *labels)
            if self.inside.get() or is_to_predict:
                return await original(matrix, **arguments)
            client, rows = arguments["client"], _xgboost_matrix(arguments)
            workload = "xgboost_dmatrix"
            if isinstance(matrix, DaskQuantileDMatrix):
                workload = "xgboost"
            if "qid" in rows.companions:
                workload = "xgboost_rank"
            result, before = await self._prepare(client, rows, name, estimator=workload)
            given = _given(arguments, *labels)
            new = arguments | {"data": result.X}
            new |= dict(zip(given, (result.y, *result.others)))
            new |= result.fit_kwargs
            if "sample_weight" in new:
                new["weights"] = new.pop("sample_weight")
            await self._compare(client, before, _xgboost_matrix(new))
            return await original(matrix, **new)

        return map_local_data

    @contextmanager
    def _is_inside(self) -> Iterator[None]:
        token = self.inside.set(True)
        try:
            yield
        finally:
            self.inside.reset(token)

    async def _prepare(
        self, client: Any, rows: Rows, name: str, **what: Any
    ) -> tuple[Any, dict[str, Values]]:
        """Call ``prepare``; what it returned, and the values that it was given."""
        call = Call(fit=name, labels=tuple(rows.named()))
        self.calls.append(call)
        before = {n: await read(client, c) for n, c in rows.named().items()}
        eval_sets = [(one.X, one.y, _companions(one)) for one in rows.eval_sets]
        start = monotonic()
        try:
            result = await clustertune.prepare(
                client,
                rows.X,
                rows.y,
                *rows.others,
                **_companions(rows),
                eval_set=eval_sets or None,
                timeout=TIMEOUT,
                progress=False,
                **what,
            )
        except BaseException as error:
            call.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            call.seconds = monotonic() - start
        call.steps = tuple(s.action for plan in result.plan for s in plan.steps)
        return result, before

    async def _compare(
        self, client: Any, before: dict[str, Values], handed: Rows
    ) -> None:
        """Raise if the fit does not get the values that the test gave."""
        after = {n: await read(client, c) for n, c in handed.named().items()}
        try:
            compare(before, after, takes_arrays=self.library.takes_arrays)
        except ValuesChangedError as error:
            self.calls[-1].error = f"ValuesChangedError: {error}"
            raise


def _companions(rows: Rows) -> dict[str, Any]:
    """Companions of X as ``prepare`` takes them."""
    return rows.companions | _present(group=rows.group)


def _bound(
    signature: inspect.Signature, model: Any, args: Any, kwargs: Any
) -> dict[str, Any]:
    """The arguments of a fit by name, as it was called."""
    arguments = dict(signature.bind(model, *args, **kwargs).arguments)
    first, *_ = signature.parameters
    del arguments[first]
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name, {})
    return arguments


def _is_dask(collection: Any) -> bool:
    return isinstance(collection, da.Array | dd.DataFrame | dd.Series)


def _client_of(model: Any) -> Any:
    return getattr(model, "client", None) or default_client()
