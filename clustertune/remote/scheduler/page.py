"""The state of the dashboard page, made only while readers ask for it.

Memory, threads and the holders of prepared keys are current. Thresholds, CPUs, rows of
partitions and findings come from a client's last message, with their age. The structure
is described in :mod:`clustertune.dashboard.state`, which the scheduler cannot import.

Any client may log events of topic ``clustertune``. An event that is not built like
clustertune's own is skipped. Its texts stay untrusted: the page escapes them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic, time
from typing import Any

from clustertune.core.wording import bytes_text, seconds_text
from clustertune.remote.keys import Places, count, in_turns, unpack
from clustertune.remote.scheduler.lease import TOPIC
from clustertune.remote.scheduler.state import (
    by_name,
    id_of,
    is_gone,
    training_workers,
)

logger = logging.getLogger("distributed.clustertune")

MAX_FINDINGS = 200
MAX_EVENTS = 100
COUNT_INTERVAL = 10.0  # seconds between two counts of holders
MAX_AGE = 0.5  # seconds for which readers get the same state
THRESHOLDS = ("target", "spill", "pause", "terminate")
FAILED = ("problem", "error")
MOST_KEYS = 200_000  # of collections whose holders are counted
MAX_TEXT = 2000  # characters of one text
MAX_NUMBER = 2.0**63  # numbers


class PageData:
    """The page states of one scheduler."""

    def __init__(self, scheduler: Any, plugin: Any) -> None:
        self.scheduler = scheduler
        self.plugin = plugin
        self.facts: dict[str, Any] = {}
        self.keys: list[list[Sequence[Any]]] = []  # packed, by layout and member
        self.counted: list[dict[str, Any]] = []
        self.counted_at = 0.0  # monotonic time of the last count of holders
        self.counting: asyncio.Task[Any] | None = None
        self.latest: dict[str, Any] = {}
        self.made_at = 0.0  # monotonic time
        self.report = ""
        self.prepared: dict[str, Any] | None = None

    def keep(self, facts: Mapping[str, Any]) -> None:
        """Replace earlier facts by those of a client; absent entries stay.

        The entries are ``workers`` (thresholds by address), ``hosts`` (CPUs by host),
        ``collections`` and ``findings``.
        """
        kept = dict(facts)
        if "collections" in kept:
            given = kept["collections"]
            packed = [list(x.pop("members")) for x in given]
            if sum(count(runs) for x in packed for runs in x) > MOST_KEYS:
                packed, kept["collections"] = [], []
            self.keys, self.counted, self.counted_at = packed, [], 0.0
        if kept.get("findings"):
            kept["findings"]["found"] = kept["findings"]["found"][:MAX_FINDINGS]
        self.facts |= kept
        self.made_at = 0.0

    def close(self) -> None:
        """Cancel the count of holders."""
        if self.counting is not None:
            self.counting.cancel()

    def look(self) -> dict[str, Any]:
        """The current page state; without readers, no state is made."""
        now = monotonic()
        if now - self.made_at >= MAX_AGE:
            self.latest, self.made_at = self._make(), now
            self._count_soon(now)
        return self.latest

    def _make(self) -> dict[str, Any]:
        workers, now = _shown(self.scheduler), time()
        history = self.plugin.runs.totals
        return {
            "time": now,
            "scheduler": self.scheduler.address,
            "trouble": "",
            "workers": _workers(workers, self.facts.get("workers", {}), now),
            "hosts": _hosts(workers, self.facts.get("hosts", {})),
            "collections": self.counted,
            "findings": self.facts.get("findings"),
            "events": self._events(),
            "fits": self.plugin.fits.listed(),
            "history": _columns(("time", "process", "managed"), history),
            "prepared": self._last_report(),
        }

    # --- events -----------------------------------------------------------------------

    def _events(self) -> list[dict[str, Any]]:
        logged = _event_rows(self.scheduler.get_events(TOPIC))
        held = [
            {"time": h["since"], "kind": "held", "text": f"held for {h['label']}"}
            for h in self.plugin.holds.active()
        ]
        holder = self.plugin.lease.holder()
        if holder is not None:
            text = f"{holder['label']} is being carried out"
            held.append({"time": holder["since"], "kind": "held", "text": text})
        waiting = _scheduled(self.plugin.schedules.listed())
        return sorted([*logged, *held, *waiting], key=lambda e: e["time"])

    def _last_report(self) -> dict[str, Any] | None:
        """Before and after of the kept report; read once."""
        text = self.plugin.report
        if text and text is not self.report:
            self.report, self.prepared = text, _readable(text)
        return self.prepared

    # --- holders ----------------------------------------------------------------------

    def _count_soon(self, now: float) -> None:
        """Count holders in the background, if the last count is old."""
        running = self.counting is not None and not self.counting.done()
        if self.keys and not running and now - self.counted_at >= COUNT_INTERVAL:
            self.counted_at = now
            self.counting = asyncio.ensure_future(self._count())

    async def rows_now(self) -> list[dict[str, Any]]:
        """Names and rows of each layout, in memory now, by worker."""
        return [
            {
                "names": layout.get("names", [layout["label"]]),
                "rows": counted["rows"],
                "lost": counted["lost"],
                "workers": counted["workers"]["id"],
                "held": counted["workers"]["rows"],
                "parked": counted["parked"],
            }
            for layout, counted in await self._count()
        ]

    async def rows_of(self, keys: Sequence[Any]) -> list[int]:
        """Rows of each layout with one of these keys."""
        if not keys:
            return [0] * len(self._layouts())
        found = []
        for layout, members in zip(self._layouts(), list(self.keys), strict=False):
            rows, places = array("q", layout["rows"]), await Places.of(members)
            known = {places.get(key) async for key in in_turns(keys)}
            found.append(sum(rows[place] for place in known if place is not None))
        return found

    def _layouts(self) -> list[dict[str, Any]]:
        return list(self.facts.get("collections") or ())

    async def _count(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return each layout with its counts; keep them unless a client sent others."""
        keys = self.keys
        found = [
            (layout, await _count(self.scheduler, layout, members))
            for layout, members in zip(self._layouts(), keys, strict=True)
        ]
        if self.keys is keys:
            self.counted = [counted for _, counted in found]
        return found


