"""The check ``unloaded_data``."""

from dataclasses import replace

from clustertune.checks.unloaded_data import find
from clustertune.core.model import Severity
from clustertune.testing import layout, view


def test_silent_for_loaded_data():
    """What is in memory needs no loading."""
    assert list(find(view())) == []
    assert list(find(view(layouts=[layout([10], [0])]))) == []


def test_all_that_is_not_loaded_is_one_finding():
    """Members of all layouts are loaded in one call, so they are said together."""
    lazy = layout([10], None, members=["eval_set[0].X", "eval_set[0].y"])
    (finding,) = find(view(layouts=[layout([10], [0]), lazy]))
    assert finding.severity is Severity.info
    assert finding.subject == ("eval_set[0].X", "eval_set[0].y")
    assert finding.message == (
        "eval_set[0].X and eval_set[0].y are not in memory; all that is not will be "
        "persisted together in one call"
    )


def test_what_is_read_once_stays():
    """Unless it is to be loaded, or some of it is in memory."""
    seen = view(layouts=[layout([10], None)])
    once = replace(seen.goal.workload, persist=False, title="Incremental")
    for persist, stays in ((None, True), (True, False)):
        goal = replace(seen.goal, workload=once, persist=persist)
        (finding,) = find(replace(seen, goal=goal))
        stay = finding.message.endswith(
            "Incremental reads it once, so it stays as it is"
        )
        assert stay is stays
