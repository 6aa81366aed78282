"""Playbooks: steps for a cluster, read from a YAML file and carried out in order.

This module finds and reads the files: the shipped playbooks and the user's own.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

import dask

from clustertune import checks
from clustertune.core import settings
from clustertune.core.wording import near, printable

MAX_BYTES = 64 * 1024
SUFFIXES = (".yaml", ".yml")


class PlaybookError(ValueError):
    """A playbook is invalid; nothing was done. The text has a line for each mistake."""


def available() -> Mapping[str, Path]:
    """Map names of playbooks to files. The user's own override shipped ones.

    Raise ValueError if ``clustertune.playbooks`` is not a readable folder.
    """
    settings.refuse_unknown(checks.all_settings())
    own = dask.config.get("clustertune.playbooks", None)
    try:
        folders = [_shipped(), *([] if own is None else [Path(own).expanduser()])]
        files = [file for folder in folders for file in folder.iterdir()]
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"clustertune.playbooks={own!r} in Dask's configuration must be a folder "
            f"that can be read: {error}"
        ) from error
    found = {file.stem: file for file in files if file.suffix in SUFFIXES}
    return dict(sorted(found.items()))


def _shipped() -> Path:
    """The wheel has the folder inside the package, a checkout next to it."""
    package = Path(__file__).parents[2]
    inside = package / "playbooks"
    return inside if inside.is_dir() else package.parent / "playbooks"


def find(which: str | Path) -> Path:
    """Return a file: by its path, which has a folder or a suffix, or by its name."""
    text = str(which)
    if isinstance(which, Path) or "/" in text or text.endswith(SUFFIXES):
        return Path(which)
    known = available()
    if text not in known:
        raise ValueError(
            f"unknown playbook {printable(repr(text), longest=60)}"
            f"{near(text, known)}; choose from {', '.join(known)}, or give the path of "
            "a file"
        )
    return known[text]


def content(path: Path) -> bytes:
    """Read at most one byte more than the limit, and only from a regular file."""
    try:
        found = path.expanduser()
        if stat.S_ISREG(found.stat().st_mode):  # a pipe may never end
            with found.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        reason = "it is not a regular file"
    except (OSError, ValueError, RuntimeError) as error:  # also: bad path, bad user
        reason = getattr(error, "strerror", None) or str(error)
    raise ValueError(f"the playbook {printable(str(path))} cannot be read: {reason}")
