from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.checks.memory import (
    memory_growth,
    memory_pressure,
    memory_settings,
    overcounted_memory,
    spill_space,
    unmanaged_memory,
    unrelated_keys,
)
from clustertune.core.model import Severity, Unknown
from tests.builders import details, layout, prefix, runs, survey, view, worker

# --- memory_pressure ------------------------------------------------------------------


GIB = 2**30


def find_memory_pressure(*workers, **settings):
    """Return severities and messages for these workers."""
    return [
        (f.severity, f.message)
        for f in memory_pressure(view(workers=workers), **settings)
    ]


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
    """Workers are below all active thresholds."""
    assert find_memory_pressure(worker(0, **quiet)) == []


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
    """A worker is reported once, for the worst threshold that it reaches."""
    ((level, message),) = find_memory_pressure(worker(0, **fields))
    assert level is severity
    assert f"the {threshold} threshold" in message


def test_the_message_says_measure_amount_and_what_comes_next():
    """The message has bytes, fraction of the limit, and the worker's reaction."""
    ((_, message),) = find_memory_pressure(worker(0, process=3 * GIB))
    assert message == (
        "worker 0 is at or over the spill threshold: process memory is 3.0 GiB, 75% of "
        "the limit of 4.0 GiB; at 70% it writes keys to disk until it is below its "
        "target"
    )


def test_keys_on_disk_are_a_warning():
    """The finding has the sum of spilled bytes over all workers."""
    ((severity, message),) = find_memory_pressure(
        worker(0, spilled=GIB), worker(1, spilled=GIB)
    )
    assert severity is Severity.warning
    assert message.startswith("workers 0 and 1 have 2.0 GiB of keys on disk")


def test_a_thousand_workers_are_one_finding():
    """Workers at the same threshold are listed together, the fullest by name."""
    crowd = [worker(i, process=3 * GIB + i) for i in range(1000)]
    (finding,) = memory_pressure(view(workers=crowd))
    assert finding.subject == tuple(range(1000))
    assert "workers 0, 1, 2 and 997 more are" in finding.message
    assert "; worker 999 is fullest: " in finding.message
    assert finding.evidence["process_bytes"] == 3 * GIB + 999


def test_of_two_workers_the_fullest_is_named():
    """The figures are those of the worker nearest to its threshold."""
    pair = worker(0, process=3 * GIB), worker(1, process=3 * GIB + 1)
    ((_, message),) = find_memory_pressure(*pair)
    assert message.startswith(
        "workers 0 and 1 are at or over the spill threshold; worker 1 is fullest: "
    )


def test_near_sets_how_close_is_close():
    """With a smaller distance the same worker is not reported."""
    close = worker(0, process=int(2.5 * GIB))
    assert len(find_memory_pressure(close)) == 1
    assert find_memory_pressure(close, close_fraction=0.05) == []


def test_unknown_thresholds_are_said_once_for_each_reason():
    """Workers whose facts are unknown are grouped by the reason."""
    mute = [worker(i, facts=Unknown("no answer")) for i in range(3)]
    assert find_memory_pressure(*mute) == [
        (
            Severity.unknown,
            "memory thresholds of workers 0, 1 and 2 unknown: no answer",
        )
    ]


def test_an_unknown_nanny_leaves_the_other_thresholds():
    """If only the terminate threshold is unknown, the others are compared."""
    paused = worker(0, process=int(3.9 * GIB), terminate=Unknown("nanny gone"))
    (critical, first), (unknown, second) = find_memory_pressure(paused)
    assert (critical, unknown) == (Severity.critical, Severity.unknown)
    assert "the pause threshold" in first
    assert second == "terminate threshold of worker 0 unknown: nanny gone"


def test_keys_on_disk_are_reported_without_knowing_thresholds():
    """Spilled keys are reported even if thresholds are unknown."""
    mute = worker(0, spilled=GIB, facts=Unknown("no answer"))
    assert [s for s, _ in find_memory_pressure(mute)] == [
        Severity.warning,
        Severity.unknown,
    ]


# --- memory_settings ------------------------------------------------------------------


