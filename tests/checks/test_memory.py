from __future__ import annotations

from dataclasses import replace

import pytest

from clustertune.checks import ERRORS
from clustertune.checks.memory import (
    fit_memory,
    memory_growth,
    memory_pressure,
    memory_settings,
    spill_space,
    unmanaged_memory,
)
from clustertune.core.model import Profile, Severity, Unknown
from clustertune.errors import CapacityError
from tests.builders import details, layout, runs, snapshot, view, worker

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
    # half of the host's memory, because another worker runs there
    assert 'memory_limit="32 GiB"' in finding.remedy
    some = [worker(0, memory_limit=0), worker(1, memory_limit=48 * GIB)]
    (finding,) = memory_settings(view(some))
    assert 'memory_limit="16 GiB"' in finding.remedy


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


def test_a_former_process_during_a_restart():
    """It ends soon, so its memory and its limit are no problem of the cluster."""
    full = {"process": int(3.9 * GIB), "host_memory": 8 * GIB}
    former = worker("clustertune-parking-1", parking=True, **full)
    for check in (memory_pressure, memory_settings, unmanaged_memory):
        some = [worker(i, host_memory=8 * GIB) for i in range(2)]
        assert list(check(view([*some, former]))) == []
        assert list(check(view([*some, replace(former, parking=False)])))


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


# --- memory_growth --------------------------------------------------------------------


MIB = 2**20


def find_memory_growth(*floors):
    """Return findings for a worker with these MiB after each run."""
    past = runs(*({0: n * MIB} for n in floors))
    return list(memory_growth(view([worker(0)], runs=past)))


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


# --- spill_space ----------------------------------------------------------------------


def find_spill_space(free, **options):
    there = details(disk_free=free)
    return list(
        spill_space(view([worker(i, details=there, **options) for i in (0, 1)]))
    )


def test_silent_with_room_and_where_nothing_spills():
    """Facts may be missing; without thresholds or a limit nothing spills."""
    assert list(spill_space(view())) == find_spill_space(GIB) == []
    assert find_spill_space(0, target=None, spill=None) == []
    assert find_spill_space(0, memory_limit=0) == []


def test_a_full_disk():
    (finding,) = find_spill_space(GIB // 10)
    assert finding.severity is Severity.warning
    text = "only 102.4 MiB are free on the disk to which workers 0 and 1 spill"
    assert finding.message == text


# --- fit_memory -----------------------------------------------------------------------


TRIPLE = Profile(name="t", title="T", memory_multiple={4: 5.0, 8: 3.0})


def small(id, **fields):
    """Make a worker of 1000 bytes, of which a fit may use 700."""
    return worker(id, **{"memory_limit": 1000, "process": 100, **fields})


def data(nbytes, homes=(0,), **fields):
    """Make an X of so many bytes."""
    widths = {"X": nbytes // len(homes)}
    return layout(
        [1] * len(homes), homes, collections=["X"], row_bytes=widths, **fields
    )


def find_fit_memory(workers, *layouts, **goal):
    """Return findings for a fit that needs three times the data."""
    return list(fit_memory(view(workers, layouts, workload=TRIPLE, **goal)))


PAIR = [small(0), small(1)]


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([data(400)], id="3 * 200 + 100 on each, all on one now"),
        pytest.param([data(400, homes=(0, 1))], id="3 * 200 + 100 on each"),
    ],
)
def test_fit_memory_silent(layouts):
    """Even shares and their copies fit the workers."""
    assert find_fit_memory(PAIR, *layouts) == []


def test_no_workers_are_no_finding():
    """Without workers there is nothing to compare."""
    assert list(fit_memory(view(snapshots=[snapshot([])], layouts=[data(400)]))) == []


def test_the_data_itself_is_not_counted_twice():
    """A worker's managed memory of the given data does not count as other memory."""
    full = small(0, process=500, managed=400)
    assert find_fit_memory([full, small(1)], data(400)) == []
    assert (
        len(find_fit_memory([small(0, process=502, managed=402), small(1)], data(400)))
        == 1
    )


