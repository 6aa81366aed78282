"""What is saved comes back as it was, or it is refused; a broken save is recognised."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, wait
from distributed.utils_test import gen_cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from hypothesis.extra import pandas as frames

import clustertune
from clustertune.errors import RefusedError, SaveError
from clustertune.remote import pieces
from clustertune.storage import manifests, saving
from tests.processes import blocking, cluster

# zarr and fsspec keep threads of their own
TWO: Any = {
    "client": True,
    "nthreads": [("127.0.0.1", 1)] * 2,
    "clean_kwargs": {"threads": False},
}
X = da.random.default_rng(0).random((100, 4), chunks=((30, 5, 65), (3, 1)))
PANDAS = pd.DataFrame(
    {
        "a": np.arange(50, dtype="int8"),
        "b": pd.Categorical([3, 1] * 25, categories=[3, 2, 1], ordered=True),
        "s": ["x", None] * 25,
        "t": pd.date_range("2020", periods=50, tz="Europe/Berlin"),
        "n": pd.array([1, None] * 25, dtype="Int32"),
    },
    index=pd.Index(np.arange(50) * 2, name="k"),
)


# --- one piece ------------------------------------------------------------------------

COLUMNS = st.one_of(
    st.sampled_from(
        ["int8", "uint64", "float16", "float32", "float64", "bool", "M8[ns]", "m8[ns]"]
    ).map(lambda kind: frames.column(dtype=np.dtype(kind))),
    st.just(frames.column(elements=st.none() | st.text(st.characters(codec="utf-8")))),
)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_frame(data: Any) -> None:
    """Values, types, index and names, of any number of rows."""
    drawn = data.draw(st.lists(COLUMNS, min_size=1, max_size=3))
    columns = [replace(column, name=f"c{i}") for i, column in enumerate(drawn)]
    frame = data.draw(frames.data_frames(columns, index=frames.range_indexes()))
    for one in (frame, frame[::-1], frame["c0"], frame["c0"].rename(None)):
        again = pieces.decode(pieces.encode(one), series=one.ndim == 1)
        if one.ndim == 1:
            pd.testing.assert_series_equal(again, one, check_freq=False)
        else:
            pd.testing.assert_frame_equal(again, one, check_freq=False)


@pytest.mark.parametrize("storage", ["python", "pyarrow"])
def test_texts_are_stored_as_they_were(storage: str) -> None:
    """Whatever pandas does by default: before 3 that is not what Dask does."""
    texts = pd.Series(["x", None], dtype=f"string[{storage}]", name="s")
    for one in (texts, texts.to_frame().assign(n=1)):
        again = pieces.decode(pieces.encode(one), series=one.ndim == 1)
        dtype = again.dtype if one.ndim == 1 else again["s"].dtype
        assert (dtype, dtype.storage) == (texts.dtype, storage)
        assert again.equals(one)


KINDS = ["i1", "u8", ">f4", "f2", "f8", "c16", "?", "M8[ns]", "M8[D]", "m8[s]", "U3"]


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(KINDS).flatmap(
        lambda kind: arrays.arrays(
            np.dtype(kind), arrays.array_shapes(min_dims=1, max_dims=3, min_side=0)
        )
    )
)
def test_any_array(array: np.ndarray[Any, Any]) -> None:
    """Bit by bit, NaN and -0.0 too."""
    url = "memory://test-any-array"
    said = pieces.save_array(url, {}, "0.0", array)
    again = pieces.load_array(url, {}, "0.0", said["crc32"], said["shape"])
    assert again.dtype == array.dtype
    assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("column", "match"),
    [
        (pd.Series([[1], [2]], dtype=object), "values of 1 columns: 'c'|not underst"),
        (pd.Series([1, "x"], dtype=object), "c with type object"),
        (pd.Series([1j]), "complex128"),
        (pd.Series(pd.arrays.SparseArray([0, 1.0])), "Sparse"),
    ],
)
def test_what_parquet_does_not_keep(
    tmp_path: Path, column: pd.Series[Any], match: str
) -> None:
    """Is an error when it is saved."""
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=match):
        pieces.save_frame(str(tmp_path), {}, "0", column.to_frame("c"))


def test_names_that_parquet_does_not_keep() -> None:
    """They would come back as texts."""
    for columns in ([0, "a"], ["a", "a"]):
        with pytest.raises(ValueError, match="names of several types, or the same"):
            pieces.encode(pd.DataFrame([[1, 2]], columns=columns))


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.ma.masked_array([1.0]), np.zeros(2, "i4,f4")]
)
def test_what_zarr_does_not_keep(array: Any) -> None:
    """Objects, masks, records."""
    with pytest.raises(TypeError, match="convert it with astype"):
        pieces.save_array("memory://none", {}, "0", array)


# --- collections ----------------------------------------------------------------------


def _loaded(client: Client) -> tuple[Any, ...]:
    frame = dd.from_pandas(PANDAS, npartitions=3)
    odd = X[X[:, 0] > 0.5].astype("f4")  # chunks of unknown sizes
    return (
        *client.persist([X, odd]),
        *client.persist([frame, frame["a"], frame.clear_divisions()]),
    )


@gen_cluster(**TWO)
async def test_collections(c: Any, s: Any, a: Any, b: Any) -> None:
    """The same pieces, types, names and divisions, in the order given."""
    path = "memory://saved/here"
    x, odd, frame, series, unknown = given = _loaded(c)
    await clustertune.save(c, path, *given, x, storage_options={"token": "hunter2"})
    options = {"token": "hunter2"}
    x2, odd2, frame2, series2, unknown2, again = await clustertune.load(
        c, path, storage_options=options
    )
    assert x2.chunks == x.chunks
    assert again.name == x2.name
    np.testing.assert_array_equal(await c.compute(x2), await c.compute(x))
    assert odd2.dtype == np.float32
    sizes = [len(await c.compute(odd.blocks[i])) for i in range(3)]
    assert list(odd2.chunks[0]) == sizes  # they are known now
    np.testing.assert_array_equal(await c.compute(odd2), await c.compute(odd))
    assert frame2.divisions == frame.divisions
    assert frame2.npartitions == unknown2.npartitions == 3
    assert not unknown2.known_divisions
    expected = await c.compute(frame)  # Dask has made other texts of them
    pd.testing.assert_frame_equal(frame2._meta, frame._meta)
    pd.testing.assert_frame_equal(await c.compute(frame2), expected)
    pd.testing.assert_frame_equal(await c.compute(unknown2), expected)
    pd.testing.assert_series_equal(await c.compute(series2), PANDAS["a"])
    files, root = manifests.place("path", path, options).files()
    texts = [files.cat_file(name) for name in files.find(root)]
    assert texts
    assert not any(b"hunter2" in text for text in texts)


@gen_cluster(**TWO)
async def test_a_folder_that_is_taken(c: Any, s: Any, a: Any, b: Any) -> None:
    """Only a save of ours is replaced, and only when that is asked."""
    files, root = manifests.place("path", "memory://taken", None).files()
    x = c.persist(X)
    files.pipe_file(f"{root}/mine.txt", b"precious")
    for overwrite in (False, True):
        with pytest.raises(RefusedError, match=r"holds other files \(mine.txt\)"):
            await clustertune.save(c, "memory://taken", x, overwrite=overwrite)
    assert files.cat_file(f"{root}/mine.txt") == b"precious"
    files.rm_file(f"{root}/mine.txt")
    await clustertune.save(c, "memory://taken", x)
    with pytest.raises(RefusedError, match="a save of clustertune; give overwrite"):
        await clustertune.save(c, "memory://taken", x)
    y = c.persist(X + 1)
    await clustertune.save(c, "memory://taken", y, overwrite=True)
    (y2,) = await clustertune.load(c, "memory://taken")
    np.testing.assert_array_equal(await c.compute(y2), await c.compute(y))
    assert len(files.ls(root)) == 2  # the old save is gone


@gen_cluster(**TWO)
async def test_a_save_that_fails(c: Any, s: Any, a: Any, b: Any) -> None:
    """The one that was there is there still; what is left of it can be replaced."""
    path = "memory://failing"
    x = c.persist(X)
    bad = c.persist(dd.from_pandas(PANDAS[["s"]], npartitions=2))
    bad = c.persist(bad.assign(s=bad["s"].map(_list, meta=("s", object))))
    await clustertune.save(c, path, x)
    with pytest.raises(SaveError, match="saving y failed"):
        await clustertune.save(c, path, x, bad, overwrite=True)
    (x2,) = await clustertune.load(c, path)
    np.testing.assert_array_equal(await c.compute(x2), await c.compute(x))
    with pytest.raises(SaveError, match="saving X failed"):
        await clustertune.save(c, "memory://failed", bad)
    with pytest.raises(SaveError, match="nothing was saved there, or the save was"):
        await clustertune.load(c, "memory://failed")
    with pytest.raises(RefusedError, match="what is left of a save"):
        await clustertune.save(c, "memory://failed", x)
    await clustertune.save(c, "memory://failed", x, overwrite=True)
    assert len(await clustertune.load(c, "memory://failed")) == 1


def _list(value: Any) -> list[Any]:
    return [value, 1]


@gen_cluster(**TWO)
async def test_files_that_were_changed(c: Any, s: Any, a: Any, b: Any) -> None:
    """Are never taken for the data, nor are files that are gone."""
    path = "memory://changed"
    x, _, frame, *_ = _loaded(c)
    await clustertune.save(c, path, x, frame)
    files, root = manifests.place("path", path, None).files()
    names = files.find(root)
    for end in ("1.parquet", "0.1/0.0"):
        (name,) = [n for n in names if n.endswith(end)]
        data = files.cat_file(name)
        # of other bytes that are compressed some say the same with another bit
        files.pipe_file(name, data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(SaveError, match="loading"):
            await clustertune.load(c, path)
        files.rm_file(name)
        with pytest.raises(SaveError, match="loading"):
            await clustertune.load(c, path)
        files.pipe_file(name, data)
    assert len(await clustertune.load(c, path)) == 2


@gen_cluster(**TWO)
async def test_refused(c: Any, s: Any, a: Any, b: Any) -> None:
    """What is not in memory, and what cannot be kept."""
    objects = c.persist(X.astype(object))
    mixed = c.persist(dd.from_pandas(pd.DataFrame({"a": [1j, 2]}), npartitions=1))
    for data, match in (
        (X, "X is not loaded"),
        (objects, "X cannot be saved: its pieces are ndarray of object"),
        (mixed, "X cannot be saved: .*complex128"),
    ):
        with pytest.raises(RefusedError, match=match):
            await clustertune.save(c, "memory://refused", data)
    with pytest.raises(TypeError, match="nothing is given"):
        clustertune.save(c, "memory://refused")
    files, root = manifests.place("path", "memory://refused", None).files()
    assert not files.exists(root)


def test_storage_that_is_not_shared(
    local_cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each process has a memory of its own: that is seen before any data is written."""
    monkeypatch.setattr(saving, "SEEN", 0.2)
    _, client = local_cluster(2)
    x = client.persist(X)
    wait(x)
    with pytest.raises(RefusedError, match="does not see what 2 workers"):
        clustertune.save(client, "memory://mine", x)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(RefusedError, match="is a file"):
        clustertune.save(client, file, x)
    with pytest.raises(RefusedError, match=r"cannot write to .*file/below"):
        clustertune.save(client, file / "below", x)


