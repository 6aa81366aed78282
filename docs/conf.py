"""Settings of Sphinx, which builds the documentation: ``tox -e docs``."""

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
    "myst_nb",  # pages in Markdown and notebooks
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
]
exclude_patterns = ["**/__pycache__"]
templates_path = ["_templates"]

# docs/tutorial.ipynb has its outputs; python -m docs.make_examples renews them
nb_execution_mode = "off"

# every heading of a page can be linked to, as on GitHub: checks.md#memory_growth
myst_heading_anchors = 4
myst_enable_extensions = ["fieldlist"]

autodoc_typehints = "none"  # signatures have them
autodoc_member_order = "bysource"
autosummary_imported_members = False
numpydoc_show_class_members = False  # pages list members with a docstring
numpydoc_class_members_toctree = False

html_theme = "dask_sphinx_theme"
html_title = f"clustertune {release}"
html_static_path = ["_static"]
html_css_files = ["fonts.css"]
# the sidebar has the search
html_theme_options = {"navbar_persistent": [], "navbar_end": []}


def comment_of_field(
    _app: Any, what: str, name: str, _obj: Any, _options: Any, lines: list[str]
) -> None:
    """Describe a field by the comment on its line, which has its unit."""
    if what != "attribute" or lines:
        return
    owner, _, field = name.rpartition(".")
    module, _, kind = owner.rpartition(".")
    source = inspect.getsource(getattr(import_module(module), kind))
    comment = re.search(rf"^    {field}: .*?  # (.*)$", source, re.MULTILINE)
    if comment:
        lines.append(comment[1])


def types_of_parameters(
    _app: Any, _what: str, _name: str, obj: Any, _options: Any, lines: list[str]
) -> None:
    """Add the annotations of a signature to the parameters of a docstring."""
    if "Parameters" not in lines or not callable(obj):
        return
    known = inspect.signature(obj).parameters
    first = lines.index("Parameters") + 2
    for number, line in enumerate(lines[first:-1], first):
        if lines[number + 1].startswith("---"):
            return  # the next section
        names = [name.lstrip("*") for name in line.split(", ")]
        if all(name in known for name in names):
            kind = known[names[0]].annotation
            lines[number] += f" : {kind}" if isinstance(kind, str) else ""


def setup(app: Any) -> None:
    """Connect the functions above to Sphinx, before numpydoc."""
    # which leaves empty lines where there is no description
    app.connect("autodoc-process-docstring", comment_of_field, priority=100)
    app.connect("autodoc-process-docstring", types_of_parameters, priority=100)
