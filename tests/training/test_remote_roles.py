from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from clustertune.training.remote_roles import split_rows


def partitions(counts: list[int]) -> list[tuple[Any, ...]]:
    """Return partitions of numbered rows with their labels."""
    ends = np.cumsum([0, *counts])
    spans = [np.arange(a, b) for a, b in pairwise(ends)]
    return [(np.stack([x, x], axis=1), -x) for x in spans]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 7), max_size=6),
    st.one_of(st.none(), st.integers(1, 9)),
    st.one_of(st.none(), st.integers(0, 5)),
)
def test_every_row_is_in_one_batch_with_its_label(
    counts: list[int], size: int | None, steps: int | None
) -> None:
    found = list(split_rows(partitions(counts), size, steps))
    x = [list(batch[0][:, 1]) for batch in found]
    assert [list(-batch[1]) for batch in found] == x
    flat = [row for batch in x for row in batch]
    assert flat == list(range(len(flat)))
    if size is None:
        assert [len(batch) for batch in x] == [n for n in counts if n][:steps]
    else:
        assert all(len(batch) == size for batch in x[:-1])
    if steps is None:
        assert len(flat) == sum(counts)
    else:
        assert len(found) <= steps


def test_frames_and_sparse_rows() -> None:
    """Labels stay with rows across partitions."""
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]}, index=[7, 8, 9])
    sparse = scipy.sparse.csr_matrix(np.eye(3))
    given = [(frame, frame["a"], sparse), (frame[:1], frame["a"][:1], sparse[:1])]
    first, second = split_rows(given, 2, None)
    assert first[0].equals(frame[:2])
    assert list(second[0].index) == list(second[1].index) == [9, 7]
    assert second[2].toarray().tolist() == [[0, 0, 1], [1, 0, 0]]


def test_unneeded_partitions_are_not_read() -> None:
    read = []

    def source() -> Iterator[tuple[Any, ...]]:
        for partition in partitions([2] * 5):
            read.append(partition)
            yield partition

    assert len(list(split_rows(source(), 2, 2))) == 2
    assert len(read) == 2
