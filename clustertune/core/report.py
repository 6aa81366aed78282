"""The report of a call: as text, as HTML for notebooks, and as JSON.

A report is plain data. The scheduler can keep it, and another process can read it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from clustertune.core import decoding, sections, tables
from clustertune.core.model import Severity
from clustertune.core.results import Results
from clustertune.core.wording import printable

SCHEMA_VERSION = 1

#: a page that loads nothing, whatever text is in it
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'">
<title>clustertune</title>
<style>
body {{ font-family: sans-serif; margin: 2em; max-width: 75em; }}
td, th {{ padding: 0.2em 0.8em; text-align: left; vertical-align: top; }}
h4 {{ margin-bottom: 0.3em; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Results):
    """The findings, steps and results of a call of clustertune.

    It prints as text of at most 100 columns that begins with the answer in one line,
    and displays as HTML in a notebook.

    Attributes
    ----------
    status
        ``checked`` (by ``check``), ``fine`` (there was nothing to do), ``done``,
        ``left`` (something could not be done or fixed), ``planned`` (a dry run) or
        ``failed``.
    seconds
        Duration of the whole call.
    call
        The call: ``prepare``, ``check``, ``restart``; may be empty.
    workload
        The workload for which ``prepare`` has prepared the data; empty for other calls.
    found, left
        Findings of the first and of the last look at the cluster.
    before, after
        Layouts before and after the call, training data first.
    steps
        Steps that were carried out or refused; after a dry run, planned steps.
    needs
        Facts that a dry run would need to plan further.
    workers
        Memory of all workers before and after the call, and the predicted peak of their
        processes during the fit with the final layout.
    lost
        Keys lost with workers that ended during the call, and that nothing computes
        again, besides those of ``steps``; and their ``coming`` keys, which were not
        computed again yet. None: unknown.
    error
        Why the call failed; empty if it did not.
    notes
        Further information: running tasks for which a plan waits, a history that
        cannot be written, or a scheduler with too much to check.
    """

    def __str__(self) -> str:
        return tables.to_text(sections.sections(self))

    def __repr__(self) -> str:
        return f"<Report: {sections.headlines(self)[0]}>"

    def _repr_html_(self) -> str:
        return tables.to_html(sections.sections(self, details=True))

    @property
    def details(self) -> str:
        """The report as text, with predictions, information and results of steps."""
        return tables.to_text(sections.sections(self, details=True))

    def save(self, path: str | Path) -> None:
        """Write the report as one HTML file that needs no network.

        Parameters
        ----------
        path
            Path of the file, such as ``"report.html"``. An existing file is replaced.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        page = PAGE.format(body=self._repr_html_())
        Path(path).write_text(page, encoding="utf-8")

    def to_json(self) -> str:
        """Return the report as JSON, with ``schema_version``."""
        data = {"schema_version": SCHEMA_VERSION} | asdict(self)
        for name in ("found", "left"):
            data[name] = [f | {"severity": str(f["severity"])} for f in data[name]]
        return json.dumps(data, default=_plain)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read the JSON of :meth:`to_json`.

        Raises
        ------
        ValueError
            The text is not a report, or has another schema version.
        """
        try:
            return decoding.convert(_parsed(text), cls)
        # a list or a number instead of a mapping, or an unknown word
        except (LookupError, TypeError, ValueError) as error:
            text = printable(str(error), longest=400)
            raise ValueError(f"this is not a report: {text}") from error


class FitReport(Report):
    """The report of a fit, whose pickle is plain text.

    Unpickling a fitted model must not need clustertune.
    """

    __slots__ = ()

    def __reduce__(self) -> Any:
        return str, (str(self),)

    def __deepcopy__(self, memo: Any) -> FitReport:
        return self  # it is frozen


def _parsed(text: str) -> Any:
    """Return the data of a report; raise for another schema version."""
    data = decoding.parse_json(text)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ValueError(
            f"schema version {printable(repr(version), longest=60)} of reports is "
            f"unknown; this clustertune reads only {SCHEMA_VERSION}"
        )
    for finding in (*data.get("found", ()), *data.get("left", ())):
        finding["severity"] = int(Severity[finding["severity"]])
    return data


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # a NumPy number
        return value.item()
    raise TypeError(f"{type(value).__name__} in a report")


# --- for other modules ----------------------------------------------------------------


def with_commands(report: Report, cluster: str) -> Report:
    """Return the report with commands in its remedies, where there are any.

    ``cluster`` are the words that name the cluster.
    """
    found = tuple(f.as_command(cluster) for f in report.found)
    left = tuple(f.as_command(cluster) for f in report.left)
    return replace(report, found=found, left=left)


def is_refused(planned: Report) -> bool:
    """Whether a call would refuse a dry run's plan: none does a part of its steps."""
    return any(step.status == "refused" for step in planned.steps)
