"""A short fuzzing run, and the inputs of earlier findings."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import mutations
from tests.chaos.fuzz import FuzzResult, attempt, fuzz
from tests.chaos.mutations import dumped
from tests.chaos.targets import CORPUS, TARGETS, Target, parsed

INPUTS = 60


@pytest.mark.parametrize("name", TARGETS)
def test_random_inputs_raise_allowed_errors_only(name: str) -> None:
    """No other error, in time."""
    result = fuzz(TARGETS[name], 0, INPUTS)
    assert not result.findings, str(result)
    assert result.read[name] == INPUTS


@pytest.mark.parametrize("name", TARGETS)
def test_earlier_findings(name: str) -> None:
    """The corpus is read without findings, and valid inputs are not refused."""
    target = TARGETS[name]
    for data in target.starts():
        assert attempt(target, data) == (False, None)
    for path in sorted((CORPUS / name).glob("*")):
        _, finding = attempt(target, path.read_bytes())
        assert finding is None, (path, finding)


def trees(words: tuple[str, ...]) -> st.SearchStrategy[object]:
    """Nested data of the words of a format."""
    known = st.sampled_from(words)
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), known
    )
    return st.recursive(
        leaves,
        lambda x: st.lists(x, max_size=4) | st.dictionaries(known, x, max_size=5),
        max_leaves=12,
    )


@pytest.mark.parametrize("name", ["playbooks", "reports", "config", "history"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_one_random_place(name: str, data: st.DataObject) -> None:
    """Valid inputs with one random value."""
    target = TARGETS[name]
    start = parsed(target.starts()[-1])
    paths = list(mutations.paths(start))
    path = data.draw(st.sampled_from(paths), label="place")
    value = data.draw(trees(target.dictionary), label="value")
    _, finding = attempt(target, dumped(mutations.put(start, path, value)))
    assert finding is None, finding


def test_other_errors_are_findings() -> None:
    """With the line that raised it, and the input."""

    def read(data: bytes) -> None:
        raise KeyError(data)

    target = TARGETS["cron"]
    other = Target(
        name="other",
        read=read,
        allowed=(ValueError,),
        starts=target.starts,
        words=target.words,
        draw=target.draw,
        share=1,
    )
    result = fuzz(other, 0, 3)
    (finding,) = result.findings.values()
    assert result.times[finding.what] == 3
    assert "KeyError at test_fuzz.py" in finding.what
    assert FuzzResult.from_json(result.to_json()) == result
