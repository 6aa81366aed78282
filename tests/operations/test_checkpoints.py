"""Checkpoints of a fit in a file."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event, Thread
from typing import Any

import dask.array as da
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile
from lightgbm import LGBMRegressor
from lightgbm.dask import DaskLGBMRegressor
from xgboost import XGBRegressor
from xgboost.dask import DaskXGBRegressor

import clustertune
from clustertune.integrations.libraries.boosting import Checkpoint
from clustertune.operations import checkpoints
from clustertune.operations.checkpoints import CheckpointFile, facts_of
from tests.in_process import gen_cluster
from tests.processes import until


def checkpoint(rounds: int) -> Checkpoint:
    return Checkpoint(rounds=rounds, model=b"model", history={})


@pytest.mark.parametrize("is_late", [False, True])
def test_a_write_that_ends_after_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """Nothing stays, or the next fit would continue from a finished model.

    The fit does not wait for a file system that does not answer.
    """
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
    monkeypatch.setattr(checkpoints, "ANSWER", 0.01 if is_late else 100)
    problems: list[str] = []
    removing = Thread(target=lambda: problems.append(file.remove()))
    removing.start()
    if is_late:
        removing.join(100)
        assert "did not answer" in problems[0]
    opened.set()
    writing.join(100)
    removing.join(100)
    file.write(checkpoint(2))
    until(lambda: not list(tmp_path.iterdir()))
    assert file.read() is None


class Ranged(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read as those of S3 and Google Cloud Storage are."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return Path(self.path).read_bytes()[start:end]


def test_a_file_at_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ``readline`` takes no limit."""

    def opened(self: Any, path: str, mode: str = "rb", **options: Any) -> Any:
        return Ranged(self, path) if mode == "rb" else local(self, path, mode)

    local = LocalFileSystem._open
    monkeypatch.setattr(LocalFileSystem, "_open", opened)
    file = CheckpointFile(path=str(tmp_path / "model"), about={})
    lines = Checkpoint(rounds=7, model=b"one\ntwo\n", history={})
    file.write(lines)
    assert file.read() == lines
    (tmp_path / "model").write_bytes(b"no line")
    with pytest.raises(ValueError, match="is no checkpoint of a fit"):
        file.read()


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


# --- facts of a fit -------------------------------------------------------------------


def samples(rows: int | None = 2, **digests: list[str]) -> dict[str, Any]:
    return {label: {"rows": rows, "digests": d} for label, d in digests.items()}


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (samples(X=["a", "b"], y=["c", "d"]), ""),
        (samples(X=["a", ""], y=["", "d"]), ""),
        (samples(X=["a", "b"], y=["d", "d"]), "values of y differ"),
        (samples(3, X=["a", "b"], y=["c", "d"]), "rows of X, rows of y differ"),
        (samples(X=["a", "b"]), "y differ"),
        (
            samples(X=["a", "b"], y=["c", "d"], sample_weight=["e", "f"]),
            "sample_weight differ",
        ),
    ],
)
def test_data_of_another_fit(tmp_path: Path, now: dict[str, Any], text: str) -> None:
    """The error names the collections; rows that are not in memory are unknown."""
    path = str(tmp_path / "model")
    file = CheckpointFile(path=path, about={})
    assert file.compare(samples(X=["a", "b"], y=["c", "d"])) == []
    file.write(checkpoint(1))
    later = CheckpointFile(path=path, about={})
    assert later.read() == checkpoint(1)
    if text:
        with pytest.raises(ValueError, match=f"belongs to another fit: {text}"):
            later.compare(now)
    else:
        assert later.compare(now) == []


