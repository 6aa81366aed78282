"""Settings: Dask has the defaults, and wrong settings are refused."""

from __future__ import annotations

import os
import subprocess
import sys

import dask
import pytest
from click.testing import CliRunner
from dask.config import collect_env
from distributed import Client

from clustertune import checks
from clustertune.cli import main
from clustertune.operations import call as entrance
from clustertune.operations import history
from clustertune.operations.call import refuse_wrong_settings


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
        ("DASK_CLUSTERTUNE__HISTRY__LABEL", "mean DASK_CLUSTERTUNE__HISTORY__LABEL?)"),
        ("DASK_CLUSTERTUNE__HISTORY__JBO", "settings here are enabled, path, label"),
        ("DASK_CLUSTERTUNE__HISTORY__LABEL__X", "settings here are enabled, path"),
        ("DASK_CLUSTERTUNE_HISTORY__LABEL", "mean DASK_CLUSTERTUNE__HISTORY__LABEL?)"),
        (
            "DASK_CLUSTERTUNE__HISTORY___LABEL",
            "mean DASK_CLUSTERTUNE__HISTORY__LABEL?)",
        ),
        ("DASK_CLUSTERTUNE__HISTORY__", "mean DASK_CLUSTERTUNE__HISTORY?)"),
        ("CLUSTERTUNE__HISTORY__LABEL", "mean DASK_CLUSTERTUNE__HISTORY__LABEL?)"),
        ("dask_clustertune__reason", "mean DASK_CLUSTERTUNE__REASON?)"),
        (
            "DASK_CLUSTERTUNE__CHECKS__MEMORY_PRESURE__CLOSE_FRACTION",
            "mean DASK_CLUSTERTUNE__CHECKS__MEMORY_PRESSURE__CLOSE_FRACTION?)",
        ),
        (
            "DASK_CLUSTERTUNE__CHECKS__MEMORY_PRESSURE__FAR",
            "settings here are close_fraction",
        ),
        ("DASK_CLUSTERTUNE__CHECKS__NO_ROWS__MOST", "settings here are none"),
        ("DASK_CLUSTERTUNE__X\x1b[31m", "DASK_CLUSTERTUNE__X\\x1b[31m sets nothing"),
    ],
)
def test_misspelt_variables(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask would ignore them: every call and every command refuses them."""
    monkeypatch.setenv(name, "1")
    with pytest.raises(ValueError, match="sets nothing") as caught:
        entrance.check_client(Client.__new__(Client))
    assert text in str(caught.value)
    for command in (["trim", "tcp://127.0.0.1:1"], ["history"], ["run", "--list"]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 2
        assert "sets nothing" in " ".join(done.stderr.split())


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
    """The error names the setting and the variable."""
    variable = f"DASK_CLUSTERTUNE__{name}"
    monkeypatch.setenv(variable, value)
    found = collect_env({variable: value})
    with (
        dask.config.set({"clustertune": found["clustertune"]}),
        pytest.raises(ValueError, match=f"; {variable} sets it") as caught,
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
def test_a_variable_of_a_heading(name: str, value: str, text: str) -> None:
    """Dask replaces its value by the defaults: so a new process has to refuse it."""
    done = subprocess.run(
        [sys.executable, "-m", "clustertune", "run", "--list"],
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (2 if text else 0), done.stderr
    assert text in done.stderr
    assert (f"; {name} sets it" in done.stderr) == bool(text)


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


@pytest.mark.parametrize("name", ["checks", "checks.memory_growth", "history"])
def test_a_heading_with_nothing_below(name: str) -> None:
    """An empty section in a file sets nothing, and defaults hold."""
    with dask.config.set({f"clustertune.{name}": None}):
        checks.configured()
        assert checks.setting("memory_growth", "min_fraction") == 0.01
        assert history.configured()["label"] is None
    with (
        dask.config.set({f"clustertune.{name}": "x"}),
        pytest.raises(ValueError, match=f"clustertune.{name}='x' must be a mapping"),
    ):
        (history.configured if name == "history" else checks.configured)()


@pytest.mark.parametrize("name", checks.available())
def test_every_setting_is_explained(name: str) -> None:
    """Each setting is on its page and in the schema."""
    module = checks.available()[name]
    assert checks.settings_help(module).keys() == checks.settings_of(module).keys()


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
        history.configured()
