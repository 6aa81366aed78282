"""Write the page of the workloads, with tables made from their profiles.

``python -m docs.make_workloads``, in the project's folder; a test compares what this
makes with the file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from clustertune.core.profiles import Profile
from clustertune.core.wording import bytes_text
from clustertune.integrations import libraries

ROOT = Path(__file__).parents[1]

HEAD = """# Workloads

<!-- made by docs/make_workloads.py from the profiles of the workloads: edit those -->

A workload is what one training library needs of the data's layout. It is chosen by the
estimator, an instance or a class, or by name; without either it is `generic`:

```python
X, y = clustertune.prepare(client, X, y, estimator=model)
X, y = clustertune.prepare(client, X, y, workload="xgboost_dmatrix")
```

Parameters of an estimator count: `DaskXGBRegressor(tree_method="approx")` is
`xgboost_dmatrix`. Of a scikit-learn `Pipeline` the last step decides. A search for
parameters, and an estimator that trains without Dask, is refused; the error says what
to do instead.

"""

MEMORY = """
Memory is the peak of the fit on a worker, as a multiple of the bytes of its share of
the data, eval sets included; the data itself is part of it. Where intermediate results
are of a partition at a time, it is of the partitions that `prepare` makes, and the
forecast in the report is of the partitions that there are: fewer and larger ones take
more. To it comes the process, which has some 150 to 450 MiB once it has imported such
a library.

"""

OWN = """
## Adding one

A package of your own adds a workload by a module and an entry point;
[Contributing](contributing.md#a-workload) has one, whole. The module has a `PROFILE`,
whose fields are described in `clustertune/core/profiles.py`, and where it needs them

- `matches(estimator)`: whether it is meant, by an instance or a class. Without it the
  workload is taken by name. Those of clustertune come first, so yours cannot take their
  estimators;
- `profile_for(estimator)`: another profile of that name, where parameters change what
  is needed;
- `fit_kwargs(handed)` and `estimator_params(handed)`: what `fit` and the estimator
  are to get;
- `unfit`, `awaitable_fit` and `eval_arguments`: what `clustertune.fit` needs. They are
  described in `clustertune/integrations/libraries/workload.py`.
"""


def page() -> str:
    """All workloads, as a page of the documentation."""
    workloads = libraries.available()
    profiles = [w.profile for w in workloads.values()]
    taken = [p for p in profiles if not p.refused]
    parts = [
        HEAD,
        _table(taken, {"needs": _needs, "takes beside X and y": _takes}),
        "\n",
        MEMORY,
        _table(taken, {"float32": _single, "float64": _double, "figures": _source}),
        "\n",
        *(_section(name, inspect.getdoc(w)) for name, w in workloads.items()),
        OWN,
    ]
    return "".join(parts)


def _table(
    profiles: Iterable[Profile], columns: Mapping[str, Callable[[Profile], str]]
) -> str:
    rows = [
        ["workload", *columns],
        ["---"] * (1 + len(columns)),
        *([f"`{p.name}`", *(cell(p) for cell in columns.values())] for p in profiles),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _section(name: str, text: str | None) -> str:
    return f"\n## {name}\n\n{(text or '').replace('``', '`')}\n"


def _needs(p: Profile) -> str:
    needs = {
        "data that is loaded before": p.persist,
        "exactly as many rows on every worker": p.exact_rows,
        "rows of a group together": p.groups == "together",
        "rows of a group together, groups in order": p.groups == "sorted",
        "every class on every worker (classifiers)": p.needs_all_classes is not False,
        "all rows of eval sets on every worker": p.eval_copies,
        "rows of eval sets with categories on every worker": p.eval_everywhere,
        "rows in random order": p.random_order is True,
        "the same categories everywhere": p.categories,
        "arrays": p.kinds == ("array",),
        "as many partitions as in the last run": p.keeps_partitions,
        f"partitions of at most {bytes_text(p.max_partition_bytes)}": True,
    }
    return "; ".join(text for text, applies in needs.items() if applies)


def _takes(p: Profile) -> str:
    if p.takes is None:
        return "anything"
    return ", ".join(f"`{name}`" for name in p.takes) or "nothing"


def _single(p: Profile) -> str:
    return f"{p.multiple(4):.1f}"


def _double(p: Profile) -> str:
    return f"{p.multiple(8):.1f}"


def _source(p: Profile) -> str:
    return p.source


FILES = {"docs/workloads.md": page}

if __name__ == "__main__":
    for name, make in FILES.items():
        (ROOT / name).write_text(make())
