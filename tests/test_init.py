"""The public names are loaded at their first use; type checkers see the same names."""

from __future__ import annotations

import ast
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import clustertune


def test_type_checkers_see_the_names_that_are_there():
    """Each name comes from the module in the table."""
    tree = ast.parse(Path(clustertune.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: alias.name if node.module == "clustertune" else node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    table = {
        name: module if module == name else f"clustertune.{module}"
        for name, module in clustertune._PUBLIC.items()
    }
    assert seen == table


def test_the_help_of_prepare_fits_three_screens():
    """A screen has 40 lines."""
    text = pydoc.plain(pydoc.render_doc(clustertune.prepare))
    assert len(text.splitlines()) <= 3 * 40


def test_every_name_is_there():
    """Only they are listed, whatever was imported before."""
    for name in clustertune._PUBLIC:
        assert getattr(clustertune, name) is not None
    listed = {name for name in dir(clustertune) if not name.startswith("__")}
    assert listed == clustertune._PUBLIC.keys()
    assert {"__version__", "__path__"} <= set(dir(clustertune))


def test_the_public_names():
    """A new one is a decision."""
    assert " ".join(sorted(clustertune._PUBLIC)) == (
        "Monitor Prepared Report check dashboard_page errors fit history hold "
        "last_report merge_workers prepare recommend_size release_data resize_workers "
        "restart_workers run_playbook scale schedule_restart schedules training "
        "trim_memory"
    )


def test_a_name_that_is_not_there():
    """The error is that of any module."""
    with pytest.raises(AttributeError, match="no attribute 'divine'"):
        _ = clustertune.divine


def test_importing_loads_nothing_else():
    """Dask's command line imports this package at each start."""
    code = (
        "import sys, clustertune; "
        "print([m for m in sys.modules if m.startswith(('clustertune.', 'dask'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "[]\n"
