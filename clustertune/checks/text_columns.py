"""Columns of a frame that are no numbers.

XGBoost and LightGBM refuse columns of text and of Python objects, and take categories
only if they are told to; scikit-learn and dask-ml refuse both. The error comes from a
worker, after the data was loaded and moved.

Remedy: drop them, or encode them: ``X[c].astype("category")`` with known categories
(``.cat.as_known()``), and for XGBoost ``enable_categorical=True``; or
``dask_ml.preprocessing.OrdinalEncoder``.
"""

from __future__ import annotations

from collections.abc import Iterator

from clustertune.core.model import Finding, Severity, View
from clustertune.core.wording import plural, printable

REFUSED = ("object", "string", "str", "datetime64", "timedelta64", "period", "complex")


def find(view: View) -> Iterator[Finding]:
    """Find features of text, objects or times, and categories."""
    for member in (m for x in view.layouts for m in x.members):
        if member.label.rpartition(".")[2] != "X":
            continue
        for dtype, (count, column) in member.types.items():
            refused = dtype.startswith(REFUSED)
            if not refused and dtype != "category":
                continue
            yield Finding(
                severity=Severity.warning if refused else Severity.info,
                message=f"{member.label} has {plural(count, 'column')} of type "
                f"{printable(dtype, longest=40)} ({printable(column, longest=40)}"
                f"{', ...' if count > 1 else ''}), which "
                + (
                    "training libraries refuse"
                    if refused
                    else "most training libraries take only if they are told to"
                ),
                subject=(member.label,),
                evidence={"dtype": dtype, "columns": count},
            )
