"""How Sphinx makes the documentation: ``tox -e docs``."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Any

project = "clustertune"
author = "clustertune contributors"
project_copyright = author
release = version = version_of("clustertune")

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
]
exclude_patterns = ["**/__pycache__"]
templates_path = ["_templates"]

# every heading of a page can be linked to, as on GitHub: checks.md#memory_growth
myst_heading_anchors = 3
myst_enable_extensions = ["fieldlist"]

autodoc_typehints = "none"  # signatures have them; "Any" says nothing in a description
autodoc_member_order = "bysource"
autosummary_imported_members = False
numpydoc_show_class_members = False  # those with a docstring are there in full
numpydoc_class_members_toctree = False

html_theme = "dask_sphinx_theme"
html_title = f"clustertune {release}"
# the search is in the sidebar; a second one above the pages is of no use
html_theme_options = {"navbar_persistent": [], "navbar_end": []}


def comment_of_field(
    _app: Any, what: str, name: str, _obj: Any, _options: Any, lines: list[str]
) -> None:
    """Have the comment beside a field, which has its unit, as its description."""
    if what != "attribute" or lines:
        return
    owner, _, field = name.rpartition(".")
    module, _, kind = owner.rpartition(".")
    source = inspect.getsource(getattr(import_module(module), kind))
    beside = re.search(rf"^    {field}: .*?  # (.*)$", source, re.MULTILINE)
    if beside:
        lines.append(beside[1])


def setup(app: Any) -> None:
    """Add what Sphinx does not know."""
    # before numpydoc, which leaves empty lines where there is no description
    app.connect("autodoc-process-docstring", comment_of_field, priority=100)
