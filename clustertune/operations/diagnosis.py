"""``check``: everything that stands between a cluster and a fast, safe training run.

Looks once, asks workers and scheduler for what a look does not show, and runs all
checks. Nothing is loaded, moved or changed but that the resident is installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from distributed import Client

from clustertune import checks
from clustertune.actions.cluster.live import LiveCluster
from clustertune.collections import contents, inputs
from clustertune.core import arguments
from clustertune.core.model import Finding, Goal, View
from clustertune.core.report import Report
from clustertune.core.wording import seconds_text
from clustertune.errors import TimedOutError
from clustertune.integrations import libraries
from clustertune.monitor import inquiry, monitor
from clustertune.operations import entrance, handover
from clustertune.planner import layouts, suitability
from clustertune.remote.survey import MOST

CUT = (
    f"the scheduler has more than {MOST:,} clients, published names or kinds of tasks; "
    f"only {MOST:,} of each were looked at"
)


def check(
    client: Client,
    X: Any = None,
    y: Any = None,
    *others: Any,
    sample_weight: Any = None,
    qid: Any = None,
    group: Any = None,
    base_margin: Any = None,
    init_score: Any = None,
    eval_set: Any = None,
    estimator: object = None,
    workload: str | None = None,
    workers: Sequence[str | int] | None = None,
    tolerance: float = 0.05,
    memory_fraction: float = 0.7,
    deep: bool = False,
    timeout: str | float = "1 minute",
) -> Report:
    """Say what is wrong with a cluster, and with data on it, before a fit.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    X, y, *others, sample_weight, qid, group, base_margin, init_score, eval_set
        The data of the fit, as for :func:`clustertune.prepare`; without it the cluster
        alone is looked at. Data that is not loaded stays so.
    estimator, workload
        What will train; it decides what is wrong.
    workers
        Names or addresses: those that are to train.
    tolerance, memory_fraction
        As for :func:`clustertune.prepare`.
    deep
        Read all of the data too, in one computation, for what only its values tell:
        labels that are lacking, classes that a worker lacks, groups that are cut,
        categories that differ between pieces.
    timeout
        Seconds, or a duration such as ``"30s"``.

    Returns
    -------
    Report
        Its ``found`` are the findings, worst first, each with evidence and remedy.
        Printable; ``to_json()``; shows itself in a notebook.

    Raises
    ------
    TypeError, ValueError
        An argument is not what it must be.
    ConnectionLostError, VersionMismatchError
        The cluster cannot be looked at; the text says why.
    NoWorkersError, IncompleteError
        With ``deep=True``: the data cannot be read.
    TimedOutError
        The time was over.

    Examples
    --------
    >>> print(clustertune.check(client, X, y, estimator=model))     # doctest: +SKIP
    """
    companions = {
        "sample_weight": sample_weight,
        "qid": qid,
        "group": group,
        "base_margin": base_margin,
        "init_score": init_score,
    }
    rest = (y, *others, *companions.values(), eval_set)
    if X is None and any(data is not None for data in rest):
        raise TypeError("X is None but other data is given; give X too")
    given = (
        inputs.NOTHING
        if X is None
        else inputs.gather(X, y, others, companions, eval_set)
    )
    entrance.check_client(client, given)
    question = Question(
        client=client,
        given=given,
        goal=Goal(
            workload=libraries.choose(workload, estimator),
            evaluated=inputs.evaluated(given),
            tolerance=arguments.fraction("tolerance", tolerance, zero=True),
            memory_fraction=arguments.fraction("memory_fraction", memory_fraction),
        ),
        workers=arguments.names("workers", workers),
        deep=arguments.flag("deep", deep),
        timeout=arguments.duration("timeout", timeout),
    )
    found: Report = client.sync(diagnose, question)
    return found


@dataclass(frozen=True, kw_only=True)
class Question:
    """A call of ``check``, its arguments checked."""

    client: Client
    given: inputs.Inputs
    goal: Goal
    workers: tuple[str | int, ...] | None
    deep: bool = False
    timeout: float


async def diagnose(question: Question) -> Report:
    """Look, ask, and run all checks."""
    settings, start = checks.configured(), monotonic()
    try:
        view = await asyncio.wait_for(see(question), question.timeout)
    except asyncio.TimeoutError:
        raise TimedOutError(
            "the cluster could not be looked at within "
            f"{seconds_text(question.timeout)}; give a longer timeout, or "
            "see what keeps its scheduler"
        ) from None
    view = suitability.chosen(view)
    found = checks.run(view, settings)
    # for the panel, and for restarts that are scheduled and depend on them
    told = handover.facts(view, found)
    await monitor.ask(question.client, "keep_facts", facts=told, diagnosis=True)
    return _report(view, found, monotonic() - start)


async def see(question: Question) -> View:
    """The view of a diagnosis: one look, details of all sides, past runs."""
    start = monotonic()

    def remaining() -> float:
        return start + question.timeout - monotonic()

    cluster = LiveCluster(question.client, question.given, question.goal, remaining)
    await cluster.open(question.workers, needs=())
    view = await cluster.look(lambda *_: None)
    snapshot = await inquiry.with_details(question.client, view.now)
    runs = await inquiry.past_runs(question.client)
    view = replace(view, snapshots=(snapshot,), runs=runs)
    return await _read(question, cluster, view) if question.deep else view


async def _read(question: Question, cluster: LiveCluster, view: View) -> View:
    """The view with what the values of the data are like."""
    futures = await cluster.futures()
    looks = contents.of_everything(question.given)
    found = await contents.read(
        question.client,
        question.given,
        futures,
        looks,
        [w.address for w in view.now.workers],
        approved=monitor.known(question.client).addresses,
    )
    layouts = tuple(contents.with_contents(x, found) for x in view.layouts)
    return replace(view, layouts=layouts)


def _report(view: View, found: tuple[Finding, ...], seconds: float) -> Report:
    return Report(
        status="looked",
        seconds=seconds,
        found=found,
        before=tuple(layouts.summarize(layout, view) for layout in view.layouts),
        notes=() if view.now.survey is None or view.now.survey.complete else (CUT,),
    )
