"""A report as one HTML file, with figures, that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.models import Column, Row
from bokeh.resources import INLINE

from clustertune.dashboard import looks, page
from clustertune.dashboard.rows import Rows
from clustertune.dashboard.state import make
from clustertune.dashboard.words import found_table
from clustertune.model import Finding
from clustertune.remote.shares import summary
from clustertune.report import (
    MEMORY,
    LayoutSummary,
    Report,
    headlines,
    memory_rows,
    placements,
)
from clustertune.show import handover
from clustertune.show.shielding import policy
from clustertune.wording import bytes_text, cost_text, seconds_text

LISTED = 12
#: nothing is asked of any network, whatever text of a cluster is in it
POLICY = f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'
TEMPLATE = page.ALONE.replace(page.STYLE, POLICY + page.STYLE)
_WIDE: dict[str, Any] = {"sizing_mode": "stretch_width"}


def draw(report: Report) -> str:
    """The report as HTML that needs nothing besides."""
    placed = [_rows(when, found) for when, found in placements(report) if found]
    figures = [f for rows in placed for f in rows.figures]
    columns: list[Any] = [Column(children=list(rows.roots), **_WIDE) for rows in placed]
    parts: list[Any] = [
        _said(_headlines(report)),
        Row(children=columns, spacing=28, **_WIDE),
        _said(_findings("Found", report.found)),
        _said("" if report.left == report.found else _findings("Left", report.left)),
        _said(_steps(report)),
        _said(_memory(report)),
        _said(_forecast(report)),
    ]
    document = Document()
    document.js_on_event("document_ready", looks.theme(figures))
    document.add_root(Column(children=parts, stylesheets=[looks.GROUND], **_WIDE))
    return file_html(document, INLINE, "clustertune: report", template=TEMPLATE)


def _said(text: str) -> Any:
    made = looks.html()
    made.text = text
    return made


def _headlines(report: Report) -> str:
    bad = report.status in ("failed", "left")
    level = "not-ready" if report.status == "failed" else "usable" if bad else "ready"
    lines = "".join(f"<small>{looks.text(x, 1000)}</small>" for x in headlines(report))
    status = looks.text(report.status.capitalize())
    took = f"in {seconds_text(report.seconds)}"
    return f'<div class="verdict {level}"><b>{status}</b> {took}{lines}</div>'


def _rows(when: str, found: Sequence[LayoutSummary]) -> Rows:
    """Rows of the training data, as they were or are."""
    rows = Rows(f"Rows of the training data, {when}")
    layouts = []
    for x in found:
        told = summary(asdict(x))
        # of data that was not loaded nobody could say
        apart = {"apart": told["separated"] or 0, "missing": 0, "counted": 0.0}
        layouts.append(told | apart)
    rows.update(make(collections=layouts))
    return rows


def _findings(title: str, found: Sequence[Finding]) -> str:
    if not found:
        return ""
    return f"<h2>{title}</h2>{found_table(handover.findings(found))}"


def _steps(report: Report) -> str:
    if not report.steps:
        return ""
    rows = [
        (
            looks.text(s.status),
            looks.text(s.summary, 1000),
            cost_text(s.predicted_bytes, s.predicted_seconds),
            cost_text(s.nbytes, s.seconds),
            looks.text(s.gain, 1000),
            looks.text(s.reason, 1000),
        )
        for s in report.steps
    ]
    head = ("status", "step", "predicted", "took", "gain", "reason")
    return "<h2>Steps</h2>" + looks.table(head, rows, "kwkkww")


def _memory(report: Report) -> str:
    """Of the workers that were trimmed or restarted."""
    rows = [[looks.text(cell) for cell in row] for row in memory_rows(report)]
    if not rows:
        return ""
    return "<h2>Memory of workers</h2>" + looks.table(MEMORY, rows, " nnnnnn")


def _forecast(report: Report) -> str:
    """The workers that will need most in the fit."""
    most = sorted(report.forecast.items(), key=lambda item: -item[1])[:LISTED]
    if not most:
        return ""
    rows = [(looks.text(id, looks.NAME), bytes_text(n)) for id, n in most]
    head = ("worker", "most memory of its process in the fit, predicted")
    return "<h2>Memory in the fit</h2>" + looks.table(head, rows, " n")
