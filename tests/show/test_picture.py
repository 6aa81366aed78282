"""A report as one file, and what shows itself in a notebook."""

from __future__ import annotations

from clustertune.model import Finding, Plan, Price, Refusal, Severity, Step
from clustertune.report import Report, findings_html, summarize
from clustertune.show.picture import draw
from clustertune.testing import layout, view, worker

EVIL = "<script>alert(1)</script>"


def bad() -> Finding:
    return Finding(
        severity=Severity.warning, message=EVIL, check="uneven_rows", remedy=EVIL
    )


def step(summary: str) -> Step:
    return Step(
        action="rebalance", summary=summary, price=Price(nbytes=1, seconds=None)
    )


def test_a_file_needs_nothing_besides() -> None:
    """Scripts and styles are in it; what a report says is data and no markup."""
    seen = view([worker(0), worker(1)], [layout([50, 50], [0, 0])])
    before = (summarize(seen.layouts[0], seen),)
    report = Report(status="left", seconds=1.0, found=(bad(),), before=before)
    text = draw(report)
    assert "<script src" not in text
    assert "<link" not in text
    assert EVIL not in text
    assert "Rows of the training data, before" in text
    assert "too many" in text


def test_a_report_without_data_is_drawn() -> None:
    assert "Fine" in draw(Report(status="fine", seconds=0.1))


def test_it_is_written_where_it_is_wanted(tmp_path) -> None:
    file = tmp_path / "report.html"
    file.write_text("old")
    Report(status="fine", seconds=0.1).save(str(file))
    assert file.read_text(encoding="utf-8").lstrip().startswith("<!DOCTYPE html>")


def test_a_plan_shows_its_steps_and_what_is_refused() -> None:
    refused = Refusal(step=step("b"), guard="room", reason=EVIL)
    plan = Plan(phase="place", steps=(step("move it"),), refused=(refused,))
    text = plan._repr_html_()
    assert "move it" in text
    assert "refused" in text
    assert EVIL not in text
    assert "nothing to do" in Plan()._repr_html_()


def test_findings_of_a_monitor_are_escaped() -> None:
    text = findings_html("<Monitor: watching>", [bad()])
    assert "&lt;Monitor: watching&gt;" in text
    assert EVIL not in text
