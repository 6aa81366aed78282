"""The documentation is that of this code."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_of_checks_is_current() -> None:
    """After a change of a check: ``python docs/make_checks.py``."""
    made = runpy.run_path(str(DOCS / "make_checks.py"))["text"]()
    assert (DOCS / "checks.md").read_text() == made