def find_memory_settings(**thresholds):
    return list(memory_settings(view([worker(0, **thresholds), worker(1)])))


@pytest.mark.parametrize(
    "thresholds",
    [
        {},
        {"target": None, "spill": None},
        {"pause": None, "terminate": None},
        {"target": 0.7, "spill": 0.7},
        {"terminate": Unknown("no answer")},
        {"facts": Unknown("no answer")},
    ],
)
def test_silent_where_they_act_in_order(thresholds):
    """Thresholds ascend; some may be off, equal or unknown."""
    assert find_memory_settings(**thresholds) == []


@pytest.mark.parametrize(
    ("thresholds", "text"),
    [
        ({"target": 0.8}, "target (80%) is above spill (70%), which acts first"),
        ({"spill": 0.9}, "spill (90%) is above pause (80%)"),
        ({"pause": 0.97}, "pause (97%) is above terminate (95%)"),
        ({"spill": None, "target": 0.9}, "target (90%) is above pause (80%)"),
        ({"terminate": 1.2}, "terminate is 120% of the limit"),
        (
            dict.fromkeys(("target", "spill", "pause", "terminate")),
            "all are off, so the worker grows until the host runs out of memory",
        ),
    ],
)
def test_another_order(thresholds, text):
    """The finding names the threshold that never applies."""
    (finding,) = find_memory_settings(**thresholds)
    assert finding.severity is Severity.warning
    assert text in finding.message
    assert finding.subject == (0,)


def test_no_limit():
    """Without a limit no threshold applies; some clusters do so intentionally."""
    (finding,) = find_memory_settings(memory_limit=0, target=0.9)
    assert finding.severity is Severity.info
    assert "1 worker has no memory limit" in finding.message


# --- memory_settings: limits of a host ------------------------------------------------


def find_memory_limits(n, **options):
    return list(memory_settings(view([worker(i, **options) for i in range(n)])))


def test_silent_where_they_fit():
    """The limits fit the memory, or the memory is unknown."""
    assert find_memory_limits(4, host_memory=16 * GIB) == []
    assert find_memory_limits(4, facts=Unknown("no answer")) == []


def test_hosts_are_summed_each_for_itself():
    """Four workers on two hosts."""
    some = [worker(i, host=f"10.0.0.{i % 2}", host_memory=8 * GIB) for i in range(4)]
    assert list(memory_settings(view(some))) == []


def test_more_than_there_is():
    """The memory of a smaller container counts."""
    (finding,) = find_memory_limits(4, host_memory=10 * GIB)
    assert finding.severity is Severity.warning
    assert "add up to 16.0 GiB, but they can use only 10.0 GiB" in finding.message
    assert finding.subject == (0, 1, 2, 3)


# --- unmanaged_memory -----------------------------------------------------------------


def find_unmanaged_memory(*workers):
    return list(unmanaged_memory(view(workers)))


