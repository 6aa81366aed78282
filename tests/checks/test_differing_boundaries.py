"""The check ``differing_boundaries``."""

import pytest

from clustertune.checks.differing_boundaries import ERROR, find
from clustertune.core.model import Layout, Severity
from clustertune.errors import AlignmentError
from clustertune.testing import layout, member, view


def pair(x, y, label="training data", homes=True, **fields):
    """Make a layout of X and y with these rows."""
    rows = {"X": x, "y": y}
    members = [
        member(name, r, [0] * len(r) if homes else None, **fields)
        for name, r in rows.items()
    ]
    return Layout(label=label, members=tuple(members))


def found(*layouts):
    """Findings for these layouts."""
    return list(find(view(layouts=layouts)))


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param([], id="no data"),
        pytest.param([layout([10, 20], [0, 1])], id="the same"),
        pytest.param([layout([10, 20], None)], id="the same, not loaded"),
        pytest.param([layout(None, [0, 1], members=["X"])], id="X alone, rows unknown"),
        pytest.param(
            [layout([10, 20], [0, 1]), layout([5], [0], label="eval_set[0]")],
            id="an eval set is cut otherwise than the training data",
        ),
    ],
)
def test_silent(layouts):
    """Nothing is said where all members of each layout are cut alike."""
    assert found(*layouts) == []


def test_critical_findings_stop_with_an_alignment_error():
    """Training on labels of other rows must not happen."""
    assert ERROR is AlignmentError


def test_other_boundaries_are_critical():
    """As many pieces and rows, cut elsewhere: the silent case."""
    (finding,) = found(pair([100, 100, 100], [100, 50, 150]))
    assert finding.severity is Severity.critical
    assert finding.subject == ("X", "y")
    assert finding.message == (
        "X and y have 300 rows each, cut at other places; the first piece that differs "
        "is number 1: 100 rows in X, 50 rows in y"
    )
    assert finding.remedy == "y = y.rechunk({0: X.chunks[0]})"
    assert finding.evidence["same_total"] is True


def test_boundaries_are_compared_before_loading_where_they_are_known():
    """Arrays know their rows before they are in memory."""
    (finding,) = found(pair([100, 100], [150, 50], homes=False))
    assert finding.severity is Severity.critical


@pytest.mark.parametrize(
    ("x", "y", "piece", "text"),
    [
        ([10, 10], [20], 0, "10 rows in X, 20 rows in y"),
        ([10], [10, 0], 1, "none in X, 0 rows in y"),
        ([10, 0], [10], 1, "0 rows in X, none in y"),
    ],
)
def test_other_numbers_of_pieces_are_critical(x, y, piece, text):
    """The first piece that the other has not, or has otherwise, is named."""
    (finding,) = found(pair(x, y))
    assert finding.severity is Severity.critical
    assert finding.evidence["piece"] == piece
    assert finding.message.endswith(text)


def test_other_totals_are_critical_and_no_cut_helps():
    """Both numbers of rows are said, and rechunk is not proposed."""
    (finding,) = found(pair([50_000, 50_000], [50_000, 49_000]))
    assert finding.severity is Severity.critical
    assert finding.message.startswith("X has 100,000 rows, y has 99,000; ")
    assert finding.remedy == "no cut is right: make X and y from the same rows"
    assert finding.evidence["same_total"] is False


def test_every_member_is_compared():
    """A weight that differs is found beside a y that does not."""
    weight = member("sample_weight", [15, 5], [0, 0])
    three = layout([10, 10], [0, 0])
    three = Layout(label=three.label, members=(*three.members, weight))
    (finding,) = found(three)
    assert finding.subject == ("X", "sample_weight")


@pytest.mark.parametrize(
    ("kinds", "remedy"),
    [
        (
            ("dataframe", "array"),
            "y = y.rechunk({0: tuple(X.map_partitions(len).compute())})",
        ),
        (("dataframe", "series"), ""),
    ],
)
def test_the_remedy_suits_the_kinds(kinds, remedy):
    """Frames cannot be cut at given rows: there the page's remedy holds."""
    members = [
        member(name, rows, [0, 0], kind=kind)
        for name, rows, kind in zip("Xy", ([1, 3], [2, 2]), kinds, strict=True)
    ]
    (finding,) = found(Layout(label="training data", members=tuple(members)))
    assert finding.remedy == remedy


def test_an_eval_set_is_compared_within_itself():
    """The remedy names the collections as the user does."""
    rows = {"eval_set[0].X": [1, 3], "eval_set[0].y": [2, 2]}
    members = [member(label, r, [0, 0]) for label, r in rows.items()]
    (finding,) = found(Layout(label="eval_set[0]", members=tuple(members)))
    assert finding.remedy == "y = y.rechunk({0: X.chunks[0]})"


@pytest.mark.parametrize("n_pieces", [8, 3])
def test_counts_of_pieces_prove_nothing_before_loading(n_pieces):
    """Equal or not, piece counts of lazy frames change when they are loaded."""
    lazy = [
        member(label, None, None, kind="dataframe", keys=tuple(range(n)))
        for label, n in (("X", 8), ("y", n_pieces))
    ]
    (finding,) = found(Layout(label="training data", members=tuple(lazy)))
    assert finding.severity is Severity.unknown
    assert finding.message == (
        "whether the training data is cut at the same rows is unknown: rows of X and y "
        "are learned after loading"
    )


def test_counts_of_loaded_pieces_are_what_they_are():
    """Loaded data whose rows were not counted still has its number of pieces."""
    members = [member("X", None, [0] * 8), member("y", None, [0] * 3)]
    severe, unknown = found(Layout(label="training data", members=tuple(members)))
    assert severe.severity is Severity.critical
    assert severe.message == "pieces: 8 of X, 3 of y"
    assert unknown.severity is Severity.unknown
    assert unknown.message.endswith("rows of X and y could not be counted")


def test_what_is_known_is_compared_although_something_is_not():
    """A lazy X does not keep y and weight from being compared."""
    members = [
        member("X", None, None, kind="dataframe", keys=(0, 1)),
        member("y", [10, 10], [0, 0]),
        member("sample_weight", [5, 15], [0, 0]),
    ]
    severe, unknown = found(Layout(label="training data", members=tuple(members)))
    assert severe.subject == ("y", "sample_weight")
    assert unknown.subject == ("X",)
