"""Memory of keys that belong to none of the given collections.

What is in memory beside the data of a fit comes off what the fit may use. Often it is
an earlier version of the same data, held by a name, by ``_`` or ``Out`` of a notebook,
or by an exception that was shown. Largest kinds of keys are named, by what the
scheduler knows of their results.

Remedy: ``del`` the names that hold them (in IPython also ``%reset_selective -f name``
and ``%xdel``); ``client.cancel(futures)`` if no name is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import bytes_text, names_text
from clustertune.planner.layouts import held_bytes


def find(view: View, *, some: float = 0.1, much: float = 0.3) -> Iterator[Finding]:
    """Find that other keys take much memory.

    Parameters
    ----------
    view
        What is seen.
    some, much
        Fractions of all memory limits that are worth a word, and a warning.
    """
    survey = view.now.survey
    limits = sum(w.memory_limit for w in view.now.workers)
    if survey is None or not view.layouts or not limits:
        return
    given = int(held_bytes(view.layouts, len(view.now.workers)).sum())
    other = sum(w.managed + w.spilled for w in view.now.workers) - given
    if other <= some * limits:
        return
    largest = sorted(survey.prefixes, key=lambda p: -p.nbytes if p.memory else 0)[:3]
    kinds = names_text([f"{p.name} ({bytes_text(p.nbytes)})" for p in largest])
    yield Finding(
        severity=Severity.warning if other > much * limits else Severity.info,
        message=f"{bytes_text(other)} of keys belong to none of the given collections; "
        f"largest kinds of all keys: {kinds}",
        evidence={"bytes": other, "limits_bytes": limits},
    )
