"""What the pages of the documentation show is what there is, and runs."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from distributed import Client, LocalCluster, Security, wait

import clustertune
from clustertune import testing
from clustertune.cli import main
from clustertune.operations.playbooks import reading
from tests.pages import DOCS, PAGES, blocks, commands
from tests.processes import workers_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ADDRESS = re.compile(r"(?:tcp|tls)://[\w.:]+|\bADDRESS\b")

# --- what can be seen without running it ----------------------------------------------


def read_python(code: str) -> None:
    ast.parse(code)


def read_yaml(code: str) -> None:
    data = yaml.safe_load(code)
    if "steps" in data and not re.search("trim_small", code):
        reading.load(code, "the page")


def nothing(code: str) -> None:
    """What is no language that could be read: output, commands of others."""


#: tests that look for marked blocks
TESTS = [p.read_text() for p in Path(__file__).parent.rglob("*.py") if p.name not in
         ("pages.py", "test_pages.py")]  # fmt: skip
LANGUAGES: dict[str, Callable[[str], Any]] = {
    "python": read_python,
    "yaml": read_yaml,
    "toml": tomllib.loads,
    "sh": nothing,  # commands of ours: below
    "shell": nothing,
    "bash": nothing,  # commands of others
    "text": nothing,  # output
    "": nothing,
}


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_what_they_say(page: str) -> None:
    """Python, YAML and TOML can be read; a playbook is one; a mark has a reason."""
    for block in blocks(PAGES[page].read_text()):
        if block.language.startswith("{"):
            continue  # a directive: Sphinx sees to it
        assert block.language in LANGUAGES, f"{page}:{block.line}"
        LANGUAGES[block.language](block.code)
        what, _, more = block.mark.partition(": ")
        # a reason, or what a test of its own finds it by
        named = what == "not run" or any(f"{what}: " in text for text in TESTS)
        assert not what or (named and more), f"{page}:{block.line}: {block.mark}"


def resolve(words: list[str]) -> tuple[click.Command, list[str], click.Context]:
    """The command that words name, and what is left of them."""
    group: click.Command = main
    if words[0] == "plan" and words[1:2] and words[1].startswith("-"):
        words = ["plan", "prepare", *words[1:]]  # implied
    context = click.Context(main, info_name="clustertune")
    while (
        isinstance(group, click.Group)
        and words
        and words[0] in group.list_commands(context)
    ):
        found = group.get_command(context, words[0])
        assert found is not None
        group, words = found, words[1:]
        context = click.Context(group, info_name=group.name, parent=context)
    return group, words, context


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_those_that_there_are(page: str) -> None:
    """With options that they have, and no more arguments than they take."""
    for (program, *words), _ in commands(PAGES[page].read_text()):
        where = f"{page}: {' '.join(words)}"
        assert program == "clustertune", where
        if words[:1] == ["VERB"]:
            continue  # the form of all commands
        command, rest, context = resolve([w for w in words if not w.startswith("[")])
        try:
            _, left, _ = command.make_parser(context).parse_args(rest)
        except click.UsageError as error:
            pytest.fail(f"{where}: {error.format_message()}")
        assert not left or isinstance(command, click.Group), where


def test_what_is_no_command_is_refused() -> None:
    """The test above would see it."""
    command, rest, context = resolve(["restart", "--wrker", "3"])
    with pytest.raises(click.NoSuchOption):
        command.make_parser(context).parse_args(rest)
    assert resolve(["restrat"])[1] == ["restrat"]


def reference() -> dict[str, list[str]]:
    """By module, the names that the page of the API has."""
    found: dict[str, list[str]] = {}
    module = ""
    for line in (DOCS / "api.md").read_text().splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split()[-1]
        elif name := re.fullmatch(r" {3}(\w+)", line):
            found.setdefault(module, []).append(name[1])
    return found


def exported(module: Any) -> set[str]:
    """What a module has for others: imports with ``as``, and what it defines."""
    tree = ast.parse(Path(module.__file__).read_text())
    found = {
        alias.asname
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is not None
    }
    found |= {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    return {name for name in found if not name.startswith("_")}


def test_every_public_name_is_in_the_reference() -> None:
    """Once. A name that was added needs a line in docs/api.md."""
    listed = reference()
    of_package = {*clustertune._PUBLIC} - {"training"}  # a section of its own
    assert sorted(listed.pop("clustertune")) == sorted(of_package)
    for module in (clustertune.training, testing):
        assert sorted(listed.pop(module.__name__)) == sorted(exported(module))
    for module, names in listed.items():  # what calls return, and what plugins are of
        assert all(hasattr(import_module(module), name) for name in names)


def test_every_page_can_be_reached() -> None:
    """It is in the navigation, once."""
    index = (DOCS / "index.md").read_text()
    listed = [
        name
        for block in blocks(index)
        if block.language == "{toctree}"
        for name in block.code.splitlines()
        if name and not name.startswith(":")
    ]
    there = {str(p.relative_to(DOCS).with_suffix("")) for p in PAGES.values()
             if p.is_relative_to(DOCS)}  # fmt: skip
    assert sorted(listed) == sorted(there - {"index"})


# --- what runs, on clusters that pages share ------------------------------------------

PYTHON = [
    page
    for page, path in PAGES.items()
    if any(b.language == "python" for b in blocks(path.read_text()))
]
#: pages whose code runs in tests of their own
ELSEWHERE = {"docs/contributing.md", "docs/security.md"}  # tests/test_outside.py; below


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster of two worker processes."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        memory_limit="2GiB",
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the reader is: with Parquet files, and a configuration of the reader's."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((400, 4), dtype="f4"), columns=list("abcd"))
    frame["label"] = (frame["a"] > 0.5).astype("i4")
    (tmp_path / "data").mkdir()
    for i in range(2):
        frame[200 * i : 200 * (i + 1)].to_parquet(tmp_path / "data" / f"{i}.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def reader(address: str, folder: Path) -> Iterator[dict[str, Any]]:
    """The names that pages take for granted: a client, uneven data, a model."""
    before = dask.config.config.copy()
    with Client(address) as client:
        yield {**given(client), "__name__": "of_a_page"}
    dask.config.config.clear()
    dask.config.config.update(before)


def given(client: Client) -> dict[str, Any]:
    """Two workers, of which the first has all rows."""
    import xgboost.dask

    first = min(workers_of(client))
    rng = da.random.default_rng(0)
    X = rng.random((400, 4), chunks=(100, 4)).astype("f4")
    y = (X[:, 0] > 0.5).astype("i4")
    X, y = client.persist([X, y], workers=[first], allow_other_workers=True)
    wait([X, y])
    model = xgboost.dask.DaskXGBClassifier(n_estimators=2)
    model.client = client
    return {
        "client": client,
        "Client": Client,
        "X": X,
        "y": y,
        "model": model,
        "clustertune": clustertune,
        "dask": dask,
        "np": np,
    }


def of_prepare(names: dict[str, Any]) -> None:
    """Query groups, which follow each other, and what learns to rank them."""
    import xgboost.dask

    names["qid"] = da.arange(400, chunks=100) // 20
    names["ranker"] = xgboost.dask.DaskXGBRanker(n_estimators=2)
    names["ranker"].client = names["client"]


def of_readme(names: dict[str, Any]) -> None:
    """Weights of the rows, and other rows."""
    rows = dd.read_parquet("data")
    names["w"] = rows["label"] + 1.0
    names["X_valid"], names["y_valid"] = rows.drop(columns="label"), rows["label"]


def of_training(names: dict[str, Any]) -> None:
    """What is summed, and what is searched."""
    names["w"] = np.zeros(4)
    names["func"] = lambda X, y, w: X.T @ (X @ w - y)
    names["candidates"] = range(8)
    names["score"] = lambda candidate, X, y: (-((candidate - 3) ** 2), candidate)
    names["data"], names["labels"] = np.ones((400, 4)), np.ones(400)


def of_workers(names: dict[str, Any]) -> None:
    """Data that somebody has forgotten."""
    forgotten = dd.read_parquet("data"), da.ones(10) + 1
    names["forgotten"] = [names["client"].persist(x) for x in forgotten]
    wait(names["forgotten"])


#: by page, what it takes for granted besides
BESIDES = {
    "README.md": of_readme,
    "docs/prepare.md": of_prepare,
    "docs/training.md": of_training,
    "docs/workers.md": of_workers,
}


@pytest.mark.slow
# of dask-glm, which knows an old name of a setting
@pytest.mark.filterwarnings("ignore:Dask configuration key:FutureWarning")
@pytest.mark.parametrize("page", [p for p in PYTHON if p not in ELSEWHERE])
def test_python_of_the_pages(page: str, reader: dict[str, Any]) -> None:
    """Block after block, as a reader would type it."""
    if page in BESIDES:
        BESIDES[page](reader)
    run_python(page, reader)


def run_python(page: str, names: dict[str, Any]) -> None:
    client = names["client"]
    for block in blocks(PAGES[page].read_text()):
        if block.language == "python" and not block.mark:
            code = ADDRESS.sub(client.scheduler.address, block.code)
            # lines of errors are those of the page
            exec(compile("\n" * block.line + code, page, "exec"), names)
    for value in list(names.values()):
        if isinstance(value, Client) and value is not client:
            value.close()


@pytest.mark.slow
def test_what_the_page_on_security_shows(folder: Path) -> None:
    """A client, ``prepare`` and a command with certificates in files."""
    page = "docs/security.md"
    security = Security.temporary()
    for name, text in (
        ("ca", security.tls_ca_file),
        ("client", security.tls_client_cert),
        ("client-key", security.tls_client_key),
    ):
        Path(f"{name}.pem").write_text(text)
    with (
        LocalCluster(
            n_workers=2,
            processes=False,
            security=security,
            protocol="tls",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        run_python(page, {**given(client), "__name__": "of_a_page"})
        ((_, *words), _), *more = commands(PAGES[page].read_text())
        assert not more
        address = client.scheduler.address
        run_command([ADDRESS.sub(address, word) for word in words], address)


# --- commands -------------------------------------------------------------------------

#: by how a command begins or what it has, why it is not run here
NOT_HERE = {
    "VERB": "the form of all commands",
    "demo": "tests/test_demo.py runs it",
    "watch": "it ends with ^C",
    "--serve": "it ends with ^C",
    "--cluster": "a manager is needed",
    "reset": "a manager is needed",
    "ID": "an id of the list before it is meant",
    "show": "there is no such record here",
    "compare": "there is no such record here",
    "explain": "tests/test_cli.py runs it",
    "--tls-ca-file": "the cluster of the test speaks no TLS",
}
#: exit codes of commands that say something else than that all is well
CODES = {"check": {0, 1}, "size": {0, 1}, "trends": {0, 1}, "doctor": {0, 1}}


@pytest.mark.slow
@pytest.mark.parametrize("page", [
    page for page, path in PAGES.items()
    if page != "docs/cli.md" and any(runs for _, runs in commands(path.read_text()))
])  # fmt: skip
def test_commands_of_the_pages(page: str, reader: dict[str, Any]) -> None:
    """As they are typed, but that those that change something only show what."""
    client = reader["client"]
    address = client.scheduler.address
    names = {"X": reader["X"], "y": reader["y"], "train": reader["X"]}
    for name, data in names.items():
        client.publish_dataset(data, name=name)
    # the job of which the page on the history asks
    noted = {"clustertune.history.job": "nightly", "clustertune.history.enabled": True}
    with dask.config.set(noted), clustertune.hold(client):
        reader["X"].sum().compute()
    try:
        for (_, *words), runs in commands(PAGES[page].read_text()):
            if runs and not NOT_HERE.keys() & set(words):
                run_command([ADDRESS.sub(address, w) for w in words], address)
    finally:
        for name in names:
            client.unpublish_dataset(name)


def run_command(words: list[str], address: str) -> None:
    command, _, _ = resolve(words)
    options = {option for p in command.params for option in p.opts}
    if "--dry-run" in options - set(words):
        words = [*words, "--dry-run"]
    with dask.config.set({"scheduler-address": address}):
        result = CliRunner().invoke(main, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    codes = next((CODES[w] for w in words if w in CODES), {0})
    assert result.exit_code in codes, f"{words}: {result.output}"
