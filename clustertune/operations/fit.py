"""``fit``: prepare, hold the workers, fit a model, and verify the data afterwards.

The model is fitted in place, as by its own ``fit``. It is not cloned: scikit-learn's
``clone`` cannot copy LightGBM's models with a client, and it forgets XGBoost's client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from inspect import Parameter
from time import monotonic
from typing import Any

from dask.base import unpack_collections
from distributed import Client

from clustertune.collections import inputs
from clustertune.core import arguments
from clustertune.core.progress import Progress
from clustertune.core.report import FitReport
from clustertune.core.sections import headlines
from clustertune.core.wording import plural, printable, seconds_text
from clustertune.errors import ClustertuneError, IncompleteError, VerificationError
from clustertune.integrations import libraries
from clustertune.integrations.libraries.boosting import (
    Attempt,
    Checkpoint,
    Continuation,
)
from clustertune.integrations.libraries.workload import assign, last_step, parameters
from clustertune.monitor.connection import no_shuffle_logs, sync
from clustertune.operations.call import check_client
from clustertune.operations.checkpoints import (
    Callbacks,
    CheckpointFile,
    facts_of,
    refuse_unstorable,
)
from clustertune.operations.prepare import Options, prepare, prepare_data
from clustertune.operations.prepared import Prepared
from clustertune.operations.surviving import FitWatch, Loss
from clustertune.remote.worker.rounds import Reports

logger = logging.getLogger("clustertune")

#: arguments with one value per feature, so they are not prepared with the rows
PER_FEATURE = {"feature_weights"}
#: options of prepare that apply to another attempt too; n_workers= could not be reached
AGAIN = ("workers", "rechunk", "on_low_memory", "progress", "timeout")
EVERY = 30.0  # seconds between two checkpoints
#: note of a fit on one worker of each host
BUSY_HOSTS = "if other programs use its CPUs, all workers in workers= can be faster"
#: parameters of ``prepare`` that ``fit`` gives itself
GIVEN = (
    *("client", "X", "y", "others", "estimator"),
    *("persist", "release_inputs", "dry_run"),
)


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
        of_eval_sets = "eval" in name and any(n in name for n in inputs.NAMES)
        if of_eval_sets or (not known and unpack_collections(value)[0]):
            raise ValueError(
                f"{name}= has rows, which would not be prepared with those of X; give "
                f"{', '.join(inputs.COMPANIONS)} by these names, and those of eval "
                'sets as eval_set=[(X_valid, y_valid, {"sample_weight": w_valid})]'
            )
    return prepared, rest


def _refuse_client(client: Client, model: Any) -> None:
    """Refuse a model that has another client."""
    prefix, step = last_step(model)
    theirs = _client_of(step, client)
    if isinstance(theirs, Client) and theirs is not client:
        name = "estimator[-1]" if prefix else "estimator"
        raise ValueError(
            f"{name} has another client, which cannot use the data of client=; call "
            f"clustertune.fit again after {name}.client = client"
        )


def _client_of(step: Any, client: Client) -> Any:
    """Return the client of an estimator; XGBoost's is the current one if not set."""
    with client.as_current():
        return getattr(step, "client", None)


