"""Saved collections are loaded unchanged; broken or changed saves are refused."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import dask.array as da
import dask.dataframe as dd
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client, wait
from distributed.utils_test import gen_cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from hypothesis.extra import pandas as frames
from pyarrow import parquet

import clustertune
from clustertune.core import decoding
from clustertune.errors import RefusedError, SaveError
from clustertune.operations import manifests, saving
from clustertune.remote.worker import partitions
from tests.processes import blocking, cluster

# zarr and fsspec start threads that keep running
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


# --- one partition --------------------------------------------------------------------

COLUMNS = st.one_of(
    st.sampled_from(
        ["int8", "uint64", "float16", "float32", "float64", "bool", "M8[ns]", "m8[ns]"]
    ).map(lambda kind: frames.column(dtype=np.dtype(kind))),
    st.just(frames.column(elements=st.none() | st.text(st.characters(codec="utf-8")))),
)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_frame(data: Any) -> None:
    """Values, types, index and names stay, for any number of rows."""
    drawn = data.draw(st.lists(COLUMNS, min_size=1, max_size=3))
    columns = [replace(column, name=f"c{i}") for i, column in enumerate(drawn)]
    frame = data.draw(frames.data_frames(columns, index=frames.range_indexes()))
    for one in (frame, frame[::-1], frame["c0"], frame["c0"].rename(None)):
        again = partitions.decode(partitions.encode(one), series=one.ndim == 1)
        if one.ndim == 1:
            pd.testing.assert_series_equal(again, one, check_freq=False)
        else:
            pd.testing.assert_frame_equal(again, one, check_freq=False)


@pytest.mark.parametrize("storage", ["python", "pyarrow"])
def test_texts_are_stored_as_they_were(storage: str) -> None:
    """The default of pandas does not matter: before pandas 3 Dask has another one."""
    texts = pd.Series(["x", None], dtype=f"string[{storage}]", name="s")
    for one in (texts, texts.to_frame().assign(n=1)):
        again = partitions.decode(partitions.encode(one), series=one.ndim == 1)
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
    """Every bit stays the same, also of NaN and -0.0."""
    url = "memory://test-any-array"
    said = partitions.save_array(url, {}, "0.0", array)
    again = partitions.load_array(url, {}, "0.0", said)
    assert again.dtype == array.dtype
    assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_zarr_reads_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zarr opens a saved chunk, also one with several files."""
    import zarr

    array = np.arange(35).reshape(7, 5).astype(np.dtype(kind))
    monkeypatch.setattr(partitions, "MOST", 2 * array.nbytes // 7)
    said = partitions.save_array(str(tmp_path), {}, "x", array)
    assert len(said["crc32"]) == 4
    opened: Any = zarr.open_array(str(tmp_path / "x"), mode="r")
    assert opened.dtype == array.dtype
    np.testing.assert_array_equal(opened[...], array)
    np.testing.assert_array_equal(
        partitions.load_array(str(tmp_path), {}, "x", said), array
    )


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
    """Saving raises an error for types that Parquet changes."""
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=match):
        partitions.save_frame(str(tmp_path), {}, "0", column.to_frame("c"))


