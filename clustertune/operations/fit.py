"""``fit``: prepare, hold the workers, fit a model, and verify the data afterwards.

The model is fitted in place, as by its own ``fit``. It is not cloned: scikit-learn's
``clone`` cannot copy LightGBM's models with a client, and it forgets XGBoost's client.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from inspect import Parameter
from typing import Any

from dask.base import unpack_collections
from distributed import Client

from clustertune.collections import inputs
from clustertune.core.report import Report
from clustertune.core.sections import headlines
from clustertune.core.wording import plural, printable
from clustertune.errors import LayoutChanged, VerificationError
from clustertune.integrations import libraries
from clustertune.integrations.libraries.workload import last_step, parameters
from clustertune.operations import call as calling
from clustertune.operations.prepare import prepare
from clustertune.operations.prepared import Prepared

logger = logging.getLogger("clustertune")

#: arguments with one value per feature, so they are not prepared with the rows
PER_FEATURE = {"feature_weights"}
#: parameters of ``prepare`` that ``fit`` gives itself
GIVEN = (
    *("client", "X", "y", "others", "estimator"),
    *("persist", "release_inputs", "dry_run"),
)


class FitReport(Report):
    """The report of a fit, whose pickle is plain text.

    Unpickling a fitted model must not need clustertune.
    """

    __slots__ = ()

    def __reduce__(self) -> Any:
        return str, (str(self),)

    def __deepcopy__(self, memo: Any) -> FitReport:
        return self  # it is frozen


# --- arguments ------------------------------------------------------------------------


def _divided(
    model: Any, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of ``prepare``, and the arguments of ``model.fit``.

    Raises for arguments that neither takes, and for data that ``prepare`` does not see.
    """
    own = [n for n in parameters(prepare) if n not in GIVEN]
    theirs = parameters(model.fit)
    takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in theirs.values())
    kind = type(model).__name__
    prepared = {n: value for n, value in options.items() if n in own}
    rest = {n: value for n, value in options.items() if n not in own}
    for name, value in rest.items():
        if name in GIVEN:
            raise TypeError(
                f"fit takes no {name}=; call clustertune.prepare(client, X, y, "
                f"estimator=model, {name}=...), then model.fit"
            )
        if name not in theirs and not takes_any:
            raise TypeError(
                f"neither clustertune.fit nor {kind}.fit takes {name}=; "
                f"clustertune.fit takes {', '.join(own)}; {kind}.fit takes "
                f"{', '.join(theirs)}"
            )
        known = name.rpartition("__")[2] in PER_FEATURE
        if not known and unpack_collections(value)[0]:
            raise ValueError(
                f"{name}= has Dask collections, whose rows would not be prepared with "
                f"those of X; give {', '.join(inputs.COMPANIONS)} by these names, and "
                'those of eval sets as eval_set=[(X_valid, y_valid, {"sample_weight": '
                "w_valid})]"
            )
    return prepared, rest


def _refuse_client(client: Client, model: Any) -> None:
    """Refuse a model that has another client."""
    prefix, step = last_step(model)
    theirs = _client_of(step, client)
    if isinstance(theirs, Client) and theirs is not client:
        name = "model[-1]" if prefix else "model"
        raise ValueError(
            f"{name} has another client, which cannot use the data of client=; call "
            f"clustertune.fit again after {name}.client = client"
        )


def _client_of(step: Any, client: Client) -> Any:
    """Return the client of an estimator; XGBoost's is the current one if not set."""
    with client.as_current():
        return getattr(step, "client", None)


# --- the fit --------------------------------------------------------------------------


@dataclass
class _Work:
    """The parts of a fit that both kinds of clients share."""

    client: Client
    model: Any
    fit_kwargs: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    def call(self, prepared: Prepared) -> Any:
        """Call ``model.fit``; the result is awaitable if the client is asynchronous."""
        data = (prepared.X,) if prepared.y is None else (prepared.X, prepared.y)
        return self.model.fit(*data, **{**self.fit_kwargs, **prepared.fit_kwargs})

    @contextmanager
    def explained(self, prepared: Prepared) -> Iterator[None]:
        """Add to an error of the fit what ``prepare`` has done."""
        try:
            yield
        except Exception as error:
            text = (
                "clustertune had prepared the data: "
                f"{printable('; '.join(headlines(prepared.report)))}. "
                "clustertune.last_report(client) has the report"
            )
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(text)
            else:
                logger.warning("the fit failed; %s", text)
            raise

    @contextmanager
    def equipped(self, prepared: Prepared) -> Iterator[None]:
        """Set the model's client, and for the fit its parameters."""
        step: Any = last_step(self.model)[1]
        if _client_of(step, self.client) is self.client:
            step.client = self.client
        needed = prepared.estimator_params
        own = self.model.get_params() if needed else {}
        try:
            if needed:
                self.model.set_params(**needed)
            with self.client.as_current():
                yield
        finally:
            if needed:
                self.model.set_params(**{name: own[name] for name in needed})

    @contextmanager
    def verifying(self) -> Iterator[None]:
        """Note moved data; raise if rows have changed.

        The model is fitted, so a failure to look at the cluster must not end the call.
        """
        try:
            yield
        except LayoutChanged as error:
            if error.rows_changed:
                changed = VerificationError(
                    f"rows changed during the fit: {error}. The model is fitted, but "
                    "perhaps on other rows; load the data again, and fit again"
                )
                changed.report = error.report
                raise changed from error
            self._note(f"data moved during the fit: {error}")
        except Exception as error:  # noqa: BLE001, noted in the report
            self._note(f"the data could not be verified after the fit: {error!r}")

    def _note(self, text: str) -> None:
        self.notes.append(printable(text))
        logger.warning("%s", self.notes[-1])

    def finished(self, prepared: Prepared) -> Any:
        """Return the model with its report."""
        report, measures = prepared.report, prepared.hold.measures
        held = [str(measures)] if measures else []  # None: the client is closed
        if prepared.n_threads is not None:
            threads = plural(prepared.n_threads, "thread")
            held.insert(0, f"one worker of each host trained, with {threads}")
        notes = (*report.notes, *held, *self.notes)
        values = {f.name: getattr(report, f.name) for f in fields(report)}
        self.model.clustertune_report_ = FitReport(**values | {"notes": notes})
        return self.model


