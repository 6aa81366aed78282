"""clustertune's part of Dask's configuration: defaults, and what is set now.

The defaults and their schema are ``clustertune.yaml`` and ``clustertune-schema.yaml``,
made from the checks by ``docs/make_checks.py``. Importing this module makes Dask know
the defaults, so that ``dask config list`` shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import dask
import yaml

from clustertune import checks


def of_checks() -> Mapping[str, Mapping[str, Any]]:
    """By name of check, its settings.

    Raises
    ------
    ValueError
        Something is set that does not exist, or that is not what it must be.
    """
    found: Mapping[str, Mapping[str, Any]] = dask.config.get("clustertune.checks", {})
    checks.refuse_wrong(found)
    return found


def _defaults() -> Mapping[str, Any]:
    text = files("clustertune").joinpath("clustertune.yaml").read_text()
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found


dask.config.update_defaults(_defaults())
