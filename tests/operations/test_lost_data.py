"""Losses are listed by owner, and each kind needs its own permission."""

from __future__ import annotations

from typing import Any

import pytest

from clustertune.core.model import KeyGroup
from clustertune.operations.lost_data import LostData, lost_data, objection


def test_lost_data_by_owner() -> None:
    """Losses of this client come first, then by bytes; restored names are no loss."""
    common: dict[str, Any] = {"scattered": 0, "mine": False}
    a, b, q = (("published", "a"), ("published", "b"), ("queue", "q"))
    found = [
        KeyGroup(prefix="x", keys=1, nbytes=10, **common | {"mine": True}, shared=(a,)),
        KeyGroup(prefix="y", keys=2, nbytes=30, **common, others=("other",), coming=4),
        KeyGroup(prefix="z", keys=1, nbytes=1, **common, others=("other",)),
        KeyGroup(prefix="x", keys=1, nbytes=99, **common, shared=(q,)),
        KeyGroup(prefix="", keys=0, nbytes=0, **common, shared=(b,)),
    ]
    mine, queue, other, b = lost_data(found, ["a"])
    assert mine.mine
    assert str(mine) == "10 B of this client: x (1 key, 10 B)"
    assert str(queue) == "99 B of the queue 'q': x (1 key, 99 B)"
    tasks = "y (2 keys, 30 B), z (1 key, 1 B), 4 tasks not done"
    assert str(other) == f"31 B of client other: {tasks}"
    assert str(b) == "0 B of the published data set 'b'"
    assert len(lost_data(found, [])) == 5


@pytest.mark.parametrize("drop_data", [True, False])
@pytest.mark.parametrize("include_others", [True, False])
def test_each_loss_needs_permission(drop_data: bool, include_others: bool) -> None:
    """Each kind of loss needs its own permission."""
    lost = [
        LostData(owner=name, mine=name == "me", prefixes=(("x", 1, 1),), pending=0)
        for name in ("me", "other")
    ]
    agreed = {"drop_data": drop_data, "include_others": include_others}
    text = objection(lost, **agreed) or ""
    assert ("drop_data=True" in text) != drop_data
    assert ("include_other_clients=True" in text) != include_others
    assert objection([], drop_data=False, include_others=False) is None