def test_names_that_parquet_does_not_keep() -> None:
    """Parquet would return these names as text."""
    for columns in ([0, "a"], ["a", "a"]):
        with pytest.raises(ValueError, match="names of several types, or the same"):
            partitions.encode(pd.DataFrame([[1, 2]], columns=columns))


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.ma.masked_array([1.0]), np.zeros(2, "i4,f4")]
)
def test_what_zarr_does_not_keep(array: Any) -> None:
    """Objects, masks and records are refused."""
    with pytest.raises(TypeError, match="convert it with astype"):
        partitions.save_array("memory://none", {}, "0", array)


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
    """Partitions, types, names, divisions and order stay the same."""
    path = "memory://saved/here"
    x, odd, frame, series, unknown = given = _loaded(c)
    await clustertune.save_data(
        c, path, *given, x, storage_options={"token": "hunter2"}
    )
    options = {"token": "hunter2"}
    x2, odd2, frame2, series2, unknown2, again = await clustertune.load_data(
        c, path, storage_options=options
    )
    assert x2.chunks == x.chunks
    assert again.name == x2.name
    np.testing.assert_array_equal(await c.compute(x2), await c.compute(x))
    assert odd2.dtype == np.float32
    sizes = [len(await c.compute(odd.blocks[i])) for i in range(3)]
    assert list(odd2.chunks[0]) == sizes  # loaded chunks have known sizes
    np.testing.assert_array_equal(await c.compute(odd2), await c.compute(odd))
    assert frame2.divisions == frame.divisions
    assert frame2.npartitions == unknown2.npartitions == 3
    assert not unknown2.known_divisions
    expected = await c.compute(frame)  # Dask has converted the text
    pd.testing.assert_frame_equal(frame2._meta, frame._meta)
    pd.testing.assert_frame_equal(await c.compute(frame2), expected)
    pd.testing.assert_frame_equal(await c.compute(unknown2), expected)
    pd.testing.assert_series_equal(await c.compute(series2), PANDAS["a"])
    files, root = manifests.target("path", path, options).files()
    texts = [files.cat_file(name) for name in files.find(root)]
    assert texts
    assert not any(b"hunter2" in text for text in texts)


@gen_cluster(**TWO)
async def test_secrets_of_a_storage(c: Any, s: Any, a: Any, b: Any) -> None:
    """Only tasks on the scheduler contain them; logs, events and errors do not."""
    path, options = "memory://secrets", {"token": "hunter2"}
    x = c.persist(X)
    await clustertune.save_data(c, path, x, storage_options=options)
    (loaded,) = await clustertune.load_data(c, path, storage_options=options)
    await c.compute(loaded)
    shown = {
        "tasks": [(k, repr(t), repr(t.run_spec)) for k, t in s.tasks.items()],
        "events": {topic: list(s.get_events(topic)) for topic in s.get_events()},
        "dump": s._to_dict(),
        "logs": [s.get_logs(), a.get_logs(), b.get_logs()],
        "target": manifests.target("path", path, options),
    }
    for name, what in shown.items():
        assert "hunter2" not in repr(what), name
    files, root = manifests.target("path", path, options).files()
    (partition, *_) = [name for name in files.find(root) if name.endswith("0.0/0.0")]
    files.pipe_file(partition, b"x")
    with pytest.raises(SaveError) as caught:
        await clustertune.load_data(c, path, storage_options=options)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in repr([s.get_logs(), a.get_logs(), b.get_logs()])
    # docs/security.md says so
    assert any("hunter2" in str(pickle.dumps(t.run_spec)) for t in s.tasks.values())
    with pytest.raises(ValueError, match="path contains a password") as refused:
        clustertune.save_data(c, "ftp://me:hunter2@127.0.0.1:1/x", x)
    assert "hunter2" not in str(refused.value)


@gen_cluster(**TWO)
async def test_an_occupied_folder(c: Any, s: Any, a: Any, b: Any) -> None:
    """Only a complete save is replaced, and only with overwrite=True."""
    files, root = manifests.target("path", "memory://taken", None).files()
    x = c.persist(X)
    files.pipe_file(f"{root}/mine.txt", b"precious")
    for overwrite in (False, True):
        with pytest.raises(RefusedError, match=r"holds other files \(mine.txt\)"):
            await clustertune.save_data(c, "memory://taken", x, overwrite=overwrite)
    assert files.cat_file(f"{root}/mine.txt") == b"precious"
    files.rm_file(f"{root}/mine.txt")
    await clustertune.save_data(c, "memory://taken", x)
    with pytest.raises(RefusedError, match="holds a complete save; give overwrite"):
        await clustertune.save_data(c, "memory://taken", x)
    y = c.persist(X + 1)
    await clustertune.save_data(c, "memory://taken", y, overwrite=True)
    (y2,) = await clustertune.load_data(c, "memory://taken")
    np.testing.assert_array_equal(await c.compute(y2), await c.compute(y))
    assert len(files.ls(root)) == 2  # the old save is gone


