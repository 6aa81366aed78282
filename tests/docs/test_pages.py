"""Code and commands on the pages of the documentation are correct, and run."""

from __future__ import annotations

import ast
import gzip
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
from clustertune.cli import main
from clustertune.core.model import Severity
from clustertune.operations.playbooks import reading
from tests.pages import DOCS, PAGES, ROOT, blocks, commands
from tests.processes import LOCAL, local_workers, stop_stealing, workers_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ADDRESS = re.compile(r"(?:tcp|tls)://[\w.:]+|\bADDRESS\b")

# --- without running it ---------------------------------------------------------------


def read_python(code: str) -> None:
    ast.parse(code)


def read_yaml(code: str) -> None:
    data = yaml.safe_load(code)
    if "steps" in data and not re.search("small_workers", code):
        reading.load(code, "the page")


def nothing(code: str) -> None:
    """Check nothing: output, and commands of other programs."""


#: tests that look for marked blocks
TESTS = [p.read_text() for p in (ROOT / "tests").rglob("*.py") if p.name not in
         ("pages.py", "test_pages.py")]  # fmt: skip
LANGUAGES: dict[str, Callable[[str], Any]] = {
    "python": read_python,
    "yaml": read_yaml,
    "toml": tomllib.loads,
    "sh": nothing,  # commands of clustertune: see below
    "shell": nothing,
    "bash": nothing,  # commands of other programs
    "text": nothing,  # output
    "": nothing,
}


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_what_they_say(page: str) -> None:
    """Python, YAML, TOML and playbooks can be read; a mark has a reason."""
    for block in blocks(PAGES[page].read_text()):
        if block.language.startswith("{"):
            continue  # a directive: Sphinx checks it
        assert block.language in LANGUAGES, f"{page}:{block.line}"
        LANGUAGES[block.language](block.code)
        what, _, more = block.mark.partition(": ")
        # a reason, or the name by which another test finds the block
        named = what == "not run" or any(f"{what}: " in text for text in TESTS)
        assert not what or (named and more), f"{page}:{block.line}: {block.mark}"


def resolve(words: list[str]) -> tuple[click.Command, list[str], click.Context]:
    """Return the command that words name, and the remaining words."""
    group: click.Command = main
    context = click.Context(main, info_name="clustertune", **main.context_settings)
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
    """Commands exist, and take the options and arguments."""
    for (program, *words), _ in commands(PAGES[page].read_text()):
        where = f"{page}: {' '.join(words)}"
        assert program == "clustertune", where
        if words[:1] == ["VERB"]:
            continue  # a placeholder
        command, rest, context = resolve([w for w in words if not w.startswith("[")])
        try:
            _, left, _ = command.make_parser(context).parse_args(rest)
        except click.UsageError as error:
            pytest.fail(f"{where}: {error.format_message()}")
        assert not left or isinstance(command, click.Group), where


def test_what_is_no_command_is_refused() -> None:
    """The test above can fail."""
    command, rest, context = resolve(["restart", "--wrker", "3"])
    with pytest.raises(click.NoSuchOption):
        command.make_parser(context).parse_args(rest)
    assert resolve(["restrat"])[1] == ["restrat"]


def reference() -> dict[str, list[str]]:
    """Return by module the names on the page of the API."""
    found: dict[str, list[str]] = {}
    module = ""
    for line in (DOCS / "api.md").read_text().splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split()[-1]
        elif name := re.fullmatch(r" {3}(\w+)", line):
            found.setdefault(module, []).append(name[1])
    return found


def exported(module: Any) -> set[str]:
    """Return the public names of a module: imports with ``as``, and definitions."""
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
    """Each name is there once. A new name needs a line in docs/api.md."""
    listed = reference()
    of_package = {*clustertune._PUBLIC} - {"training"}  # has another section
    assert sorted(listed.pop("clustertune")) == sorted(of_package)
    training = clustertune.training
    assert sorted(listed.pop(training.__name__)) == sorted(exported(training))
    for module, names in listed.items():  # results of calls, and types for plugins
        assert all(hasattr(import_module(module), name) for name in names)


