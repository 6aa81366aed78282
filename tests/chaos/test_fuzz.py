"""A short form of fuzz, and all inputs that were kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import mutations
from tests.chaos.fuzz import Tally, attempt, fuzz
from tests.chaos.mutations import dumped
from tests.chaos.targets import CORPUS, TARGETS, Target, parsed

INPUTS = 60


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_brings_out_another_error(name: str) -> None:
    """Whatever is read, what comes out is said to the user, in time."""
    tally = fuzz(TARGETS[name], 0, INPUTS)
    assert not tally.findings, str(tally)
    assert tally.read[name] == INPUTS


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_once(name: str) -> None:
    """Inputs that have brought something out, and right ones, which are not refused."""
    target = TARGETS[name]
    for data in target.starts():
        assert attempt(target, data) == (False, None)
    for path in sorted((CORPUS / name).glob("*")):
        _, finding = attempt(target, path.read_bytes())
        assert finding is None, (path, finding)


def trees(words: tuple[str, ...]) -> st.SearchStrategy[object]:
    """Data of the words that a file has, whatever stands where."""
    known = st.sampled_from(words)
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), known
    )
    return st.recursive(
        leaves,
        lambda x: st.lists(x, max_size=4) | st.dictionaries(known, x, max_size=5),
        max_leaves=12,
    )


@pytest.mark.parametrize("name", ["playbooks", "plans", "reports", "config", "history"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_whatever_stands_where(name: str, data: st.DataObject) -> None:
    """Right but for one place, at which there is anything at all."""
    target = TARGETS[name]
    start = parsed(target.starts()[-1])
    paths = list(mutations.paths(start))
    path = data.draw(st.sampled_from(paths), label="place")
    value = data.draw(trees(target.dictionary), label="value")
    _, finding = attempt(target, dumped(mutations.put(start, path, value)))
    assert finding is None, finding


def test_another_error_is_a_finding() -> None:
    """With the place that it came from, and the input."""

    def read(data: bytes) -> None:
        raise KeyError(data)

    target = TARGETS["conditions"]
    other = Target(
        name="other",
        read=read,
        allowed=(ValueError,),
        starts=target.starts,
        words=target.words,
        draw=target.draw,
        share=1,
    )
    tally = fuzz(other, 0, 3)
    (finding,) = tally.findings.values()
    assert tally.times[finding.what] == 3
    assert "KeyError at test_fuzz.py" in finding.what
    assert Tally.from_json(tally.to_json()) == tally
