"""How large data is, before and after it is loaded."""

import numpy as np

from clustertune.core.model import Unknown
from clustertune.planner.sizes import (
    held_bytes,
    largest_piece,
    layout_bytes,
    member_bytes,
)
from clustertune.testing import layout, member


def test_loaded_data_has_the_bytes_of_its_pieces():
    """What is in memory is measured, whatever the collection said before."""
    loaded = member("X", [10, 20], [0, 1], row_bytes=8, total_bytes=1)
    assert member_bytes(loaded) == 240


def test_data_that_is_not_loaded_tells_its_size_or_does_not():
    """Before loading the collection's own figure is taken; without one, unknown."""
    assert member_bytes(member("X", [10, 20], None)) == 240
    silent = member("X", [10, 20], None, total_bytes=None)
    assert "X is not loaded" in str(member_bytes(silent))


def test_sizes_add_up_over_members():
    """The size of a layout is the sum; one unknown part makes it unknown."""
    assert layout_bytes(layout([10], [0], row_bytes={"X": 80, "y": 8})) == 880
    lazy = layout([10], None, total_bytes=None)
    assert isinstance(layout_bytes(lazy), Unknown)


def test_the_largest_piece_has_all_members_of_an_aligned_layout():
    """A piece of aligned data is X_i and y_i together."""
    assert largest_piece(layout([10, 30], [0, 1])) == 30 * 88


def test_the_largest_piece_of_data_not_loaded_is_in_proportion_to_rows():
    """The bytes of a lazy array are spread by rows, of others evenly."""
    assert largest_piece(layout([10, 30], None, members=["X"])) == 30 * 80
    keys = (("X", 0), ("X", 1))
    blind = layout(None, None, members=["X"], keys=keys, total_bytes=100)
    assert largest_piece(blind) == 50
    assert isinstance(largest_piece(layout(None, None, keys=keys)), Unknown)


def test_held_bytes_count_every_copy():
    """Bytes on a worker include copies, and of data not loaded there are none."""
    copied = layout([10, 10], [[0, 1], 1], members=["X"], row_bytes={"X": 8})
    lazy = layout([10], None)
    np.testing.assert_array_equal(held_bytes([copied, lazy], 3), [80, 160, 0])
