"""Show the progress of long work in one line, and at most six lines at its end.

A terminal shows it on stderr. A notebook shows one output, which is updated, and at the
end has the result in one line. Otherwise it is logged, and stderr gets the result.

A display that fails must not end the work, which may be half done: a terminal may be
gone, and a function of the caller may raise. The failure is logged once, and so is the
progress from then on.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from time import monotonic
from typing import Any

from clustertune.core.model import Notify
from clustertune.core.wording import printable, seconds_text

logger = logging.getLogger("clustertune")

QUIET = 0.5  # seconds without output at the beginning
OFTEN = 0.1  # seconds between two updates of the line


class Progress:
    """Show or log progress.

    Parameters
    ----------
    wanted
        None: shown in a terminal or notebook, else logged, and the result on stderr.
        True: shown. False: logged.
        A function is called with (text, fraction or None).
    """

    def __init__(self, wanted: bool | Notify | None = None):
        if not (wanted is None or isinstance(wanted, bool) or callable(wanted)):
            raise TypeError(
                f"progress={wanted!r} must be True, False, None (to stderr in a "
                "terminal or notebook) or a function of a text and a fraction"
            )
        self.function = wanted if callable(wanted) else None
        notebook = _in_notebook()
        terminal = _in_terminal()
        shown = notebook or terminal if wanted is None else wanted is True
        self.notebook = shown and notebook
        self.stream = sys.stderr if shown and not notebook else None
        # of the result without a terminal
        self.fallback = sys.stderr if wanted is None and not notebook else None
        self.output: Any = None  # of the notebook, once there is one
        self.start = self.last = monotonic()
        self.width = 0  # of the current line
        self.text = ""  # last logged text

    def notify(self, text: str, fraction: float | None = None) -> None:
        """Show the current work, and the finished fraction if it is known."""
        try:
            self._show(text, fraction)
        except Exception as error:  # noqa: BLE001, functions and terminals raise any
            self._only_log(error)

    def _only_log(self, error: Exception) -> None:
        self.function = self.stream = self.fallback = None
        self.notebook = False
        text = printable(repr(error), longest=200)
        logger.warning("the progress is not shown any more, only logged: %s", text)

    def _show(self, text: str, fraction: float | None) -> None:
        if self.function is not None:
            _call(self.function, text, fraction)
            return
        if self.stream is None and not self.notebook:
            if text != self.text:
                logger.info("%s", printable(text))
            self.text = text
            return
        now = monotonic()
        if now - self.start > QUIET and now - self.last > OFTEN:
            self.last = now
            done = "" if fraction is None else f" {fraction:4.0%}"
            elapsed = seconds_text(now - self.start)
            self._write(f"clustertune: {printable(text, longest=60)}{done} ({elapsed})")

    def finish(self, lines: Sequence[str]) -> None:
        """Clear the line and show the result."""
        try:
            self._finish(lines)
        except Exception as error:  # noqa: BLE001, terminals and notebooks raise any
            self._only_log(error)
            self._finish(lines)

    def _finish(self, lines: Sequence[str]) -> None:
        if self.notebook:
            if lines or self.output is not None:
                self._write(f"clustertune: {'; '.join(lines)}" if lines else "")
            return
        stream = self.stream or self.fallback
        if stream is None:
            for line in lines:
                logger.info("%s", line)
            return
        if self.stream is not None:
            self._write("")
        for line in lines:
            print(f"clustertune: {line}", file=stream)
        stream.flush()

    def _write(self, text: str) -> None:
        if self.notebook:
            self._update_output(text)
            return
        assert self.stream is not None
        if text or self.width:
            self.stream.write("\r" + text.ljust(self.width) + ("" if text else "\r"))
            self.stream.flush()
        self.width = len(text)

    def _update_output(self, text: str) -> None:
        show: Any = importlib.import_module("IPython.display").display
        data = {"text/plain": text}
        if self.output is None:
            self.output = show(data, raw=True, display_id=True)
        else:
            self.output.update(data, raw=True)


def _call(function: Notify, text: str, fraction: float | None) -> None:
    try:
        function(text, fraction)
    except (KeyboardInterrupt, SystemExit) as error:
        # they would end the event loop of the client, in which this runs
        raise RuntimeError(f"the function of progress= raised {error!r}") from error


def _in_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # it is closed
        return False


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # the class of the shell of Colab is derived from that of Jupyter
    return any(x.__name__ == "ZMQInteractiveShell" for x in type(shell).__mro__)
