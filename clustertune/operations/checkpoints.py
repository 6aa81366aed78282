"""Checkpoints of a fit in a file or at a URL, so that a later session can continue.

The first line of a file is JSON that describes the fit, with the history; the bytes of
the model follow, in the library's own format. Nothing in a file can run code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fsspec

from clustertune.core.wording import printable
from clustertune.integrations.libraries.workload import Checkpoint, last_step

FORMAT = 1
MAX_HEADER = 2**26  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """The file of one fit; ``about`` are facts that another fit would not share."""

    path: str
    about: Mapping[str, Any]

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the file at once, so that it always holds a whole checkpoint."""
        header = {
            "clustertune_checkpoint": FORMAT,
            "rounds": checkpoint.rounds,
            "history": checkpoint.history,
            "about": self.about,
        }
        filesystem, path = fsspec.url_to_fs(self.path)
        part = f"{path}.{os.getpid()}.part"
        try:
            with filesystem.open(part, "wb") as file:
                file.write(json.dumps(header).encode() + b"\n")
                file.write(checkpoint.model)
            filesystem.mv(part, path)
        except BaseException:
            if filesystem.exists(part):
                filesystem.rm(part)
            raise

    def read(self) -> Checkpoint | None:
        """Return the checkpoint, or None if there is no file.

        Raises
        ------
        ValueError
            The file is no checkpoint, or that of another fit.
        """
        filesystem, path = fsspec.url_to_fs(self.path)
        if not filesystem.exists(path):
            return None
        with filesystem.open(path, "rb") as file:
            try:
                header = json.loads(file.readline(MAX_HEADER))
                known = header["clustertune_checkpoint"] == FORMAT
                about, rounds = header["about"], int(header["rounds"])
                history = header["history"]
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"checkpoint_path={self.path!r} is no checkpoint of a fit. Give "
                    "the path of one, or of a file that does not exist"
                ) from error
            model = file.read()
        if not known:
            raise ValueError(
                f"checkpoint_path={self.path!r} was written by another release of "
                "clustertune. Remove the file, and the fit begins again"
            )
        names = [k for k, own in self.about.items() if not _equal(about.get(k), own)]
        if names:
            raise ValueError(
                f"checkpoint_path={self.path!r} belongs to another fit: "
                f"{printable(', '.join(names), longest=200)} differ. Remove the file, "
                "or give another path"
            )
        return Checkpoint(rounds=rounds, model=model, history=history)

    def remove(self) -> None:
        """Remove the file after the last round."""
        filesystem, path = fsspec.url_to_fs(self.path)
        if filesystem.exists(path):
            filesystem.rm(path)


def _equal(one: Any, other: Any) -> bool:
    """Return whether values have the same JSON, in which NaN equals itself."""
    return json.dumps(one) == json.dumps(other)


def facts_of(model: Any, X: Any) -> dict[str, Any]:
    """Return facts of a fit that a checkpoint in a file belongs to."""
    step: Any = last_step(model)[1]
    columns = getattr(X, "columns", None)
    kinds = (bool, int, float, str)
    params = {k: v for k, v in step.get_params().items() if isinstance(v, kinds)}
    return {
        "estimator": type(step).__name__,
        "columns": X.shape[1] if columns is None else [str(name) for name in columns],
        "parameters": params,
    }