def test_silent_where_it_is_usual():
    """Python and libraries, and less than a third of the limit in addition."""
    assert (
        find_unmanaged_memory(worker(0), worker(1, process=GIB, managed=GIB // 2)) == []
    )


def test_silent_where_it_may_be_in_use():
    """A running task, the client's own process, or no limit explain the memory."""
    full = {"process": 3 * GIB}
    assert (
        find_unmanaged_memory(
            worker(0, **full, processing=1), worker(1, **full, executing=1)
        )
        == []
    )
    assert (
        find_unmanaged_memory(worker(0, **full, address="inproc://127.0.0.1/1/2")) == []
    )
    assert find_unmanaged_memory(worker(0, **full, memory_limit=0)) == []


def test_idle_workers_with_much_are_found():
    """The finding names the worst worker."""
    some = [worker(0, process=2 * GIB), worker(1, process=3 * GIB), worker(2)]
    (finding,) = find_unmanaged_memory(*some)
    assert finding.severity is Severity.warning
    assert finding.subject == (0, 1)
    assert "worker 1 has 3.0 GiB of the limit of 4.0 GiB" in finding.message


# --- overcounted_memory ---------------------------------------------------------------


def find_overcounted_memory(*workers):
    return list(overcounted_memory(view(workers)))


def test_silent_where_the_process_has_it():
    """Managed memory may be slightly higher, because it is read at another time."""
    assert (
        find_overcounted_memory(
            worker(0), worker(1, process=GIB, managed=GIB + GIB // 8)
        )
        == []
    )


def test_silent_where_a_process_is_shared():
    """Workers in one process count each other's keys."""
    assert (
        find_overcounted_memory(
            worker(0, address="inproc://127.0.0.1/1/2", managed=3 * GIB)
        )
        == []
    )


def test_counted_twice():
    """It is a warning only if the worker spills because of it."""
    (finding,) = find_overcounted_memory(worker(0, process=GIB, managed=2 * GIB))
    assert finding.severity is Severity.info
    (finding,) = find_overcounted_memory(
        worker(0, process=GIB, managed=3 * GIB), worker(1)
    )
    assert finding.severity is Severity.warning
    assert finding.subject == (0,)
    assert "3.0 GiB of keys" in finding.message
    (finding,) = find_overcounted_memory(
        worker(0, process=GIB, managed=3 * GIB, target=None)
    )
    assert finding.severity is Severity.info


# --- memory_growth --------------------------------------------------------------------


MIB = 2**20


def find_memory_growth(*floors, **options):
    """Return findings for a worker with these MiB after each run."""
    past = runs(*({0: n * MIB} for n in floors))
    return list(memory_growth(view([worker(0)], runs=past), **options))


def test_silent_where_nobody_asked():
    """Prepare does not read past runs."""
    assert list(memory_growth(view())) == []


def test_silent_where_memory_stays():
    """Memory varies, grows less than the limit, or stops growing."""
    for floors in ((200, 210, 195, 205), (200, 210, 220), (200, 700, 702, 701, 703)):
        assert find_memory_growth(*floors) == []


def test_unknown_with_too_few_runs():
    """Two runs give one difference, which may be chance."""
    for floors, text in (((), "no run was seen yet"), ((200, 900), "2 runs")):
        (finding,) = find_memory_growth(*floors)
        assert finding.severity is Severity.unknown
        assert text in finding.message


def test_growth_is_found_with_the_runs_that_are_left():
    """The median growth counts, so one outlier has little effect."""
    (finding,) = find_memory_growth(200, 700, 1200, 1300, 1800)
    assert finding.severity is Severity.warning
    # spills at 0.7 of 4 GiB: (2867.2 - 1800) / 500
    assert finding.evidence == {
        "bytes_per_run": 500 * MIB,
        "runs": 5,
        "runs_until_spill": 3,
        "runs_until_pause": 3,
        "runs_until_terminate": 5,
    }
    assert finding.message == (
        "unmanaged memory of worker 0 grows from run to run: worker 0 keeps 500.0 MiB "
        "more after each of the last 5 runs. It will spill (at 2.8 GiB) in run 3 from "
        "now, pause (at 3.2 GiB) in run 3 from now and be killed by its nanny (at 3.8 "
        "GiB) in run 5 from now"
    )
    assert "between two runs, after at most 2 more runs" in finding.remedy
    (finding,) = find_memory_growth(1200, 2000, 2800)
    assert (
        "Run `clustertune.restart_workers(client, workers=[0])` before the next run"
        in finding.remedy
    )
    (finding,) = find_memory_growth(200, 250, 300, 350)
    assert finding.severity is Severity.info


def test_silent_for_workers_that_are_new_or_never_pause():
    """New workers have no runs; other workers have no pause threshold."""
    past = runs({0: 200 * MIB}, {0: 700 * MIB}, {0: 1200 * MIB})
    assert list(memory_growth(view([worker(1)], runs=past))) == []
    none = worker(0, spill=None, pause=None, terminate=None)
    assert list(memory_growth(view([none], runs=past))) == []
    (finding,) = memory_growth(view([worker(0, pause=None)], runs=past))
    assert "runs_until_pause" not in finding.evidence
    assert list(memory_growth(view([worker(0, memory_limit=0)], runs=past))) == []


def test_only_runs_that_ended_alike_are_compared():
    """Computations after each fit are runs too, and need not leak."""
    past = runs(*({0: n * MIB} for n in (200, 201, 700, 701, 1200, 1201)))
    ends = ("training", "gap") * 3
    alike = tuple(replace(run, ended_by=end) for run, end in zip(past, ends))
    (finding,) = memory_growth(view([worker(0)], runs=alike))
    assert finding.evidence["bytes_per_run"] == 500 * MIB
    assert finding.evidence["runs"] == 3


def test_memory_that_comes_with_data_is_no_leak():
    """Loading data grows the process by more than its keys."""
    past = runs(*({0: n * MIB} for n in (200, 700, 1200)))
    loaded = tuple(
        replace(run, managed={0: i * 600 * MIB}) for i, run in enumerate(past)
    )
    assert list(memory_growth(view([worker(0)], runs=loaded))) == []


# --- unrelated_keys -------------------------------------------------------------------


def find_unrelated_keys(managed, *prefixes, layouts=None):
    data = layout([1000] * 4, [0, 0, 1, 1])  # 352,000 bytes
    some = [worker(i, managed=managed) for i in range(2)]
    given = [data] if layouts is None else layouts
    return list(unrelated_keys(view(some, given, survey=survey(prefixes=prefixes))))


def test_silent_where_others_take_little():
    """Others hold little of 8 GiB, or no data was given, or nothing was read."""
    assert find_unrelated_keys(GIB // 4) == []
    assert find_unrelated_keys(3 * GIB, layouts=[]) == []
    assert (
        list(unrelated_keys(view([worker(0, managed=3 * GIB)], [layout([1], [0])])))
        == []
    )


def test_other_keys():
    """The finding names the largest kinds in memory."""
    kinds = (
        prefix("old", keys=5, nbytes=GIB),
        prefix("gone", keys=0, nbytes=9 * GIB),
        prefix("small", keys=1, nbytes=10),
    )
    (finding,) = find_unrelated_keys(GIB // 2, *kinds)
    assert finding.severity is Severity.info
    assert "largest kinds of all keys: old (1.0 GiB)" in finding.message
    (finding,) = find_unrelated_keys(2 * GIB, *kinds)
    assert finding.severity is Severity.warning


# --- spill_space ----------------------------------------------------------------------


def find_spill_space(spilled=0, thresholds=None, **disk):
    options = {"spilled": spilled, "details": details(**disk), **(thresholds or {})}
    return list(spill_space(view([worker(i, **options) for i in range(2)])))


def test_silent_with_a_local_disk_with_room():
    """The disk is local and has room, or was not read."""
    assert find_spill_space() == []
    assert list(spill_space(view())) == []


def test_silent_where_nothing_spills():
    """Without thresholds or a limit nothing spills to the disk."""
    off = {"target": None, "spill": None}
    assert find_spill_space(thresholds=off, disk="tmpfs", disk_free=0) == []
    assert find_spill_space(thresholds={"memory_limit": 0}, disk_free=0) == []


def test_disks_that_are_none():
    """It is a warning once data is spilled there."""
    for kind, where in (("tmpfs", "in memory"), ("nfs4", "on a network")):
        (finding,) = find_spill_space(disk=kind)
        assert finding.severity is Severity.info
        assert where in finding.message
        (finding,) = find_spill_space(spilled=1, disk=kind)
        assert finding.severity is Severity.warning


def test_no_room():
    """The free disk is compared with the memory of all its workers."""
    assert find_spill_space(disk_free=GIB) == []
    (finding,) = find_spill_space(disk_free=GIB // 2)
    assert finding.severity is Severity.warning
    assert (
        find_spill_space(disk_free=2 * GIB, thresholds={"memory_limit": 40 * GIB})[
            0
        ].severity
        is Severity.info
    )
    (finding,) = find_spill_space(spilled=1, disk_free=GIB // 2)
    assert finding.severity is Severity.warning
    assert (
        "512.0 MiB are free on the disk to which workers 0 and 1 spill"
        in finding.message
    )
