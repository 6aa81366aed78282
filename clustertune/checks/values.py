"""Checks of the types and values of features and labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from clustertune.core.model import (
    CollectionInfo,
    Finding,
    Layout,
    Severity,
    View,
    critical,
)
from clustertune.core.profiles import NOT_NUMBERS
from clustertune.core.wording import (
    code,
    names_text,
    partitions_text,
    plural,
    printable,
    reading_fix,
    variable,
    verb,
)
from clustertune.planner import remedies

#: how names of types of text begin
TEXT = ("object", "string", "str")
MAX_NAMES = 10  # columns in a message
MAX_CATEGORIES = 1000  # with more, a column has values and no categories
MAX_PROBLEMS = 4  # of partitions that cannot be read, in a message
_CSV = "For numbers and texts in a column of CSV files, give `dtype=` or `na_values=`"


# --- values ---------------------------------------------------------------------------


def unreadable_values(view: View) -> Iterator[Finding]:
    """Find partitions whose values cannot be read, such as damaged files.

    ``deep=True`` reads all partitions. The checks of other collections still run.

    Remedy: Correct the source of the partition, or leave it out of the data. For CSV
    files with numbers and texts in a column, give ``na_values=`` or ``dtype=`` to
    ``dask.dataframe.read_csv``. If files lack columns, read them with
    ``dd.from_map(lambda file: pd.read_parquet(file).reindex(columns=columns), files)``.
    """
    labels: dict[tuple[str, int, str], list[str]] = {}  # X and y may have the same
    for collection in view.collections:
        for number, problem in collection.unreadable.items():
            file = collection.files([number])[number]
            labels.setdefault((problem, number, file), []).append(collection.label)
    problems: dict[tuple[str, ...], dict[str, dict[int, str]]] = {}
    for (problem, number, file), some in labels.items():
        same = problems.setdefault(tuple(some), {})
        same.setdefault(problem, {})[number] = file
    for subject, found in problems.items():
        text = "; ".join(_unreadable(found))
        yield critical(
            message=f"{names_text(subject)} cannot be read completely, so checks of "
            f"values are missing: {text}",
            subject=subject,
            remedy="Correct the source of these partitions, or how it is read, and "
            f"check again. {reading_fix(text) or _CSV}.",
        )


def _unreadable(found: Mapping[str, Mapping[int, str]]) -> Iterator[str]:
    """Return the texts of problems, each with its partitions and their files."""
    for problem, files in list(found.items())[:MAX_PROBLEMS]:
        yield f"{partitions_text(files)}: {problem}"
    if len(found) > MAX_PROBLEMS:
        yield plural(len(found) - MAX_PROBLEMS, "other problem")


def nonfinite_values(view: View) -> Iterator[Finding]:
    """Find missing labels and infinite values.

    XGBoost fails at an infinite feature or label; LightGBM and linear models train on
    it, to a model of NaN. A missing label is always wrong; missing features are fine.
    ``prepare`` reads the labels, and a missing or infinite one stops it. Features are
    read only with ``deep=True``.

    Remedy: Drop rows without a label from X, y and all companions: ``keep =
    y.notnull(); X, y = X[keep], y[keep]``. Replace infinite features with ``X =
    X.replace([np.inf, -np.inf], np.nan)`` in frames, with ``da.where`` in arrays.
    """
    for layout in view.layouts:
        for collection in layout.collections:
            counts = _not_finite(collection)
            missing, infinite = sum(n for n, _ in counts), sum(n for _, n in counts)
            is_label = variable(collection.label) == "y"
            stops = is_label and view.goal.workload.needs_labels
            severity = Severity.critical if stops else Severity.warning
            if missing and is_label:
                remedy = remedies.drop_rows(layout, collection)
                where = _bare(collection, [n for n, _ in counts])
                what = f"{plural(missing, 'missing label')}{where}"
                yield _values(collection, severity, missing, what, remedy)
            if infinite:
                remedy = _replace_infinite(layout, collection)
                what = plural(infinite, "infinite value")
                yield _values(collection, severity, infinite, what, remedy)


def _replace_infinite(layout: Layout, collection: CollectionInfo) -> str:
    """Code that makes infinite features missing, or drops rows of other values."""
    name = remedies.name_of(collection.label)
    if variable(collection.label) != "X":
        return remedies.drop_rows(layout, collection, infinite=True)
    line = f"{name} = {name}.replace([numpy.inf, -numpy.inf], numpy.nan)"
    if collection.kind == "array":
        isinf = f"dask.array.isinf({name})"
        line = f"{name} = dask.array.where({isinf}, numpy.nan, {name})"
    return remedies.run(remedies.edit([collection.label], line))


def _not_finite(collection: CollectionInfo) -> list[tuple[int, int]]:
    """Missing and infinite values of each partition."""
    partitions = collection.contents.partitions if collection.contents else ()
    return [p.get("nonfinite_values", (0, 0)) for p in partitions]


def _bare(collection: CollectionInfo, missing: Sequence[int]) -> str:
    """Name partitions without a label, such as files with other spellings."""
    rows = () if collection.rows is None else collection.rows.tolist()
    pairs = zip(rows, missing, strict=False)
    bare = [i for i, (n, lacking) in enumerate(pairs) if 0 < n == lacking]
    if not bare:
        return ""
    where = partitions_text(collection.files(bare))
    return f" (no row of {where} has one, as after map() without its spellings)"


def _values(
    collection: CollectionInfo, severity: Severity, count: int, what: str, remedy: str
) -> Finding:
    return Finding(
        severity=severity,
        message=f"{collection.label} has {what}, on which a fit fails or trains a "
        "useless model",
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
    first: dict[str, list[Any]] = {}  # of each column: categories of one partition
    for collection in view.collections:
        differing: dict[str, int] = {}  # the number of categories
        for partition in collection.contents.partitions if collection.contents else ():
            for column, known in (partition.get("categories") or {}).items():
                if first.setdefault(column, known) != known:
                    most = max(first[column][0], known[0])
                    differing[column] = max(most, differing.get(column, 0))
        if differing:
            yield Finding(
                severity=Severity.critical if trained else Severity.warning,
                message=f"partitions of {collection.label} have different categories "
                f"in {plural(len(differing), 'column')}: "
                f"{names_text(list(differing), most=MAX_NAMES)}; a fit would mix them "
                "up",
                subject=(collection.label,),
                evidence={"columns": len(differing)},
                remedy=_categorize(collection, differing),
            )


def _categorize(collection: CollectionInfo, columns: Mapping[str, int]) -> str:
    """Code that gives all partitions the same categories, which reads all data."""
    name = remedies.name_of(collection.label)
    listed = _list_code(columns)
    if name != variable(collection.label):  # an eval set gets the lists of X
        types = f"types = X.partitions[0].compute().dtypes[{listed}].to_dict()"
        line = f"{types}; {name} = {name}.astype(types)"
        return remedies.run(remedies.edit([collection.label], line))
    if many := [column for column, n in columns.items() if n > MAX_CATEGORIES]:
        drop = f"{name} = {name}.drop(columns={_list_code(many)})"
        most = f"{max(columns.values()):,} categories"
        return f"Make numbers of columns with up to {most}, or run `{drop}`."
    as_objects = f"{name}.astype(dict.fromkeys({listed}, object))"
    return remedies.run(f"{name} = {as_objects}.categorize(columns={listed})")


def differing_columns(view: View) -> Iterator[Finding]:
    """Find partitions whose columns are not those of the metadata.

    Dask and training libraries take the columns of a partition by their position. If
    one file lists them in another order, lacks one, or has text where others have
    numbers, values get other names or the fit fails. So it does for an empty file that
    pandas reads as text. ``prepare`` compares each partition of a frame, and a
    difference stops it.

    Remedy: Choose the columns of each partition by name: ``columns = list(X.columns); X
    = X.map_partitions(lambda part: part[columns], meta=X._meta)``. If a column is
    missing or has another type, correct the file of the partition that is named.
    """
    for collection in view.collections:
        partitions = collection.contents.partitions if collection.contents else ()
        found = {i: p["columns"] for i, p in enumerate(partitions) if p.get("columns")}
        if found:
            number, text = next(iter(found.items()))
            name = remedies.name_of(collection.label)
            made, part = f"columns = list({name}.columns)", "part[columns]"
            remedy = "Run `{}`, which chooses columns by name."
            if not all(x.startswith("has the order") for x in found.values()):
                made, part = f"types = {name}._meta.dtypes", "part.astype(types)"
                remedy = f"Correct the source of partition {number} of {name}"
                types = all(" instead of " in x for x in found.values())
                remedy += ", or run `{}`, which converts types." if types else "."
            line = f"{made}; {name} = {name}.map_partitions(lambda part: {part}, "
            line = remedies.edit([collection.label], f"{line}meta={name}._meta)")
            yield critical(
                message=f"{plural(len(found), 'partition')} of {collection.label} "
                f"{verb(found, 'has')} other columns than its metadata: "
                f"{partitions_text(collection.files([number]))} "
                f"{printable(text, longest=200)}",
                subject=(collection.label,),
                evidence={"partitions": len(found), "first": number},
                remedy=remedy.format(line),
            )


# --- types ----------------------------------------------------------------------------


def non_numeric_columns(view: View) -> Iterator[Finding]:
    """Find columns of features that are not numbers, and labels of text.

    XGBoost and LightGBM refuse columns of text, dates and Python objects. XGBoost takes
    categories with ``enable_categorical=True``. Linear models and ``KMeans`` refuse
    both. A column that the library refuses stops ``prepare`` before data is loaded. The
    first steps of a pipeline may take any column. XGBoost refuses labels of text, too;
    they stop ``prepare`` when the labels are loaded.

    Remedy: Make categories of columns with few different values: ``X =
    X.categorize(columns=["city"])``, for XGBoost with ``enable_categorical=True``. Drop
    the others: ``X = X.drop(columns=["name"])``.
    """
    workload = view.goal.workload
    for collection in view.collections:
        if variable(collection.label) == "y" and not workload.text_labels:
            yield from _text_labels(collection, view)
        if variable(collection.label) != "X" or workload.transforms:
            continue
        for dtype, names in collection.types.items():
            refused = dtype.startswith(NOT_NUMBERS)
            known = workload.categories and not workload.category_option
            if not refused and (dtype != "category" or known):
                continue  # numbers, or categories that the model takes
            severity = Severity.info
            effect = "most training libraries accept only with an option"
            if dtype.startswith(workload.refuses):
                severity, effect = Severity.critical, f"{workload.title} refuses"
            elif refused:
                severity, effect = Severity.warning, "training libraries refuse"
            yield Finding(
                severity=severity,
                message=f"{collection.label} has {plural(len(names), 'column')} of "
                f"type {printable(dtype, longest=40)} "
                f"({names_text(names, most=MAX_NAMES)}), which {effect}",
                subject=(collection.label,),
                evidence={"dtype": dtype, "columns": len(names)},
                remedy=_encode(collection, dtype, names, view),
            )


def _text_labels(collection: CollectionInfo, view: View) -> Iterator[Finding]:
    """Report texts that are no numbers, with code that numbers the classes."""
    partitions = collection.contents.partitions if collection.contents else ()
    texts = sorted({text for p in partitions for text in p.get("texts", ())})
    if all(map(_is_number, texts)):
        return
    training = "." not in collection.label
    yield critical(
        message=f"{collection.label} has texts as labels "
        f"({names_text(texts, most=MAX_NAMES)}), which {view.goal.workload.title} "
        "refuses",
        subject=(collection.label,),
        evidence={"texts": len(texts)},
        remedy=f"Make numbers of {collection.label} before you load it."
        if collection.kind == "array"
        else remedies.number_classes(collection, training=training),
    )


def _is_number(text: str) -> bool:
    """Whether a library can convert the text to a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _list_code(columns: Iterable[str]) -> str:
    return f"[{', '.join(map(code, columns))}]"


