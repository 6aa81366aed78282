"""The JSON schema of playbooks, as an editor uses it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import clustertune
from clustertune import checks
from clustertune.operations.playbooks import available, schema
from clustertune.operations.playbooks.running import CALLS
from clustertune.operations.playbooks.schema import ON_DATA, own_actions


def accepts(data: Any) -> bool:
    """Whether a validator accepts data without the readers of clustertune."""
    return jsonschema.Draft7Validator(schema.schema()).is_valid(data)


def with_step(step: str) -> Any:
    return {"version": 1, "name": "p", "steps": [yaml.safe_load(step)]}


def test_the_schema_is_valid() -> None:
    """Editors read JSON schemas of draft 7."""
    jsonschema.Draft7Validator.check_schema(schema.schema())


@pytest.mark.parametrize("path", available().values(), ids=lambda p: p.stem)
def test_shipped_playbooks(path: Path) -> None:
    """The schema accepts each of them, and so do its formats."""
    data = yaml.safe_load(path.read_text())
    assert accepts(data)
    assert list(schema.problems(data)) == []


@pytest.mark.parametrize(
    "step",
    [
        "check: [memory, uneven_rows]",
        "{do: restart, when: memory_growth, holds: 0, with: {workers: named}}",
        "{do: resize, with: {memory_limit: 4 GiB, env: {OMP_NUM_THREADS: '2'}}}",
        "{do: rechunk, with: {rechunk: 8, dtype: float32, to: array}}",
        "{do: release, with: {keep: given}}",
        "{do: scale, with: {n_workers: 3, wait: 90, timeout: 2 minutes}}",
    ],
)
def test_good_steps(step: str) -> None:
    assert accepts(with_step(step))


@pytest.mark.parametrize(
    "step",
    [
        "trim",
        "check: memroy",
        "check: []",
        "{check: all, do: trim}",
        "{check: all, holds: 3s}",
        "when: memory_growth",
        "{do: restrat}",
        "{do: trim, when: memory}",
        "{do: trim, when: memory_growth, at_least: bad}",
        "{do: trim, holds: 3s}",
        "{do: trim, with: {workers: named}}",
        "{do: trim, with: {workers: a}}",
        "{do: trim, with: {timeout: soon}}",
        "{do: trim, with: {timeout: -3}}",
        "{do: trim, with: {timeout: }}",
        "{do: trim, with: 3}",
        "{do: restart, with: {drop_data: true}}",
        "{do: scale}",
        "{do: scale, with: {wait: 3s}}",
        "{do: scale, with: {n_workers: 0}}",
        "{do: resize, with: {wait: 3s}}",
        "{do: resize, with: {env: {A: 1}}}",
        "{do: release, with: {prefixes: [x]}}",
        "{do: release, with: {include_other_clients: true}}",
    ],
)
def test_bad_steps(step: str) -> None:
    """An editor marks these mistakes."""
    assert not accepts(with_step(step))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"name": ""},
        {"steps": []},
        {"steps": [{"check": "all"}] * 51},
        {"limits": {"settle": -1}},
        {"limits": {"disrupted": 1}},
        {"limits": {"minimum_workers": "1"}},
        {"on_failure": "wait"},
        {"on_fail": "stop"},
    ],
)
def test_bad_playbooks(change: dict[str, Any]) -> None:
    """An editor marks these mistakes, too."""
    good = with_step("check: all")
    assert accepts(good)
    assert not accepts(good | change)


def test_names_for_completion() -> None:
    """Checks and actions with their arguments."""
    definitions = schema.schema()["definitions"]
    step = definitions["step"]
    assert step["properties"]["do"]["enum"] == list(own_actions())
    assert step["properties"]["when"]["enum"] == list(checks.available())
    assert "uneven_rows" in definitions["check"]["enum"]
    assert list(definitions["actions"]["trim"]["properties"]) == ["timeout", "workers"]
    rules = {r["if"]["properties"]["do"]["const"] for r in step["allOf"][3:]}
    assert rules == own_actions().keys()


def test_arguments_of_actions() -> None:
    """Each is an argument of the function, and none loses data."""
    for name, options in own_actions().items():
        keys = set(options["properties"])
        function = clustertune.prepare if name in ON_DATA else CALLS[name]
        assert keys <= set(inspect.signature(function).parameters), name
        plain = {k for k, rule in options["properties"].items() if "$ref" not in rule}
        explained = {k for k in plain if "errorMessage" in options["properties"][k]}
        assert plain == explained, name
        assert not {"drop_data", "allow_any_env"} & keys


def test_names_of_checks() -> None:
    """One, those with a word, or all."""
    assert schema.matching_checks("memory_growth") == ("memory_growth",)
    assert {"memory_growth", "fit_memory"} <= set(schema.matching_checks("memory"))
    assert schema.matching_checks("all") == tuple(checks.available())
    assert schema.matching_checks("memor") == ()