def test_every_page_can_be_reached() -> None:
    """Each page is in the navigation once."""
    index = (DOCS / "index.md").read_text()
    listed = [
        name
        for block in blocks(index)
        if block.language == "{toctree}"
        for line in block.code.splitlines()
        if line and not line.startswith(":")
        for name in expanded(line)
    ]
    there = {str(p.relative_to(DOCS).with_suffix("")) for p in PAGES.values()
             if p.is_relative_to(DOCS)}  # fmt: skip
    assert sorted(listed) == sorted(there - {"index"} | {"tutorial"})


def expanded(name: str) -> list[str]:
    """Return the pages of a pattern, or the name itself."""
    if "*" not in name:
        return [name]
    found = DOCS.glob(f"{name}.md")
    return [str(p.relative_to(DOCS).with_suffix("")) for p in found]


# --- Python, on a cluster that pages share --------------------------------------------

PYTHON = [
    page
    for page, path in PAGES.items()
    if any(b.language == "python" for b in blocks(path.read_text()))
]
#: pages whose code runs in other tests
ELSEWHERE = {
    "README.md",  # tests/docs/test_examples.py
    "docs/design.md",  # tests/core/test_settings.py
    "docs/security.md",  # below
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return the address of a cluster with two worker processes."""
    with LocalCluster(n_workers=2, **LOCAL) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with Parquet files."""
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
    """Return the names that pages use: a client, uneven data, a model."""
    before = dask.config.config.copy()
    with Client(address) as client:
        yield {**given(client), "__name__": "of_a_page"}
    dask.config.config.clear()
    dask.config.config.update(before)


def given(client: Client) -> dict[str, Any]:
    """Load all rows on the first of two workers."""
    import xgboost.dask

    first = min(workers_of(client))
    client.run_on_scheduler(stop_stealing)
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
    """Add query groups, and a model that ranks them."""
    import xgboost.dask

    names["qid"] = da.arange(400, chunks=100) // 20
    names["ranker"] = xgboost.dask.DaskXGBRanker(n_estimators=2, allow_group_split=True)
    names["ranker"].client = names["client"]


def of_training(names: dict[str, Any]) -> None:
    """Add a function to sum, and candidates to search."""
    names["w"] = np.zeros(4)
    names["func"] = lambda X, y, w: X.T @ (X @ w - y)
    names["candidates"] = range(8)
    names["score"] = lambda candidate, X, y: (-((candidate - 3) ** 2), candidate)
    names["data"], names["labels"] = np.ones((400, 4)), np.ones(400)


def of_workers(names: dict[str, Any]) -> None:
    """Add forgotten data."""
    forgotten = dd.read_parquet("data"), da.ones(10) + 1
    names["forgotten"] = [names["client"].persist(x) for x in forgotten]
    wait(names["forgotten"])


def of_messy_data(names: dict[str, Any]) -> None:
    """Write a month with semicolons in another encoding, and two without rows."""
    Path("orders").mkdir()
    head, row = "ordered,category,price,returned\n", "2026-03-01 10:00, Shoes,2.5,no\n"
    Path("orders/1.csv").write_text(head + row * 20)
    Path("orders/2.csv").write_text(head)
    text = (head + "13.04.2026 11:00,B\u00fccher,2*5,yes\n").replace(",", ";")
    Path("orders/3.csv").write_text(text.replace("*", ","), encoding="cp1252")
    Path("orders/4.csv").touch()
    columns = "extra,Returned,price,category,ordered\n"
    rows = "1,Y ,n/k,tois,2026-05-02 12:00\n2,n,$3,toys,2026-05-02 12:00\n"
    Path("orders/5.csv").write_text(columns + rows + "sum,,,,2 rows\n")
    row = '2026-06-01 13:00,toys,"$1,203.5",y\n'
    with gzip.open("orders/6.csv.gz", "wt", encoding="utf-8-sig") as file:
        file.write(head + row + row.replace("$", "").replace("y\n", "\n"))


def check_messy_data(names: dict[str, Any]) -> None:
    """All rows have the values that the files have."""
    X, y = dask.compute(names["X_orders"], names["y_orders"])
    assert y.tolist() == [0] * 20 + [1, 1, 0, 1]
    assert X["price"].tolist()[:21] == [2.5] * 21
    assert X["price"].isna().tolist() == [False] * 21 + [True, False, False]
    assert X["price"].tolist()[-2:] == [3, 1203.5]
    assert X["hour"].tolist() == [10] * 20 + [11, 12, 12, 13]
    assert X["category"].tolist()[:20] == ["shoes"] * 20
    report = clustertune.check(
        names["client"],
        names["X_orders"],
        names["y_orders"],
        estimator=type(names["model"])(enable_categorical=True),
        deep=True,
    )
    about = [f for f in report.found if {*f.subject} & {"X", "y"}]
    assert not [f for f in about if f.severity > Severity.info]


#: further names, by page
FURTHER = {
    "docs/howto/messy-data.md": of_messy_data,
    "docs/prepare.md": of_prepare,
    "docs/training.md": of_training,
    "docs/workers.md": of_workers,
}
#: what the code of a page has to have done, by page
CHECKED = {"docs/howto/messy-data.md": check_messy_data}


@pytest.mark.slow
# dask-glm uses an old name of a setting
@pytest.mark.filterwarnings("ignore:Dask configuration key:FutureWarning")
@pytest.mark.parametrize("page", [p for p in PYTHON if p not in ELSEWHERE])
def test_python_of_the_pages(page: str, reader: dict[str, Any]) -> None:
    """Run all blocks in order."""
    if page in FURTHER:
        FURTHER[page](reader)
    run_python(page, reader)
    if page in CHECKED:
        CHECKED[page](reader)


def run_python(page: str, names: dict[str, Any]) -> None:
    client = names["client"]
    for block in blocks(PAGES[page].read_text()):
        if block.language == "python" and not block.mark:
            code = ADDRESS.sub(client.scheduler.address, block.code)
            # errors have the line numbers of the page
            exec(compile("\n" * block.line + code, page, "exec"), names)
    for value in list(names.values()):
        if isinstance(value, Client) and value is not client:
            value.close()


@pytest.mark.slow
def test_what_the_page_on_security_shows(folder: Path) -> None:
    """A client, ``prepare`` and a command use certificates in files."""
    page = "docs/security.md"
    security = Security.temporary()
    for name, text in (
        ("ca", security.tls_ca_file),
        ("client", security.tls_client_cert),
        ("client-key", security.tls_client_key),
    ):
        Path(f"{name}.pem").write_text(text)
    with (
        local_workers(processes=False, security=security, protocol="tls") as client,
    ):
        X = da.ones((400, 4), chunks=(100, 4))  # lazy: the page connects a client
        lazy = {"X": X, "y": X[:, 0]}
        run_python(page, {**given(client), **lazy, "__name__": "of_a_page"})
        ((_, *words), _), *more = commands(PAGES[page].read_text())
        assert not more
        address = client.scheduler.address
        run_command([ADDRESS.sub(address, word) for word in words], address)


# --- commands -------------------------------------------------------------------------

#: by a word of a command, why the command does not run here
NOT_HERE = {
    "demo": "tests/cli/test_demo.py runs it",
    "watch": "it ends with ^C",
    "--serve": "it ends with ^C",
    "ID": "a placeholder for an id",
    "explain": "tests/cli/test_cli.py runs it",
    "--lint": "the files are not here",
    "--tls-ca-file": "the cluster of the test has no TLS",
}
#: allowed exit codes of commands that may exit with others than 0
CODES = {"check": {0, 1}, "size": {0, 1}}


@pytest.mark.slow
@pytest.mark.parametrize("page", [
    page for page, path in PAGES.items()
    if page != "docs/cli.md" and any(runs for _, runs in commands(path.read_text()))
])  # fmt: skip
def test_commands_of_the_pages(page: str, reader: dict[str, Any]) -> None:
    """Run all commands, with --dry-run if they change something."""
    address = reader["client"].scheduler.address
    for (_, *words), runs in commands(PAGES[page].read_text()):
        if runs and not NOT_HERE.keys() & set(words):
            run_command([ADDRESS.sub(address, w) for w in words], address)


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
