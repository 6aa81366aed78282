"""Run a library's own Dask tests, as they are or with every fit prepared.

``README.md`` has the commands. This is a pytest plugin with its own command, because
the tests of the libraries are packages named ``tests`` as well.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dask
import pytest
import yaml
from adapter import LIBRARIES, Adapter
from distributed import Client, LocalCluster, default_client
from distributed.utils import get_mp_context

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
EXPECTED = HERE / "expected.yaml"


# --- expected differences -------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """A test that fails with ``prepare``, or that needs other arguments."""

    test: str  # file::name, in which * stands for any text
    kind: str  # refusal | no fault | other arguments
    reason: str
    error: str = ""
    match: str = ""  # text in the error
    arguments: dict[str, Any] = field(default_factory=dict)  # of the test's function

    def is_of(self, test: str) -> bool:
        pattern = re.escape(self.test).replace(r"\*", ".*")
        return re.fullmatch(pattern, test) is not None

    def explains(self, error: BaseException | None) -> bool:
        """Whether the error, or one that caused it, is the expected one."""
        return any(
            type(e).__name__ == self.error and self.match in _text(e)
            for e in _chain(error)
        )


def _text(error: BaseException) -> str:
    """An error's text; a bare assertion has none, but a line in its source."""
    frames = traceback.extract_tb(error.__traceback__)
    return str(error) or (frames[-1].line or "" if frames else "")


def expected_differences(file: Path, library: str) -> list[Expected]:
    """Read the entries of one library."""
    entries = yaml.safe_load(file.read_text())[library] or []
    return [Expected(**entry) for entry in entries]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


# --- results --------------------------------------------------------------------------


class Results:
    """Outcomes of tests in a file; the last one of a test counts."""

    def __init__(self, folder: Path, library: str, mode: str) -> None:
        self.file = folder / f"{library}-{mode}.jsonl"

    def add(self, **entry: Any) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def read(self) -> dict[str, dict[str, Any]]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return {e["test"]: e for e in map(json.loads, lines)}


# --- the plugin -----------------------------------------------------------------------


