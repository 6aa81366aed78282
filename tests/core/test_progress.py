"""Progress goes to stderr if a user reads it, to the log, or to a function."""

from __future__ import annotations

import io
import logging
import sys
from contextlib import redirect_stderr
from types import ModuleType
from typing import Any

import pytest

from clustertune.core import progress
from clustertune.core.progress import Progress


class Stderr(io.StringIO):
    """Replace stderr; it may be a terminal."""

    def __init__(self, *, terminal: bool = False):
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return super().isatty() or self.terminal  # an error if it is closed

    def progress(self, wanted: Any) -> Progress:
        # pytest puts its own stderr in place between fixtures and test
        with redirect_stderr(self):
            return Progress(wanted)


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Stderr:
    """Replace stderr by a file, and show lines at once."""
    monkeypatch.setattr(progress, "QUIET", -1.0)
    monkeypatch.setattr(progress, "OFTEN", -1.0)
    return Stderr()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "clustertune")
    return caplog


def test_nothing_is_said_of_quick_work(
    stderr: Stderr, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that ends within the quiet time prints only its last lines."""
    monkeypatch.setattr(progress, "QUIET", 1e9)
    shown = stderr.progress(wanted=True)
    shown.notify("loading", 0.5)
    shown.finish(["did: it"])
    assert stderr.getvalue() == "clustertune: did: it\n"


def test_a_line_that_is_rewritten(stderr: Stderr) -> None:
    """Each update overwrites the one before."""
    shown = stderr.progress(wanted=True)
    shown.notify("moving 1,000 keys", 0.25)
    shown.notify("short")
    _, first, second = stderr.getvalue().split("\r")
    assert first.startswith("clustertune: moving 1,000 keys  25% (")
    assert second.startswith("clustertune: short (")
    assert len(second) == len(first)
    assert "\n" not in stderr.getvalue()


def test_the_line_is_cleared_before_the_end(stderr: Stderr) -> None:
    """The last lines stand alone: the progress line is wiped."""
    shown = stderr.progress(wanted=True)
    shown.notify("moving", None)
    width = len(stderr.getvalue()) - 1
    shown.finish(["did: it", "cost: 1 s"])
    wiped = "\r" + " " * width + "\r"
    assert stderr.getvalue().endswith(
        f"{wiped}clustertune: did: it\nclustertune: cost: 1 s\n"
    )


def test_updates_are_not_more_often_than_can_be_read(
    stderr: Stderr, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a pause between two updates."""
    monkeypatch.setattr(progress, "OFTEN", 1e9)
    shown = stderr.progress(wanted=True)
    shown.last = float("-inf")
    for i in range(1000):
        shown.notify(f"key {i}", i / 1000)
    assert stderr.getvalue().count("\r") == 1
    assert "key 0 " in stderr.getvalue()


def test_hostile_text(stderr: Stderr) -> None:
    """Names in progress texts cannot act on the terminal, nor break the line."""
    stderr.progress(wanted=True).notify("moving to \x1b[2J\n\u202ex" + "y" * 1000, None)
    (line,) = stderr.getvalue().split("\r")[1:]
    assert all(c.isprintable() for c in line)
    assert len(line) < 120


def test_without_a_terminal_it_is_logged(
    stderr: Stderr, log: pytest.LogCaptureFixture
) -> None:
    """Without a terminal each text is logged once; stderr has the last lines."""
    shown = stderr.progress(wanted=None)
    for fraction in (0.1, 0.2, 0.3):
        shown.notify("loading 7 partitions", fraction)
    shown.notify("moving \x1b[2J")
    shown.finish(["did: it"])
    assert log.messages == ["loading 7 partitions", "moving \\x1b[2J"]
    assert stderr.getvalue() == "clustertune: did: it\n"


def test_not_wanted(stderr: Stderr, log: pytest.LogCaptureFixture) -> None:
    """With False it is logged, even in a terminal."""
    stderr.terminal = True
    stderr.progress(wanted=False).finish(["did: it"])
    assert stderr.getvalue() == ""
    assert log.messages == ["did: it"]


def test_in_a_terminal_it_is_shown(
    stderr: Stderr, log: pytest.LogCaptureFixture
) -> None:
    """By default it is shown in a terminal and not logged."""
    stderr.terminal = True
    stderr.progress(wanted=None).finish(["did: it"])
    assert stderr.getvalue() == "clustertune: did: it\n"
    assert log.messages == []


def test_in_ipython_it_is_shown_in_a_terminal_only(
    stderr: Stderr, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell of IPython is no notebook: without a terminal only the result is."""
    ipython = ModuleType("IPython")
    ipython.get_ipython = type("TerminalInteractiveShell", (), {})
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    shown = stderr.progress(wanted=None)
    shown.notify("moving", 0.5)
    assert not stderr.getvalue()
    shown.finish(["did: it"])
    assert stderr.getvalue() == "clustertune: did: it\n"


def test_colab_is_a_notebook(stderr: Stderr, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of its shell is derived from that of Jupyter."""
    ipython = ModuleType("IPython")
    jupyter = type("ZMQInteractiveShell", (), {})
    ipython.get_ipython = type("Shell", (jupyter,), {})
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert stderr.progress(wanted=None).notebook


def test_a_notebook_keeps_one_line() -> None:
    """A notebook updates one output, which it stores with the result."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    lines = (
        "from clustertune.core import progress",
        "progress.QUIET = progress.OFTEN = -1.0",
        "shown = progress.Progress(None)",
        "for i in range(3): shown.notify('moving', i / 3)",
        "shown.finish(['action: moved 3 keys', 'cost: 1 s'])",
    )
    cell = nbformat.v4.new_code_cell("\n".join(lines))
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbclient.NotebookClient(notebook, timeout=120).execute()
    (output,) = notebook.cells[0].outputs
    text = "clustertune: action: moved 3 keys; cost: 1 s"
    assert output["data"] == {"text/plain": text}


def test_no_stderr_at_all(log: pytest.LogCaptureFixture) -> None:
    """A program without a console (pythonw) has no stderr; the log is used."""
    with redirect_stderr(None):
        shown = Progress(wanted=None)
    shown.finish(["did: it"])
    assert log.messages == ["did: it"]


@pytest.mark.parametrize("wanted", [1, "yes", []])
def test_neither_yes_nor_no_nor_a_function(wanted: Any) -> None:
    """The error has the name, the value and the allowed values."""
    with pytest.raises(TypeError, match=r"progress=.* must be True, False, None"):
        Progress(wanted)


def test_a_function(stderr: Stderr, log: pytest.LogCaptureFixture) -> None:
    """A function gets every update unchanged; the last lines are logged."""
    told: list[object] = []
    shown = stderr.progress(wanted=lambda *what: told.append(what))
    shown.notify("loading", 0.5)
    shown.notify("loading", 0.5)
    shown.notify("waiting", None)
    shown.finish(["did: it"])
    assert told == [("loading", 0.5), ("loading", 0.5), ("waiting", None)]
    assert stderr.getvalue() == ""
    assert log.messages == ["did: it"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_function_that_would_end_everything(
    error: type[BaseException], stderr: Stderr, log: pytest.LogCaptureFixture
) -> None:
    """It is called in the client's event loop, which must continue; it is logged."""

    def end(text: str, fraction: float | None) -> None:
        raise error

    shown = stderr.progress(wanted=end)
    shown.notify("loading", 0.5)
    shown.notify("moving", 0.5)
    first, *others = log.messages
    assert f"progress= raised {error.__name__}" in first
    assert others == ["moving"]


def test_a_function_that_fails(stderr: Stderr, log: pytest.LogCaptureFixture) -> None:
    """The work goes on: the failure is logged once, and so is the progress then."""
    shown = stderr.progress(wanted=lambda *_: 1 / 0)
    shown.notify("loading", 0.5)
    shown.notify("moving", 0.5)
    shown.finish(["did: it"])
    first, *others = log.messages
    assert first.startswith("the progress is not shown any more, only logged: ZeroDiv")
    assert others == ["moving", "did: it"]


def test_a_terminal_that_is_gone(stderr: Stderr, log: pytest.LogCaptureFixture) -> None:
    """The result is logged."""
    stderr.terminal = True
    shown, quick = stderr.progress(wanted=None), stderr.progress(wanted=None)
    stderr.close()
    shown.notify("loading", 0.5)
    shown.notify("moving", 0.5)
    shown.finish(["did: it"])
    quick.finish(["did: this"])
    later = stderr.progress(wanted=None)
    later.finish(["did: that"])
    texts = [m for m in log.messages if not m.startswith("the progress is not shown")]
    assert texts == ["moving", "did: it", "did: this", "did: that"]
    assert len(log.messages) == 7