@gen_cluster(**TWO)
async def test_a_save_that_fails(c: Any, s: Any, a: Any, b: Any) -> None:
    """An existing save stays; the files of the failed one can be replaced."""
    path = "memory://failing"
    x = c.persist(X)
    bad = c.persist(dd.from_pandas(PANDAS[["s"]], npartitions=2))
    bad = c.persist(bad.assign(s=bad["s"].map(_list, meta=("s", object))))
    await clustertune.save_data(c, path, x)
    with pytest.raises(SaveError, match="saving y failed"):
        await clustertune.save_data(c, path, x, bad, overwrite=True)
    (x2,) = await clustertune.load_data(c, path)
    np.testing.assert_array_equal(await c.compute(x2), await c.compute(x))
    with pytest.raises(SaveError, match="saving X failed"):
        await clustertune.save_data(c, "memory://failed", bad)
    with pytest.raises(SaveError, match="so it holds no complete save"):
        await clustertune.load_data(c, "memory://failed")
    files, root = manifests.target("path", "memory://failed", None).files()
    assert files.find(root) == []  # a save that fails removes its files
    files.pipe_file(f"{root}/clustertune-0123abcd/0/0.0/0.0", b"x")
    with pytest.raises(RefusedError, match="holds an unfinished save"):
        await clustertune.save_data(c, "memory://failed", x)
    await clustertune.save_data(c, "memory://failed", x, overwrite=True)
    assert len(await clustertune.load_data(c, "memory://failed")) == 1
    # another process may be writing it
    assert files.exists(f"{root}/clustertune-0123abcd/0/0.0/0.0")


def _list(value: Any) -> list[Any]:
    return [value, 1]