def test_workers_without_clustertune(tmp_path: Path) -> None:
    """Only the client needs it."""
    folder = tmp_path / "shared"
    with (
        cluster(tmp_path, 2, **blocking(tmp_path)) as file,
        Client(scheduler_file=file) as client,
    ):
        client.wait_for_workers(2)
        x, _, frame, *_ = _loaded(client)
        clustertune.save(client, folder, x, frame)
        x2, frame2 = clustertune.load(client, folder)
        np.testing.assert_array_equal(x2.compute(), x.compute())
        pd.testing.assert_frame_equal(frame2.compute(), frame.compute())
    manifest = json.loads((folder / manifests.MANIFEST).read_text())
    assert manifest["collections"][0]["chunks"] == [[30, 5, 65], [3, 1]]


# --- manifests ------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "schema_version": 1,
    "folder": "clustertune-0123abcd",
    "order": [0],
    "collections": [
        {
            "kind": "array",
            "folder": "clustertune-0123abcd/0",
            "dtype": "<f8",
            "chunks": [[2]],
            "pieces": [{"crc32": 1, "shape": [2], "bytes": 5}],
        }
    ],
}


@pytest.mark.parametrize(
    "change",
    [
        {"folder": "../etc"},
        {"folder": "clustertune-0123abcd/../.."},
        {"order": [1]},
        {"order": [-1]},
        {"collections": [{}]},
        {"collections": [GOOD["collections"][0] | {"folder": "../0"}]},
        {"collections": [GOOD["collections"][0] | {"kind": "pickle"}]},
        {"collections": [GOOD["collections"][0] | {"chunks": [[2, 2]]}]},
        {"collections": [GOOD["collections"][0] | {"dtype": "nothing"}]},
        {"collections": None},
    ],
)
def test_a_manifest_that_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    """Nothing outside of its folder is read, whatever a file says."""
    place = manifests.place("path", tmp_path, None)
    (tmp_path / manifests.MANIFEST).write_text(json.dumps(GOOD))
    assert manifests.read(place) == GOOD
    (tmp_path / manifests.MANIFEST).write_text(json.dumps(GOOD | change))
    with pytest.raises(SaveError, match="is not a manifest of clustertune's"):
        manifests.read(place)


@pytest.mark.parametrize("text", ["", "[]", "5", '{"schema_version": 2}', "{}"])
def test_other_files(tmp_path: Path, text: str) -> None:
    """They are no manifests, or of another release."""
    (tmp_path / manifests.MANIFEST).write_text(text)
    with pytest.raises(SaveError, match=r"not a manifest|schema version 2; this"):
        manifests.read(manifests.place("path", tmp_path, None))


def test_pieces_that_are_no_array() -> None:
    """What a collection says of its pieces is not believed."""
    shapes = [[2, 1], [2, 2], [3, 1], [3, 2]]
    assert saving._chunks("X", (2, 2), shapes) == [[2, 3], [1, 2]]
    with pytest.raises(SaveError, match=r"its piece \(1, 1\) has the shape \(3, 3\)"):
        saving._chunks("X", (2, 2), [*shapes[:3], [3, 3]])
