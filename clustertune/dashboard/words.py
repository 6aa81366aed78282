"""What the panel says in words: verdict, findings, hosts, before and after."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from clustertune.core.wording import plural, seconds_text
from clustertune.dashboard import looks
from clustertune.dashboard.state import State, imbalance, is_over, total, verdict

MOST_HOSTS = 12  # of more, those with the most threads for a CPU
MOST_FINDINGS = 50

SIGNS = {"critical": "&#9650;", "warning": "&#9670;", "info": "&#9679;"}


class Said:
    """HTML that follows from the state alone."""

    figures: tuple[Any, ...] = ()

    def __init__(self, say: Callable[[State], str]) -> None:
        self.say = say
        self.root = looks.html()
        self.roots = (self.root,)

    def update(self, state: State) -> None:
        """Show another state."""
        self.root.text = self.say(state)


def verdict_line(state: State) -> str:
    """Whether a fit can begin, or why not, and the cluster in a line."""
    level, words = verdict(state)
    head, colon, rest = words.partition(":")
    where = looks.text(f"{state['scheduler']}: {total(state['workers'])}")
    return (
        f'<div class="verdict {level.replace(" ", "-")}"><b>{looks.text(head)}</b>'
        f"{colon}{looks.text(rest)}<small>{where}</small></div>"
    )


def findings(state: State) -> str:
    """What was found last, how long ago, and the command that looks again."""
    found = state["findings"]
    if found is None:
        return (
            "<h2>Findings</h2><p>No check has been run here yet; "
            "<code>clustertune check</code> runs all of them.</p>"
        )
    age = seconds_text(max(0.0, state["time"] - found["time"]))
    head = (
        f"<h2>Findings <span class='soft'>of {age} ago; look again with "
        f"<code>{looks.text(found['command'])}</code></span></h2>"
    )
    if not found["found"]:
        return f"{head}<p>Nothing was found.</p>"
    return head + found_table(found["found"], frozenset(state["workers"]["address"]))


def found_table(
    found: Sequence[Mapping[str, Any]], there: Collection[str] | None = None
) -> str:
    """A table of findings of a page state, and addresses of the workers there are."""
    rows = [
        (
            _severity(f["severity"]),
            looks.text(f["check"]),
            looks.text(f["message"], 1000) + _over(f, there),
            looks.text(f["evidence"], 1000),
            looks.with_code(f["remedy"]),
        )
        for f in found[:MOST_FINDINGS]
    ]
    head = ("severity", "check", "what was found", "evidence", "remedy")
    more = len(found) - MOST_FINDINGS
    others = plural(more, "more finding")
    rest = f"<p class='soft'>and {others}</p>" if more > 0 else ""
    return looks.table(head, rows, "kkwww") + rest


def _over(finding: Mapping[str, Any], there: Collection[str] | None) -> str:
    if there is None or not is_over(finding, there):
        return ""
    ended = "it has" if len(finding["processes"]) == 1 else "they have"
    return f" <span class='soft'>({ended} ended since)</span>"


def _severity(name: str) -> str:
    known = name if name in SIGNS else "unknown"
    return f'<span class="{known}">{SIGNS.get(known, "?")} {looks.text(name)}</span>'


def hosts(state: State) -> str:
    """Threads of workers beside the CPUs that they may use, by host."""
    found = state["hosts"]
    rows = list(
        zip(*(found[n] for n in ("host", "workers", "threads", "cpus")), strict=True)
    )
    if not rows:
        return ""
    rows.sort(key=lambda row: -_load(row))
    cells = [
        (
            looks.text(host, looks.NAME),
            f"{workers:,}",
            f"{threads:,}",
            "unknown" if cpus is None else f"{cpus:.3g}",
            _beside(threads, cpus),
        )
        for host, workers, threads, cpus in rows[:MOST_HOSTS]
    ]
    more = len(rows) - MOST_HOSTS
    rest = f"<p class='soft'>and {more:,} more hosts</p>" if more > 0 else ""
    head = ("host", "workers", "threads", "usable CPUs", "")
    title = "<h2>Threads and CPUs of hosts</h2>"
    return title + looks.table(head, cells, " nnn ") + rest


def _load(row: Any) -> float:
    _, _, threads, cpus = row
    return float(threads) / cpus if cpus else 0.0


def _beside(threads: int, cpus: float | None) -> str:
    if cpus is None:
        return ""
    if threads > cpus * 1.05:
        return '<span class="warning">&#9670; more threads than CPUs</span>'
    if threads < cpus * 0.95:
        return '<span class="soft">CPUs without a thread</span>'
    return "one each"


def prepared(state: State) -> str:
    """What was done last, with before and after where rows moved."""
    last = state["prepared"]
    if last is None:
        return (
            "<h2>Done last</h2><p class='soft'>Nothing was done by clustertune "
            "since its scheduler started.</p>"
        )
    lines = "".join(f"<p>{looks.text(line, 1000)}</p>" for line in last["lines"])
    rows = [*_summaries("before", last["before"]), *_summaries("after", last["after"])]
    head = (
        "", "collection", "rows", "pieces", "pairs apart",
        "fullest, of its share", "empty workers",
    )  # fmt: skip
    tables = looks.table(head, rows, "k nnnnn") if rows else ""
    return f"<h2>Done last</h2>{lines}{tables}"


def _summaries(when: str, layouts: Iterable[Any]) -> Iterable[tuple[str, ...]]:
    for x in layouts:
        fullest = x["imbalance"] or imbalance(x["workers"])
        yield (
            when,
            looks.text(x["label"]),
            _figure(x["rows"]),
            _figure(x["pieces"]),
            _figure(x["separated"]),
            "unknown" if fullest is None else f"{fullest:.2f}",
            _figure(sum(r == 0 for r in x["workers"]["rows"])),
        )


def _figure(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"
