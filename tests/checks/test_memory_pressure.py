"""The check ``memory_pressure``."""

import pytest

from clustertune.checks.memory_pressure import find
from clustertune.core.model import Severity, Unknown
from clustertune.testing import view, worker

GIB = 2**30


def found(*workers, **settings):
    """Severities and messages for these workers."""
    return [(f.severity, f.message) for f in find(view(workers=workers), **settings)]


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param({}, id="healthy"),
        pytest.param({"process": 0, "managed": 0}, id="empty"),
        pytest.param({"process": int(2.3 * GIB)}, id="process below spill"),
        pytest.param({"managed": int(1.9 * GIB)}, id="managed below target"),
        pytest.param({"memory_limit": 0, "process": 99 * GIB}, id="no limit"),
        pytest.param(
            {"process": 4 * GIB, "spill": None, "pause": None, "terminate": None},
            id="thresholds of the process off",
        ),
        pytest.param({"managed": 4 * GIB, "target": None}, id="target off"),
        pytest.param(
            {"memory_limit": 0, "facts": Unknown("no answer")},
            id="unknown but no limit",
        ),
    ],
)
def test_silent(quiet):
    """Nothing is said below all thresholds that are on."""
    assert found(worker(0, **quiet)) == []


@pytest.mark.parametrize(
    ("fields", "severity", "threshold"),
    [
        ({"process": int(3.9 * GIB)}, Severity.critical, "terminate"),
        ({"process": int(3.3 * GIB)}, Severity.critical, "pause"),
        ({"process": int(3.0 * GIB)}, Severity.warning, "spill"),
        ({"managed": int(2.5 * GIB)}, Severity.warning, "target"),
        ({"process": int(2.5 * GIB)}, Severity.info, "spill"),
        ({"managed": int(2.1 * GIB)}, Severity.info, "target"),
        ({"process": 2 * GIB, "pause": 0.5}, Severity.critical, "pause"),
        ({"process": 2 * GIB, "spill": None, "pause": 0.55}, Severity.info, "pause"),
    ],
)
def test_the_worst_threshold_that_is_reached_is_named(fields, severity, threshold):
    """A worker is reported once, for the worst of its own thresholds."""
    ((level, message),) = found(worker(0, **fields))
    assert level is severity
    assert f"the {threshold} threshold" in message


def test_the_message_says_measure_amount_and_what_comes_next():
    """Measured bytes, their share of the limit, and what the worker does."""
    ((_, message),) = found(worker(0, process=3 * GIB))
    assert message == (
        "worker 0 is at or over the spill threshold: process memory is 3.0 GiB, 75% of "
        "the limit of 4.0 GiB; at 70% it writes keys to disk until it is below its "
        "target"
    )


def test_keys_on_disk_are_a_warning():
    """Spilled bytes are summed over the workers that have some."""
    ((severity, message),) = found(worker(0, spilled=GIB), worker(1, spilled=GIB))
    assert severity is Severity.warning
    assert message.startswith("2.0 GiB of keys at workers 0 and 1 are on disk")


def test_a_thousand_workers_are_one_finding():
    """Workers at the same threshold are listed together, the fullest named."""
    crowd = [worker(i, process=3 * GIB + i) for i in range(1000)]
    (finding,) = find(view(workers=crowd))
    assert finding.subject == tuple(range(1000))
    assert "workers 0, 1, 2 and 997 more are" in finding.message
    assert "worker 999 most" in finding.message
    assert finding.evidence["process_bytes"] == 3 * GIB + 999


def test_of_two_workers_the_fullest_is_named():
    """The measured figures are those of the worker closest to acting."""
    pair = worker(0, process=3 * GIB), worker(1, process=3 * GIB + 1)
    ((_, message),) = found(*pair)
    assert message.startswith(
        "workers 0 and 1 are at or over the spill threshold; worker 1 most: "
    )


def test_near_sets_how_close_is_close():
    """With a smaller distance the same worker is not mentioned."""
    close = worker(0, process=int(2.5 * GIB))
    assert len(found(close)) == 1
    assert found(close, near=0.05) == []


def test_unknown_thresholds_are_said_once_for_each_reason():
    """Workers whose facts are unknown are grouped by the reason."""
    mute = [worker(i, facts=Unknown("no answer")) for i in range(3)]
    assert found(*mute) == [
        (
            Severity.unknown,
            "memory thresholds of workers 0, 1 and 2 unknown: no answer",
        )
    ]


def test_an_unknown_nanny_leaves_the_other_thresholds():
    """Where only the terminate threshold is unknown, the others are compared."""
    paused = worker(0, process=int(3.9 * GIB), terminate=Unknown("nanny gone"))
    (critical, first), (unknown, second) = found(paused)
    assert (critical, unknown) == (Severity.critical, Severity.unknown)
    assert "the pause threshold" in first
    assert second == "terminate threshold of worker 0 unknown: nanny gone"


def test_keys_on_disk_are_reported_without_knowing_thresholds():
    """What was measured is said although thresholds are unknown."""
    mute = worker(0, spilled=GIB, facts=Unknown("no answer"))
    assert [s for s, _ in found(mute)] == [Severity.warning, Severity.unknown]