async def _count(
    scheduler: Any, layout: Mapping[str, Any], members: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """Rows and partitions of a layout by worker, which holds most of their bytes."""
    workers = _shown(scheduler)
    rows = array("q", layout["rows"])
    held_rows, held_partitions = Counter[Any](), Counter[Any]()  # by worker
    apart = missing = lost = 0
    tasks = scheduler.tasks
    partitions = zip(*map(unpack, members), strict=True)
    async for partition, keys in in_turns(enumerate(partitions)):
        found = _holders(tasks, keys)
        if found is None:
            missing += 1
            lost += rows[partition] * any(is_gone(scheduler, key) for key in keys)
            continue
        nbytes, whole = found
        apart += not whole
        home = max(nbytes, key=lambda ws: nbytes[ws])
        held_rows[home] += rows[partition]
        held_partitions[home] += 1
    # other workers are former processes or parking workers
    parked = held_rows.total() - sum(held_rows[ws] for ws in workers)
    alike = layout["alike"]
    claims = [
        0 if ws.status.name != "running" else 1 if alike else ws.nthreads
        for ws in workers
    ]
    every, all_claims = sum(rows), max(1, sum(claims))
    return {
        "label": layout["label"],
        "partitions": len(rows),
        "rows": every,
        "apart": apart,
        "missing": missing,
        "lost": lost,
        "parked": parked,
        "counted": time(),
        "workers": {
            "id": [id_of(ws) for ws in workers],
            "rows": [held_rows[ws] for ws in workers],
            "partitions": [held_partitions[ws] for ws in workers],
            "due": [every * claim / all_claims for claim in claims],
        },
    }


def _holders(tasks: Mapping[Any, Any], keys: Iterable[Any]) -> Any:
    """Bytes of a partition by worker, and the workers that hold all of it.

    None if no worker holds one of its keys.
    """
    nbytes: dict[Any, int] = {}
    whole: set[Any] | None = None
    for key in keys:
        ts = tasks.get(key)
        if ts is None or not ts.who_has:
            return None
        for ws in ts.who_has:
            nbytes[ws] = nbytes.get(ws, 0) + ts.nbytes
        whole = set(ts.who_has) if whole is None else whole & set(ts.who_has)
    return nbytes, whole


# --- plain data -----------------------------------------------------------------------


def _shown(scheduler: Any) -> list[Any]:
    """Workers in the order of their names."""
    return sorted(training_workers(scheduler), key=lambda ws: by_name(ws.name))


def _workers(
    workers: Sequence[Any], known: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """Columns of all workers, with the known thresholds."""
    memory = [ws.memory for ws in workers]
    unknown = (None,) * len(THRESHOLDS)
    own = [known.get(ws.address, unknown) for ws in workers]
    return {
        "id": [id_of(ws) for ws in workers],
        "address": [ws.address for ws in workers],
        "host": [ws.host for ws in workers],
        "status": [ws.status.name for ws in workers],
        "silent": [max(0.0, now - ws.last_seen) for ws in workers],
        "threads": [ws.nthreads for ws in workers],
        "limit": [ws.memory_limit or 0 for ws in workers],
        "process": [m.process for m in memory],
        "managed": [m.managed for m in memory],
        "spilled": [m.spilled for m in memory],
    } | {name: [four[i] for four in own] for i, name in enumerate(THRESHOLDS)}


def _hosts(workers: Iterable[Any], cpus: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, list[int]] = {}
    for ws in workers:
        of_host = found.setdefault(ws.host, [0, 0])
        of_host[0] += 1
        of_host[1] += ws.nthreads
    rows = [(host, *counts, cpus.get(host)) for host, counts in found.items()]
    return _columns(("host", "workers", "threads", "cpus"), rows)


def _columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
    found = list(zip(*rows, strict=True)) or [()] * len(names)
    return {name: list(values) for name, values in zip(names, found, strict=True)}


def _event_rows(logged: Iterable[tuple[float, Any]]) -> list[dict[str, Any]]:
    """Logged events as text; an event with state began is shown when it ends."""
    latest = deque(well_formed(logged), maxlen=MAX_EVENTS)
    return [
        {"time": at, "kind": _kind(event), "text": _words(event)}
        for at, event in latest
        if event.get("state") != "began"
    ]


def _scheduled(schedules: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Waiting restarts: at their next time, or as soon as the cluster is idle."""
    for one in schedules:
        if one["state"] not in ("waiting", "running"):
            continue
        why = one["waits"].get("text") or one["waits"].get("for", "")
        condition = " if needed" if one["if_needed"] else ""
        text = f"restart between runs{condition}, by {one['owner']}: {one['state']}"
        text += f" ({why})" if why else ""
        at = next((t for t in one["instants"] if t > one["now"]), one["now"])
        yield {"time": at, "kind": "scheduled", "text": text[:MAX_TEXT]}


def _kind(event: Mapping[str, Any]) -> str:
    failed = event.get("action") == "failed" or any(event.get(n) for n in FAILED)
    return "failed" if failed else "did"


def _words(event: Mapping[str, Any]) -> str:
    """An event as text: its action, then its fields in their order."""
    texts = [
        _FIELD_TEXTS[name](value) if name in _FIELD_TEXTS else f"{name} {value}"
        for name, value in event.items()
        if name not in _HIDDEN_FIELDS and value
    ]
    texts += [step["summary"] for step in event.get("steps") or ()]
    action = event["action"]
    if action == "schedule":  # each change of its state is an event
        action = f"schedule {event.get('state')}"
    return f"{action}: {', '.join(texts)}"[:MAX_TEXT]


_HIDDEN_FIELDS = (
    "action", "state", "steps", "client", "time", "pid", "more_steps", "doing",
    "direct",
)  # fmt: skip


#: other fields are shown with their names
_FIELD_TEXTS: Mapping[str, Callable[[Any], str]] = {
    "keys": lambda n: f"{n} keys",
    "nbytes": bytes_text,
    "seconds": seconds_text,
    "lost": lambda n: f"{n} lost",
    "again": lambda n: f"{n} computed again",
    "address": lambda text: f"back as {text}",
    "status": str,
    "outcome": str,
    "detour": lambda why: f"keys moved through other workers, because {why}",
    "problem": str,
    "error": str,
}


def _readable(text: str) -> dict[str, Any] | None:
    """The shown part of a report, or None if this release cannot read it."""
    try:
        return _prepared(json.loads(text))
    # any client may send any text
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        logger.warning("clustertune cannot show the last report: %r", error)
        return None


def _prepared(report: Mapping[str, Any]) -> dict[str, Any]:
    """The shown part of a report, which some release of clustertune has made."""
    done = [s for s in report["steps"] if s["status"] in ("done", "partly")]
    lines = [f"{s['status']}: {s['summary']}" for s in done]
    lines += [report["error"]] if report["error"] else []
    return {
        "status": report["status"],
        "lines": [line[:MAX_TEXT] for line in lines] or [report["status"]],
        "before": [summary(x) for x in report["before"]],
        "after": [summary(x) for x in report["after"]],
    }


def summary(layout: Mapping[str, Any]) -> dict[str, Any]:
    """A layout of a report, with the due share of each worker."""
    shares = sorted(layout["workers"], key=lambda w: by_name(w["worker"]))
    due = [w["rows"] / w["share"] if w["share"] else 0.0 for w in shares]
    # workers without rows that should have some share the remaining rows
    empty = [i for i, w in enumerate(shares) if not w["rows"]]
    rest = (layout["rows"] or 0) - sum(due)
    for i in empty if rest >= 1 else ():
        due[i] = rest / len(empty)
    named = ("label", "partitions", "rows", "separated", "imbalance")
    return {name: layout[name] for name in named} | {
        "workers": {
            "id": [w["worker"] for w in shares],
            "rows": [w["rows"] for w in shares],
            "partitions": [w["partitions"] for w in shares],
            "due": due,
        }
    }


def well_formed(
    logged: Iterable[tuple[Any, Any]],
) -> Iterator[tuple[float, dict[str, Any]]]:
    """The time and the fields of each well-formed event; long texts are cut.

    Fields that clustertune logs have the type that it gives them. Other fields are
    texts or numbers; the rest is left out.
    """
    for at, event in logged:
        if type(event) is dict and _is_well_formed(event):
            yield float(at), {k: _cut(v) for k, v in event.items() if _is_field(k, v)}


def _is_well_formed(event: Mapping[Any, Any]) -> bool:
    return _is_name(event.get("action")) and all(
        event[name] is None or is_right(event[name])
        for name, is_right in FIELDS.items()
        if name in event
    )


def _is_field(name: Any, value: Any) -> bool:
    if type(name) is not str or len(name) > MAX_TEXT:
        return False
    return name in FIELDS or _is_text(value) or _is_number(value)


def _cut(value: Any) -> Any:
    return value[:MAX_TEXT] if type(value) is str else value


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_name(value: Any) -> bool:
    return _is_text(value) and 0 < len(value) <= 100


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -MAX_NUMBER < value < MAX_NUMBER  # so no NaN


def _are_steps(value: Any) -> bool:
    return type(value) in (list, tuple) and all(
        type(step) is dict and _is_text(step.get("summary")) for step in value
    )


#: fields of clustertune's own events that the page reads
FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "action": _is_name,
    "state": _is_name,
    "steps": _are_steps,
    "keys": _is_number,
    "nbytes": _is_number,
    "seconds": _is_number,
    "lost": _is_number,
    "again": _is_number,
    "address": _is_text,
    "status": _is_text,
    "outcome": _is_text,
    "problem": _is_text,
    "error": _is_text,
}
