"""Playbooks: steps for a cluster, read from a YAML file and carried out in order.

This module finds the shipped playbooks and the user's own. A shell completes their
names with it, so it does not import distributed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import dask

from clustertune import checks
from clustertune.core import settings


class PlaybookError(ValueError):
    """A playbook is invalid; nothing was done. The text has a line for each mistake."""


def available() -> Mapping[str, Path]:
    """Map names of playbooks to files. The user's own override shipped ones.

    Raise ValueError if ``clustertune.playbooks`` is not a readable folder.
    """
    settings.refuse_unknown(checks.all_settings())
    own = dask.config.get("clustertune.playbooks", None)
    folders = [_shipped()] if own is None else [_shipped(), _own_folder(own)]
    found: dict[str, Path] = {}
    for folder in folders:
        try:
            files = list(folder.iterdir())
        except OSError as error:
            raise ValueError(f"playbooks cannot be listed: {error}") from error
        found |= {p.stem: p for p in files if p.suffix in (".yaml", ".yml")}
    return dict(sorted(found.items()))


def _own_folder(name: object) -> Path:
    try:
        if isinstance(name, str) and (folder := Path(name).expanduser()).is_dir():
            return folder
    except (OSError, RuntimeError):  # the name is too long, or has an unknown user
        pass
    raise ValueError(
        f"clustertune.playbooks={name!r} in Dask's configuration must be a folder"
    )


def _shipped() -> Path:
    """The wheel has the folder inside the package, a checkout next to it."""
    package = Path(__file__).parents[2]
    inside = package / "playbooks"
    return inside if inside.is_dir() else package.parent / "playbooks"
