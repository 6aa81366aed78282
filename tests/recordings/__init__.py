"""Write views of real clusters to JSON files, and read them.

Tests run checks on such recordings. A file has all facts that checks use, and no data.
Fields with their default value are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from clustertune.core import model
from clustertune.core.model import View

FOLDER = Path(__file__).parent
NAMES = sorted(["big_memory", *(file.stem for file in FOLDER.glob("*.json"))])


def dumps(view: View) -> str:
    """Return the view as JSON."""
    return json.dumps({"view": _plain(view)}, indent=1, sort_keys=True)


def loads(text: str) -> View:
    """Read what :func:`dumps` wrote."""
    view: View = _value(json.loads(text)["view"])
    return view


def view(name: str) -> View:
    """Return the recorded view with this name, one of :data:`NAMES`."""
    if name == "big_memory":
        return _on_a_big_host(view("stock"))
    return loads((FOLDER / f"{name}.json").read_text())


def _on_a_big_host(seen: View) -> View:
    """Return the same cluster on a host with 2 TiB."""
    factor = 100
    workers = tuple(
        replace(
            w,
            memory_limit=w.memory_limit * factor,
            facts=replace(w.facts, host_memory=w.facts.host_memory * factor),
        )
        for w in seen.now.workers
    )
    return replace(seen, snapshots=(replace(seen.now, workers=workers),))


# JSON has lists, texts, numbers and objects with text keys. Any other value becomes an
# object with one key, which is its type.


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return int(value) if isinstance(value, IntEnum) else value
    if is_dataclass(value):
        own = {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        for f in fields(value):
            if not _is_required(f) and own[f.name] == _plain(_default(f)):
                del own[f.name]
        return {type(value).__name__: own}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist()}
    if isinstance(value, frozenset):
        return {"set": sorted(map(_plain, value), key=str)}
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    return [_plain(v) for v in value]


def _plain_mapping(value: Mapping[Any, Any]) -> Any:
    if all(isinstance(k, str) for k in value):
        return {"texts": {k: _plain(v) for k, v in value.items()}}
    return {"mapping": [[_plain(k), _plain(v)] for k, v in value.items()]}


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _default(field: Field[Any]) -> Any:
    make = field.default_factory
    return field.default if make is MISSING else make()


_SPECIAL: Mapping[str, Callable[[Any], Any]] = {
    "array": lambda v: np.array(v, dtype=np.int64),
    "set": lambda v: frozenset(map(_value, v)),
    "mapping": lambda v: {_value(k): _value(x) for k, x in v},
    "texts": lambda v: {k: _value(x) for k, x in v.items()},
}


def _value(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(map(_value, data))
    if not isinstance(data, dict):
        return data
    ((name, inner),) = data.items()
    if name in _SPECIAL:
        return _SPECIAL[name](inner)
    kind = getattr(model, name)
    known = {f.name for f in fields(kind)}
    return kind(**{k: _value(v) for k, v in inner.items() if k in known})
