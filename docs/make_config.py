"""Write the page of the configuration from the defaults and their schema.

Run ``python -m docs.make_config`` in the project's folder. A test compares the file
with the output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from docs.make_checks import defaults, schema

ROOT = Path(__file__).parents[1]

HEAD = """# Configuration

<!-- made by docs/make_config.py from clustertune.yaml and its schema -->

clustertune's settings are part of Dask's configuration. The calling process reads them
for each call; scheduler and workers need none. A setting that does not exist, or has a
wrong value, raises an error before the call does anything.

- In a file, `~/.config/dask/clustertune.yaml`:

  ```yaml
  clustertune:
    history:
      label: nightly
    checks:
      memory_pressure:
        close_fraction: 0.2
  ```

- As variables: `DASK_CLUSTERTUNE__HISTORY__LABEL=nightly`,
  `DASK_CLUSTERTUNE__CHECKS__MEMORY_PRESSURE__CLOSE_FRACTION=0.2`. A misspelt variable
  that begins with `DASK_CLUSTERTUNE_` or `CLUSTERTUNE__` is an error.
- In Python:

```python
import dask

with dask.config.set({"clustertune.checks.memory_pressure.close_fraction": 0.2}):
    report = clustertune.check(client)
```

Commands read the address of the scheduler and the certificates from Dask's own keys
(`scheduler-address`, `distributed.comm.tls`). Thresholds, lifetimes and variables of
workers are Dask's keys, too (`distributed.worker`, `distributed.nanny`). clustertune
reads them from the running workers, not from the configuration of this process.

## Settings

| key, after `clustertune.` | default | meaning |
|---|---|---|
"""
CHECKS = """
## Settings of checks

The page of [checks](checks.md) explains them.

| key, after `clustertune.checks.` | default | meaning |
|---|---|---|
"""


def page() -> str:
    """Return the page of the documentation."""
    known = yaml.safe_load(defaults())["clustertune"]
    kinds = yaml.safe_load(schema())["properties"]["clustertune"]["properties"]
    checks, its_kinds = known.pop("checks"), kinds.pop("checks")["properties"]
    return HEAD + _rows(known, kinds) + CHECKS + _rows(checks, its_kinds)


def _rows(known: Mapping[str, Any], kinds: Mapping[str, Any]) -> str:
    return "".join(
        f"| `{key}` | `{json.dumps(default)}` | {text} |\n"
        for key, default, text in _settings(known, kinds)
    )


def _settings(
    known: Mapping[str, Any], kinds: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, Any, str]]:
    for name, default in known.items():
        kind = kinds[name]
        if isinstance(default, Mapping):
            yield from _settings(default, kind["properties"], f"{above}{name}.")
        else:
            yield f"{above}{name}", default, kind["description"].replace("``", "`")


FILES = {"docs/configuration.md": page}

if __name__ == "__main__":
    for name, make in FILES.items():
        (ROOT / name).write_text(make())
