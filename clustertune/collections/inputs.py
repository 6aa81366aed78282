"""Validate, name and group the collections of a call, and suit them to a library.

All arguments are validated here, before anything on the cluster changes. Collections
with the same rows form a group. The rest of the package uses :class:`CollectionInfo`.
Data that does not suit the workload is refused. A library that takes Arrays only gets
Arrays, made of frames by Dask.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask._task_spec import Task, TaskRef
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from distributed import Future

from clustertune.collections.partitions import files_of, lengths, unjoined
from clustertune.core.model import Goal, Int64s, Profile
from clustertune.core.wording import code, names_text, variable

COMPANIONS = ("sample_weight", "qid", "base_margin", "init_score")
NAMES = (*COMPANIONS, "group")  # of the arguments


@dataclass(frozen=True, slots=True)
class Given:
    """A collection of the caller, with the name of its argument."""

    label: str
    collection: Any
    sources: tuple[str, ...] = ()  # of the partitions of a frame that became an Array


@dataclass(frozen=True, slots=True)
class Group:
    """Row-aligned collections."""

    label: str
    given: tuple[Given, ...]


@dataclass(frozen=True, slots=True)
class Inputs:
    """All collections of a call, each once, grouped by their rows.

    A collection may have several labels, for example as y and as weights. ``same`` maps
    every label to the label under which the collection is listed.
    """

    groups: tuple[Group, ...]  # the training data first
    training: tuple[str, ...]  # labels in the order of the result
    eval_sets: tuple[tuple[str, ...], ...]  # labels of each: X, y, companions
    same: Mapping[str, str]
    #: sizes of groups that replace qid, by the label of the qid made of them
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Given]:
        for group in self.groups:
            yield from group.given

    def collection(self, label: str) -> Any:
        """Return the collection of this label, or None."""
        wanted = self.same.get(label)
        return next((x.collection for x in self if x.label == wanted), None)

    def with_collections(self, collections: Sequence[Any]) -> Inputs:
        """Return the inputs with other collections, in the order of iteration."""
        rest = iter(collections)
        groups = tuple(
            replace(g, given=tuple(replace(x, collection=next(rest)) for x in g.given))
            for g in self.groups
        )
        return replace(self, groups=groups)


NOTHING = Inputs(groups=(), training=(), eval_sets=(), same={})


def gather(
    X: Any,
    y: Any = None,
    *others: Any,
    eval_set: Any = None,
    optional: bool = False,
    **companions: Any,
) -> Inputs:
    """Check and group the data of ``prepare``, ``check`` and ``fit``.

    With ``optional`` all of them may be None. Raises ``TypeError`` for an argument that
    is no Dask Array, DataFrame or Series, ``ValueError`` for one without rows or
    columns, or if ``eval_set`` is not a list of sets.
    """
    if unknown := [n for n in companions if n not in NAMES]:
        raise TypeError(
            f"there is no argument {unknown[0]}=; companions of X are "
            f"{', '.join(NAMES)} and eval_set"
        )
    if optional and X is None:
        if any(x is not None for x in (y, *others, eval_set, *companions.values())):
            raise TypeError("X is None but other data is given; give X, too")
        return NOTHING
    if y is None and others:
        raise TypeError("y is None but collections follow it; give y, or name them")
    sizes: dict[str, Any] = {}
    companions = _with_qid("", companions, sizes)
    named = [("X", X), ("y", y)]
    named += [(f"others[{i}]", other) for i, other in enumerate(others)]
    named += [(name, companions.get(name)) for name in COMPANIONS]
    training = [_given(n, c) for n, c in named if c is not None or n == "X"]
    sets = {"training data": training}
    for i, one in enumerate(eval_sets(eval_set)):
        name = f"eval_set[{i}]"
        roles = _with_qid(f"{name}.", one, sizes)
        sets[name] = [_given(f"{name}.{role}", x) for role, x in roles.items()]
    same: dict[str, str] = {}
    groups: list[Group] = []
    for name, given in sets.items():
        _add(name, given, groups, same)
    labels, *labels_of_evals = (tuple(x.label for x in s) for s in sets.values())
    return Inputs(
        groups=tuple(groups),
        training=labels,
        eval_sets=tuple(labels_of_evals),
        same=same,
        sizes=sizes,
    )


def _with_qid(
    prefix: str, named: Mapping[str, Any], sizes: dict[str, Any]
) -> dict[str, Any]:
    """Return collections by role; sizes of groups become the group of each row."""
    found = {role: x for role, x in named.items() if role != "group"}
    group = named.get("group")
    if group is None:
        return found
    if found.get("qid") is not None:
        raise ValueError(
            f"{prefix}qid and {prefix}group are given, and both define the groups "
            "of rows; give one of them"
        )
    sizes[f"{prefix}qid"] = group
    return found | {"qid": group_numbers(f"{prefix}group", group)}


def of_rows(collections: Sequence[Any]) -> Inputs:
    """Return inputs of row-aligned collections without known roles."""
    return gather(*collections) if collections else NOTHING


def _add(
    label: str, given: Sequence[Given], groups: list[Group], same: dict[str, str]
) -> None:
    """Add row-aligned collections to the group that has one of them, or to a new one.

    Two groups with the same partitions would send them to two workers.
    """
    home = {_name(x.collection): i for i, g in enumerate(groups) for x in g.given}
    labels = {_name(x.collection): x.label for g in groups for x in g.given}
    shared = [home[n] for x in given if (n := _name(x.collection)) in home]
    position = min(shared, default=len(groups))
    if position == len(groups):
        groups.append(Group(label, ()))
    added = []
    for x in given:
        first = labels.setdefault(_name(x.collection), x.label)
        same[x.label] = first
        added += [x] if first == x.label else []
    group = groups[position]
    groups[position] = replace(group, given=(*group.given, *added))


def eval_sets(eval_set: Any) -> list[dict[str, Any]]:
    """Return the collections of each eval set by role."""
    if eval_set is None:
        return []
    if not isinstance(eval_set, list | tuple) or not all(map(_is_eval_set, eval_set)):
        raise ValueError(
            "eval_set must be a list of pairs, like eval_set=[(X_valid, y_valid)], or "
            'with companions by name, (X_valid, y_valid, {"qid": qid_valid})'
        )
    found = []
    for X, y, *rest in eval_set:
        more = rest[0] if rest else {}
        if unknown := [n for n in more if n not in NAMES]:
            raise ValueError(
                f"eval_set: companions are {', '.join(COMPANIONS)}; "
                f"{names_text(unknown)} is none of them"
            )
        named = {n: c for n, c in more.items() if c is not None}
        one = {"X": X, "y": y, **named}
        found.append({n: as_collection(c) for n, c in one.items()})
    return found


def _is_eval_set(item: Any) -> bool:
    is_sequence = isinstance(item, list | tuple) and len(item) in (2, 3)
    return is_sequence and (len(item) == 2 or isinstance(item[2], dict))


def _name(collection: Any) -> str:
    """Return a name that collections of the same data share."""
    return str(collection.__dask_keys__()[0])


def _given(label: str, collection: Any) -> Given:
    if isinstance(collection, da.Array):
        if collection.ndim == 0:
            raise ValueError(
                f"{label} has no rows: it is a Dask Array without dimensions"
            )
        if 0 in collection.shape:
            raise ValueError(f"{label} is empty: its shape is {collection.shape}")
    elif isinstance(collection, dd.DataFrame):
        if len(collection.columns) == 0:
            raise ValueError(f"{label} is a DataFrame without columns")
    elif not isinstance(collection, dd.Series) or isinstance(collection, dd.Index):
        raise TypeError(
            f"{label} must be a Dask Array, DataFrame or Series; it was "
            # pandas 2 calls it pandas.core.frame.DataFrame
            f"{type(collection).__module__.split('.')[0]}."
            f"{type(collection).__name__}. " + _how_to_convert(label, collection)
        )
    return Given(label, collection)


def _how_to_convert(label: str, value: Any) -> str:
    name = variable(label)
    module = type(value).__module__.split(".")[0]
    if isinstance(value, np.ndarray):
        chunks = "(rows, -1)" if value.ndim > 1 else "rows"
        return f"Make it one: {name} = dask.array.from_array({name}, chunks={chunks})"
    if module == "pandas":
        return (
            f"Make it one: {name} = dask.dataframe.from_pandas({name}, npartitions=n)"
        )
    if type(value).__name__.startswith("Dask") and module == "xgboost":
        return (
            "XGBoost cannot return the collections in it. Prepare these collections, "
            "then make it of the result: X, y = clustertune.prepare(client, X, y); "
            "xgboost.dask.DaskDMatrix(client, X, y)"
        )
    first = value[0] if isinstance(value, list | tuple) and value else value
    collection = isinstance(first, da.Array | dd.DataFrame | dd.Series)
    if label == "y" and collection and first is not value:
        return (
            "Give each collection by itself, such as bounds of labels: "
            "X, lower, upper = clustertune.prepare(client, X, lower, upper); "
            "xgboost.dask.DaskDMatrix(client, X, label_lower_bound=lower, "
            "label_upper_bound=upper)"
        )
    if isinstance(first, Future) or type(first).__name__.startswith("Delayed"):
        is_list = first is not value
        parts, part = (name, f"{name}[0]") if is_list else (f"[{name}]", name)
        return (
            f"Make it one: {name} = dask.dataframe.from_delayed({parts}), or "
            f"{name} = dask.array.from_delayed({part}, shape=..., dtype=...)"
        )
    return (
        "Make it one, for example with dask.dataframe.read_parquet or "
        "dask.array.from_array; data that fits one process is trained faster there, "
        "without Dask"
    )


def companions(inputs: Inputs) -> tuple[str, ...]:
    """Return the names of the companions, and ``eval_set`` if given."""
    named = [x for x in inputs.training if x in COMPANIONS]
    return (*named, *["eval_set"] * bool(inputs.eval_sets))


def evaluated(inputs: Inputs) -> tuple[str, ...]:
    """Return the eval sets that are the training data."""
    names = (f"eval_set[{i}]" for i in range(len(inputs.eval_sets)))
    return tuple(n for n in names if inputs.same[f"{n}.X"] in inputs.training)


# --- other kinds of collections -------------------------------------------------------

MAX_GROUPS = 2**32  # in a partition


def as_collection(x: Any) -> Any:
    """Return a NumPy array or a pandas object as a collection of one partition."""
    if isinstance(x, np.ndarray):
        return da.from_array(x, chunks=-1)
    if isinstance(x, pd.DataFrame | pd.Series):
        return dd.from_pandas(x, npartitions=1, sort=False)
    return x


def as_array(x: Any, rows: Int64s | None) -> da.Array:
    """Return a frame or Series as an Array, by Dask's own conversion.

    Columns are chosen by name, because a partition may list them in another order than
    the metadata. ``rows`` are those of every partition; None: unknown.
    """
    if isinstance(x, dd.DataFrame) and x.columns.is_unique:
        names = list(x.columns)
        x = x.map_partitions(operator.getitem, names, meta=x._meta)  # noqa: SLF001
    # Dask joins small reads, and the Array would lack the keys of the joined partitions
    x = unjoined(x)
    lengths = None if rows is None else tuple(rows.tolist())
    array: da.Array = x.to_dask_array(lengths=lengths)
    return array


def group_numbers(label: str, sizes: Any) -> da.Array:
    """Turn sizes of groups, as LightGBM takes them, into the group of each row.

    The numbers ascend, and the partitions are those of the sizes.
    """
    array = sizes.to_dask_array() if isinstance(sizes, dd.Series) else sizes
    if not isinstance(array, da.Array):
        raise TypeError(
            f"{label} must be a Dask Array or Series of the sizes of groups, in the "
            f"order of rows; it was {type(sizes).__name__}"
        )
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{label} must have one whole number for each group, its rows; it has "
            f"{array.ndim} dimensions of {array.dtype}"
        )
    array = array.astype(np.int64)
    name = f"groups-{tokenize(sizes)}"
    tasks: dict[Any, Any] = {}
    for i in range(array.numblocks[0]):
        rows = TaskRef((array.name, i))
        numbers = Task(None, np.arange, Task(None, len, rows))
        numbers = Task(None, np.repeat, numbers, rows)
        tasks[name, i] = Task((name, i), np.add, numbers, i * MAX_GROUPS)
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[array])
    chunks = ((float("nan"),) * array.numblocks[0],)
    return da.Array(graph, name, chunks, dtype=np.int64)


# --- requirements of libraries --------------------------------------------------------


def refuse_groups(inputs: Inputs, profile: Profile) -> None:
    """Refuse query groups for a library that does not rank, or takes no sizes."""
    labels = [label for label in inputs.same if variable(label) == "qid"]
    if labels and not profile.groups:
        raise ValueError(
            f"{'group' if inputs.sizes else labels[0]} needs a ranker as estimator=, "
            f'the model, "xgboost_rank" or "lightgbm_rank"; this is {profile.title}. '
            "Numbers of another meaning are one more collection, after y"
        )
    if inputs.sizes and not profile.group_sizes:
        raise ValueError(
            "group= has sizes of groups, which LightGBM's ranker takes; for "
            f"{profile.title} give qid=, the group of each row"
        )


def refuse_unfit(inputs: Inputs, goal: Goal) -> None:
    """Refuse data that does not suit the workload or the other arguments."""
    _refuse_arrays(inputs, goal.workload)
    if "y" in inputs.training:
        _refuse_swapped(inputs.collection("X"), inputs.collection("y"))
    for i in range(len(inputs.eval_sets)):
        _refuse_unfit_eval_set(inputs, goal.workload, f"eval_set[{i}]")
    if goal.persist is False and goal.changes_data:
        raise ValueError(
            "persist=False leaves lazy data unchanged, but release_inputs= or a number "
            "for rechunk= change it; leave one of them out"
        )
    if goal.release_inputs and goal.rechunk is False:
        raise ValueError(
            "release_inputs=True releases partitions that are cut, and rechunk=False "
            "cuts none; leave one of them out"
        )
    if goal.workload.whole_groups and goal.partitions is not None:
        raise ValueError(
            f"rechunk={goal.rechunk} cuts at any row, but the rows of a query group "
            "stay together; leave out the number. To train on fewer workers, name them "
            "in workers="
        )


def _refuse_arrays(inputs: Inputs, profile: Profile) -> None:
    """Refuse Arrays for an estimator that takes frames only."""
    arrays = [x.label for x in inputs if isinstance(x.collection, da.Array)]
    if arrays and profile.refuses_arrays:
        verb = "is an Array" if len(arrays) == 1 else "are Arrays"
        shown = names_text(arrays, most=4)
        raise ValueError(f"{shown} {verb}: {profile.title}: {profile.refuses_arrays}")


def _refuse_swapped(X: Any, y: Any) -> None:
    """Refuse a single feature with several labels: X and y are probably swapped."""
    if X.ndim == 1 and y.ndim == 2 and y.shape[1] > 1:
        raise ValueError(
            f"X has one value a row, and y has {y.shape[1]:,}: are they swapped? It is "
            "prepare(client, X, y), features first; features of one column have two "
            "dimensions"
        )


def _refuse_unfit_eval_set(inputs: Inputs, profile: Profile, name: str) -> None:
    if profile.groups and f"{name}.qid" not in inputs.same:
        raise ValueError(
            f"{profile.title} scores groups of rows: {name} needs them too, "
            'eval_set=[(X_valid, y_valid, {"qid": qid_valid})]'
        )
    _refuse_other_columns(inputs.collection("X"), inputs.collection(f"{name}.X"), name)
    if profile.stops_early and name in evaluated(inputs):
        raise ValueError(
            f"{name} is the training data, and each worker of {profile.title} scores "
            "only the rows that it holds: with early stopping the workers would stop "
            "at different rounds, and the fit would hang; leave it out of eval_set, or "
            "fit without early stopping"
        )


def _refuse_other_columns(X: Any, valid: Any, name: str) -> None:
    """Refuse an eval set with other features; LightGBM scores them by position."""
    if X.ndim != 2 or valid.ndim != 2:
        return
    names, others = ([*map(str, getattr(x, "columns", ()))] for x in (X, valid))
    if names and others and names != others:
        ours, theirs = set(names), set(others)
        what = "has another order"
        if absent := [c for c in names if c not in theirs]:
            what = f"lacks {names_text(absent)}"
        elif more := [c for c in others if c not in ours]:
            what = f"also has {names_text(more)}"
        raise ValueError(
            f"{name}.X needs the columns of X in their order, but it {what}; take "
            "X_valid = X_valid[[*X.columns]]"
        )
    # a frame has no shape that takes no work
    width, other = (len(n) or x.shape[1] for n, x in ((names, X), (others, valid)))
    if abs(width - other) >= 1:  # not for unknown numbers
        raise ValueError(f"{name}.X has {other:,} columns, and X has {width:,}")


# --- Arrays ---------------------------------------------------------------------------


def with_arrays(inputs: Inputs, profile: Profile, *, asynchronous: bool) -> Inputs:
    """Return Arrays instead of frames for a library that takes Arrays only.

    The first steps of a pipeline get X as it is. Raises ``ValueError`` for columns that
    are not plain numbers.
    """
    if "dataframe" in profile.kinds:
        return inputs

    def made(given: Given) -> Given:
        x, features = given.collection, variable(given.label) == "X"
        if isinstance(x, da.Array) or (features and profile.transforms):
            return given
        _refuse_other_types(given, profile)
        array = as_array(x, lengths(x, asynchronous=asynchronous))
        return replace(given, collection=array, sources=files_of(x))

    groups = [replace(g, given=tuple(map(made, g.given))) for g in inputs.groups]
    return replace(inputs, groups=tuple(groups))


def _refuse_other_types(given: Given, profile: Profile) -> None:
    """Refuse columns of which an Array would have objects, with a fix."""
    x, name = given.collection, variable(given.label)
    is_frame = isinstance(x, dd.DataFrame)
    types = list(x.dtypes.items()) if is_frame else [(name, x.dtype)]
    other = {str(c): t for c, t in types if not _is_plain(t)}
    if not other:
        return
    numbers = all(
        getattr(t, "numpy_dtype", np.dtype(object)).kind in "biuf"
        for t in other.values()
    )
    columns = f"[{', '.join(map(code, other))}]"
    if numbers:  # nullable numbers
        types_text = f'dict.fromkeys({columns}, "float64")' if is_frame else '"float64"'
        fix = f"make plain numbers of them: {name} = {name}.astype({types_text})"
    elif is_frame:
        fix = f"encode them, or drop them: {name} = {name}.drop(columns={columns})"
    else:
        fix = "encode it, for example with .cat.codes or dask_ml.preprocessing"
    shown = names_text([f"{c} ({t})" for c, t in other.items()])
    raise ValueError(
        f"{profile.title} takes Arrays of numbers, and {given.label} has other types: "
        f"{shown}; {fix}"
    )


def _is_plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"
