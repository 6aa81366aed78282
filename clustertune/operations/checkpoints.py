"""Checkpoints of a fit in a file or at a URL, and the callbacks that make them.

The first line of a file is JSON that describes the fit, with the history; the bytes of
the model follow, in the library's own format. Nothing in a file can run code.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from numbers import Integral
from os import PathLike
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
from dask.base import is_dask_collection
from distributed import Client

from clustertune.core.wording import printable
from clustertune.integrations import libraries
from clustertune.integrations.libraries.boosting import (
    Checkpoint,
    Continuation,
    booster_of,
)
from clustertune.integrations.libraries.workload import last_step
from clustertune.remote import ship
from clustertune.remote.worker.rounds import Reports

FORMAT = 3
MAX_HEADER = 2**26  # bytes
ANSWER = 60.0  # seconds for the file system to remove a file


@dataclass(kw_only=True, eq=False)
class CheckpointFile:
    """The file of one fit.

    ``about`` are facts that another fit would not share. They include the data once
    :meth:`compare` was called.

    A write in a thread goes on after the fit has ended. The lock makes its removal wait
    for it, and a later one writes nothing.
    """

    path: str
    about: Mapping[str, Any]
    #: facts about the data of the checkpoint that was read
    data: Mapping[str, Any] | None = None
    rounds: int = 0  # of the checkpoint that was written last
    removed: bool = False
    lock: Lock = field(default_factory=Lock, repr=False)

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the file at once, so that it always holds a whole checkpoint."""
        with self.lock:
            if not self.removed and checkpoint.rounds >= self.rounds:
                self._write(checkpoint)
                self.rounds = checkpoint.rounds

    def _write(self, checkpoint: Checkpoint) -> None:
        header = {
            "clustertune_checkpoint": FORMAT,
            "rounds": checkpoint.rounds,
            "history": checkpoint.history,
            "about": self.about,
        }
        filesystem, path = fsspec.url_to_fs(self.path)
        with _part(filesystem, path) as part:
            with filesystem.open(part, "wb") as file:
                file.write(json.dumps(header).encode() + b"\n")
                file.write(checkpoint.model)
            filesystem.mv(part, path)

    def refuse_unwritable(self) -> None:
        """Raise OSError if no file can be written there; nothing stays there."""
        try:
            filesystem, path = fsspec.url_to_fs(self.path)
            with _part(filesystem, path) as part:
                with filesystem.open(part, "wb") as file:
                    file.write(b"clustertune")
                filesystem.rm(part)
        except Exception as error:  # a file system raises any error
            why = printable(str(error) or repr(error), longest=300)
            raise OSError(
                f"checkpoint_path={self.path!r} cannot be written: {why}"
            ) from error

    def read(self) -> Checkpoint | None:
        """Return the checkpoint, or None if there is no file.

        Raise ValueError if the file is no checkpoint, or that of another fit.
        """
        filesystem, path = fsspec.url_to_fs(self.path)
        if not filesystem.exists(path):
            return None
        with filesystem.open(path, "rb") as file:
            # files at URLs have no readline with a limit
            line, _, first = file.read(MAX_HEADER).partition(b"\n")
            model = first + file.read()
        try:
            header = json.loads(line)
            known = header["clustertune_checkpoint"] == FORMAT
            about, rounds = header["about"], int(header["rounds"])
            history = header["history"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"checkpoint_path={self.path!r} is no checkpoint of a fit. Give "
                "the path of one, or of a file that does not exist"
            ) from error
        if not known:
            raise ValueError(
                f"checkpoint_path={self.path!r} was written by another release of "
                "clustertune. Remove the file, and the fit begins again"
            )
        self._refuse(list(_differing(about, self.about)))
        self.data = about.get("data", {})
        return Checkpoint(rounds=rounds, model=model, history=history)

    def _refuse(self, names: Sequence[str]) -> None:
        if names:
            raise ValueError(
                f"checkpoint_path={self.path!r} belongs to another fit: "
                f"{printable(', '.join(names), longest=200)} differ. Remove the file, "
                "or give another path"
            )

    def compare(self, data: Mapping[str, Any]) -> list[str]:
        """Refuse other data than that of the checkpoint; keep these facts for writing.

        ``data`` are the samples of each collection. Returns notes about collections
        that could not be compared.
        """
        self.about = {**self.about, "data": data}
        if self.data is None:
            return []
        differ, unknown = list(data.keys() ^ self.data.keys()), []
        for label in data.keys() & self.data.keys():
            own, their = data[label], self.data[label]
            rows = {own["rows"], their["rows"]}
            if None not in rows and len(rows) > 1:
                differ.append(f"rows of {label}")
                continue
            pairs = zip(own["digests"], their["digests"], strict=False)
            known = [(one, other) for one, other in pairs if one and other]
            if any(one != other for one, other in known):
                differ.append(f"values of {label}")
            elif not known:
                unknown.append(label)
        self._refuse(sorted(differ))
        return [
            f"{label} could not be compared with the data of the checkpoint, since no "
            "sampled row could be read in memory"
            for label in sorted(unknown)
        ]

    def remove(self) -> str:
        """Remove the file after the last round; return what prevents it, or "".

        A thread removes it, since a file system may never answer.
        """
        self.removed = True
        problems: list[str] = []
        removing = Thread(target=lambda: problems.append(self._remove()), daemon=True)
        removing.start()
        removing.join(ANSWER)
        if problems:
            return problems[0]
        return (
            f"the file system of {self.path} did not answer within {ANSWER:g} s; "
            "remove the file if it is still there, or the next fit continues from it"
        )

    def _remove(self) -> str:
        try:
            filesystem, path = fsspec.url_to_fs(self.path)
            with self.lock:
                if filesystem.exists(path):
                    filesystem.rm(path)
        # a file system raises any error, and the model is fitted
        except Exception as error:  # noqa: BLE001
            return (
                f"{self.path} could not be removed, and the next fit would "
                f"continue from it: {error!r}"
            )
        return ""


