"""What fits is let through; what does not is refused, with what would do."""

from __future__ import annotations

import numpy as np
import pytest

from clustertune.errors import CapacityError
from clustertune.planner.capacity import refuse_overfull, refuse_too_much

MIB = 2**20
TWO = np.array([30.0 * MIB, 10.0 * MIB])


def test_what_fits() -> None:
    """Up to the last byte; of unknown size it is over when all is there."""
    refuse_too_much(["X"], 40 * MIB, TWO)
    refuse_overfull(["X"], TWO, 10, 9, 40 * MIB)
    refuse_overfull(["X"], TWO, 10, 10, 50 * MIB)
    refuse_overfull(["X"], TWO, 10, 0, 0)


def test_what_is_too_much() -> None:
    """The workers that would do are at least one more, as large as these on average."""
    text = (
        r"X and y \(90.0 MiB\) cannot be loaded: below the lines at which workers "
        r"spill, 2 workers have 40.0 MiB of room; about 5 workers of this size would "
        r"do: n_workers=5; or make it smaller, for example with dtype=\"float32\"$"
    )
    with pytest.raises(CapacityError, match=text):
        refuse_too_much(["X", "y"], 90 * MIB, TWO)
    with pytest.raises(CapacityError, match="about 3 workers"):
        refuse_too_much(["X"], 40 * MIB + 1, TWO)
    with pytest.raises(CapacityError, match="free memory there, or add workers"):
        refuse_too_much(["X"], 1, np.zeros(2))


def test_what_turns_out_to_be_too_much() -> None:
    """All pieces are taken for like those that are there."""
    text = (
        r"X cannot be loaded: 1,000 of 2,000 pieces took 60.0 MiB, so all take about "
        r"120.0 MiB; below the lines .* 40.0 MiB of room. What was loaded is let go; "
        r"about 6 workers"
    )
    with pytest.raises(CapacityError, match=text):
        refuse_overfull(["X"], TWO, 2000, 1000, 60 * MIB)
    with pytest.raises(CapacityError, match="free memory there, or add workers"):
        refuse_overfull(["X"], np.zeros(1), 2, 1, 1)
