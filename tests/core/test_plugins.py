"""A check, a workload and a playbook of another package.

The package is that of docs/design.md, as it is printed there.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dask
import pytest

import clustertune
from clustertune import checks
from clustertune.actions import registry
from clustertune.core import plugins
from clustertune.core.model import Severity
from clustertune.integrations import libraries
from clustertune.integrations.libraries import FitInputs, Rows
from tests.builders import view, worker
from tests.in_process import gen_cluster
from tests.pages import DOCS, blocks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CACHES = (checks.available, libraries.available)


def forget() -> None:
    """Forget the found plugins."""
    for cache in CACHES:
        cache.cache_clear()
    for name in [n for n in sys.modules if n.partition(".")[0] == "ours"]:
        del sys.modules[name]


def install(folder: Path, entries: Mapping[str, Mapping[str, str]]) -> None:
    """Write the files that pip writes for a package with these entry points."""
    info = folder / "ours-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
    lines = [
        line
        for group, names in entries.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the package of the page; return its folder."""
    page = (DOCS / "design.md").read_text()
    files = {b.mark.removeprefix("file: "): b.code for b in blocks(page) if b.mark}
    (tmp_path / "ours").mkdir()
    for name, text in {**files, "ours/__init__.py": ""}.items():
        (tmp_path / name).write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    install(tmp_path, project["entry-points"])
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield tmp_path
    forget()


def test_its_check(ours: Path) -> None:
    """It is found, explained, configured, and a condition of playbooks."""
    seen = view([worker(0, memory_limit=2**30), worker(1, memory_limit=2**33)])
    (found,) = [f for f in checks.run(seen) if f.check == "small_workers"]
    assert found.severity is Severity.warning
    assert found.subject == (0,)
    assert "memory_limit=" in found.remedy
    assert "clustertune.checks.small_workers.min_bytes" in checks.page("small_workers")
    lower = {"small_workers": {"min_bytes": 2**30}}
    assert "small_workers" not in {f.check for f in checks.run(seen, lower)}
    with pytest.raises(
        ValueError, match=r"small_workers.min_bytes='much' must be a number"
    ):
        checks.run(seen, {"small_workers": {"min_bytes": "much"}})


def test_the_test_of_its_check(ours: Path) -> None:
    """The test on the page passes."""
    (block,) = [
        b
        for b in blocks((DOCS / "design.md").read_text())
        if b.language == "python" and not b.mark
    ]
    assert block.code.count("assert ") == 2
    exec(block.code, {})


def test_its_workload(ours: Path) -> None:
    """The estimator selects it, and it sets arguments of the fit."""
    kind = type("Forest", (), {"__module__": "ours.models"})
    profile = libraries.choose(kind())
    assert profile.name == "forest"
    handed = FitInputs(training=Rows(X="X", sample_weight="w"))
    assert libraries.fit_kwargs(profile, handed) == {"weights": "w"}


SMALL = {"memory_limit": "3 GiB"}  # their process is that of all tests
TWO = [("127.0.0.1", 1)] * 2


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=SMALL)
async def test_its_playbook(c: Any, s: Any, a: Any, b: Any, ours: Path) -> None:
    """It trims if its check has a finding, and reports it."""
    with dask.config.set({"clustertune.playbooks": str(ours)}):
        planned = await clustertune.run_playbook(
            c, "our-night", dry_run=True, progress=False
        )
        assert planned.status == "planned"
        done = await clustertune.run_playbook(c, "our-night", progress=False)
    assert [step.status for step in done.steps] == ["done", "checked"]
    (step,) = done.steps[0].report.steps
    assert (step.action, step.status) == ("trim", "done")


def test_none_of_it_takes_the_place_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It replaces nothing of clustertune, and a plugin that fails to load hides
    nothing.
    """
    (tmp_path / "ours.py").write_text("raise RuntimeError('not today')")
    groups = ("checks", "workloads")
    entries = {f"clustertune.{g}": {"trim": "json", "bad": "ours"} for g in groups}
    del entries["clustertune.workloads"]["trim"]
    install(tmp_path, entries)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    try:
        with caplog.at_level(logging.WARNING, "clustertune"):
            assert dict(plugins.of("workloads")) == {}
            assert registry.ACTIONS["trim"].__name__ == "clustertune.actions.trim"
        assert "bad = ours cannot be loaded" in caplog.text
        assert "not today" in caplog.text
    finally:
        forget()