@gen_cluster(**TWO)
async def test_files_that_were_changed(c: Any, s: Any, a: Any, b: Any) -> None:
    """Changed or missing files are an error."""
    path = "memory://changed"
    x, _, frame, *_ = _loaded(c)
    await clustertune.save_data(c, path, x, frame)
    files, root = manifests.target("path", path, None).files()
    names = files.find(root)
    for end in ("1.parquet", "0.1/0.0", "0.1/.zarray", "meta.parquet"):
        (name,) = [n for n in names if n.endswith(end)]
        data = files.cat_file(name)
        # a changed bit in compressed data does not always change the values
        files.pipe_file(name, data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(SaveError, match=r"loading|not as it was saved"):
            await clustertune.load_data(c, path)
        files.rm_file(name)
        with pytest.raises(SaveError):
            await clustertune.load_data(c, path)
        files.pipe_file(name, data)
    assert len(await clustertune.load_data(c, path)) == 2


@gen_cluster(**TWO)
async def test_refused(c: Any, s: Any, a: Any, b: Any) -> None:
    """Data that is not in memory, and data that files cannot restore, is refused."""
    objects = c.persist(X.astype(object))
    mixed = c.persist(dd.from_pandas(pd.DataFrame({"a": [1j, 2]}), npartitions=1))
    for data, match in (
        (X, "X is not in memory"),
        (objects, "X cannot be saved: its chunks are ndarray of object"),
        (mixed, "X cannot be saved: .*complex128"),
    ):
        with pytest.raises(RefusedError, match=match):
            await clustertune.save_data(c, "memory://refused", data)
    with pytest.raises(TypeError, match="give at least one collection"):
        clustertune.save_data(c, "memory://refused")
    files, root = manifests.target("path", "memory://refused", None).files()
    assert not files.exists(root)


def test_storage_that_is_not_shared(
    local_cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Processes with separate storage are found before any data is written."""
    monkeypatch.setattr(saving, "VISIBILITY_TIMEOUT", 0.2)
    _, client = local_cluster(2)
    x = client.persist(X)
    wait(x)
    with pytest.raises(RefusedError, match="does not see the files that 2 workers"):
        clustertune.save_data(client, "memory://mine", x)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(RefusedError, match="is a file"):
        clustertune.save_data(client, file, x)
    with pytest.raises(RefusedError, match=r"cannot write to .*file/below"):
        clustertune.save_data(client, file / "below", x)


def test_workers_without_clustertune(tmp_path: Path) -> None:
    """Only the client needs it."""
    folder = tmp_path / "shared"
    with (
        cluster(tmp_path, 2, **blocking(tmp_path)) as file,
        Client(scheduler_file=file) as client,
    ):
        client.wait_for_workers(2)
        x, _, frame, *_ = _loaded(client)
        clustertune.save_data(client, folder, x, frame)
        x2, frame2 = clustertune.load_data(client, folder)
        np.testing.assert_array_equal(x2.compute(), x.compute())
        pd.testing.assert_frame_equal(frame2.compute(), frame.compute())
    manifest = json.loads((folder / manifests.MANIFEST).read_text())
    assert manifest["collections"][0]["chunks"] == [[30, 5, 65], [3, 1]]


# --- saves that were changed to run code ----------------------------------------------


class _Evil:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.fixture
def unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers with a numcodecs that unpickles, as releases below 0.16.6 always do."""
    monkeypatch.setenv("NUMCODECS_ALLOW_UNSAFE_PICKLE_DECODE", "1")


def test_a_save_that_is_to_run_code(
    unsafe: None, spawned: None, local_cluster: Any, tmp_path: Path
) -> None:
    """A save with a pickle is refused, and neither workers nor client run it."""
    path, marker = tmp_path / "save", tmp_path / "marker"
    _, client = local_cluster(2)
    x = client.persist(X)
    frame = client.persist(dd.from_pandas(PANDAS, npartitions=2))
    wait([x, frame])
    payload = pickle.dumps(_Evil(marker))
    for changes in (
        {"compressor": {"id": "pickle"}},
        {"compressor": None, "filters": [{"id": "pickle"}]},
        {"compressor": None, "dtype": "|O", "filters": [{"id": "pickle"}]},
    ):
        for honest in (False, True):  # whether the manifest has the new checksum
            clustertune.save_data(client, path, x, frame, overwrite=True)
            manifest = json.loads((path / manifests.MANIFEST).read_text())
            folder = path / manifest["folder"] / "0" / "0.0"
            described = json.loads((folder / ".zarray").read_text())
            (folder / ".zarray").write_text(json.dumps(described | changes))
            (folder / "0.0").write_bytes(payload)
            if honest:
                saved = manifest["collections"][0]["partitions"][0]
                saved["crc32"] = [crc32(payload)]
                (path / manifests.MANIFEST).write_text(json.dumps(manifest))
            with pytest.raises(SaveError, match="does not match the manifest"):
                clustertune.load_data(client, path)
            # with the original metadata the chunk itself is wrong
            (folder / ".zarray").write_text(json.dumps(described))
            with pytest.raises(SaveError, match=r"checksum|Zstd"):
                clustertune.load_data(client, path)
    assert not marker.exists()


def _with_pickled_type(data: bytes, payload: bytes) -> bytes:
    """A Parquet file with a column type that old releases of pyarrow unpickle."""
    table = parquet.read_table(pa.BufferReader(data))
    fields = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": payload,
    }
    schema = table.schema.set(0, table.schema.field(0).with_metadata(fields))
    out = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_arrays(table.columns, schema=schema), out)
    changed: bytes = out.getvalue().to_pybytes()
    return changed


def test_frames_that_are_to_run_code(local_cluster: Any, tmp_path: Path) -> None:
    """Pickled types of columns are never unpickled, even if all checksums are right."""
    path, marker = tmp_path / "save", tmp_path / "marker"
    _, client = local_cluster(2)
    frame = client.persist(dd.from_pandas(PANDAS[["a"]], npartitions=2))
    wait(frame)
    payload = pickle.dumps(_Evil(marker))
    for name in ("0.parquet", "meta.parquet"):
        clustertune.save_data(client, path, frame, overwrite=True)
        manifest = json.loads((path / manifests.MANIFEST).read_text())
        (entry,) = manifest["collections"]
        file = path / entry["folder"] / name
        changed = _with_pickled_type(file.read_bytes(), payload)
        file.write_bytes(changed)
        with pytest.raises(SaveError, match="its checksum is another"):
            clustertune.load_data(client, path)
        where = entry["partitions"][0] if name == "0.parquet" else entry["crc32"]
        where["crc32" if name == "0.parquet" else "meta"] = crc32(changed)
        (path / manifests.MANIFEST).write_text(json.dumps(manifest))
        (loaded,) = clustertune.load_data(client, path)
        pd.testing.assert_frame_equal(loaded.compute(), PANDAS[["a"]])
    assert not marker.exists()


