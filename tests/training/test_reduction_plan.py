from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from clustertune.training import reduction_plan
from clustertune.training.reduction_plan import JOIN_WIDTH, Batch

WORKERS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", "e", "f", "g"]),
    st.integers(1, 4),
    min_size=1,
)
PARTITIONS = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c", "gone"]), st.integers(0, 100)),
    min_size=1,
    max_size=60,
)


@given(st.integers(1, 300), WORKERS)
def test_items_are_spread_once_each_and_evenly(n: int, threads: dict[str, int]) -> None:
    """Each thread or each item has a task, and neighbours stay together."""
    batches = reduction_plan.spread_items(n, threads)
    assert [i for b in batches for i in b.items] == list(range(n))
    sizes = [len(b.items) for b in batches]
    assert len(batches) == min(n, sum(threads.values()))
    assert max(sizes) - min(sizes) <= 1
    workers = [b.worker for b in batches]
    assert all(workers.count(w) <= threads[w] for w in workers)
    assert len(set(workers)) == min(n, len(threads))
    assert len(list(groupby(workers))) == len(set(workers))


@given(PARTITIONS, WORKERS)
def test_partitions_run_on_their_holders(
    partitions: list[dict[str, int]], threads: dict[str, int]
) -> None:
    """Each partition runs once, on a worker that holds most of it."""
    batches = reduction_plan.group_by_holder(partitions, threads)
    assert sorted(i for b in batches for i in b.items) == list(range(len(partitions)))
    for batch in batches:
        assert list(batch.items) == sorted(batch.items)
        for i in batch.items:
            held = {w: n for w, n in partitions[i].items() if w in threads}
            if any(held.values()):
                assert held.get(batch.worker) == max(held.values())
    workers = [b.worker for b in batches]
    assert all(workers.count(w) <= threads[w] for w in workers)


@given(PARTITIONS, WORKERS)
def test_each_result_is_joined_once(
    partitions: list[dict[str, int]], threads: dict[str, int]
) -> None:
    """All results except the last are joined once, those of one worker first."""
    batches = reduction_plan.group_by_holder(partitions, threads)
    joins = reduction_plan.join_tree(batches)
    n = len(batches)
    used = [part for parts in joins for part in parts]
    assert sorted(used) == list(range(n + len(joins) - 1))
    for i, parts in enumerate(joins):
        assert all(part < n + i for part in parts)
        if any(part < n and workers_batches(batches, part) > 1 for part in parts):
            assert len({batches[part].worker for part in parts}) == 1
        else:
            assert 1 < len(parts) <= JOIN_WIDTH


def workers_batches(batches: tuple[Batch, ...], part: int) -> int:
    return [b.worker for b in batches].count(batches[part].worker)


def test_addresses_do_not_change_the_order() -> None:
    """A worker with a new address after a restart gives the same sum."""
    places = ["x", "y", "y", "x", "z"]

    def order(names: dict[str, str]) -> list[tuple[int, ...]]:
        partitions = [{names[p]: 10} for p in places]
        threads = dict.fromkeys(sorted(names.values()), 2)
        batches = reduction_plan.group_by_holder(partitions, threads)
        joins = reduction_plan.join_tree(batches)
        return [*(tuple(b.items) for b in batches), *joins]

    before = {"x": "tcp://1", "y": "tcp://2", "z": "tcp://3"}
    after = {"x": "tcp://9", "y": "tcp://2", "z": "tcp://0"}
    assert order(before) == order(after)
