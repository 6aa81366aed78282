"""The state of the dashboard page, made only while readers ask for it.

Memory, threads, events and the holders of prepared keys are current. Thresholds, rows
of partitions and findings come from a client's last message, with their age. The
structure is described in :mod:`clustertune.dashboard.state`, which the scheduler cannot
import.

Any client may log events of topic ``clustertune``. Values of a wrong type are left out.
Texts stay untrusted: the page escapes them.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic, time
from typing import Any

from clustertune.core.wording import bytes_text, seconds_text
from clustertune.remote.keys import Places, count, in_turns, unpack
from clustertune.remote.scheduler.lease import TOPIC
from clustertune.remote.scheduler.state import by_name, id_of, is_lost, training_workers

MAX_FINDINGS = 200
MAX_EVENTS = 100
COUNT_INTERVAL = 10.0  # seconds between two counts of holders
MAX_AGE = 0.5  # seconds for which readers get the same state
THRESHOLDS = ("target", "spill", "pause", "terminate")
MOST_KEYS = 200_000  # of collections whose holders are counted
MAX_TEXT = 2000  # characters of one text
#: results of operations, restarts and schedules that are failures
FAILURES = ("failed", "hold lost", "lease lost", "left", "lost", "refused")


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

    def keep(self, facts: Mapping[str, Any]) -> None:
        """Replace earlier facts by those of a client; absent entries stay.

        The entries are ``workers`` (thresholds by address), ``collections`` and
        ``findings``.
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

    async def look(self) -> dict[str, Any]:
        """The current page state, with counted rows; no readers, no state."""
        if monotonic() - self.made_at >= MAX_AGE:
            self._count_soon(monotonic())
            if self.counting is not None and not self.counted:
                await asyncio.wait([self.counting])
        if monotonic() - self.made_at >= MAX_AGE:  # no other reader has made it
            self.latest, self.made_at = self._make(), monotonic()
        return self.latest

    def _make(self) -> dict[str, Any]:
        now, known = time(), self.facts.get("workers", {})
        return {
            "time": now,
            "scheduler": self.scheduler.address,
            "trouble": "",
            "workers": [_worker(ws, known, now) for ws in _shown(self.scheduler)],
            "collections": self.counted,
            "findings": self.facts.get("findings"),
            "events": self._events(),
            "fits": self.plugin.fits.listed(),
        }

    def _events(self) -> list[dict[str, Any]]:
        logged = _event_rows(self.scheduler.get_events(TOPIC))
        holders = [*self.plugin.holds.active(), self.plugin.lease.holder()]
        held = [
            {"time": h["since"], "kind": "held", "text": f"held for {h['label']}"}
            for h in filter(None, holders)
        ]
        waiting = _scheduled(self.plugin.schedules.listed())
        return sorted([*logged, *held, *waiting], key=lambda e: e["time"])

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
                "workers": [w["id"] for w in counted["workers"]],
                "held": [w["rows"] for w in counted["workers"]],
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
            lost += rows[partition] * any(is_lost(scheduler, key) for key in keys)
            continue
        nbytes, whole = found
        apart += not whole
        home = max(nbytes, key=lambda ws: nbytes[ws])
        held_rows[home] += rows[partition]
        held_partitions[home] += 1
    # other workers are former processes or parking workers
    parked = held_rows.total() - sum(held_rows[ws] for ws in workers)
    alike, trainers = layout["alike"], layout.get("trainers")
    claims = [
        0
        if ws.status.name != "running"
        or (trainers is not None and id_of(ws) not in trainers)
        else 1
        if alike
        else ws.nthreads
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
        "workers": [
            {
                "id": id_of(ws),
                "rows": held_rows[ws],
                "partitions": held_partitions[ws],
                "due": every * claim / all_claims,
            }
            for ws, claim in zip(workers, claims, strict=True)
        ],
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


def _worker(ws: Any, known: Mapping[str, Any], now: float) -> dict[str, Any]:
    """A worker, with its thresholds if they are known."""
    memory = ws.memory
    return {
        "id": id_of(ws),
        "address": ws.address,
        "host": ws.host,
        "status": ws.status.name,
        "silent": max(0.0, now - ws.last_seen),
        "threads": ws.nthreads,
        "limit": ws.memory_limit or 0,
        "process": memory.process,
        "managed": memory.managed,
        "spilled": memory.spilled,
        "thresholds": known.get(ws.address, [None] * len(THRESHOLDS)),
    }


# --- events ---------------------------------------------------------------------------


def _scheduled(schedules: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Waiting restarts: at their next time, or as soon as the cluster is idle."""
    for one in schedules:
        if one["state"] not in ("waiting", "running"):
            continue
        why = one["waits"]
        condition = " if needed" if one["if_needed"] else ""
        text = f"restart between runs{condition}, by {one['owner']}: {one['state']}"
        text += f" ({why})" if why else ""
        at = one["now"] if one["is_due"] else one["instants"][0]
        yield {"time": at, "kind": "scheduled", "text": text[:MAX_TEXT]}


def _event_rows(logged: Iterable[tuple[float, Any]]) -> list[dict[str, Any]]:
    """Logged events as text; an event with state began is shown when it ends."""
    rows: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
    for at, event in logged:
        if type(event) is not dict:
            continue
        fields = {k: v for k, v in event.items() if type(k) is str and _is_plain(v)}
        if type(fields.get("action")) is str and fields.get("state") != "began":
            rows.append({"time": at, "kind": _kind(fields), "text": _text(fields)})
    return list(rows)


def _is_plain(value: Any) -> bool:
    """Whether a value is a text with content, or a number but 0 and NaN."""
    if type(value) is str:
        return value != ""
    return type(value) in (int, float) and 0 < abs(value) < 2**63


def _kind(event: Mapping[str, Any]) -> str:
    ends = {event.get(name) for name in ("action", "state", "status")}
    broken = event.get("error") or (event.get("problem") and "ended" in ends)
    return "failed" if broken or not ends.isdisjoint(FAILURES) else "done"


def _text(event: Mapping[str, Any]) -> str:
    """An event as text: its action, then its summary, or its fields in their order."""
    action = event["action"]
    if action == "schedule":  # each change of its state is an event
        action = f"schedule {event.get('state')}"
    fields = [_field(name, event[name]) for name in event if name not in _HIDDEN]
    text = str(event.get("summary") or ", ".join(fields))
    return f"{action}: {text}"[:MAX_TEXT]


def _field(name: str, value: Any) -> str:
    if name in ("status", "outcome", "problem", "error"):
        return str(value)
    if name in ("nbytes", "seconds") and type(value) is not str and value > 0:
        return bytes_text(value) if name == "nbytes" else seconds_text(value)
    return f"{name} {value}"[:MAX_TEXT]


_HIDDEN = ("action", "state", "client", "time", "pid", "doing", "direct")