def _encode(
    collection: CollectionInfo, dtype: str, names: Sequence[str], view: View
) -> str:
    """Code that makes numbers or categories of columns, or drops them."""
    name, workload = remedies.name_of(collection.label), view.goal.workload
    if collection.kind != "dataframe":
        return f"Make numbers of {collection.label} before the fit."
    columns = _list_code(names)
    if len(names) > MAX_NAMES:
        wanted = f"str({name}[c].dtype) == {code(dtype)}"
        columns = f"[c for c in {name}.columns if {wanted}]"
    option = f" {workload.category_option}" if workload.category_option else ""
    if workload.categories and dtype == "category":
        return workload.category_option
    line = f"{name} = {name}.drop(columns={columns})"
    drop = f"`{remedies.edit([collection.label], line)}`"
    if dtype == "category" or not dtype.startswith(TEXT):
        return f"Make numbers of these columns, or run {drop}."
    if not workload.categories:
        encoder = "`dask_ml.preprocessing.OrdinalEncoder`"
        return f"Encode these columns with {encoder}, or run {drop}."
    made = f"`{name} = {name}.categorize(columns={columns})`"
    if name != "X":  # an eval set has the categories of X, and may be of pandas
        types = f"{{c: X[c].dtype for c in {columns}}}"
        line = f"{name} = {name}.astype({types})"
        made = f"`{remedies.edit([collection.label], line)}` when X has them"
    return (
        "If the columns have few different values, make categories of them with "
        f"{made}.{option} Otherwise run {drop}."
    )