def test_too_little_memory_is_a_warning_with_the_answer():
    """The finding has the need and the shortage of the worst worker, and a number of
    workers that suffices.
    """
    (finding,) = find_fit_memory([small(0, process=200), small(1)], data(600))
    assert finding.severity is Severity.warning
    assert finding.subject == (0, 1)
    assert finding.message == (
        "the fit needs about 1.1 KiB on worker 0, 400 B more than 70% of its memory; 2 "
        "of 2 workers have too little memory and may spill, pause or be killed"
    )
    assert finding.remedy.startswith(
        'Do one of these: `X = clustertune.prepare(client, X, estimator="t", '
        "n_workers=4).X` (then at most 650 B per worker); "
    )
    assert finding.evidence == {
        "needed_bytes": 1100,
        "missing_bytes": 400,
        "needed_workers": 4,
        "needed_limit_bytes": 1638,
    }


def test_the_number_of_workers_would_really_do():
    """The suggested number of workers suffices, and one worker less does not."""
    size = data(1000)
    (finding,) = find_fit_memory(PAIR, size)
    n = finding.evidence["needed_workers"]
    assert find_fit_memory([small(i) for i in range(n)], size) == []
    assert len(find_fit_memory([small(i) for i in range(n - 1)], size)) == 1


@pytest.mark.parametrize("process", [700, 800])
def test_where_other_memory_fills_the_worker_no_number_would_do(process):
    """More workers do not help if processes hold other memory."""
    (finding,) = find_fit_memory([small(0, process=process)], data(10))
    assert finding.evidence["needed_workers"] is None
    assert "more workers are not enough" in finding.message
    assert "n_workers=" not in finding.remedy


def test_a_byte_too_little_is_too_little():
    """The limit may be reached, but not exceeded."""
    assert find_fit_memory([small(0, memory_limit=1001), small(1)], data(400)) == []
    (finding,) = find_fit_memory([small(0, process=101), small(1)], data(400))
    assert finding.evidence["missing_bytes"] == 1


def test_strict_makes_it_critical():
    """The user may request that too little memory stops prepare."""
    (finding,) = find_fit_memory(PAIR, data(1000), raise_on_low_memory=True)
    assert finding.severity is Severity.critical
    assert ERRORS["fit_memory"] is CapacityError


def test_the_fraction_is_the_goals():
    """The user may allow the fit more of the memory."""
    assert len(find_fit_memory(PAIR, data(500))) == 1
    assert find_fit_memory(PAIR, data(500), memory_fraction=0.9) == []


def test_the_multiple_is_that_of_the_item_size():
    """Four-byte numbers have another multiple than eight-byte numbers."""
    assert find_fit_memory(PAIR, data(400)) == []
    assert len(find_fit_memory(PAIR, data(400, itemsize=4))) == 1


def test_shares_are_by_threads():
    """Shares are in proportion to threads."""
    (finding,) = find_fit_memory([small(0, nthreads=3), small(1)], data(400))
    assert finding.subject == (0,)


def test_eval_sets_need_memory_too():
    """Copies of eval sets are on the same workers."""
    assert len(find_fit_memory(PAIR, data(400), data(200, label="eval_set[0]"))) == 1


def test_workers_still_to_be_started_take_their_share():
    """Workers that n_workers= will start take their share."""
    assert len(find_fit_memory(PAIR, data(800))) == 1
    assert find_fit_memory(PAIR, data(800), n_workers=4) == []


def test_workers_that_may_not_train_do_not_count():
    """The named workers get all the data; other workers do not count."""
    assert len(find_fit_memory(PAIR, data(400), goal_workers=[0])) == 1


def test_without_a_limit_the_hosts_memory_is_shared():
    """Two workers without a limit share the memory of their host."""
    free = [small(i, memory_limit=0, host_memory=2000) for i in (0, 1)]
    assert find_fit_memory(free, data(400)) == []
    assert len(find_fit_memory(free, data(500))) == 1


def test_data_that_is_not_loaded_tells_its_size_or_is_unknown():
    """Data of unknown size gives one unknown finding with the reason."""
    assert len(find_fit_memory(PAIR, layout([500], None, collections=["X"]))) == 1
    (finding,) = find_fit_memory(
        PAIR, layout([500], None, collections=["X"], total_bytes=None)
    )
    assert finding.severity is Severity.unknown
    assert finding.message == (
        "whether the fit has enough memory is unknown: X is not loaded, so its "
        "size is unknown"
    )


def test_the_memory_of_silent_workers_is_unknown():
    """Workers without limit and facts give one unknown finding."""
    mute = [small(i, memory_limit=0, facts=Unknown("no answer")) for i in (0, 1)]
    (finding,) = find_fit_memory(mute, data(4000))
    assert finding.severity is Severity.unknown
    assert finding.message == "usable memory of workers 0 and 1 unknown: no answer"
