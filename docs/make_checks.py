"""Write ``docs/checks.md``, from the pages of the checks.

``python docs/make_checks.py``; a test compares what this makes with the file.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from clustertune import checks

HEAD = """# Checks

<!-- made by docs/make_checks.py from the docstrings of the checks: edit those -->

What `clustertune.check(client, X, y)` and `clustertune check ADDRESS` look for. Each
check finds one condition; what it could not learn it calls `unknown`, with the reason.
`info` is worth knowing, `warning` costs time or memory, `critical` makes a correct fit
impossible or unlikely. In a terminal `clustertune explain NAME` shows these pages.

Settings go into Dask's configuration, as `clustertune.checks.<name>.<setting>`, or into
variables like `DASK_CLUSTERTUNE__CHECKS__MEMORY_PRESSURE__NEAR=0.2`.

"""


def text() -> str:
    """The whole page."""
    parts = []
    for name, module in checks.available().items():
        page = (inspect.getdoc(module) or "").replace("``", "`")
        settings = checks.settings_of(module)
        if settings:
            rows = "\n".join(f"| `{k}` | `{v!r}` |" for k, v in settings.items())
            page += f"\n\n| setting | default |\n|---|---|\n{rows}"
        parts.append(f"## {name}\n\n{page}\n")
    return HEAD + "\n".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("checks.md").write_text(text())
