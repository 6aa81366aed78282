"""A short fuzzing run, and the inputs of earlier findings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.targets import CORPUS, TARGETS, attempt, fuzz

INPUTS = 80


@pytest.mark.parametrize("name", TARGETS)
def test_random_inputs_raise_allowed_errors_only(name: str) -> None:
    """No other error, in time."""
    fuzz(TARGETS[name], INPUTS, same=True)


@pytest.mark.parametrize("name", TARGETS)
def test_earlier_findings(name: str) -> None:
    """The corpus is read without findings, and valid inputs are not refused."""
    target = TARGETS[name]
    for data in target.starts():
        assert not attempt(target, data)
    for path in sorted((CORPUS / name).glob("*")):
        attempt(target, path.read_bytes())


def test_other_errors_are_findings() -> None:
    """The error of the parser is raised, with the input."""

    def read(data: bytes) -> None:
        raise KeyError(data)

    with pytest.raises(KeyError):
        fuzz(replace(TARGETS["cron"], read=read), 3, same=True)
