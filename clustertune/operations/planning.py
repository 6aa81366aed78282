"""Plan now and carry it out later, if things are still as they were: a file in between.

Carrying out is the same call that was planned; what it sees and means to do is compared
with the plan before anything is done, and looked at again before each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from clustertune.core import arguments, report
from clustertune.core.model import Finding, Notify, Plan, Restart, Severity, Step, View
from clustertune.core.report import Report
from clustertune.core.wording import plural, printable, workers_text
from clustertune.errors import ChangedError, RefusedError
from clustertune.monitor import monitor
from clustertune.operations import approval, calls, entrance, events
from clustertune.operations.planfile import LONGEST, StoredPlan
from clustertune.planner import guards, verification

HOUR = "1 hour"
MOST = 3  # differences that are said
GROWS = ("adapt", "scale")  # actions after which there may be other workers
PUBLISH = "publish"  # a step that follows from the others


# --- the public calls -----------------------------------------------------------------


def plan(
    client: Client,
    verb: str,
    *names: str,
    expires: str | float = HOUR,
    progress: bool | Notify | None = None,
    **options: Any,
) -> StoredPlan:
    """Plan a call without making it; the plan can be kept as a file.

    Nothing is changed. What comes is what the call's ``dry_run`` reports, with what it
    was made from: the scheduler, its workers, and the keys, sizes and places of data.
    :func:`clustertune.apply` carries it out.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    verb
        What to plan: ``"prepare"``, ``"restart"``, ``"resize"``, ``"scale"``,
        ``"trim"`` or ``"release"``.
    *names
        For ``"prepare"`` the names of published data sets, the first of which is X, the
        second y; for ``"release"`` prefixes of keys.
    expires
        Seconds, or a duration, for which the plan may be carried out.
    progress
        As for :func:`clustertune.prepare`.
    **options
        Of the function with that name, as plain data: ``workers=[3]``,
        ``n_workers=4``, ``workload="xgboost"``; for ``"prepare"`` companions and eval
        sets by their published names, and ``keep_old``.

    Returns
    -------
    StoredPlan
        Printable; ``.save(path)`` writes it to a file.

    Raises
    ------
    TypeError, ValueError
        There is no such verb or option, or a value cannot be kept in a file.
    ClustertuneError
        As of the call with ``dry_run=True``.

    Examples
    --------
    >>> p = clustertune.plan(client, "restart", workers=[3])     # doctest: +SKIP
    >>> p.save("plan.json")                                      # doctest: +SKIP
    """
    call = calls.checked(verb, names, options)
    seconds = arguments.duration("expires", expires)
    if seconds > LONGEST:
        raise ValueError(f"expires={expires!r} must be at most a year")
    entrance.check_client(client)
    made: StoredPlan = client.sync(_plan, client, call, seconds, progress)
    return made


def apply(
    client: Client,
    plan: StoredPlan | str | Path,
    *,
    dry_run: bool = False,
    progress: bool | Notify | None = None,
) -> Report:
    """Carry out a plan, if the cluster and the data are still as it saw them.

    The call that was planned is made. It looks and plans again first, and stops, with
    nothing done, where that differs from the plan; before each step it looks again,
    and stops where a worker has gone, come or been restarted by somebody else, or
    where the step would not be safe any more. What ``prepare`` could not know before
    data was loaded or cut is planned then, as in every call of it.

    Parameters
    ----------
    client
        A connected client, synchronous or asynchronous (then the call is awaited).
    plan
        What :func:`clustertune.plan` returned, or the file that it was saved to.
    dry_run
        Only say whether it could be carried out now.
    progress
        As for :func:`clustertune.prepare`.

    Returns
    -------
    Report
        As of the call that was planned.

    Raises
    ------
    OSError, ValueError
        The file cannot be read, or is no plan.
    RefusedError
        The plan is too old, was edited, or is of another cluster; nothing was done.
    ChangedError
        Things have changed; the text says what, ``error.report`` what was done before.
    ClustertuneError
        As of the call that was planned.

    Examples
    --------
    >>> clustertune.apply(client, "plan.json")                   # doctest: +SKIP
    """
    stored = plan if isinstance(plan, StoredPlan) else StoredPlan.load(plan)
    dry = arguments.flag("dry_run", dry_run)
    entrance.check_client(client)
    done: Report = client.sync(_apply, client, stored, dry, progress)
    return done


# --- planning -------------------------------------------------------------------------


@dataclass
class _Recorder:
    """Keeps what the plan was made from; approves of everything."""

    view: View | None = None

    def plan(self, view: View, _found: tuple[Finding, ...], _plan: Plan) -> None:
        if self.view is None:
            self.view = view

    def step(self, _view: View, step: Step) -> None:
        raise AssertionError(f"a dry run does nothing, and was to {step.summary}")


async def _plan(
    client: Client,
    call: calls.Call,
    seconds: float,
    progress: bool | Notify | None,
) -> StoredPlan:
    identity = await monitor.identify(client)
    recorder = _Recorder()
    with approval.asking(recorder):
        found = await call.make(client, dry_run=True, progress=progress)
    assert recorder.view is not None
    made = recorder.view.now.time
    return StoredPlan(
        made=made,
        expires=made + seconds,
        by=events.who(),
        reason=events.why() or "",
        call=call,
        seen=verification.fingerprint(str(identity["id"]), recorder.view),
        report=found,
    )


# --- carrying out ---------------------------------------------------------------------


async def _apply(
    client: Client,
    stored: StoredPlan,
    dry_run: bool,
    progress: bool | Notify | None,
) -> Report:
    identity = await monitor.identify(client)
    refuse_other(stored, str(identity["id"]), str(identity["address"]))
    seen = stored.seen
    if seen.overhead is not None:
        # measured anew it would be another number, and pieces might be cut otherwise
        workers = frozenset(w.address for w in seen.workers if w.status == "running")
        monitor.known(client).overhead = (seen.overhead, workers)
    because = events.why() or stored.reason or None
    with (
        approval.asking(Comparison(stored)),
        events.because(because),
    ):
        try:
            return await stored.call.make(client, dry_run=dry_run, progress=progress)
        # it could be asked for when it was planned: a worker, or a data set, is gone
        except (TypeError, ValueError) as error:
            text = printable(str(error), longest=500)
            raise ChangedError(
                f"what was planned cannot be asked for any more: {text}; plan again"
            ) from error


def refuse_other(stored: StoredPlan, scheduler: str, address: str) -> None:
    """Raise if the plan was made for another scheduler, by id (pure).

    Raises
    ------
    RefusedError
        It was; or for this one before it was started again.
    """
    if stored.seen.scheduler == scheduler:
        return
    was = printable(stored.seen.address)
    if stored.seen.address == address:
        raise RefusedError(
            f"the scheduler at {was} was started again since the plan was made, or is "
            "that of another cluster: it has nothing of what the plan saw; plan again"
        )
    raise RefusedError(
        f"the plan is of another cluster: it was made for {was}, and this is "
        f"{printable(address)}; give that address, or plan again"
    )


class Comparison:
    """Compares what is seen and meant to be done with a plan; pure but for its memory.

    Parameters
    ----------
    stored
        The plan.
    """

    def __init__(self, stored: StoredPlan):
        self.stored = stored
        self._begun = False
        # by id, the addresses of workers; None: of one that a step has restarted
        self._workers: dict[str | int, str | None] = {
            w.id: w.address for w in stored.seen.workers
        }
        self._leaving: set[str | int] = set()  # ids that need not be there
        self._grows = False  # others may come

    def plan(self, view: View, found: tuple[Finding, ...], plan: Plan) -> None:
        """The first plan is the stored one; later ones follow from what was done.

        Raises
        ------
        ChangedError
            It is not, or workers are not those that are left by what was done.
        RefusedError
            The stored plan has expired, by the scheduler's clock.
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
        """What may be done was asked of the guards when it was planned; now again.

        Raises
        ------
        ChangedError
            A guard forbids it, or workers are not those that are to be there.
        """
        self._refuse_workers(view)
        refused = guards.refusal(step, view)
        if refused is not None:
            raise _changed([f"{step.summary}: {refused.reason}"], "stopped before it")
        self._expect(step)

    def _differences(self, view: View, found: tuple[Finding, ...]) -> Iterator[str]:
        was = self.stored.seen
        yield from verification.differences(
            was, verification.fingerprint(was.scheduler, view)
        )
        known = {f.check for f in self.stored.report.found if _critical(f)}
        for finding in found:
            if _critical(finding) and finding.check not in known:
                yield f"found now: {finding.message}"

    def _expect(self, step: Step) -> None:
        """What this step changes of workers is no change by somebody else."""
        if step.action in GROWS:
            self._grows = True
        elif isinstance(step.args, Restart):
            self._workers[step.args.id] = None
            if step.args.retire:
                self._leaving.add(step.args.id)

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


def _critical(finding: Finding) -> bool:
    return finding.severity is Severity.critical


def _other_steps(stored: StoredPlan, plan: Plan) -> Iterator[str]:
    """In what the steps differ that are planned now."""
    planned = [s for s in stored.steps if s.status == "planned"]
    was = [(s.action, s.summary) for s in planned if s.action != PUBLISH]
    now = [(s.action, s.summary) for s in report.planned(plan) if s.status == "planned"]
    if was == now:
        return
    lacking = [text for action, text in was if (action, text) not in now]
    added = [text for action, text in now if (action, text) not in was]
    refused = {r.step.summary: r.reason for r in plan.refused}
    for text in lacking:
        why = f": {refused[text]}" if text in refused else ""
        yield f"not to be done any more: {text}{why}"
    for text in added:
        yield f"to be done now: {text}"
    if not (lacking or added):
        yield "the steps have another order now"


def _changed(changed: Sequence[str], done: str) -> ChangedError:
    more = f"; and {plural(len(changed) - MOST, 'more change')}"
    text = printable("; ".join(changed[:MOST])) + (more if changed[MOST:] else "")
    return ChangedError(
        f"things have changed since the plan was made, and {done}: {text}; plan again"
    )