def test_parameters_of_another_fit(tmp_path: Path) -> None:
    """The error names them; the order of a mapping, and NaN, are no difference."""
    about = {"parameters": {"a": {"x": 1, "y": np.nan}, "eta": 0.1, "depth": 3}}
    file = CheckpointFile(path=str(tmp_path / "model"), about=about)
    file.write(checkpoint(1))
    file.about = {"parameters": {"a": {"y": np.nan, "x": 1}, "eta": 0.1, "depth": 3}}
    assert file.read() == checkpoint(1)
    file.about = {"parameters": {"eta": 0.2, "a": {"y": np.nan, "x": 1}}}
    parameter = "values of the parameter"
    with pytest.raises(ValueError, match=f"{parameter} depth, {parameter} eta differ"):
        file.read()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_replicas_count_once(c: Any, s: Any, *workers: Any) -> None:
    """A fit on another number of workers has as many replicas of an eval set."""
    X, y = c.persist(
        [da.random.default_rng(0).random((60, 2), chunks=10), da.ones(60, chunks=10)]
    )
    sets = [(X[:20], y[:20])]
    found = []
    for some in ([0, 1], [0, 1, 2]):
        prepared = await clustertune.prepare(
            c, X, y, eval_set=sets, estimator="lightgbm", workers=some
        )
        assert len(prepared.eval_set[0][0]) == 20 * len(some)
        found.append(await prepared.samples())
    assert found[0] == found[1]
    assert found[0]["eval_set[0].X"]["rows"] == 20
    assert len({*found[0]["X"]["digests"]} - {""}) == 60


def test_data_that_cannot_be_compared(tmp_path: Path) -> None:
    """The report has a note."""
    file = CheckpointFile(path=str(tmp_path / "model"), about={})
    file.compare(samples(X=["a"]))
    file.write(checkpoint(1))
    file.read()
    for unknown in (samples(X=[""]), samples(None, X=[])):
        (note,) = file.compare(unknown)
        assert note.startswith("X could not be compared")


def test_parameters_of_a_fit() -> None:
    """Lists, functions and models that the training begins with count, too."""
    data = da.zeros((4, 2))

    def facts(fit_kwargs: Any = None, **params: Any) -> Any:
        return facts_of(DaskXGBRegressor(**params), data, fit_kwargs or {})

    base = facts(monotone_constraints=(1, 0), seed=np.int64(1), max_depth=None)
    assert base == facts(monotone_constraints=[1, 0], seed=1, callbacks=[print])
    assert base != facts(monotone_constraints=(0, 1), seed=1)
    assert base != facts(monotone_constraints=(1, 0), seed=2)
    assert facts(objective=max) != facts(objective=min)
    drawn = facts(random_state=np.random.default_rng(0))
    assert drawn == facts(random_state=np.random.default_rng(1))
    assert json.dumps(facts(n_estimators=np.int64(7)))
    weights = np.array([0.5, 1.0])
    assert facts(feature_weights=weights) == facts(feature_weights=[0.5, 1.0])
    assert facts(feature_weights=weights) != facts(feature_weights=weights[::-1])
    given = facts({"feature_weights": weights})
    assert given == facts({"feature_weights": [0.5, 1.0]})
    assert given != facts({"feature_weights": weights[::-1]})
    assert given != facts()
    rows = np.arange(8.0).reshape(4, 2)
    first = XGBRegressor(n_estimators=3).fit(rows, rows[:, 0]).get_booster()
    assert facts({"xgb_model": first})["rounds"] == facts()["rounds"] + 3


def test_a_fit_that_begins_with_another_model(tmp_path: Path) -> None:
    """Its rounds may be as many, and its trees are in the checkpoint."""
    data, rows = da.zeros((4, 2)), np.arange(120.0).reshape(60, 2)
    one, other = (
        XGBRegressor(n_estimators=3).fit(rows, labels)
        for labels in (rows[:, 0], -rows[:, 0])
    )

    def facts(model: Any) -> Any:
        return facts_of(DaskXGBRegressor(), data, {"xgb_model": model})

    assert facts(one) == facts(one.get_booster()) != facts(other)
    path = tmp_path / "first.ubj"
    one.save_model(path)
    before = facts(path)
    assert before == facts(str(path))
    other.save_model(path)
    assert before != facts(path)
    lgbm = [LGBMRegressor(verbose=-1).fit(rows, s * rows[:, 0]) for s in (1, 1, -1)]
    found = [facts_of(DaskLGBMRegressor(), data, {"init_model": m}) for m in lgbm]
    assert found[0] == found[1] != found[2]
    file = CheckpointFile(path=str(tmp_path / "model"), about=found[0])
    file.write(checkpoint(1))
    file.about = found[2]
    with pytest.raises(ValueError, match="another fit: init_model differ"):
        file.read()
