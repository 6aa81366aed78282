"""Remedies are text with Python code, or text with commands."""

from __future__ import annotations

import pytest

from clustertune.core.model import Finding, Severity, warning
from clustertune.core.wording import code


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "True"),
        (3, "3"),
        ((3, "a b"), '[3, "a b"]'),
        ("1.5 GiB", '"1.5 GiB"'),
        ("a\x1b[2J", '"a\\u001b[2J"'),
        ("Gr\u00f6\u00dfe", '"Gr\u00f6\u00dfe"'),
        ("\U0001f600", '"\U0001f600"'),
    ],
)
def test_code(value: object, text: str) -> None:
    """Untrusted text cannot end a literal, or write to a terminal."""
    assert code(value) == text  # type: ignore[arg-type]


def finding(**fields: str) -> Finding:
    return warning(message="slow", **fields)


@pytest.mark.parametrize("cluster", ["tcp://10.0.0.5:8786", ""])
def test_a_command_names_the_cluster(cluster: str) -> None:
    """Each command in the text does, and JSON of it has no second form."""
    both = "Run `clustertune trim --worker ADDRESS ADDRESS`. Then `clustertune restart"
    made = finding(remedy="Run `clustertune.trim_memory`.", command=f"{both} ADDRESS`.")
    shown = made.as_command(cluster)
    end = f" {cluster}".rstrip()
    assert shown.remedy == (
        f"Run `clustertune trim --worker ADDRESS{end}`. "
        f"Then `clustertune restart{end}`."
    )
    assert not shown.command
    assert shown.severity is Severity.warning


def test_a_remedy_without_a_command_stays() -> None:
    made = finding(remedy="Look at its log.")
    assert made.as_command("tcp://a:1") == made
