"""Checks of the types and values of features and labels."""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.findings import code, info
from clustertune.core.model import (
    CollectionInfo,
    Finding,
    Layout,
    Severity,
    Unknown,
    View,
)
from clustertune.core.wording import bytes_text, names_text, plural, printable, variable
from clustertune.planner import remedies
from clustertune.planner.layouts import collection_bytes

#: types that are float64 in one array with float32
WIDE = frozenset(("int32", "int64", "uint32", "uint64", "float64"))
#: how names of types of text begin, and of all types that training libraries refuse
TEXT = ("object", "string", "str")
REFUSED = (*TEXT, "datetime64", "timedelta64", "period", "complex")


# --- values ---------------------------------------------------------------------------


def nonfinite_values(view: View) -> Iterator[Finding]:
    """Find missing labels and infinite values.

    XGBoost fails at an infinite feature or label; LightGBM and linear models train on
    it, to a model of NaN. A missing label is always wrong; missing features are fine.
    The check reads all data, so it runs only with ``deep=True``, and on labels if
    ``prepare`` reads them anyway, as for LightGBM.

    Remedy: Drop rows without a label from X, y and all companions: ``keep =
    y.notnull(); X, y = X[keep], y[keep]``. Replace infinite features with ``X =
    X.replace([np.inf, -np.inf], np.nan)`` in frames, with ``da.where`` in arrays.
    """
    for layout in view.layouts:
        for collection in layout.collections:
            missing, infinite = _count_not_finite(collection)
            if missing and variable(collection.label) == "y":
                remedy = remedies.drop_rows(layout, collection)
                yield _values(
                    collection, Severity.critical, missing, "missing label", remedy
                )
            if infinite:
                remedy = _replace_infinite(layout, collection)
                yield _values(
                    collection, Severity.warning, infinite, "infinite value", remedy
                )


def _replace_infinite(layout: Layout, collection: CollectionInfo) -> str:
    """Code that makes infinite features missing, or drops rows of other values."""
    name = variable(collection.label)
    if name != "X":
        return remedies.drop_rows(layout, collection, infinite=True)
    if collection.kind == "array":
        isinf = f"dask.array.isinf({name})"
        return f"Run `{name} = dask.array.where({isinf}, numpy.nan, {name})`."
    return f"Run `{name} = {name}.replace([numpy.inf, -numpy.inf], numpy.nan)`."


def _count_not_finite(collection: CollectionInfo) -> tuple[int, int]:
    partitions = collection.contents.partitions if collection.contents else ()
    found = [p.get("nonfinite_values", (0, 0)) for p in partitions]
    return sum(n for n, _ in found), sum(n for _, n in found)


def _values(
    collection: CollectionInfo, severity: Severity, count: int, what: str, remedy: str
) -> Finding:
    return Finding(
        severity=severity,
        message=f"{collection.label} has {plural(count, what)}, on which a fit fails "
        "or trains a useless model",
        subject=(collection.label,),
        evidence={"count": count},
        remedy=remedy,
    )


def differing_categories(view: View) -> Iterator[Finding]:
    """Find categories that differ between partitions of features.

    Libraries train on the positions in each partition's list of categories. If lists
    differ, the same number is another category, without an error. This includes eval
    sets. The check reads every partition, so it runs only with ``deep=True``, or if the
    library trains on categories. Then it stops ``prepare``.

    Remedy: Use one list for all partitions, with ``X = X.categorize(columns=["c"])`` or
    ``X["c"].astype(CategoricalDtype([...]))``. For eval sets use the lists of X:
    ``X_valid = X_valid.astype(X.dtypes[["c"]].to_dict())``.
    """
    trained = view.goal.workload.categories
    first: dict[str, str] = {}  # the first list of each column
    for collection in view.collections:
        differing: dict[str, None] = {}
        for partition in collection.contents.partitions if collection.contents else ():
            for column, known in (partition.get("categories") or {}).items():
                if first.setdefault(column, known) != known:
                    differing[column] = None
        if differing:
            yield Finding(
                severity=Severity.critical if trained else Severity.warning,
                message=f"partitions of {collection.label} have different categories "
                f"in {plural(len(differing), 'column')}: "
                f"{names_text(list(differing))}; a fit would mix them up",
                subject=(collection.label,),
                evidence={"columns": len(differing)},
                remedy=_categorize(collection, list(differing)),
            )


def _categorize(collection: CollectionInfo, columns: list[str]) -> str:
    """Code that gives all partitions the same categories, which reads all data."""
    name = variable(collection.label)
    listed = f"[{', '.join(map(code, columns))}]"
    as_objects = f"{name}.astype(dict.fromkeys({listed}, object))"
    return f"Run `{name} = {as_objects}.categorize(columns={listed})`."


# --- types ----------------------------------------------------------------------------


