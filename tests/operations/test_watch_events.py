"""A finding begins after it holds for a while, and ends after it is gone as long."""

from __future__ import annotations

from clustertune import checks
from clustertune.core.model import Finding, Severity
from clustertune.operations.watch import Watch, worse
from tests.builders import view, worker

GIB = 2**30


def finding(check="memory_pressure", subject=(1,), severity=Severity.warning, text=""):
    return Finding(check=check, subject=subject, severity=severity, message=text)


def told(*looks):
    """Return events as (kind, time), from (time, found, nearly found)."""
    watch, events = Watch(), []
    for now, found, nearly in looks:
        events += watch.events(now, found, nearly)
    return [(e.kind, e.time) for e in events], watch


def test_a_moment_is_no_event():
    """A finding that ends within the hold is no event."""
    f = finding()
    events, watch = told((0, [f], [f]), (1, [f], [f]), (2, [], []), (9, [], []))
    assert events == []
    assert watch.current == ()


def test_what_holds_begins_and_ends():
    """Events have the times of the first and the last snapshot with the finding."""
    f = finding()
    looks = [(t, [f], [f]) for t in range(5)] + [(t, [], []) for t in range(5, 9)]
    events, watch = told(*looks)
    assert events == [("began", 0), ("ended", 4)]
    assert watch.current == ()


def test_what_is_nearly_there_has_not_ended():
    """A value close to a threshold neither ends nor begins an event repeatedly."""
    f = finding()
    looks = [(t, [f], [f]) for t in range(5)]
    looks += [(t, [], [f]) for t in range(5, 20)]
    events, watch = told(*looks)
    assert events == [("began", 0)]
    assert watch.current == (f,)
    assert told(*((t, [], [f]) for t in range(20)))[0] == []


def test_a_gap_shorter_than_the_hold_does_not_end_it():
    """A shorter gap neither ends nor begins an event."""
    f = finding()
    looks = [(t, [f], [f]) for t in range(5)]
    looks += [(5, [], []), (6, [], []), (7, [f], [f]), (12, [f], [f])]
    assert told(*looks)[0] == [("began", 0)]


def test_information_is_no_event():
    """Information and unknown results are no events."""
    some = [finding(severity=s) for s in (Severity.info, Severity.unknown)]
    assert told(*((t, some, some) for t in range(9)))[0] == []


def test_each_subject_for_itself():
    """The latest finding of each subject is current, worst first."""
    a, b = finding(text="old"), finding(subject=(2,), severity=Severity.critical)
    new = finding(text="new")
    _, watch = told((0, [a, b], []), (3, [a, b], []), (4, [new, b], []))
    assert watch.current == (b, new)


def test_a_view_that_is_a_little_worse():
    """In this view a worker just below a threshold is above it; other facts stay."""
    seen = view([worker(0, process=int(0.78 * 4 * GIB)), worker(1)])
    names = {f.message.split(" threshold")[0] for f in checks.run(worse(seen))}
    assert any("at or over the pause" in n for n in names)
    assert not any("at or over the pause" in f.message for f in checks.run(seen))
    assert worse(seen).layouts == seen.layouts