# --- the fit --------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Work:
    """The model of a fit, what it needs, and what was lost."""

    client: Client
    model: Any
    fit_kwargs: Mapping[str, Any]
    options: Mapping[str, Any]  # of prepare
    max_failures: float
    every: float | None  # seconds between two checkpoints; None: none are made
    file: CheckpointFile | None
    progress: Progress
    checkpoint: Checkpoint | None = None
    per_host: bool = False  # train on one worker of each host
    attempts: list[Prepared] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    lost_at: float = 0.0  # monotonic time of the last loss
    begins: list[str] = field(default_factory=list)  # how each attempt began
    placement: Mapping[str, Any] = field(default_factory=dict)  # of the first attempt
    digests: dict[Any, str] = field(default_factory=dict)  # of partitions, by key
    compared: bool = True  # whether all digests were known after each loss
    notes: list[str] = field(default_factory=list)

    @cached_property
    def continuation(self) -> Continuation | None:
        return libraries.continuation(self.model)

    @cached_property
    def step(self) -> tuple[str, Any]:
        """The prefix of arguments of the last step of a pipeline, and that step."""
        return last_step(self.model)

    # --- one attempt ------------------------------------------------------------------

    def drop_copies(self) -> None:
        """Release copies of the caller's data; its own partitions stay in place.

        Each watch refers to this object. So the garbage collector alone would release
        partitions that the fit has loaded.
        """
        for prepared in self.attempts:
            prepared.drop_copies()
        self.attempts.clear()

    def watch(self, prepared: Prepared) -> FitWatch:
        """Watch the workers of the prepared data during the block of ``prepared``."""
        self.attempts.append(prepared)
        rounds = None
        if self.continuation is not None:
            rounds = self.continuation.rounds(self.step[1], self._own_kwargs())
        prepared.watch = watch = FitWatch(
            self.client,
            rounds=rounds,
            workers=prepared.members,
            notify=self.progress.notify,
            keep=None if self.file is None else self._keep,
        )
        if not self.placement:
            self.placement = prepared.placement
        self.begins.append(self._begin(prepared))
        return watch

    def _begin(self, prepared: Prepared) -> str:
        """Return where an attempt begins, and after which time since a loss."""
        rounds = self.checkpoint.rounds if self.checkpoint else 0
        text = f"resumed from round {rounds:,}" if rounds else "trained from the start"
        if not self.losses:
            return text
        seconds = seconds_text(monotonic() - self.lost_at)
        text += f" after {seconds} on {plural(len(prepared.addresses), 'worker')}"
        again = self.attempts[-2].held_only_by(self.losses[-1].emptied)
        return text + f"; {plural(again, 'partition')} computed again" * bool(again)

    async def _keep(self, checkpoint: Checkpoint) -> None:
        assert self.file is not None
        await asyncio.to_thread(self.file.write, checkpoint)

    def _own_kwargs(self) -> dict[str, Any]:
        prefix, _ = self.step
        own = {k: v for k, v in self.fit_kwargs.items() if k.startswith(prefix)}
        return {k.removeprefix(prefix): v for k, v in own.items()}

    def _attempt(self, prepared: Prepared) -> Attempt:
        """Return what continues the training in this attempt, without the prefix."""
        if self.continuation is None or prepared.watch is None:
            return Attempt(attributes={}, fit_kwargs={})
        reports = Reports(prepared.watch.name, prepared.watch.rounds, self.every)
        callbacks = Callbacks(self.client, self.continuation, reports)
        return self.continuation.attempt(
            self.step[1], self._own_kwargs(), callbacks, self.checkpoint
        )

    @contextmanager
    def equipped(self, prepared: Prepared) -> Iterator[Callable[[], Any]]:
        """Set the client and parameters of the model for an attempt.

        Yields the call of ``model.fit``.
        """
        prefix, step = self.step
        if _client_of(step, self.client) is self.client:
            step.client = self.client
        attempt = self._attempt(prepared)
        needed = {
            name.removeprefix(prefix): value
            for name, value in prepared.estimator_params.items()
        } | dict(attempt.attributes)
        data = (prepared.X,) if prepared.y is None else (prepared.X, prepared.y)
        kwargs = {**self.fit_kwargs, **prepared.fit_kwargs}
        kwargs |= {f"{prefix}{name}": x for name, x in attempt.fit_kwargs.items()}
        former = assign(step, needed)
        try:
            with self.client.as_current(), prepared.bound(), no_shuffle_logs():
                yield partial(self.model.fit, *data, **kwargs)
        finally:
            assign(step, former)

    @contextmanager
    def explained(self, prepared: Prepared) -> Iterator[None]:
        """Add to an error of the fit what ``prepare`` has done."""
        try:
            yield
        except Exception as error:
            text = (
                "clustertune had prepared the data: "
                f"{printable('; '.join(headlines(prepared.report)))}. "
                "clustertune.last_report(client) has the last report: of that, or of a "
                "later restart"
            )
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(text)
            else:
                logger.warning("the fit failed; %s", text)
            raise

    @contextmanager
    def verifying(self) -> Iterator[None]:
        """Note moved data; raise if rows have changed.

        The model is fitted, so a failure to look at the cluster must not end the call.
        """
        try:
            yield
        except VerificationError as error:
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

    # --- after a loss -----------------------------------------------------------------

    def refuse(self, loss: Loss | None, error: Exception) -> None:
        """Raise the error of an attempt, unless another attempt follows."""
        if loss is None:
            raise error
        self.losses.append(loss)
        self.lost_at = loss.at
        self.checkpoint = loss.checkpoint or self.checkpoint
        if len(self.losses) > self.max_failures:
            raise IncompleteError(f"{loss}. {self._advice()}") from error
        logger.warning("%s; the fit continues", loss)
        self.progress.notify(f"{loss}; the fit continues", None)

    @contextmanager
    def naming_loss(self) -> Iterator[None]:
        """Add the last loss to an error that follows from it."""
        try:
            yield
        except (ClustertuneError, ValueError) as error:
            if self.losses:
                error.args = (f"{self.losses[-1]}; then {error}",)
            raise

    def _advice(self) -> str:
        if self.max_failures:
            return (
                f"max_failures={self.max_failures:g} was reached. Find out why workers "
                "leave, then fit again"
            )
        return (
            "Training cannot go on without lost workers. Fit again, with "
            "max_failures=2 to continue after such a loss"
        )

    def again(self, prepared: Prepared) -> Any:
        """Prepare the same data again."""
        named = {name: getattr(prepared, name) for name in inputs.COMPANIONS}
        if prepared.group is not None:
            named |= {"qid": None, "group": prepared.group}
        options = dict(self.options)
        # ids, because a restarted worker has another address
        workers = self.attempts[0].named_workers
        if workers is not None:
            gone = frozenset[str | int]().union(*(loss.gone for loss in self.losses))
            options["workers"] = list(workers - gone)
            if not options["workers"]:
                raise IncompleteError(
                    "none of the workers in workers= is left. Start them again, or "
                    "name other workers; then fit again"
                )
        named["eval_set"] = prepared.eval_set or None
        given = inputs.gather(prepared.X, prepared.y, *prepared.others, **named)
        options |= {"estimator": self.model, "one_per_host": self.per_host}
        terms = Options(placement=self.placement, **options)
        return prepare_data(self.client, given, terms)

    async def compare(self, prepared: Prepared) -> None:
        """Refuse other data than that of the checkpoint, or of the last attempt.

        If a source gives other values each time, labels of partitions that were
        computed again may be wrong. A note has the number of partitions whose values
        are unknown.
        """
        if self.file is not None and len(self.attempts) == 1:
            for problem in self.file.compare(await prepared.samples()):
                self._note(problem)
        if not self.max_failures:
            return
        # new partitions have other keys than the old ones, of which they are made
        former = self.attempts[:-1]
        now = await prepared.digests(former)
        changed = [k for k, d in now.items() if self.digests.get(k, d) != d]
        if changed:
            raise IncompleteError(
                f"{plural(len(changed), 'partition')} of the data had to be computed "
                f"again, and {printable(str(changed[0]), longest=80)} has other values "
                "now: the source gives other values each time, such as random numbers "
                "without a seed. Load the data from files or with a seed, then fit"
            )
        known = now.keys() & self.digests.keys()
        keys = frozenset[Any]().union(*(p.partition_keys for p in former))
        if unknown := len(keys - known):
            self.compared = False
            self._note(
                f"the values of {plural(unknown, 'partition')} could not be compared "
                "with those before the loss: workers had them on disk, or did not "
                "answer, or their type is unknown"
            )
        self.digests |= now

    # --- the end ----------------------------------------------------------------------

    def _note(self, text: str) -> None:
        self.notes.append(printable(text))
        logger.warning("%s", self.notes[-1])

    def finished(self, prepared: Prepared) -> Any:
        """Return the model with its report."""
        if self.continuation is not None and self.checkpoint is not None:
            self.continuation.finish(self.step[1], self.checkpoint)
        if self.file is not None and (problem := self.file.remove()):
            self._note(problem)
        report, every = prepared.report, [p.hold.measures for p in self.attempts]
        several = len(every) > 1
        held = [
            f"attempt {number}: {one}" if several else str(one)
            for number, one in enumerate(every, 1)
            if one  # None: the client is closed
        ]
        if prepared.n_threads is not None:
            threads = plural(prepared.n_threads, "thread")
            held[:0] = [f"one worker of each host trained, with {threads}", BUSY_HOSTS]
        notes = (*report.notes, *held, *self._account(), *self.notes)
        values = {f.name: getattr(report, f.name) for f in fields(report)}
        self.model.clustertune_report_ = FitReport(**values | {"notes": notes})
        self.progress.finish(self._account())
        return self.model

    def _account(self) -> list[str]:
        """Return what was lost, and whether the model is as without the losses."""
        first, *others = self.begins
        if not self.losses:
            return [first] if self.checkpoint else []
        pairs = zip(self.losses, others, strict=True)
        texts = [f"{loss}; {begin}" for loss, begin in pairs]
        texts[-1] += f"; identical to an uninterrupted fit: {self._identity()}"
        return texts

    def _identity(self) -> str:
        """Return whether the model is as without the losses, and why not."""
        if any(prepared.placement != self.placement for prepared in self.attempts):
            return "no, since rows are on other workers"
        if len({prepared.n_threads for prepared in self.attempts}) > 1:
            return "unknown, since a worker trained with other threads"
        if self.continuation is None:
            return "unknown, since the training began again and may draw at random"
        why = self.continuation.difference(
            self.step[1], continued=self.checkpoint is not None
        )
        if why:
            return f"no, since {why}"
        if self.file is not None and self.file.data is not None:
            return "unknown, since its first rounds are of another call"
        return "yes" if self.compared else "unknown, since not all values were compared"


