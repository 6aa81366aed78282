"""Generated pages match the code."""

from __future__ import annotations

import re
import runpy
import textwrap
from pathlib import Path

import dask
import jsonschema
import pytest
import yaml

from clustertune.operations.call import refuse_wrong_settings

ROOT = Path(__file__).parents[2]
MAKERS = (
    "make_checks",
    "make_cli",
    "make_config",
    "make_workloads",
)
FILES = {
    name: make
    for maker in MAKERS
    for name, make in runpy.run_path(str(ROOT / "docs" / f"{maker}.py"))[
        "FILES"
    ].items()
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_made_is_current(name: str) -> None:
    """After a change of the sources, run ``python -m docs.make_...``."""
    assert (ROOT / name).read_text() == FILES[name]()


def test_the_schema_knows_the_defaults() -> None:
    """The schema has the defaults, and refuses unknown settings."""
    schema = yaml.safe_load(FILES["clustertune/clustertune-schema.yaml"]())
    data = yaml.safe_load(FILES["clustertune/clustertune.yaml"]())
    jsonschema.validate(data, schema)
    data["clustertune"]["checks"]["memory_pressure"]["close_fraction"] = "far"
    with pytest.raises(jsonschema.ValidationError, match="not of type 'number'"):
        jsonschema.validate(data, schema)


def test_settings_on_the_page_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the example, and variables on all pages, are accepted."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    pages = "".join(page.read_text() for page in ROOT.glob("docs/**/*.md"))
    variables = dict(re.findall(r"`(DASK_CLUSTERTUNE__\w+)=(\S+?)`", pages))
    assert variables
    given = yaml.safe_load(textwrap.dedent(example))
    for settings in (given, dask.config.collect_env(variables)):
        with dask.config.set(settings):
            refuse_wrong_settings()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refuse_wrong_settings()
