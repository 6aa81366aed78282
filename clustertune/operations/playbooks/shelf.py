"""Where playbooks lie: those that are shipped, and the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import dask

from clustertune import checks
from clustertune.core import settings
from clustertune.core.wording import printable
from clustertune.operations.playbooks.plainyaml import LARGEST
from clustertune.operations.playbooks.playbook import Playbook
from clustertune.operations.playbooks.reading import load, unknown


def folders() -> tuple[Path, ...]:
    """Where playbooks lie: the user's folder, if one is configured, then the shipped.

    Raises
    ------
    ValueError
        ``clustertune.playbooks`` is set to something else than a folder.
    """
    settings.refuse_unknown(checks.all_settings())
    own = dask.config.get("clustertune.playbooks", None)
    if own is None:
        return (_shipped(),)
    try:
        folder = Path(own).expanduser() if isinstance(own, str) else None
        there = folder is not None and folder.is_dir()
    except (OSError, RuntimeError):  # too long a name, or nobody's home
        there = False
    if folder is None or not there:
        raise ValueError(
            f"clustertune.playbooks={own!r} in Dask's configuration must be a folder"
        )
    return folder, _shipped()


def _shipped() -> Path:
    """In an installed package they are in it; in the project's folder beside it."""
    package = Path(__file__).parents[2]
    inside = package / "playbooks"
    return inside if inside.is_dir() else package.parent / "playbooks"


def available() -> Mapping[str, Path]:
    """Playbooks by the names of their files; of the same name the user's own.

    Raises
    ------
    ValueError
        ``clustertune.playbooks`` is no folder, or none that can be read.
    """
    found: dict[str, Path] = {}
    for folder in reversed(folders()):
        try:
            files = list(folder.iterdir())
        except OSError as error:
            raise ValueError(f"playbooks cannot be listed: {error}") from error
        found |= {p.stem: p for p in files if p.suffix in (".yaml", ".yml")}
    return dict(sorted(found.items()))


def read(which: str | Path, values: Mapping[str, str] | None = None) -> Playbook:
    """Find a playbook by its name, or as a file, and read it.

    Parameters
    ----------
    which
        A name as :func:`available` has it, or the path of a file: one that ends with
        ``.yaml`` or ``.yml``, or has a folder in it.
    values
        As for :func:`clustertune.operations.playbooks.reading.load`.

    Raises
    ------
    PlaybookError
        It is no playbook.
    ValueError
        There is no such playbook; the text says which there are.
    """
    path = _file(which)
    return load(_content(path), printable(path.name), values)


def text_of(which: str | Path) -> str:
    """The file of a playbook as it is, with what a terminal would not print replaced.

    Raises
    ------
    ValueError
        There is no such playbook.
    """
    lines = _content(_file(which)).decode(errors="replace").splitlines()
    return "".join(f"{printable(line)}\n" for line in lines)


def _file(which: str | Path) -> Path:
    text = str(which)
    if isinstance(which, Path) or "/" in text or text.endswith((".yaml", ".yml")):
        return Path(which)
    known = available()
    if text not in known:
        raise ValueError(
            f"{unknown('playbook', text, known)}; or give the path of a file"
        )
    return known[text]


def _content(path: Path) -> bytes:
    """As much of a file as is read of any."""
    try:
        with path.expanduser().open("rb") as file:
            return file.read(LARGEST + 1)
    # what is no path at all, or a home that nobody has
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"the playbook {printable(str(path))} cannot be read: {reason}"
        ) from error
