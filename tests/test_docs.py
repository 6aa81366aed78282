"""Generated pages match the code."""

from __future__ import annotations

import runpy
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[1]
MAKERS = (
    "make_actions",
    "make_checks",
    "make_cli",
    "make_config",
    "make_playbooks",
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
