"""Settings: Dask knows the defaults, and what is set wrongly is refused."""

from __future__ import annotations

import dask
import pytest
from click.testing import CliRunner
from dask.config import collect_env

from clustertune import checks, settings
from clustertune.cli import main


def test_dask_knows_the_defaults() -> None:
    """So that they can be listed, and set by any spelling that Dask takes."""
    assert dask.config.get("clustertune.checks.memory_pressure.near") == 0.1
    with dask.config.set({"clustertune.checks.memory-pressure.near": 0.2}):
        assert settings.of_checks()["memory_pressure"]["near"] == 0.2


def test_the_environment() -> None:
    """As the documentation of checks says."""
    name = "DASK_CLUSTERTUNE__CHECKS__MEMORY_PRESSURE__NEAR"
    assert collect_env({name: "0.2"}) == {
        "clustertune": {"checks": {"memory_pressure": {"near": 0.2}}}
    }


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("memory_pressure.near", "far", "near='far' must be a number of at least 0"),
        ("memory_pressure.near", -1, "must be a number of at least 0, like 0.1"),
        ("memory_pressure.near", True, "must be a number"),
        ("memory_pressure.near", 10**400, "must be a number"),
        ("thread_count.shared", 1, "must be True or False, like False"),
        ("memory_pressure.far", 1, "has no setting 'far'; it has near"),
        ("divination.most", 1, "there is no check 'divination'; checks are"),
    ],
)
def test_what_is_wrong(name: str, value: object, text: str) -> None:
    """One line that says what is allowed; in a terminal exit code 2."""
    with dask.config.set({f"clustertune.checks.{name}": value}):
        with pytest.raises(ValueError, match=text):
            settings.of_checks()
        done = CliRunner().invoke(main, ["check", "tcp://127.0.0.1:1"])
    assert done.exit_code == 2
    assert name.partition(".")[0] in done.stderr


@pytest.mark.parametrize("name", ["checks", "checks.memory_growth", "history"])
def test_a_heading_with_nothing_below(name: str) -> None:
    """As somebody has left it in a file: nothing is set, and a default holds."""
    with dask.config.set({f"clustertune.{name}": None}):
        settings.of_checks()
        assert settings.of_check("memory_growth", "least") == 0.01
        assert settings.of_history().keep == 10_000
    with (
        dask.config.set({f"clustertune.{name}": "x"}),
        pytest.raises(ValueError, match=f"clustertune.{name}='x' must be a mapping"),
    ):
        (settings.of_history if name == "history" else settings.of_checks)()


@pytest.mark.parametrize("name", checks.available())
def test_every_setting_is_explained(name: str) -> None:
    """On its page and in the schema."""
    module = checks.available()[name]
    assert checks.settings_help(module).keys() == checks.settings_of(module).keys()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("enabled", "yes", "enabled='yes' must be True or False"),
        ("path", "", "path='' must be the path of a file, or null"),
        ("keep", 0, "keep=0 must be a whole number of at least 1"),
        ("keep", True, "keep=True must be a whole number"),
        ("job", 3, "job=3 must be a name, or null"),
        ("where", 3, "has no setting 'where'; it has enabled, path, keep, job"),
    ],
)
def test_a_history_that_is_set_wrongly(name: str, value: object, text: str) -> None:
    """One line that says what is allowed."""
    with (
        dask.config.set({f"clustertune.history.{name}": value}),
        pytest.raises(ValueError, match=text),
    ):
        settings.of_history()
