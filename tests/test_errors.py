"""The error classes: few, and each one has a base that callers can catch."""

from __future__ import annotations

from clustertune import errors


def test_there_are_few() -> None:
    """At most 12 classes; a new one is a decision."""
    found = {e for e in vars(errors).values() if isinstance(e, type)}
    assert all(issubclass(e, errors.ClustertuneError) for e in found)
    assert len(found) <= 12
    assert set(errors.REFUSALS) < found
