"""What is told of an error of the user's code, which arose in another process."""

from __future__ import annotations

from traceback import extract_tb


def where(error: BaseException) -> str:
    """File and line of the innermost call."""
    last = extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"
