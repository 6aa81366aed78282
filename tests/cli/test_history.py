"""``clustertune history``: the table, JSON, and what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dask
import pytest
from click.testing import CliRunner, Result

from clustertune.cli import main
from clustertune.operations.history import Record, append

FIT = Record(
    call="fit", label="nightly", status="done", began=1e9, seconds=61, workers=2,
    rows=1000, peak=30, limit=100, spilled=2**20, busy=1.5, cluster="tcp://10.0.0.5:1",
)  # fmt: skip


@pytest.fixture(autouse=True)
def file(tmp_path: Path) -> Iterator[Path]:
    """Return a history of three records."""
    path = tmp_path / "history.jsonl"
    others = [replace(FIT, label="\x1b[2J"), Record(call="trim", began=2e9, seconds=1)]
    for record in (FIT, *others):
        append(record, path)
    with dask.config.set({"clustertune.history.path": str(path)}):
        yield path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["history", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_table() -> None:
    """All records or selected ones, the latest last; unknown values are empty."""
    _, _, *rows = run().stdout.splitlines()
    assert [row.split()[3] for row in rows] == ["fit", "fit", "trim"]
    for text in ("nightly", "61 s", "1,000", "30%", "1.0 MiB", "1.5", "10.0.0.5"):
        assert text in rows[0]
    assert "\\x1b[2J" in rows[1]
    assert rows[2].split() == [*rows[2].split()[:3], "trim", "1", "s"]
    assert len(run("--label", "nightly").stdout.splitlines()) == 3
    assert len(run("--call", "trim").stdout.splitlines()) == 3
    assert len(run("--since", "3650 days").stdout.splitlines()) == 3
    assert run("--call", "fits").stdout == "there is no such record\n"
    with dask.config.set({"clustertune.history.path": "/no/such"}):
        assert run().stdout == "there is no such record\n"


def test_many_records(file: Path) -> None:
    """Only the last ones are shown; JSON has all."""
    for _ in range(60):
        append(FIT, file)
    first, *_ = run().stdout.splitlines()
    assert first == "(13 older records)"
    assert len(json.loads(run("-f", "json").stdout)["records"]) == 63


def test_json() -> None:
    """Each record has all values; unknown ones are null."""
    found = json.loads(run("--label", "nightly", "-f", "json").stdout)
    assert (found["schema_version"], found["skipped"]) == (1, 0)
    (record,) = found["records"]
    assert record.keys() == set(Record.__dataclass_fields__)
    assert record["began"].startswith("2001-09-09T01:46:40")
    assert (record["rows"], record["hosts"]) == (1000, None)


def test_lines_that_cannot_be_read(file: Path) -> None:
    """They are counted, and the others are shown."""
    with file.open("a") as opened:
        opened.write("no record\n" * 2)
    result = run()
    assert len(result.stdout.splitlines()) == 5
    assert result.stderr == "clustertune: 2 lines cannot be read\n"
    assert json.loads(run("-f", "json").stdout)["skipped"] == 2


def test_what_is_wrong(tmp_path: Path) -> None:
    """Wrong options and settings are usage errors; a bad file exits with 5."""
    wrong = run("--since", "soon")
    assert wrong.exit_code == 2
    assert "--since='soon' must be a duration" in wrong.stderr
    for more in (("10.0.0.5:1",), ("-v",)):
        refused = run(*more)
        assert refused.exit_code == 2
        assert "need --last" in refused.stderr
    with dask.config.set({"clustertune.history.path": 3}):
        assert run().exit_code == 2
    (tmp_path / "folder.jsonl").mkdir()
    with dask.config.set({"clustertune.history.path": str(tmp_path / "folder.jsonl")}):
        result = run()
    assert result.exit_code == 5
    assert "cannot be used" in result.stderr
    assert len(result.stderr.splitlines()) == 1
