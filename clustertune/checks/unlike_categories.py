"""Categories that are not the same in all pieces.

Each piece of a frame has a list of categories of its own. What a library trains on are
their numbers in that list: where lists differ, the same number is another category on
another worker, and nobody says so. Looked for with ``deep=True`` only, as it looks at
every piece.

Remedy: ``X = X.categorize()``, or ``X[c].astype(CategoricalDtype([...]))`` with one
list.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import names_text, plural


def find(view: View) -> Iterator[Finding]:
    """Find columns of which pieces have other categories."""
    for member in (m for x in view.layouts for m in x.members):
        lists: dict[str, set[str]] = {}
        for piece in member.contents.pieces if member.contents else ():
            for column, categories in piece.get("categories", {}).items():
                lists.setdefault(column, set()).add(categories)
        unlike = [column for column, found in lists.items() if len(found) > 1]
        if unlike:
            yield Finding(
                severity=Severity.warning,
                message=f"pieces of {member.label} have other categories in "
                f"{plural(len(unlike), 'column')}: {names_text(unlike)}",
                subject=(member.label,),
                evidence={"columns": len(unlike)},
            )
