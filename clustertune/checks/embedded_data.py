"""Lazy collections that carry their data in their graph.

``da.from_array`` of an array in memory, ``dd.from_pandas`` and ``delayed(f)(array)``
put the data itself into the graph. It goes from the client through the scheduler to the
workers, and stays on the scheduler as long as the collection does (distributed#8814:
"Sending large graph").

Remedy: let the workers read the data from where it is stored; or scatter it once,
``client.scatter(array)``, and make the collection of the future.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import bytes_text, names_text


def find(view: View, *, some: float = 2**24, much: float = 2**30) -> Iterator[Finding]:
    """Find collections with much data in their graphs.

    Parameters
    ----------
    view
        What is seen.
    some, much
        Bytes that are worth a word, and a warning.
    """
    found = [m for x in view.layouts for m in x.members if (m.embedded or 0) > some]
    if not found:
        return
    total = sum(m.embedded or 0 for m in found)
    labels = tuple(m.label for m in found)
    yield Finding(
        severity=Severity.warning if total > much else Severity.info,
        message=f"{names_text(labels)} {'carries' if len(labels) == 1 else 'carry'} "
        f"{bytes_text(total)} of data in the graph, which goes "
        "through client and scheduler",
        subject=labels,
        evidence={"bytes": total},
    )