def test_a_pyarrow_that_unpickles(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old pyarrow reads nothing."""
    data = partitions.encode(PANDAS[["a"]])
    monkeypatch.setattr(pa, "__version__", "14.0.0")
    with pytest.raises(ValueError, match=r"pip install 'pyarrow>=14\.0\.1'"):
        partitions.decode(data, series=False)


@gen_cluster(**TWO)
async def test_a_link_to_another_folder(c: Any, s: Any, a: Any, b: Any) -> None:
    """Replacing a save does not remove files behind a symbolic link."""
    with TemporaryDirectory() as folder:
        path, precious = Path(folder) / "save", Path(folder) / "precious"
        precious.mkdir()
        (precious / "file").write_text("x")
        x = c.persist(X)
        await clustertune.save_data(c, path, x)
        manifest = json.loads((path / manifests.MANIFEST).read_text())
        old = path / manifest["folder"]
        old.rename(path / "clustertune-ffffffff")
        old.symlink_to(precious, target_is_directory=True)
        with suppress(SaveError):  # older releases of fsspec cannot remove a link
            await clustertune.save_data(c, path, x, overwrite=True)
        assert (precious / "file").read_text() == "x"
        (x2,) = await clustertune.load_data(c, path)
        np.testing.assert_array_equal(await c.compute(x2), await c.compute(x))


# --- two saves at the same time -------------------------------------------------------

SAVER = """
import sys
import dask.array as da
import clustertune
from clustertune.errors import SaveError
from distributed import Client

if __name__ == "__main__":
    path, number = sys.argv[1], int(sys.argv[2])
    with Client(processes=False, n_workers=1, threads_per_worker=2,
                dashboard_address="127.0.0.1:0") as client:
        X = client.persist(da.full((400, 4), number, chunks=(10, 4)))
        y = client.persist(da.full(400, number, chunks=10))
        print("ready", flush=True)
        sys.stdin.readline()
        done = 0
        for _ in range(6):
            try:
                clustertune.save_data(client, path, X, y, overwrite=True)
                done += 1
            except SaveError as error:
                assert "names another save" in str(error), error
        print(done, flush=True)
"""


def test_two_saves_at_the_same_time(local_cluster: Any, tmp_path: Path) -> None:
    """Two processes replace each other's save; load returns one complete save."""
    script, path = tmp_path / "saver.py", tmp_path / "save"
    script.write_text(SAVER)
    savers = [
        subprocess.Popen(
            [sys.executable, script, path, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2)
    ]
    try:
        pipes: Any = [(saver.stdin, saver.stdout) for saver in savers]
        assert [out.readline() for _, out in pipes] == ["ready\n"] * 2
        for to, _ in pipes:
            to.write("go\n")
            to.flush()
        done = [int(out.readline() or 0) for _, out in pipes]
        assert [saver.wait(60) for saver in savers] == [0, 0]
    finally:
        for saver in savers:
            saver.kill()
            saver.communicate()
    assert all(done), done
    _, client = local_cluster(1)
    X2, y2 = clustertune.load_data(client, path)
    values = np.unique(np.concatenate([X2.compute().ravel(), y2.compute()]))
    assert X2.shape == (400, 4)
    assert y2.shape == (400,)
    assert values.tolist() in ([1], [2])


@gen_cluster(**TWO)
async def test_another_save_finished_first(c: Any, s: Any, a: Any, b: Any) -> None:
    """Without overwrite a save does not replace one that was completed meanwhile."""
    path = "memory://came-first"
    place = manifests.target("path", path, None)
    files, root = place.files()
    await clustertune.save_data(c, path, c.persist(X))
    other = decoding.convert(GOOD, manifests.Manifest)
    files.pipe_file(f"{root}/clustertune-0123abcd/0/0.0/0.0", b"x")
    with pytest.raises(RefusedError, match="holds a complete save"):
        manifests.publish(place, other, overwrite=False)
    assert not files.exists(f"{root}/clustertune-0123abcd")
    assert len(await clustertune.load_data(c, path)) == 1


# --- manifests ------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "schema_version": 2,
    "folder": "clustertune-0123abcd",
    "order": [0],
    "collections": [
        {
            "kind": "array",
            "label": "X",
            "folder": "clustertune-0123abcd/0",
            "dtype": "<f8",
            "chunks": [[2]],
            "partitions": [
                {"crc32": [1], "shape": [2], "dtype": "<f8", "rows": 2, "bytes": 5}
            ],
        }
    ],
}
ARRAY = GOOD["collections"][0]
FRAME: dict[str, Any] = {
    "kind": "series",
    "label": "y",
    "folder": "clustertune-0123abcd/0",
    "divisions": True,
    "partitions": [{"crc32": 1, "shape": [2], "bytes": 5}],
    "crc32": {"meta": 1, "divisions": 2},
}


def _with_partition(**changes: Any) -> dict[str, Any]:
    return {"collections": [ARRAY | {"partitions": [ARRAY["partitions"][0] | changes]}]}


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
        {"collections": [ARRAY | {"dtype": "|O"}]},
        {"collections": [ARRAY | {"dtype": "i4,O"}]},
        {"collections": [ARRAY | {"chunks": []}]},
        {"collections": [FRAME | {"crc32": {"meta": 1}}]},
        {"collections": [FRAME | {"crc32": {"divisions": 1}}]},
        {"collections": [FRAME | {"partitions": []}]},
        {"collections": [FRAME | {"divisions": 1}]},
        {"collections": [FRAME | {"folder": "clustertune-0123abcd/1"}]},
        {"order": [0, "1"]},
        _with_partition(dtype="|O"),
        _with_partition(dtype=["i4", "O"]),
        _with_partition(rows=0),
        _with_partition(shape=[3]),
        _with_partition(shape=[-2]),
        _with_partition(crc32="pickle"),
        {"collections": None},
    ],
)
def test_an_invalid_manifest(tmp_path: Path, change: dict[str, Any]) -> None:
    """No manifest can make load read files outside of its folder."""
    place = manifests.target("path", tmp_path, None)
    for good in (GOOD | {"collections": [FRAME]}, GOOD):
        (tmp_path / manifests.MANIFEST).write_text(json.dumps(good))
        assert msgspec.to_builtins(manifests.read(place)) == good
    (tmp_path / manifests.MANIFEST).write_text(json.dumps(GOOD | change))
    with pytest.raises(SaveError, match="is not a manifest of clustertune: "):
        manifests.read(place)


@pytest.mark.parametrize("text", ["", "[]", "5", '{"schema_version": 1}', "{}"])
def test_other_files(tmp_path: Path, text: str) -> None:
    """They are not manifests, or another release wrote them."""
    (tmp_path / manifests.MANIFEST).write_text(text)
    with pytest.raises(
        SaveError, match=r"not a manifest|version 1, but this release reads 2"
    ):
        manifests.read(manifests.target("path", tmp_path, None))


def test_partitions_that_do_not_form_an_array() -> None:
    """Chunks whose shapes do not fit together are refused."""
    shapes = [[2, 1], [2, 2], [3, 1], [3, 2]]
    assert manifests.array_chunks("X", (2, 2), shapes) == [[2, 3], [1, 2]]
    with pytest.raises(SaveError, match=r"its chunk \(1, 1\) has the shape \(3, 3\)"):
        manifests.array_chunks("X", (2, 2), [*shapes[:3], [3, 3]])
