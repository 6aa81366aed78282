"""The engine that runs checks, and what all checks have in common."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

import clustertune
from clustertune import checks
from clustertune.core.model import Finding, Severity
from clustertune.errors import AlignmentError
from clustertune.testing import layout, snapshot, view, worker

PACKAGE = Path(clustertune.__file__).parent
NAMES = sorted(p.stem for p in (PACKAGE / "checks").glob("[!_]*.py"))
PURE = ("planner",)  # folders of modules that a check may use
#: single modules that a check may use
MODULES = ("errors", "core.rules", "core.model", "core.wording")
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
    """Names of the modules that a file imports, wherever in it."""
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


def use_checks(monkeypatch, **modules):
    """Let these be the only checks."""
    monkeypatch.setattr(checks, "available", lambda: modules)


def check(*findings, page="A page.\n\nRemedy: do\nsomething.\n\nMore."):
    """Make a check that finds these."""

    def find(view, *, most=1):
        yield from findings

    return SimpleNamespace(find=find, __doc__=page, __name__="others.check")


def test_every_file_is_a_check():
    """A check is available by the name of its file; nothing registers it."""
    assert set(NAMES) <= set(checks.available())
    assert list(checks.available()) == sorted(checks.available())


@pytest.mark.parametrize("name", NAMES)
def test_every_check_has_a_page_and_a_test(name):
    """The page begins with a sentence, has more to say, and ends with a remedy."""
    module = checks.available()[name]
    summary, *rest = module.__doc__.split("\n\n")
    assert summary.endswith(".")
    assert "\n" not in summary
    assert len(rest) >= 2
    assert len(checks.remedy(module)) > 20
    assert (Path(__file__).parent / f"test_{name}.py").exists()


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_every_check_have_defaults(name):
    """A check runs without being configured."""
    settings = checks.settings_of(checks.available()[name])
    assert all(isinstance(v, int | float | bool) for v in settings.values())


@pytest.mark.parametrize("name", NAMES)
def test_checks_are_short(name):
    """One condition fits on two screens."""
    lines = (PACKAGE / "checks" / f"{name}.py").read_text().splitlines()
    assert len(lines) <= 100


@pytest.mark.parametrize("name", NAMES)
def test_checks_are_pure(name):
    """A check imports nothing that could reach a cluster, a clock or a file."""
    for module in imports(PACKAGE / "checks" / f"{name}.py"):
        top, *rest = module.split(".")
        ours = ".".join(rest)
        assert module in STANDARD or (top == "clustertune" and ours), module
        assert module in STANDARD or rest[0] in PURE or ours in MODULES, module


@pytest.mark.parametrize(
    "path",
    [PACKAGE.joinpath(*name.split(".")).with_suffix(".py") for name in MODULES]
    + [path for folder in PURE for path in sorted((PACKAGE / folder).glob("*.py"))],
    ids=lambda path: path.stem,
)
def test_what_checks_import_is_pure_too(path):
    """Purity does not end at the first import."""
    found = {name.partition(".")[0] for name in imports(path)}
    assert not found & {"dask", "distributed", "asyncio", "time", "os", "logging"}


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(view(), id="no data"),
        pytest.param(view(snapshots=[snapshot([])]), id="no workers"),
        pytest.param(view(layouts=[layout([0, 0], [0, 1])]), id="no rows"),
        pytest.param(view(layouts=[layout([], [])]), id="no pieces"),
        pytest.param(view(layouts=[layout([9], [-1])]), id="lost piece"),
        pytest.param(
            view(snapshots=[snapshot([])], layouts=[layout([9], [-1])]),
            id="no workers, lost piece",
        ),
        pytest.param(
            view([worker(0, status="paused")], [layout([9], [0])]), id="all paused"
        ),
    ],
)
def test_no_check_fails_at_the_extremes(seen):
    """Whatever is seen, every finding has a message and the check's name."""
    for finding in checks.run(seen):
        assert finding.message
        assert finding.check in NAMES


def test_a_finding_gets_name_and_remedy_of_its_check(monkeypatch):
    """The remedy is the page's paragraph on one line, unless the finding has one."""
    plain = Finding(severity=Severity.info, message="m")
    own = Finding(severity=Severity.info, message="n", remedy="do that")
    use_checks(monkeypatch, some=check(plain, own))
    first, second = checks.run(view())
    assert (first.check, first.remedy) == ("some", "do something.")
    assert second.remedy == "do that"


def test_a_page_without_remedy_has_none():
    """A remedy is only what begins with the word."""
    assert checks.remedy(check(page="A page. Remedy: hidden")) == ""


def test_worst_findings_come_first(monkeypatch):
    """Unknown stands between information and warning: it may hide either."""
    levels = ["info", "critical", "unknown", "warning"]
    found = [Finding(severity=Severity[n], message=n) for n in levels]
    use_checks(monkeypatch, some=check(*found))
    order = [f.message for f in checks.run(view())]
    assert order == ["critical", "warning", "unknown", "info"]


def test_settings_reach_their_check():
    """What is configured under the name of a check is passed to it."""
    data = [layout([10] * 600, [0, 1] * 300)]

    def crowded(**settings):
        found = checks.run(view(layouts=data), {"too_many_pieces": settings})
        return [f.severity for f in found if f.check == "too_many_pieces"]

    assert crowded() == [Severity.warning]
    assert crowded(excess=1.0) == [Severity.critical]
    assert crowded(small=100) == []


def test_settings_of_unknown_checks_are_refused():
    """The error says which checks there are."""
    with pytest.raises(ValueError, match=r"no check 'uneven'; .*uneven_rows"):
        checks.run(view(), {"uneven": {}})


def test_unknown_settings_are_refused():
    """The error says which settings the check has, or that it has none."""
    with pytest.raises(ValueError, match="no setting 'nearly'; it has near"):
        checks.run(view(), {"memory_pressure": {"nearly": 0.1}})
    with pytest.raises(ValueError, match="no setting 'near'; it has none"):
        checks.run(view(), {"empty_workers": {"near": 0.1}})


def test_only_critical_findings_of_some_checks_are_errors():
    """A check without an error, and a lesser finding, never stop prepare."""

    def error(severity, name):
        return checks.error_of(Finding(severity=severity, message="", check=name))

    assert error(Severity.critical, "differing_boundaries") is AlignmentError
    assert error(Severity.warning, "differing_boundaries") is None
    assert error(Severity.critical, "memory_pressure") is None


def test_a_check_of_another_package_that_fails(monkeypatch, caplog):
    """Hides no other's findings; ours fail aloud."""
    good = check(Finding(severity=Severity.info, message="seen"))

    def find(view):
        raise ZeroDivisionError("a\x1b[31mred")

    bad = SimpleNamespace(find=find, __doc__="A page.", __name__="others.bad")
    use_checks(monkeypatch, bad=bad, good=good)
    failed, seen = sorted(checks.run(view()), key=lambda f: f.check)
    assert failed.severity is Severity.unknown
    assert "the check failed: ZeroDivisionError" in failed.message
    assert "\x1b" not in failed.message
    assert seen.message == "seen"
    bad.__name__ = "clustertune.checks.bad"
    with pytest.raises(ZeroDivisionError):
        checks.run(view())