class Peers:
    """Prepares fits, notes outcomes, and knows the expected differences."""

    def __init__(self, library: str, folder: Path, expected: Path | None) -> None:
        self.library = library
        self.is_prepared = expected is not None
        self.expected = expected_differences(expected, library) if expected else []
        self.results = Results(folder, library, "prepared" if expected else "plain")
        plain = Results(folder, library, "plain").read().values()
        self.passed_plain = {e["test"] for e in plain if e["outcome"] == "passed"}
        self.adapter = Adapter(library)

        self.open = ExitStack()
        self.cluster = ExitStack()  # of tests that start none
        self.client: Client | None = None
        self.workers: set[str] = set()

    def pytest_sessionstart(self) -> None:
        if self.is_prepared:
            self.open.enter_context(self.adapter.installed())
        self.open.enter_context(self.cluster)

    def pytest_sessionfinish(self) -> None:
        self.open.close()

    def _start_cluster(self) -> None:
        """Start a cluster, also if a worker was lost: tests would not be alike."""
        if self._is_whole():
            return
        self.cluster.close()
        options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
        cluster = self.cluster.enter_context(LocalCluster(n_workers=2, **options))
        self.client = self.cluster.enter_context(Client(cluster))
        self.workers = set(self.client.nthreads())

    def _is_whole(self) -> bool:
        """Whether the cluster has all its workers, and tests use it.

        A test may leave another client, which is then the default, or close this one.
        """
        try:
            client = default_client()
        except ValueError:  # there is none
            return False
        if client is not self.client or client.status != "running":
            return False
        return self.workers == set(client.nthreads())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Skip tests that do not pass without ``prepare``, and set one time limit.

        XGBoost gives each test 60 s, in which a busy machine may not start a cluster.
        """
        limit = config.getoption("timeout") or float(config.getini("timeout"))
        skip = pytest.mark.skip(reason="has not passed without prepare")
        for item in items:
            item.add_marker(pytest.mark.timeout(limit), append=False)
            if self.is_prepared and _name(item) not in self.passed_plain:
                item.add_marker(skip)

    def pytest_runtest_logstart(self) -> None:
        if self.library == "dask-ml":  # most of its tests start no cluster
            self._start_cluster()
        self.adapter.calls.clear()
        self.adapter.held.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> None:
        for entry in self.expected:
            if entry.is_of(_name(pyfuncitem)):
                pyfuncitem.funcargs |= entry.arguments

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Any:
        report = yield
        error = call.excinfo.value if call.excinfo else None
        if "from pytest-timeout" in str(error):
            self.workers.clear()  # its tasks may still run: the next test gets others
        if report.when == "call" and self.is_prepared:
            self._judge(report, _name(item), error)
        if report.when == "call" or (report.when == "setup" and not report.passed):
            self.results.add(
                test=_name(item),
                outcome=_outcome(report),
                error=" < ".join(f"{type(e).__name__}: {e}" for e in _chain(error))[
                    :2000
                ],
                fits=[asdict(fit) for fit in self.adapter.calls],
                seconds=round(report.duration, 1),
            )
        return report

    def _judge(
        self, report: pytest.TestReport, test: str, error: BaseException | None
    ) -> None:
        """Compare the outcome with the expected one."""
        errors = (e for e in self.expected if e.error)
        entry = next((e for e in errors if e.is_of(test)), None)
        changed = [
            c.error for c in self.adapter.calls if "ValuesChangedError" in c.error
        ]
        if changed:
            report.outcome = "failed"
            report.longrepr = report.longrepr or changed[0]
        elif entry is not None and report.passed:
            report.outcome = "failed"
            report.longrepr = f"it passes: remove its entry from {EXPECTED.name}"
        elif entry is not None and report.failed and entry.explains(error):
            report.outcome = "skipped"
            report.wasxfail = f"{entry.kind}: {entry.error}: {entry.reason}"


def _name(item: pytest.Item) -> str:
    """File and name of a test, without the folders above it."""
    path, _, name = item.nodeid.partition("::")
    return f"{Path(path).name}::{name}"


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        kind, colon, _ = report.wasxfail.partition(":")
        return f"expected {kind}" if colon else "xfailed"
    return str(report.outcome)


# --- the command ----------------------------------------------------------------------


def table(folder: Path) -> str:
    """Count outcomes of all libraries of which there are results."""
    lines = ["| suite | run | pass as is | with prepare: pass | expected | fail |"]
    lines += ["|---|---|---|---|---|---|"]
    for library in LIBRARIES:
        plain = Results(folder, library, "plain").read()
        prepared = Results(folder, library, "prepared").read()
        if not plain:
            continue
        passed = {test for test, e in plain.items() if e["outcome"] == "passed"}
        with_fits = Counter(
            e["outcome"] for t, e in prepared.items() if t in passed and e["fits"]
        )
        outcomes = Counter(e["outcome"] for t, e in prepared.items() if t in passed)
        expected = sum(n for o, n in outcomes.items() if o.startswith("expected"))
        lines.append(
            f"| {library} | {len(plain)} | {len(passed)} | {outcomes['passed']} "
            f"({with_fits['passed']} with a prepared fit) | {expected} "
            f"| {outcomes['failed']} |"
        )
    return "\n".join(lines)


def _start_workers_faster() -> None:
    """Fork workers from a process that has imported Dask, in a tenth of the time."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
        modules = ["distributed", "dask.array", "dask.dataframe"]
        get_mp_context().set_forkserver_preload(modules)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["plain", "prepared", "table"])
    parser.add_argument(
        "--results", type=Path, required=True, help="folder of outcomes"
    )
    parser.add_argument("--library", choices=LIBRARIES)
    parser.add_argument("tests", nargs="*", type=Path, help="files or folders of tests")
    parser.epilog = "Arguments after -- go to pytest."
    end = argv.index("--") if "--" in argv else len(argv)
    options, rest = parser.parse_intermixed_args(argv[:end]), argv[end + 1 :]
    options.results.mkdir(parents=True, exist_ok=True)
    if options.mode == "table":
        print(table(options.results))  # noqa: T201
        return 0
    if options.library is None or not options.tests:
        parser.error("give --library and the tests to run")
    tests = [path.absolute() for path in options.tests]
    if any(path.is_relative_to(REPOSITORY) for path in tests):
        parser.error("keep the sources outside of the repository: pytest collects them")
    expected = EXPECTED if options.mode == "prepared" else None
    peers = Peers(options.library, options.results, expected)
    if expected and not peers.passed_plain:
        parser.error(
            f"no results without prepare in {options.results}: run plain first"
        )
    dask.config.set({"clustertune.history.enabled": False})
    _start_workers_faster()
    arguments = [*map(str, tests), *rest, f"--config-file={HERE / 'peers.ini'}"]
    return int(pytest.main([*arguments, "--rootdir", str(tests[0].parent)], [peers]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
