"""``plan`` and ``apply``: plan a call, and make it later if nothing has changed.

``apply`` makes the planned call. Before the first step it compares what the call sees
and plans with the stored plan. Before each step it looks at the cluster again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from clustertune.core import arguments, counts
from clustertune.core.model import Finding, Notify, Plan, Restart, Severity, Step, View
from clustertune.core.report import Report
from clustertune.core.wording import plural, printable, workers_text
from clustertune.errors import ChangedError, RefusedError
from clustertune.monitor import monitor
from clustertune.monitor.connection import sync
from clustertune.operations import event_log, planfile
from clustertune.operations.call import Approval, approval, assigned, check_client
from clustertune.operations.planfile import LONGEST, StoredPlan
from clustertune.planner import guards, verification

HOUR = "1 hour"
MOST = 3  # differences in a message
GROWS = ("adapt", "scale")  # actions that may add workers
PUBLISH = "publish"  # a step that follows from the others


# --- the public calls -----------------------------------------------------------------


def make_plan(
    client: Client,
    verb: str,
    *names: str,
    expires: str | float = HOUR,
    progress: bool | Notify | None = None,
    **options: Any,
) -> StoredPlan:
    """Plan a call without making it; the plan can be saved as a file.

    Nothing is changed. The plan contains the report of the call's ``dry_run`` and a
    fingerprint of the scheduler, its workers, and the keys, sizes and holders of the
    data. :func:`clustertune.apply_plan` carries it out.

    Parameters
    ----------
    client, progress
        As for :func:`clustertune.prepare`.
    verb
        The call to plan: ``"prepare"``, ``"restart"``, ``"resize"``, ``"merge"``,
        ``"scale"``, ``"trim"`` or ``"release"``.
    *names
        For ``"prepare"`` the names of published data sets: X, y, others. For
        ``"release"`` prefixes of keys.
    expires
        Seconds, or a duration, until the plan expires.
    **options
        Options of the function with that name, as plain data: ``workers=[3]``,
        ``n_workers=4``, ``estimator="xgboost"``. For ``"prepare"``, companions and eval
        sets are given by their published names; ``keep_old`` is allowed, too.

    Returns
    -------
    StoredPlan
        Printable; ``.save(path)`` writes it to a file.

    Raises
    ------
    TypeError, ValueError
        The verb or an option is unknown, or a file cannot contain a value.
    ClustertuneError
        As for the call with ``dry_run=True``.

    Examples
    --------
    >>> p = clustertune.make_plan(client, "restart", workers=[3])     # doctest: +SKIP
    >>> p.save("plan.json")                                      # doctest: +SKIP
    """
    call = planfile.checked(verb, names, options)
    seconds = arguments.duration("expires", expires)
    if seconds > LONGEST:
        raise ValueError(f"expires={expires!r} must be at most a year")
    check_client(client)
    made: StoredPlan = sync(client, _plan, client, call, seconds, progress)
    return made


def apply_plan(
    client: Client,
    plan: StoredPlan | str | Path,
    *,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
) -> Report:
    """Carry out a plan if the cluster and the data have not changed since.

    The planned call looks and plans again. If the result differs from the plan,
    ``apply`` raises before the first step. Before each step it looks again. It stops if
    a worker left, joined or was restarted by another client, or if the step is not
    safe. ``prepare`` plans further steps after data was loaded or rechunked.

    Parameters
    ----------
    client, progress
        As for :func:`clustertune.prepare`.
    plan
        The plan that :func:`clustertune.make_plan` returned, or the path of its file.
    dry_run
        Only check whether the plan can be carried out.

    Returns
    -------
    Report
        The report of the planned call.

    Raises
    ------
    OSError, ValueError
        The file cannot be read, or is not a plan.
    RefusedError
        The plan has expired, was edited, or belongs to another cluster. Nothing was
        changed.
    ChangedError
        The cluster or the data have changed. ``error.report`` has the completed steps.
    ClustertuneError
        As for the planned call.

    Examples
    --------
    >>> clustertune.apply_plan(client, "plan.json")                   # doctest: +SKIP
    """
    stored = plan if isinstance(plan, StoredPlan) else StoredPlan.load(plan)
    dry = arguments.flag("dry_run", dry_run)
    check_client(client)
    done: Report = sync(client, _apply, client, stored, dry, progress)
    return done


# --- planning -------------------------------------------------------------------------


@dataclass
class _Recorder(Approval):
    """Keeps the first view; approves every plan."""

    view: View | None = None

    def plan(self, view: View, found: tuple[Finding, ...], plan: Plan) -> None:  # noqa: ARG002
        self.view = self.view or view

    def step(self, view: View, step: Step) -> None:  # noqa: ARG002
        raise AssertionError(f"a dry run began a step: {step.summary}")


async def _plan(
    client: Client,
    call: planfile.PlannedCall,
    seconds: float,
    progress: bool | Notify | None,
) -> StoredPlan:
    identity = await monitor.identify(client)
    recorder = _Recorder()
    with assigned(approval, recorder):
        found = await call.make(client, dry_run=True, progress=progress)
    assert recorder.view is not None
    made = recorder.view.now.time
    return StoredPlan(
        made=made,
        expires=made + seconds,
        by=event_log.user(),
        reason=event_log.change_reason() or "",
        call=call,
        seen=verification.fingerprint(str(identity["id"]), recorder.view),
        report=found,
    )


# --- carrying out ---------------------------------------------------------------------


async def _apply(
    client: Client, stored: StoredPlan, dry_run: bool, progress: bool | Notify | None
) -> Report:
    identity = await monitor.identify(client)
    refuse_other(stored, str(identity["id"]), str(identity["address"]))
    seen = stored.seen
    if seen.overhead is not None:
        # another measurement could lead to other partitions
        workers = frozenset(w.address for w in seen.workers if w.status == "running")
        monitor.known(client).overhead = (seen.overhead, workers)
    because = event_log.change_reason() or stored.reason or None
    with (
        assigned(approval, Comparison(stored)),
        assigned(event_log.task_reason, because),
    ):
        try:
            return await stored.call.make(client, dry_run=dry_run, progress=progress)
        # the arguments were valid when the plan was made: a worker or data set is gone
        except (TypeError, ValueError) as error:
            text = printable(str(error), longest=500)
            raise ChangedError(
                f"the plan does not apply: {text}; plan again"
            ) from error


def refuse_other(stored: StoredPlan, scheduler: str, address: str) -> None:
    """Raise if the plan was made for another scheduler, by id (pure)."""
    if stored.seen.scheduler == scheduler:
        return
    was = printable(stored.seen.address)
    if stored.seen.address == address:
        raise RefusedError(
            f"the scheduler at {was} was restarted after the plan was made, or another "
            "cluster uses its address; plan again"
        )
    raise RefusedError(
        f"the plan belongs to another cluster: it was made for {was}, and this is "
        f"{printable(address)}; give the address {was}, or plan again"
    )


class Comparison(Approval):
    """Compares views and plans of a call with a stored plan; pure, but has a state."""

    def __init__(self, stored: StoredPlan):
        self.stored = stored
        self._begun = False
        # addresses of workers by id; None: a step has restarted the worker
        self._workers: dict[str | int, str | None] = {
            w.id: w.address for w in stored.seen.workers
        }
        self._leaving: set[str | int] = set()  # ids of workers that a step retires
        self._grows = False  # whether a step may add workers

    def plan(self, view: View, found: tuple[Finding, ...], plan: Plan) -> None:
        """Compare the first plan; later ones follow from completed steps.

        Raises
        ------
        ChangedError
            The plan differs, or other workers exist than the steps explain.
        RefusedError
            The stored plan has expired by the scheduler's clock.
        """
        if self._begun:
            self._refuse_workers(view)
            return
        self._begun = True
        self.stored.refuse_expired(view.now.time)
        changed = [*self._differences(view, found), *_other_steps(self.stored, plan)]
        if changed:
            raise _changed(changed, "nothing was done")

    def step(self, view: View, step: Step) -> None:
        """Ask the guards again before a step."""
        self._refuse_workers(view)
        refused = guards.refusal(step, view)
        if refused is not None:
            raise _changed([f"{step.summary}: {refused.reason}"], "stopped before it")
        # the step will change these workers
        if step.action in GROWS:
            self._grows = True
        elif isinstance(step.args, Restart):
            self._workers[step.args.id] = None
            if step.args.retire:
                self._leaving.add(step.args.id)

    def _differences(self, view: View, found: tuple[Finding, ...]) -> Iterator[str]:
        was = self.stored.seen
        now = verification.fingerprint(was.scheduler, view)
        yield from verification.differences(was, now)
        worst = Severity.critical
        known = {f.check for f in self.stored.report.found if f.severity is worst}
        for finding in found:
            if finding.severity is worst and finding.check not in known:
                yield f"new finding: {finding.message}"

    def _refuse_workers(self, view: View) -> None:
        there = {w.id: w.address for w in view.now.workers if not w.parking}
        gone = [id for id in self._workers if id not in {*there, *self._leaving}]
        new = [id for id in there if id not in self._workers and not self._grows]
        known = {id: a for id, a in self._workers.items() if a is not None}
        again = [id for id in known if id in there and there[id] != known[id]]
        changed = [
            f"{workers_text(ids)}: {what}"
            for ids, what in ((gone, "gone"), (new, "new"), (again, "restarted"))
            if ids
        ]
        if changed:
            raise _changed(changed, "stopped before the next step")


def _other_steps(stored: StoredPlan, plan: Plan) -> Iterator[str]:
    """How the steps of a plan differ from those of the stored one."""
    planned = [s for s in stored.steps if s.status == "planned"]
    was = [(s.action, s.summary) for s in planned if s.action != PUBLISH]
    now = [(s.action, s.summary) for s in counts.planned(plan) if s.status == "planned"]
    if was == now:
        return
    refused = {r.step.summary: f": {r.reason}" for r in plan.refused}
    lost = [text for action, text in was if (action, text) not in now]
    added = [text for action, text in now if (action, text) not in was]
    yield from (f"step not planned any more: {t}{refused.get(t, '')}" for t in lost)
    yield from (f"new step: {text}" for text in added)
    if not (lost or added):
        yield "the steps have another order"


def _changed(changed: Sequence[str], done: str) -> ChangedError:
    more = f"; and {plural(len(changed) - MOST, 'more change')}"
    text = printable("; ".join(changed[:MOST])) + (more if changed[MOST:] else "")
    return ChangedError(
        f"the cluster or the data changed after the plan was made, and {done}: {text}; "
        "plan again"
    )