def _attempts(work: _Work, prepared: Prepared) -> Any:
    while True:
        loss: Loss | None = None
        watch = work.watch(prepared)
        with work.explained(prepared), prepared:
            with work.naming_loss():
                sync(work.client, work.compare, prepared)
            try:
                with work.equipped(prepared) as fit_model:
                    sync(work.client, watch.turn)
                    fit_model()
            except Exception as error:  # noqa: BLE001, raised unless a worker was lost
                loss = sync(work.client, prepared.lost, error)
                work.refuse(loss, error)
            else:
                with work.verifying():
                    sync(work.client, prepared.verified)
        if loss is None:
            return work.finished(prepared)
        with work.naming_loss():
            prepared = work.again(prepared)


def fit(
    client: Client,
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    max_failures: int = 0,
    checkpoint_every: str | float | None = None,
    checkpoint_path: str | None = None,
    **options: Any,
) -> Any:
    """Prepare the cluster and the data, fit a model, and verify the data afterwards.

    This is ``prepare`` and ``estimator.fit`` in one call. Workers and adaptive scaling
    are held during the fit, and the history notes the run. X and y remain usable. If
    they are lazy, each call loads them again: call :func:`clustertune.prepare` once
    before several fits.

    XGBoost trains faster in one process with all threads of a host than in several. If
    each host has several equal workers, the data is placed on one of them, as far as
    the predicted memory of the fit allows, and ``n_jobs`` is set to the threads of all
    during the fit. To train on all workers, set ``n_jobs`` or ``workers`` yourself.

    Parameters
    ----------
    client
        A connected client, synchronous: the ``fit`` of most libraries waits for Dask.
    estimator
        An estimator for Dask collections: of XGBoost, LightGBM, dask-ml or dask-glm, or
        a pipeline that ends with one. It is fitted in place, as by ``estimator.fit``.
        Parameters that the prepared data needs are set during the fit only. An XGBoost
        estimator without a client keeps this client.
    X, y
        The data, as of :func:`clustertune.prepare`.
    max_failures
        How often training continues after it lost workers; -1: without a limit. It
        continues from the last checkpoint if the library is XGBoost or LightGBM,
        otherwise from the start, on the workers that are there. 0: a loss is an error.
    checkpoint_every
        Seconds, or a duration, between two checkpoints, which the scheduler keeps; 30 s
        by default. Only with ``max_failures`` or ``checkpoint_path``.
    checkpoint_path
        Path or URL of a file for the checkpoints, so that a later call with the same
        path continues the training. The file is removed at the end of the training. A
        file of other parameters, columns or data, or another first model, is an error.
    **options
        Companions and options of :func:`clustertune.prepare`: ``sample_weight``,
        ``qid``, ``group``, ``base_margin``, ``init_score``, ``eval_set``,
        ``n_workers``, ``workers``, ``restart``, ``merge_workers``, ``rechunk``,
        ``on_low_memory``, ``progress``, ``timeout``. The time limit is that of the
        preparation; the fit itself has none.

        All others go to ``estimator.fit``, such as ``verbose=False``. In a pipeline,
        arguments of a step begin with its name: ``step__verbose=False``.

    Returns
    -------
    estimator
        The same object, fitted. ``estimator.clustertune_report_`` has the report of the
        preparation. Its notes have time and memory of the fit, and data that moved
        meanwhile. A pickle of the model has the report as text.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong, or the library cannot fit with this client; nothing was
        changed.
    OSError
        ``checkpoint_path`` cannot be written; nothing was changed.
    IncompleteError
        A worker of the fit left, and ``max_failures`` was reached. The other workers
        are free, and data that can be computed again is complete. Or data was lost with
        a worker, or was computed again with other values.
    VerificationError
        Rows were lost or changed during the fit. The model is fitted, but perhaps on
        other rows.
    ClustertuneError
        The data could not be prepared; see :func:`clustertune.prepare`.
    Exception
        The error of ``estimator.fit``, unchanged. From Python 3.11 on it has a note
        about the preparation, whose report :func:`clustertune.last_report` returns if
        no worker was restarted since.

    Examples
    --------
    >>> model = xgboost.dask.DaskXGBClassifier()                    # doctest: +SKIP
    >>> clustertune.fit(client, model, X, y)                        # doctest: +SKIP
    >>> print(model.clustertune_report_)                            # doctest: +SKIP
    """
    check_client(client)
    libraries.refuse_fit(estimator, asynchronous=client.asynchronous)
    _refuse_client(client, estimator)
    most = arguments.failures("max_failures", max_failures)
    path = arguments.file("checkpoint_path", checkpoint_path)
    stored, every = bool(most or path), EVERY
    if checkpoint_every is not None:
        every = arguments.duration("checkpoint_every", checkpoint_every)
        if not stored:
            raise TypeError(
                "checkpoint_every= is for fits with max_failures= or checkpoint_path=; "
                "others make no checkpoints"
            )
    if stored:
        companion_names = [
            name for name in inputs.COMPANIONS if options.get(name) is not None
        ]
        refuse_unstorable(estimator, path, companion_names)
    own, rest = _divided(estimator, options)
    all_workers = own.get("workers") is None and own.get("n_workers") is None
    per_host = all_workers and libraries.can_use_host(estimator)
    file = None
    if path is not None:
        file = CheckpointFile(path=path, about=facts_of(estimator, X, rest))
        file.refuse_unwritable()
    work = _Work(
        client=client,
        model=estimator,
        fit_kwargs=rest,
        options={name: own[name] for name in own if name in AGAIN},
        per_host=per_host,
        max_failures=most,
        every=every if stored else None,
        file=file,
        progress=Progress(own.get("progress")),
        checkpoint=None if file is None else file.read(),
    )
    data = (*inputs.NAMES, "eval_set")
    named = {name: own.pop(name) for name in data if name in own}
    given = inputs.gather(X, y, **named)
    terms = Options(estimator=estimator, one_per_host=per_host, **own)
    prepared: Any = prepare_data(client, given, terms)
    try:
        return _attempts(work, prepared)
    finally:
        work.drop_copies()
