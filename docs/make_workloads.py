"""Write the page of the workloads, with tables from their profiles.

Run ``python -m docs.make_workloads`` in the project's folder. A test compares the file
with the output.
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

A workload describes the needs of one training library. `estimator=` chooses it: an
instance, a class, or the name of a workload. Without it the workload is `generic`:

```python
X, y = clustertune.prepare(client, X, y, estimator=model)
X, y = clustertune.prepare(client, X, y, estimator="xgboost_dmatrix")
```

Parameters of an estimator count: `DaskXGBRegressor(tree_method="approx")` is
`xgboost_dmatrix`. For a scikit-learn `Pipeline` the last step decides. Grid searches,
and estimators that train without Dask, are refused with a message that names the fix.

"""

MEMORY = """
The next table has the peak memory of the fit on a worker, as a multiple of the bytes of
its share of the data with eval sets. The data itself is included. The memory of the
process is not: a worker's process with an imported library and no data. If intermediate
results belong to one partition at a time, the multiple is for the partitions that
`prepare` makes. The forecast in a report is for the partitions that exist; larger ones
need more.

For the training data of XGBoost's `hist` and of LightGBM the forecast adds up what the
library allocates, by its source: histograms (columns, bins, and nodes or leaves), bins,
sketches and samples. It uses the model's `max_depth`, `max_leaves`, `max_bin`,
`num_leaves` and `histogram_pool_size`. A tree may have fewer nodes, and freed memory
may stay, so there is a least and a most. A report shows the middle if both are within
15 %, else a dash, and the check `fit_memory` prints both. On GPUs, and for eval sets,
the multiple counts.

"""

OWN = """
## Adding one

Your own package adds an instance of a subclass of `Workload`, by an entry point;
[Contributing](design.md#a-workload) has a complete example. The class has a
`profile`, with the fields that `clustertune/core/profiles.py` describes. Optional are

- `kinds`: modules of its estimators, with names of their classes or none for all. Or
  `matches(estimator)`: whether an instance or a class belongs to this workload. Without
  both, the workload is chosen by name only. Workloads of clustertune are tried first;
- `profile_for(estimator)`: another profile of the same name, if parameters change the
  needs;
- `fit_kwargs(fit_inputs)` and `estimator_params(fit_inputs)`: arguments of `fit`, and
  parameters of the estimator;
- `unfit`: why `clustertune.fit` cannot fit its models, as
  described in `clustertune/integrations/libraries/workload.py`.
"""


def page() -> str:
    """Return the page of the documentation."""
    workloads = libraries.available()
    profiles = [w.profile for w in workloads.values()]
    parts = [
        HEAD,
        _table(profiles, {"needs": _needs, "also takes": _takes}),
        "\n",
        MEMORY,
        _table(profiles, {"float32": _single, "float64": _double, "source": _source}),
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
        "loaded data": p.persist,
        "equal shares of rows on all workers": p.equal_shares,
        "rows of a group together": p.whole_groups,
        "every class on every worker (classifiers)": p.needs_all_classes is not False,
        "all rows of eval sets on every worker": p.eval_copies,
        "rows of eval sets with categories on every worker": p.eval_everywhere,
        "rows in random order": p.random_order is True,
        "the same categories everywhere": p.categories,
        "arrays": p.kinds == ("array",),
        "the same number of partitions for the same model": p.keeps_partitions,
        f"partitions of at most {bytes_text(p.max_partition_bytes)}": True,
    }
    return "; ".join(text for text, applies in needs.items() if applies)


def _takes(p: Profile) -> str:
    if p.takes is None:
        return "anything" if p.groups else "anything but `qid`"
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
