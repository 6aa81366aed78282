"""Checkpoints of a fit in a file."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from clustertune.integrations.libraries.continuing import Checkpoint
from clustertune.operations.checkpoints import CheckpointFile


def checkpoint(rounds: int) -> Checkpoint:
    return Checkpoint(rounds=rounds, model=b"model", history={})


def test_a_write_that_ends_after_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays, or the next fit would continue from a finished model."""
    reached, opened = Event(), Event()

    def slow(self: Any, *args: Any, **options: Any) -> None:
        reached.set()
        assert opened.wait(100)
        move(self, *args, **options)

    move = LocalFileSystem.mv
    monkeypatch.setattr(LocalFileSystem, "mv", slow)
    file = CheckpointFile(path=str(tmp_path / "model"), about={})
    writing = Thread(target=file.write, args=[checkpoint(1)])
    writing.start()
    assert reached.wait(100)
    removing = Thread(target=file.remove)
    removing.start()
    opened.set()
    writing.join(100)
    removing.join(100)
    file.write(checkpoint(2))
    assert not list(tmp_path.iterdir())
    assert file.read() is None


def test_an_earlier_checkpoint_replaces_no_later_one(tmp_path: Path) -> None:
    """A slow write of an earlier attempt may come last."""
    file = CheckpointFile(path=str(tmp_path / "model"), about={})
    file.write(checkpoint(20))
    file.write(checkpoint(10))
    assert file.read() == checkpoint(20)


@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_can_be_written(tmp_path: Path, there: bool) -> None:
    """The test of that leaves nothing, and changes no file."""
    file = CheckpointFile(path=str(tmp_path / "model"), about={})
    if there:
        file.write(checkpoint(1))
    file.refuse_unwritable()
    assert file.read() == (checkpoint(1) if there else None)
    assert len(list(tmp_path.iterdir())) == there


def test_a_file_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line has the path and the reason."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("read-only")

    for path in (str(tmp_path / "none" / "model"), "no-such-protocol://model"):
        with pytest.raises(OSError, match=r"^checkpoint_path='.*model' cannot be writ"):
            CheckpointFile(path=path, about={}).refuse_unwritable()
    monkeypatch.setattr(LocalFileSystem, "open", refuse)
    file = CheckpointFile(path=str(tmp_path / "model"), about={})
    with pytest.raises(OSError, match=r"model' cannot be written: read-only$"):
        file.refuse_unwritable()


def test_a_file_that_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fit has its model, so this is told, not raised."""

    def refuse(*_: Any) -> None:
        raise PermissionError("read-only")

    file = CheckpointFile(path=str(tmp_path / "model"), about={})
    file.write(checkpoint(1))
    monkeypatch.setattr(LocalFileSystem, "rm", refuse)
    assert "read-only" in file.remove()
