"""Examples in the help of a command."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """What stands under the options: a line to type for each."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
