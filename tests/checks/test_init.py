"""How checks run, and rules for all checks."""

import ast
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import clustertune
from clustertune import checks
from clustertune.core.model import Finding, Severity
from clustertune.errors import AlignmentError
from clustertune.planner import plan
from tests.builders import details, layout, runs, snapshot, view, worker

PACKAGE = Path(clustertune.__file__).parent
MODULES = sorted((PACKAGE / "checks").glob("*.py"))
NAMES = sorted(check.__name__ for group in checks.CHECKS.values() for check in group)
PURE = ("planner",)  # folders of modules that a check may use
#: single modules that a check may use
SINGLE = (
    *("errors", "core.profiles", "core.rules", "core.model"),
    "core.wording",
)
STANDARD = {
    "__future__",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "itertools",
    "math",
    "numpy",
    "statistics",
    "typing",
}


def imports(path):
    """Return the names of the modules that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (
                f"clustertune.{alias.name}"
                if node.module == "clustertune"
                else str(node.module)
                for alias in node.names
            )


FOUND = Finding(severity=Severity.info, message="m")


def use_checks(monkeypatch, **modules):
    """Replace all checks by these."""
    monkeypatch.setattr(checks, "available", lambda: modules)


PAGE = "A page.\n\nRemedy: do\nsomething.\n\nMore."


def check(*findings, page=PAGE, error=None):
    """Make a check with these findings, as a function."""

    def find(view, *, most=1):
        yield from findings

    find.__doc__ = page
    if error is not None:
        find.ERROR = error
    return find


def test_every_public_function_is_a_check():
    """Each check explains one symptom; no two checks have the same name."""
    assert sorted(set(NAMES)) == NAMES
    assert set(NAMES) <= set(checks.available())
    assert list(checks.available()) == sorted(checks.available())
    public = {
        node.name
        for path in MODULES
        if path.stem != "__init__"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    assert sorted(public) == NAMES


def test_checks_by_symptom(monkeypatch):
    """Checks of other packages form their own group, if there are any."""
    found = checks.by_symptom()
    assert sorted(name for names in found.values() for name in names) == NAMES
    use_checks(monkeypatch, some=check(FOUND))
    assert checks.by_symptom()["Checks of other packages"] == ("some",)


@pytest.mark.parametrize("name", NAMES)
def test_every_check_has_a_page_and_a_test(name):
    """The page begins with a sentence, has more text, and has a remedy."""
    check = checks.available()[name]
    summary, *rest = checks.text(check).split("\n\n")
    assert summary == checks.title(check)
    assert summary.startswith("Find ")
    assert summary.endswith(".")
    assert len(rest) >= 2
    remedies = [text for text in rest if text.startswith("Remedy: ")]
    assert len(remedies) == 1
    topic = check.__module__.rpartition(".")[2]
    tests = (Path(__file__).parent / f"test_{topic}.py").read_text()
    assert f"\n# --- {name} -" in tests
    assert f" {name}(" in tests or f"({name}(" in tests


@pytest.mark.parametrize("name", plan.GOALS)
def test_goals_have_a_page_and_are_no_checks(name):
    """Reports show goals, but they cannot be run or configured."""
    assert "Find " in checks.page(name)
    assert name not in checks.available()
    assert name in checks.explained()
    with pytest.raises(ValueError, match="no check"):
        checks.run(view(), {name: {}})


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_every_check_have_defaults_and_a_description(name):
    """A check runs with default settings."""
    check = checks.available()[name]
    settings = checks.settings_of(check)
    assert all(isinstance(v, int | float | bool) for v in settings.values())
    assert checks.settings_help(check).keys() == settings.keys()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_topics_are_short(path):
    """No topic has more than 600 lines, and no function more than two screens."""
    text = path.read_text()
    assert len(text.splitlines()) <= 600
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 100, node.name


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.stem != "__init__"], ids=lambda path: path.stem
)
def test_checks_are_pure(path):
    """A check imports nothing that reads a cluster, a clock or a file."""
    for name in imports(path):
        top, *rest = name.split(".")
        ours = ".".join(rest)
        assert name in STANDARD or (top == "clustertune" and ours), name
        assert name in STANDARD or rest[0] in PURE or ours in SINGLE, name


@pytest.mark.parametrize(
    "path",
    [PACKAGE.joinpath(*name.split(".")).with_suffix(".py") for name in SINGLE]
    + [path for folder in PURE for path in sorted((PACKAGE / folder).glob("*.py"))],
    ids=lambda path: path.stem,
)
def test_what_checks_import_is_pure_too(path):
    """The rule also holds for the modules that checks import."""
    found = {name.partition(".")[0] for name in imports(path)}
    assert not found & {"dask", "distributed", "asyncio", "time", "os", "logging"}


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(view(), id="no data"),
        pytest.param(view(snapshots=[snapshot([])]), id="no workers"),
        pytest.param(view(layouts=[layout([0, 0], [0, 1])]), id="no rows"),
        pytest.param(view(layouts=[layout([], [])]), id="no partitions"),
        pytest.param(view(layouts=[layout([9], [-1])]), id="lost partition"),
        pytest.param(
            view(snapshots=[snapshot([])], layouts=[layout([9], [-1])]),
            id="no workers, lost partition",
        ),
        pytest.param(
            view([worker(0, status="paused")], [layout([9], [0])]), id="all paused"
        ),
    ],
)
def test_no_check_fails_at_the_extremes(seen):
    """For any view, every finding has a message and the name of its check."""
    for finding in checks.run(seen):
        assert finding.message
        assert finding.check in NAMES


def test_a_finding_gets_the_name_of_its_check_and_keeps_its_remedy(monkeypatch):
    """A finding without a remedy does not get the one of the page."""
    plain = Finding(severity=Severity.info, message="m")
    own = Finding(severity=Severity.info, message="n", remedy="do that")
    use_checks(monkeypatch, some=check(plain, own))
    first, second = checks.run(view())
    assert (first.check, first.remedy) == ("some", "")
    assert (second.check, second.remedy) == ("some", "do that")


def test_a_check_of_another_package(monkeypatch):
    """It has a page and settings, as a check of this package."""
    other = check(FOUND)
    use_checks(monkeypatch, some=other)
    (finding,) = checks.run(view(), {"some": {"most": 2}})
    assert finding.check == "some"
    assert checks.title(other) == "A page."
    assert checks.settings_of(other) == {"most": 1}


def test_an_object_that_is_no_check_is_left_out(monkeypatch, caplog):
    """It hides no other check, and a log line names it."""
    found = {"bad": ModuleType("json"), "good": check(FOUND), "uneven_rows": check()}
    entries = [
        SimpleNamespace(
            name=name, group="clustertune.checks", value=name, load=lambda x=x: x
        )
        for name, x in found.items()
    ]
    monkeypatch.setattr(checks.settings, "entry_points", lambda group: entries)
    known = checks.available.__wrapped__()
    assert set(known) == {"good", *NAMES}
    assert known["uneven_rows"] is checks.available()["uneven_rows"]
    assert "bad = bad is not a function and is left out" in caplog.text


def test_errors_of_checks_of_another_package(monkeypatch):
    """A function may have the attribute ``ERROR``."""
    critical = Finding(severity=Severity.critical, message="m", check="some")
    use_checks(monkeypatch, some=check(error=AlignmentError))
    assert checks.error_of(critical) is AlignmentError
    use_checks(monkeypatch, some=check())
    assert checks.error_of(critical) is None


def test_worst_findings_come_first(monkeypatch):
    """Unknown ranks between information and warning, because it may hide either."""
    levels = ["info", "critical", "unknown", "warning"]
    found = [Finding(severity=Severity[n], message=n) for n in levels]
    use_checks(monkeypatch, some=check(*found))
    order = [f.message for f in checks.run(view())]
    assert order == ["critical", "warning", "unknown", "info"]


def test_settings_reach_their_check():
    """A setting below the name of a check is passed to that check."""
    seen = view([worker(0, details=details(expires=1900.0))])

    def ending(**settings):
        found = checks.run(seen, {"worker_lifetime": settings})
        return [f.severity for f in found if f.check == "worker_lifetime"]

    assert ending() == [Severity.warning]
    assert ending(warning_seconds=10.0) == [Severity.info]


def test_settings_of_unknown_checks_are_refused():
    """The error lists the checks."""
    with pytest.raises(ValueError, match=r"no check 'uneven'; .*uneven_rows"):
        checks.run(view(), {"uneven": {}})


def test_unknown_settings_are_refused():
    """The error lists the settings of the check, if it has any."""
    with pytest.raises(ValueError, match="no setting 'near'; it has close_fraction"):
        checks.run(view(), {"memory_pressure": {"near": 0.1}})
    with pytest.raises(ValueError, match="no setting 'near'; it has none"):
        checks.run(view(), {"empty_workers": {"near": 0.1}})


def test_only_critical_findings_of_some_checks_are_errors():
    """Findings of checks without an error, and minor findings, never stop prepare."""

    def error(severity, name):
        return checks.error_of(Finding(severity=severity, message="", check=name))

    assert error(Severity.critical, "misaligned_partitions") is AlignmentError
    assert error(Severity.warning, "misaligned_partitions") is None
    assert error(Severity.critical, "memory_pressure") is None
    assert error(Severity.critical, "unloaded_data") is None


def test_errors_are_of_checks_and_goals_that_exist():
    """Each error belongs to an existing check or goal."""
    assert set(checks.ERRORS) <= {*NAMES, *plan.GOALS}


def test_a_check_of_another_package_that_fails(monkeypatch, caplog):
    """It hides no other findings; an error in clustertune's own check is raised."""
    good = check(Finding(severity=Severity.info, message="seen"))

    def bad(view):
        raise ZeroDivisionError("a\x1b[31mred")

    use_checks(monkeypatch, bad=bad, good=good)
    failed, seen = sorted(checks.run(view()), key=lambda f: f.check)
    assert failed.severity is Severity.unknown
    assert "the check failed: ZeroDivisionError" in failed.message
    assert "\x1b" not in failed.message
    assert seen.message == "seen"
    assert failed.remedy == ""
    use_checks(monkeypatch, uneven_rows=bad)
    with pytest.raises(ZeroDivisionError):
        checks.run(view())


@pytest.mark.parametrize(
    "name", ["memory_pressure", "unmanaged_memory", "memory_growth"]
)
def test_no_worker_is_restarted_twice_in_a_call(name):
    """Then no finding promises that."""
    seen = worker(0, process=3 * 2**30)
    idle = worker(1, process=3 * 2**30)
    times = [snapshot([seen, idle], time=time) for time in (0, 20)]
    past = runs(*({0: n * 2**30, 1: n * 2**30} for n in (0, 1, 2, 3)))
    check = {c.__name__: c for group in checks.CHECKS.values() for c in group}[name]

    def fixed_by(**goal):
        found = check(view(snapshots=times, runs=past, **goal))
        return {f.fixed_by for f in found if f.severity >= Severity.warning}

    assert fixed_by() == {""}
    assert fixed_by(restart=True) == {"restart"}
    assert fixed_by(restart=True, restarted=frozenset({2})) == {"restart"}
    assert fixed_by(restart=True, restarted=frozenset({0, 1})) == {""}
