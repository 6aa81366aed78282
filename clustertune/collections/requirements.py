"""Apply the requirements of a workload to the given collections, before loading.

Data that does not suit the workload is refused. A library that takes Arrays only gets
Arrays, made of frames by Dask.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np

from clustertune.collections.conversion import as_array
from clustertune.collections.inputs import Given, Inputs, evaluated
from clustertune.collections.loading import lengths
from clustertune.core.findings import code
from clustertune.core.model import Goal, Profile
from clustertune.core.wording import names_text, variable


def refuse_sizes(inputs: Inputs, profile: Profile) -> None:
    """Refuse sizes of groups for a library that takes the group of each row."""
    if inputs.sizes and not profile.group_sizes:
        raise ValueError(
            "group= has sizes of groups, which LightGBM's ranker takes; for "
            f"{profile.title} give qid=, the group of each row"
        )


def refuse_unfit(inputs: Inputs, goal: Goal) -> None:
    """Refuse data that does not suit the workload or the other arguments.

    Raises
    ------
    ValueError
        An argument is missing or contradicts another one.
    """
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
    if profile.stops_early and name in evaluated(inputs):
        raise ValueError(
            f"{name} is the training data, and each worker of {profile.title} scores "
            "only the rows that it holds: with early stopping the workers would stop "
            "at different rounds, and the fit would hang; leave it out of eval_set, or "
            "fit without early stopping"
        )


# --- Arrays ---------------------------------------------------------------------------


def with_arrays(inputs: Inputs, profile: Profile, *, asynchronous: bool) -> Inputs:
    """Return Arrays instead of frames for a library that takes Arrays only.

    The first steps of a pipeline get X as it is. Raises ``ValueError`` for columns that
    are not plain numbers.
    """
    if "dataframe" in profile.kinds:
        return inputs

    def made(given: Given) -> Any:
        x, features = given.collection, variable(given.label) == "X"
        if isinstance(x, da.Array) or (features and profile.transforms):
            return x
        _refuse_other_types(given, profile)
        return as_array(x, lengths(x, asynchronous=asynchronous))

    return inputs.with_collections([made(given) for given in inputs])


def _refuse_other_types(given: Given, profile: Profile) -> None:
    """Refuse columns of which an Array would have objects, with a fix."""
    x, name = given.collection, variable(given.label)
    is_frame = isinstance(x, dd.DataFrame)
    types = list(x.dtypes.items()) if is_frame else [(x.name, x.dtype)]
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
        f"{profile.title} takes Arrays of numbers, and {given.label} has columns of "
        f"other types: {shown}; {fix}"
        if is_frame
        else f"{profile.title} takes Arrays of numbers, and the type of {given.label} "
        f"is {next(iter(other.values()))}; {fix}"
    )


def _is_plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"