@contextmanager
def _part(filesystem: Any, path: str) -> Iterator[str]:
    """Yield a path for a new file, which is removed if the block raises."""
    part = f"{path}.{uuid4().hex}.part"
    try:
        yield part
    except BaseException:
        # the error of the block is the cause
        with suppress(Exception):
            if filesystem.exists(part):
                filesystem.rm(part)
        raise


def _differing(theirs: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Return the names of own facts, or of parameters, with other values."""
    for name, value in own.items():
        other = theirs.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            names = sorted(value.keys() | other.keys())
            some = (k for k in names if not _equal(value.get(k), other.get(k)))
            yield from (f"values of the {name.removesuffix('s')} {k}" for k in some)
        elif not _equal(value, other):
            yield name


def _equal(one: Any, other: Any) -> bool:
    """Return whether values have the same JSON, in which NaN equals itself."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def facts_of(model: Any, X: Any, fit_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts of a fit that a checkpoint in a file belongs to."""
    found: tuple[str, Any] = last_step(model)
    prefix, step = found
    own = {k.removeprefix(prefix): v for k, v in fit_kwargs.items()}
    continuation = libraries.continuation(model)
    assert continuation is not None
    columns = getattr(X, "columns", None)
    weights = own.get("feature_weights")
    every = step.get_params().items()
    params = {k: _plain(v) for k, v in every if k not in ("callbacks", "client")}
    # XGBoost draws from a generator each time that it is asked for the parameters
    if not isinstance(getattr(step, "random_state", None), Integral | None):
        params.pop("random_state", None)
    return {
        "estimator": type(step).__name__,
        "columns": X.shape[1] if columns is None else [str(name) for name in columns],
        "rounds": continuation.rounds(step, own),
        "xgb_model": _digest(own.get("xgb_model")),
        "init_model": _digest(own.get("init_model")),
        # a Dask collection would have to be computed
        "feature_weights": None
        if is_dask_collection(weights)
        else np.asarray(weights).tolist(),
        "parameters": {k: v for k, v in params.items() if v is not None},
    }


def _digest(model: Any) -> str | None:
    """Return a digest of the trees that a training begins with."""
    if model is None:
        return None
    booster = booster_of(model)
    if isinstance(model, str | PathLike):
        content = Path(model).expanduser().read_bytes()
    elif hasattr(booster, "save_raw"):  # of XGBoost
        content = booster.save_raw()
    else:
        content = booster.model_to_string(num_iteration=-1).encode()
    # LightGBM's parameters have the ports of the workers
    return sha256(content.partition(b"\nparameters:")[0]).hexdigest()


def _plain(value: Any) -> Any:
    """Return a parameter as JSON has it, a function by its name; None: unknown."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return getattr(value, "__qualname__", None)


def refuse_unstorable(
    model: Any, path: str | None, companions: Collection[str]
) -> None:
    """Refuse a model whose training cannot continue from a checkpoint."""
    continuation = libraries.continuation(model)
    _, step = last_step(model)
    if continuation is None and path is not None:
        raise ValueError(
            f"{type(step).__name__} has no checkpoints, which XGBoost's and LightGBM's "
            "estimators have. Leave checkpoint_path out"
        )
    if continuation is not None and (why := continuation.refusal(step, companions)):
        raise ValueError(f"estimator={type(step).__name__}: {why}")


# --- callbacks that send checkpoints --------------------------------------------------


class Callbacks:
    """Makes the callbacks of one attempt, with the ``reports`` of rank 0.

    The ``continuation`` of the library names the module of its callbacks.
    """

    def __init__(self, client: Client, continuation: Continuation, reports: Reports):
        scheduler: Any = client.scheduler
        # tasks in the same process get the objects themselves
        self._sends = not scheduler.address.startswith("inproc")
        name = f"clustertune.remote.worker.{continuation.callbacks}"
        self._module: Any = importlib.import_module(name)
        self._reports = reports

    def rounds(self, history: Any) -> Any:
        """Return the callback that reports rounds, and sends checkpoints."""
        return self._sent(self._module.Rounds(self._reports, history))

    def continued(self, inner: Any, *arguments: Any) -> Any:
        """Return another callback, which gets the rounds of the whole training."""
        return self._sent(self._module.Continued(inner, *arguments))

    def _sent(self, callback: Any) -> Any:
        return ship.function(callback) if self._sends else callback