def non_numeric_columns(view: View) -> Iterator[Finding]:
    """Find columns of features that are not numbers.

    XGBoost and LightGBM refuse columns of text and of Python objects, and accept
    categories only with an option. scikit-learn and dask-ml refuse both.

    Remedy: Drop these columns, ``X = X.drop(columns=["city"])``, or make categories of
    them: ``X = X.categorize(columns=["city"])``, for XGBoost with
    ``enable_categorical=True``. Or use ``dask_ml.preprocessing.OrdinalEncoder``.
    """
    for collection in view.collections:
        if variable(collection.label) != "X":
            continue
        for dtype, (count, column) in collection.types.items():
            refused = dtype.startswith(REFUSED)
            if not refused and dtype != "category":
                continue
            yield Finding(
                severity=Severity.warning if refused else Severity.info,
                message=f"{collection.label} has {plural(count, 'column')} of type "
                f"{printable(dtype, longest=40)} ({printable(column, longest=40)}"
                f"{', ...' if count > 1 else ''}), which "
                + (
                    "training libraries refuse"
                    if refused
                    else "most training libraries accept only with an option"
                ),
                subject=(collection.label,),
                evidence={"dtype": dtype, "columns": count},
                remedy=_encode(collection, dtype, count, column, view),
            )


def _encode(
    collection: CollectionInfo, dtype: str, count: int, column: str, view: View
) -> str:
    """Code that makes numbers or categories of columns, or drops them."""
    name, workload = variable(collection.label), view.goal.workload
    if collection.kind != "dataframe":
        return f"Make numbers of {collection.label} before the fit."
    columns = f"[{code(column)}]"
    if count > 1:
        wanted = f"str({name}[c].dtype) == {code(dtype)}"
        columns = f"[c for c in {name}.columns if {wanted}]"
    option = " Create the model with `enable_categorical=True`."
    option = option if workload.name.startswith("xgboost") else ""
    if workload.categories and dtype == "category":
        return option.strip()
    drop = f"`{name} = {name}.drop(columns={columns})`"
    if dtype == "category" or not dtype.startswith(TEXT):
        return f"Run {drop}, or make numbers of these columns."
    if not workload.categories:
        return f"Run {drop}, or use `dask_ml.preprocessing.OrdinalEncoder`."
    line = f"{name} = {name}.categorize(columns={columns})"
    return f"Run `{line}`.{option} Or run {drop}."


def mixed_dtypes(view: View) -> Iterator[Finding]:
    """Find frames in which a few columns of wide numbers widen all others.

    Training libraries make one array of all columns of a partition. One column of int64
    or float64 among columns of float32 makes that array float64, which needs twice the
    memory during the fit.

    Remedy: Run ``X = X.astype("float32")``, or cast only those columns: ``X =
    X.astype({"column": "float32"})``.
    """
    for collection in view.collections:
        wide = [(t, *found) for t, found in collection.types.items() if t in WIDE]
        count = sum(n for _, n, _ in wide)
        narrow, _ = collection.types.get("float32", (0, ""))
        if collection.kind == "dataframe" and 0 < count < narrow:
            dtype, _, column = wide[0]
            yield info(
                message=f"{collection.label} has {plural(narrow, 'column')} of float32 "
                f"and {count:,} of wider numbers ({printable(column, longest=40)}: "
                f"{dtype}), so one array of all columns is float64 and needs twice the "
                "memory",
                subject=(collection.label,),
                evidence={"float32_columns": narrow, "wider_columns": count},
                remedy=f"Run `{remedies.to_float32(collection)}`.",
            )


def wide_dtypes(view: View, *, min_bytes: float = 2**30) -> Iterator[Finding]:
    """Find features with wider numbers than the training library keeps.

    XGBoost keeps features as float32. Partitions of float64 need twice the memory on
    the workers and twice the time to move, and the model is the same.

    Remedy: Run ``X = X.astype("float32")`` before you prepare X.

    Parameters
    ----------
    min_bytes
        Bytes of features above which the check reports them.
    """
    kept = view.goal.workload.feature_bytes
    if kept is None or not view.layouts:
        return
    X = view.layouts[0].collections[0]
    size = collection_bytes(X)
    if isinstance(size, Unknown) or X.itemsize is None:
        return
    if X.itemsize > kept and size > min_bytes:
        saved = size - size * kept // X.itemsize
        yield info(
            message=f"{X.label} has numbers of {X.itemsize} bytes, of which "
            f"{view.goal.workload.title} keeps {kept}; narrower numbers would save up "
            f"to {bytes_text(saved)}",
            subject=(X.label,),
            evidence={"itemsize": X.itemsize, "kept_itemsize": kept, "bytes": saved},
            remedy=f"Run `{remedies.to_float32(X)}`.",
        )
