"""Settings: Dask has the defaults, and wrong settings are refused."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dask
import pytest
from click.testing import CliRunner
from dask.config import collect_env
from distributed import Client

import clustertune
from clustertune import checks
from clustertune.actions import ACTIONS
from clustertune.cli import main
from clustertune.core import settings
from clustertune.core.model import Severity
from clustertune.integrations import libraries
from clustertune.integrations.libraries import FitInputs, Rows
from clustertune.operations import call as entrance
from clustertune.operations.call import refuse_wrong_settings
from tests.builders import view, worker
from tests.in_process import TWO, gen_cluster
from tests.pages import DOCS, blocks


def test_dask_knows_the_defaults() -> None:
    """They can be listed, and set by any spelling that Dask accepts."""
    assert dask.config.get("clustertune.checks.memory_pressure.close_fraction") == 0.1
    with dask.config.set({"clustertune.checks.memory-pressure.close-fraction": 0.2}):
        assert checks.configured()["memory_pressure"]["close_fraction"] == 0.2


def test_the_environment() -> None:
    """The names are those in the documentation of checks."""
    name = "DASK_CLUSTERTUNE__CHECKS__MEMORY_PRESSURE__CLOSE_FRACTION"
    assert collect_env({name: "0.2"}) == {
        "clustertune": {"checks": {"memory_pressure": {"close_fraction": 0.2}}}
    }


@pytest.mark.parametrize(
    "name",
    [
        "DASK_CLUSTERTUNE__HISTORY__LABEL",
        "DASK_CLUSTERTUNE__REASON",
        "DASK_CLUSTERTUNE__CHECKS__MEMORY_PRESSURE__CLOSE_FRACTION",
        "CLUSTERTUNE_BROWSER",
        "DASK_CLUSTERTUNER",
    ],
)
def test_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of settings and of other programs are accepted."""
    monkeypatch.setenv(name, "1")
    refuse_wrong_settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DASK_CLUSTERTUNE__HISTRY__LABEL", "no setting 'histry'"),
        ("DASK_CLUSTERTUNE__HISTORY__JBO", "it has enabled, path, label"),
        ("DASK_CLUSTERTUNE__HISTORY__LABEL__X", "must be a text"),
        ("DASK_CLUSTERTUNE_HISTORY__LABEL", "sets nothing: names are DASK_CLUSTERTUNE"),
        ("DASK_CLUSTERTUNE__HISTORY___LABEL", "no setting '_label'"),
        ("DASK_CLUSTERTUNE__HISTORY__", "no setting ''"),
        ("CLUSTERTUNE__HISTORY__LABEL", "sets nothing: names are DASK_CLUSTERTUNE__"),
        ("dask_clustertune__reason", "sets nothing: names are DASK_CLUSTERTUNE__"),
        (
            "DASK_CLUSTERTUNE__CHECKS__MEMORY_PRESURE__CLOSE_FRACTION",
            "no check 'memory_presure'; checks are",
        ),
        (
            "DASK_CLUSTERTUNE__CHECKS__MEMORY_PRESSURE__FAR",
            "it has close_fraction",
        ),
        ("DASK_CLUSTERTUNE__CHECKS__NO_ROWS__MOST", "no setting"),
        ("DASK_CLUSTERTUNE__X\x1b[31m", "no setting 'x\\x1b[31m'"),
    ],
)
def test_misspelt_variables(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call and every command refuses them, also if Dask ignores them."""
    monkeypatch.setenv(name, "1")
    found = collect_env({name: "1"}).get("clustertune", {})
    with dask.config.set({"clustertune": found}):
        with pytest.raises(ValueError, match=r"sets nothing|must be|no ") as caught:
            entrance.check_client(Client.__new__(Client))
        assert text in str(caught.value)
        for command in (["trim", "tcp://127.0.0.1:1"], ["history"], ["run", "--list"]):
            done = CliRunner().invoke(main, command)
            assert done.exit_code == 2
            assert text in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("HISTORY__ENABLED", "many", "clustertune.history.enabled='many' must be True"),
        ("HISTORY", "5", "clustertune.history=5 must be a mapping"),
        (
            "CHECKS__MEMORY_PRESSURE__CLOSE_FRACTION",
            "0,1",
            "must be a number of at least 0",
        ),
    ],
)
def test_malformed_variables(
    name: str, value: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the setting."""
    variable = f"DASK_CLUSTERTUNE__{name}"
    monkeypatch.setenv(variable, value)
    found = collect_env({variable: value})
    with (
        dask.config.set({"clustertune": found["clustertune"]}),
        pytest.raises(ValueError, match="must be") as caught,
    ):
        entrance.check_client(Client.__new__(Client))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("DASK_CLUSTERTUNE", "x", "clustertune='x' must be a mapping"),
        ("DASK_CLUSTERTUNE__CHECKS", "3", "clustertune.checks=3 must be a mapping"),
        ("DASK_CLUSTERTUNE__HISTORY", "False", "clustertune.history=False must be a"),
        ("DASK_CLUSTERTUNE__HISTORY", "[1,", "clustertune.history='[1,' must be a"),
        ("DASK_CLUSTERTUNE__HISTORY", "{'enabled': False}", ""),
        ("DASK_CLUSTERTUNE__CHECKS", "None", ""),
    ],
)
def test_a_variable_of_a_heading(
    name: str, value: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask replaces its value by the defaults, so the variable itself is read."""
    monkeypatch.setenv(name, value)
    if not text:
        refuse_wrong_settings()
        return
    with pytest.raises(ValueError, match="must be a mapping") as caught:
        refuse_wrong_settings()
    assert text in str(caught.value)


def test_a_new_process_with_a_variable_of_a_heading() -> None:
    """The command refuses it, although Dask has read it before."""
    done = subprocess.run(
        [sys.executable, "-m", "clustertune", "run", "--list"],
        env=os.environ | {"DASK_CLUSTERTUNE__CHECKS": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "clustertune.checks=3 must be a mapping" in done.stderr


def test_a_setting_that_does_not_exist() -> None:
    """Dask accepts any name, for example in a file."""
    with (
        dask.config.set({"clustertune.histroy.label": "x"}),
        pytest.raises(ValueError, match=r"no setting 'histroy'.*mean history\?"),
    ):
        refuse_wrong_settings()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "memory_pressure.close_fraction",
            "far",
            "close_fraction='far' must be a number of at least 0",
        ),
        (
            "memory_pressure.close_fraction",
            -1,
            "must be a number of at least 0, like 0.1",
        ),
        ("memory_pressure.close_fraction", True, "must be a number"),
        ("memory_pressure.close_fraction", 10**400, "must be a number"),
        ("thread_count.shared_hosts", 1, "must be True or False, like False"),
        ("memory_pressure.far", 1, "has no setting 'far'; it has close_fraction"),
        ("memory_growth.min_fraction", 0.1, "no setting 'min_fraction'; it has none"),
        ("divination.most", 1, "there is no check 'divination'; checks are"),
    ],
)
def test_what_is_wrong(name: str, value: object, text: str) -> None:
    """One line lists the allowed values; the exit code of commands is 2."""
    with dask.config.set({f"clustertune.checks.{name}": value}):
        with pytest.raises(ValueError, match=text):
            checks.configured()
        done = CliRunner().invoke(main, ["check", "tcp://127.0.0.1:1"])
    assert done.exit_code == 2
    assert name.partition(".")[0] in done.stderr


@pytest.mark.parametrize("name", ["checks", "checks.memory_pressure", "history"])
def test_a_heading_with_nothing_below(name: str) -> None:
    """An empty section in a file sets nothing, and defaults hold."""
    with dask.config.set({f"clustertune.{name}": None}):
        given = checks.configured().get("memory_pressure", {})
        assert given.get("close_fraction", 0.1) == 0.1
        assert settings.history()["label"] is None
    with (
        dask.config.set({f"clustertune.{name}": "x"}),
        pytest.raises(ValueError, match=f"clustertune.{name}='x' must be a mapping"),
    ):
        (settings.history if name == "history" else checks.configured)()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("enabled", "yes", "enabled='yes' must be True or False"),
        ("path", "", "path='' must be the path of a file, or None"),
        ("path", 3, "path=3 must be the path of a file, or None"),
        ("label", 3, "label=3 must be a text"),
        ("where", 3, "has no setting 'where'; it has enabled, path, label"),
    ],
)
def test_a_history_that_is_set_wrongly(name: str, value: object, text: str) -> None:
    """One line lists the allowed values."""
    with (
        dask.config.set({f"clustertune.history.{name}": value}),
        pytest.raises(ValueError, match=text),
    ):
        settings.history()


# --- checks and workloads of other packages -------------------------------------------

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


@gen_cluster(client=True, nthreads=TWO, worker_kwargs=SMALL)
async def test_its_playbook(c: Any, s: Any, a: Any, b: Any, ours: Path) -> None:
    """It trims if its check has a finding, and reports it."""
    file = ours / "our-night.yaml"
    planned = await clustertune.run_playbook(c, file, dry_run=True, progress=False)
    assert planned.status == "planned"
    done = await clustertune.run_playbook(c, file, progress=False)
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
    install(tmp_path, entries)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    try:
        with caplog.at_level(logging.WARNING, "clustertune"):
            assert "trim" not in checks.available()
            assert {w.profile.name for w in libraries.OWN} == {*libraries.available()}
            assert ACTIONS["trim"].propose.__module__ == "clustertune.actions.restart"
        assert "bad = ours cannot be loaded" in caplog.text
        assert "not today" in caplog.text
        assert "trim = json is not a function" in caplog.text
        assert "trim = json is not a Workload with a profile" in caplog.text
    finally:
        forget()