def _fit(work: _Work, prepared: Prepared) -> Any:
    with work.explained(prepared), prepared:
        with work.equipped(prepared):
            work.call(prepared)
        with work.verifying():
            prepared.verify(settle=False)
    return work.finished(prepared)


async def _fit_async(work: _Work, preparing: Awaitable[Prepared]) -> Any:
    prepared = await preparing
    with work.explained(prepared):
        async with prepared:
            with work.equipped(prepared):
                await work.call(prepared)
            with work.verifying():
                await prepared.verify(settle=False)
    return work.finished(prepared)


def fit(client: Client, model: Any, X: Any, y: Any = None, **options: Any) -> Any:
    """Prepare the cluster and the data, fit a model, and verify the data afterwards.

    This is ``prepare`` and ``model.fit`` in one call. Workers and adaptive scaling are
    held during the fit, and the history notes the run. X and y remain usable. If they
    are lazy, each call loads them again: call :func:`clustertune.prepare` once before
    several fits.

    XGBoost trains faster in one process with all threads of a host than in several. If
    each host has several equal workers, the data is placed on one of them, as far as
    the predicted memory of the fit allows, and ``n_jobs`` is set to the threads of all
    during the fit. To train on all workers, set ``n_jobs`` yourself, or name the
    workers in ``workers``. :func:`clustertune.prepare` places the data on all workers
    again.

    Parameters
    ----------
    client
        A connected client. With an asynchronous client the call is awaited; only
        XGBoost's models can be fitted with one.
    model
        An estimator for Dask collections: of XGBoost, LightGBM, dask-ml or dask-glm, or
        a pipeline that ends with one. It is fitted in place, like by ``model.fit``.
        Parameters that the prepared data needs are set during the fit only. An XGBoost
        model without a client keeps this client.
    X, y
        The data, as of :func:`clustertune.prepare`.
    **options
        Companions and options of :func:`clustertune.prepare`: ``sample_weight``,
        ``qid``, ``group``, ``base_margin``, ``init_score``, ``eval_set``,
        ``n_workers``, ``workers``, ``restart``, ``merge_workers``, ``rechunk``,
        ``on_low_memory``, ``progress``, ``timeout``. The time limit is that of the
        preparation; the fit itself has none.

        All others go to ``model.fit``, such as ``verbose=False``. Companions of eval
        sets can have the library's names, such as ``sample_weight_eval_set``. In a
        pipeline, arguments of a step begin with its name: ``step__verbose=False``.

    Returns
    -------
    estimator
        ``model``, fitted. ``model.clustertune_report_`` has the report of the
        preparation. Its notes have time and memory of the fit, and data that moved
        meanwhile. A pickle of the model has the report as text.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong, or the library cannot fit with this client; nothing was
        changed.
    VerificationError
        Rows were lost or changed during the fit. The model is fitted, but perhaps on
        other rows.
    ClustertuneError
        The data could not be prepared; see :func:`clustertune.prepare`.
    Exception
        The error of ``model.fit``, unchanged. From Python 3.11 on it has a note about
        the preparation. :func:`clustertune.last_report` has the report.

    Examples
    --------
    >>> model = xgboost.dask.DaskXGBClassifier()                    # doctest: +SKIP
    >>> clustertune.fit(client, model, X, y)                        # doctest: +SKIP
    >>> print(model.clustertune_report_)                            # doctest: +SKIP
    """
    calling.check_client(client)
    libraries.refuse_fit(model, asynchronous=client.asynchronous)
    _refuse_client(client, model)
    names = libraries.eval_arguments(model)
    companions = {n: options.pop(n) for n in names if n in options}
    eval_set = inputs.with_companions(options.pop("eval_set", None), companions, names)
    own, rest = _divided(model, options)
    all_workers = own.get("workers") is None and own.get("n_workers") is None
    per_host = all_workers and libraries.can_use_host(model)
    with calling.assigned(calling.one_per_host, per_host):
        prepared: Any = prepare(client, X, y, eval_set=eval_set, estimator=model, **own)
    work = _Work(client, model, rest)
    return (_fit_async if client.asynchronous else _fit)(work, prepared)
