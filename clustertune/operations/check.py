"""``check``: find problems that slow down or break training, and change nothing.

It looks once, asks workers and scheduler for more details, and runs all checks. Its
only change is the installation of the scheduler plugin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

from distributed import Client

from clustertune import checks
from clustertune.actions.cluster.live import LiveCluster, LookOptions
from clustertune.collections import contents, inputs
from clustertune.core import arguments, settings
from clustertune.core.model import Goal, View
from clustertune.core.report import Report
from clustertune.core.wording import seconds_text
from clustertune.errors import IncompleteError, TimedOutError
from clustertune.integrations import libraries
from clustertune.monitor import inquiry, monitor
from clustertune.monitor.connection import sync
from clustertune.operations import journal as journals
from clustertune.operations.call import Call, check_client, stuck_workers
from clustertune.operations.journal import states_of
from clustertune.planner import layouts, plan, suitability
from clustertune.remote.ending import within

COUNT_SECONDS = 5.0  # for tasks that count rows of spilled partitions


def check(
    client: Client,
    X: Any = None,
    y: Any = None,
    *others: Any,
    estimator: object = None,
    workers: Sequence[str | int] | None = None,
    deep: bool = False,
    timeout: str | float = "1 minute",
    **companions: Any,
) -> Report:
    """Check a cluster and data for problems that slow down or break training.

    Parameters
    ----------
    client, X, y, *others
        As for :func:`clustertune.prepare`. Without X only the cluster is checked. Lazy
        data is not loaded.
    estimator
        The model, or the name of a workload; it determines the needs of the data.
    workers
        Names or addresses of the workers that will train.
    deep
        Also read the values of all data, in one computation: missing labels, categories
        that differ between partitions; if the estimator needs them, classes that a
        worker lacks and split groups.
    timeout
        Seconds, or a duration such as ``"30s"``. At the limit, the report has what is
        known by then, and names workers that do not answer.
    **companions
        ``sample_weight``, ``qid``, ``group``, ``base_margin``, ``init_score`` and
        ``eval_set``, as for :func:`clustertune.prepare`.

    Returns
    -------
    Report
        ``found`` has the findings, worst first, each with evidence and remedy. It
        prints, has ``to_json()``, and displays as HTML in a notebook.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong.
    ConnectionLostError, VersionMismatchError
        The cluster cannot be reached; the text gives the reason.
    NoWorkersError
        The data cannot be read with ``deep=True``.
    TimedOutError
        Not even the workers could be read within the time limit.

    Examples
    --------
    >>> print(clustertune.check(client, X, y, estimator=model))     # doctest: +SKIP
    """
    given = inputs.gather(X, y, *others, **companions, optional=True)
    check_client(client, given)
    profile = libraries.choose(estimator)
    inputs.refuse_groups(given, profile)
    fractions = settings.fractions()
    call = Call(
        client=client,
        name="check",
        given=given,
        goal=Goal(
            workload=profile,
            model_given=not isinstance(estimator, str | None),
            training_eval_sets=inputs.evaluated(given),
            tolerance=fractions["tolerance"],
            memory_fraction=fractions["memory_fraction"],
        ),
        workers=arguments.names("workers", workers),
        timeout=arguments.duration("timeout", timeout),
        dry_run=True,
        progress=False,
    )
    is_deep = arguments.flag("deep", deep)
    found: Report = sync(client, diagnose, call, deep=is_deep)
    return found


async def diagnose(call: Call, *, deep: bool) -> Report:
    """Look, read details, and run all checks.

    At the time limit, the report has what is known by then.
    """
    configured, start = checks.configured(), monotonic()
    seen: list[View] = []
    try:
        await within(see(call, seen, deep=deep), call.timeout)
    except asyncio.TimeoutError:
        limit = seconds_text(call.timeout)
        causes = await stuck_workers(call.client, call.timeout)
        why = "; ".join([f"within {limit}", *(f.message for f in causes)])
        remedies = [f.remedy for f in causes]
        remedy = " ".join(remedies) or "Give `clustertune.check` a longer `timeout`."
        if not seen:
            text = f"the check did not finish {why}. {remedy}"
            raise TimedOutError(text) from None
        seen.append(replace(seen[-1], unread=(why, remedy)))
    except IncompleteError as error:  # the checks of the workers show why
        if not seen:
            raise
        seen.append(replace(seen[-1], unread=(f"because {error}", "")))
    view = suitability.chosen(seen[-1])
    found = (*checks.run(view, configured), *plan.unmet_goals(view))
    # for the dashboard page and the metrics
    facts = journals.page_facts(view, found)
    left = max(1.0, call.timeout - (monotonic() - start))
    with suppress(asyncio.TimeoutError):  # the caller still gets the report
        await within(monitor.ask(call.client, "report", facts=facts), left)
    return Report(
        status="checked",
        seconds=monotonic() - start,
        call="check",
        found=found,
        before=tuple(layouts.summarize(layout, view) for layout in view.layouts),
        workers=states_of((view,)),
    )


async def see(call: Call, seen: list[View], *, deep: bool) -> None:
    """Append the view of the cluster, then of its data, then of the data's values."""
    client, end = call.client, monotonic() + call.timeout
    cluster = LiveCluster(
        client,
        call.given,
        call.goal,
        lambda: end - monotonic(),
        options=LookOptions(task_seconds=COUNT_SECONDS),
    )
    await cluster.open(call.workers, needs=())
    alone, _ = await monitor.look(client, [])
    alone = await inquiry.with_details(client, alone)
    runs = await inquiry.past_runs(client)
    seen.append(View(snapshots=(alone,), goal=cluster.goal, layouts=(), runs=runs))
    if not tuple(call.given):
        return
    view = await cluster.look(lambda *_: None)
    details = {w.address: w.details for w in alone.workers}
    now = monitor.with_values(view.now, "details", details, inquiry.NO_DETAILS)
    now = replace(now, survey=alone.survey)
    seen.append(replace(view, snapshots=(now,), runs=runs))
    if deep:
        seen.append(await _read(call, cluster, seen[-1]))


async def _read(call: Call, cluster: LiveCluster, view: View) -> View:
    """The view with a summary of the values of the data."""
    failures: dict[str, Mapping[int, str]] = {}
    found = await contents.read(
        call.client,
        call.given,
        await cluster.data.futures(),
        contents.of_everything(
            call.given, whole_groups=call.goal.workload.whole_groups
        ),
        view,
        approved=monitor.known(call.client).addresses,
        failures=failures,
    )
    read = tuple(contents.with_contents(x, found, failures) for x in view.layouts)
    return replace(view, layouts=read)
