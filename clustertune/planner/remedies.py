"""Make remedies with the names and numbers of the view (pure)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from clustertune.core.findings import Call, Literal, Remedy, code
from clustertune.core.model import (
    ORDER,
    CollectionInfo,
    Layout,
    Unknown,
    View,
    WorkerSnapshot,
)
from clustertune.core.wording import names_text, variable
from clustertune.planner.machines import by_host, host_memory

#: variables that ``prepare`` takes by position
POSITIONAL = ("X", "y", "*others")
MAX_WORKERS = 20  # with more of them, a call names none

# --- calls ----------------------------------------------------------------------------


def prepare(view: View, model: str | None = None, **arguments: Literal) -> Call:
    """Return a call of ``prepare`` for the given data.

    Parameters
    ----------
    view
        The data, the workers and the estimator of the call.
    model
        Name of the variable of an estimator. By default the estimator of the call.
    **arguments
        Further arguments.
    """
    call = prepare_again(view.layouts[0].labels if view.layouts else ())
    variables = dict(call.variables)
    own: dict[str, Literal] = {}
    if len(view.layouts) > 1:
        variables["eval_set"] = "eval_set"
    profile = view.goal.workload
    if model or (view.goal.workload_chosen and profile.name != "generic"):
        # the name of a workload does not have what these profiles know of the model
        if model or profile.needs_all_classes or profile.stops_early:
            variables["estimator"] = model or "model"
        else:
            own["estimator"] = profile.name
    if view.goal.workers is not None:
        own["workers"] = sort_ids(view.goal.workers)
    if "estimator" in arguments:
        variables.pop("estimator", None)
    repeats = not (model or arguments)
    return replace(
        call,
        variables=variables,
        arguments=own | arguments,
        starts_workers="n_workers" in arguments,
        repeats=repeats,
    )


def prepare_again(labels: Collection[str]) -> Call:
    """Return a call of ``prepare`` for training data with these labels."""
    results = _variables(labels) or POSITIONAL[:2]
    return Call(
        function="prepare",
        names=tuple(name for name in results if name in POSITIONAL),
        variables={name: name for name in results if name not in POSITIONAL},
        results=tuple(results),
    )


def omit_rechunk(call: Call, view: View) -> Call:
    """Return a call of ``prepare`` that leaves out the user's ``rechunk``."""
    return replace(call, omitted={"rechunk": view.goal.rechunk}, repeats=False)


def load(view: View) -> Call:
    """Return a call of ``prepare`` that loads lazy data for any workload."""
    return prepare(view) if view.loads_data else prepare(view, persist=True)


def release(view: View) -> Call:
    """Return a call that releases all data of this client except the given data."""
    evals = ["eval_set"] if len(view.layouts) > 1 else []
    labels = view.layouts[0].labels if view.layouts else ()
    kept = ", ".join([*_variables(labels), *evals])
    return Call(function="release_data", variables={"keep": f"[{kept}]"})


def on_workers(function: str, ids: Collection[str | int], **arguments: Literal) -> Call:
    """Return a call for these workers; for all workers if there are many."""
    named = {"workers": sort_ids(ids)} if 0 < len(ids) <= MAX_WORKERS else {}
    every = arguments | named
    return Call(function=function, arguments=every, repeats=not every)


def scale(view: View, n_workers: int) -> Call:
    """Return a call that scales the cluster."""
    return Call(
        function="scale",
        arguments={"n_workers": n_workers},
        starts_workers=n_workers > sum(w.is_counted for w in view.now.workers),
    )


def cut_by_hand(layout: Layout, n_partitions: int) -> str:
    """Return code that gives all collections of a layout so many partitions."""
    most = -(-int(layout.rows.sum()) // n_partitions)
    return "; ".join(_cut(m, most, n_partitions) for m in layout.collections)


def _cut(collection: CollectionInfo, most: int, n_partitions: int) -> str:
    name = variable(collection.label)
    if collection.kind == "array":
        return f"{name} = {name}.rechunk({{0: {most}}})"
    return f"{name} = {name}.repartition(npartitions={n_partitions})"


def _variables(labels: Collection[str]) -> list[str]:
    """Return the names of the training data, as arguments of a call."""
    names = ["*others" if x.startswith("others[") else x for x in labels if x != ORDER]
    # labels of eval sets are no arguments; others may be another client's text
    known = [x for x in names if x == POSITIONAL[2] or x.isidentifier()]
    return list(dict.fromkeys(known))


def sort_ids(ids: Collection[str | int]) -> tuple[str | int, ...]:
    """Return ids, numbers first."""
    return tuple(sorted(ids, key=lambda id: (isinstance(id, str), id)))


def limit(nbytes: float) -> str:
    """Return a memory limit, rounded down to a readable number."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if nbytes >= size:
            return f"{int(10 * nbytes / size) / 10:g} {unit}"
    return str(int(nbytes))


# --- sentences ------------------------------------------------------------------------


def run(call: Call, effect: str = "") -> Remedy:
    """Return a sentence with a call and its effect."""
    return Remedy("Run ", call, f"{effect}.")


def cut(view: View, effect: str = "") -> Remedy:
    """Return how to cut the data with ``prepare``."""
    call = prepare(view)
    return run(call if view.goal.cutting_action else omit_rechunk(call, view), effect)


def resize(
    workers: Sequence[WorkerSnapshot],
    nthreads: int | None = None,
    memory_limit: float | None = None,
) -> str:
    """Return how to give these workers another size, which needs nannies."""
    size: dict[str, Literal] = {} if nthreads is None else {"nthreads": nthreads}
    if memory_limit is not None:
        size["memory_limit"] = limit(memory_limit)
    if all(w.nanny for w in workers):
        return run(on_workers("resize_workers", [w.id for w in workers], **size))
    options = (f"--{k.replace('_', '-')} {code(value)}" for k, value in size.items())
    return f"Start these workers again with `{' '.join(options)}`."


def restart(
    workers: Sequence[WorkerSnapshot], before: str = "", when: str = ""
) -> Remedy:
    """Return how to restart these workers without a loss of data.

    ``before`` begins the sentence; ``when`` is the time of the restart.
    """
    if all(w.nanny for w in workers):
        call = on_workers("restart_workers", [w.id for w in workers])
        verb = "run " if before else "Run "
        return Remedy(before, verb, call, f"{when}, which loses no data.")
    verb = "restart" if before else "Restart"
    return Remedy(f"{before}{verb} the workers with the tool that started them{when}.")


def drop_rows(
    layout: Layout, collection: CollectionInfo, *, infinite: bool = False
) -> str:
    """Return how to drop rows without a value of this collection everywhere."""
    names = [variable(m.label) for m in layout.collections if m.label != ORDER]
    name = variable(collection.label)
    if len({m.kind == "array" for m in layout.collections}) > 1:
        return f"Drop these rows from {names_text(names, most=9)} before you load them."
    if collection.kind == "array":
        data = f"dask.array.ma.getdata({name})"
        keep = f"~(dask.array.isnan({data}) | dask.array.ma.getmaskarray({name}))"
        keep = f"dask.array.isfinite({name})" if infinite else keep
    else:
        keep = f"{name}.notnull()"
        keep = f"~{name}.isin([numpy.inf, -numpy.inf])" if infinite else keep
    kept = ", ".join(f"{name}[keep]" for name in names)
    return f"Run `keep = {keep}; {', '.join(names)} = {kept}`, which drops these rows."


def free_memory(view: View, workers: Sequence[WorkerSnapshot]) -> Remedy:
    """Return how to free memory of these workers, by what fills the fullest one."""
    worst = max(workers, key=lambda w: w.process / max(1, w.memory_limit))
    if worst.unmanaged > worst.managed:
        return trim(workers)
    parts: list[str | Call] = ["Delete collections that you do not need with `del`."]
    if view.layouts:
        parts += [" ", release(view), " releases all other data of this client."]
    if more := _more_memory(view):
        parts += [" If that is not enough, run ", more, "."]
    return Remedy(*parts)


def trim(workers: Sequence[WorkerSnapshot]) -> Remedy:
    """Return how to return unused memory of these workers."""
    call = on_workers("trim_memory", [w.id for w in workers])
    return Remedy(run(call), restart(workers, " If the memory stays, "))


def _more_memory(view: View) -> Call | None:
    """Return a call for more memory: higher limits if the hosts allow, or a worker."""
    workers = view.now.workers
    share, highest = host_share(workers), max(w.memory_limit for w in workers)
    nannies = all(w.nanny for w in workers)
    if nannies and not isinstance(share, Unknown) and share > 1.1 * highest:
        return on_workers("resize_workers", (), memory_limit=limit(share))
    if view.now.can_scale is None:
        return scale(view, len(workers) + 1)
    return None


def host_share(workers: Sequence[WorkerSnapshot]) -> float | Unknown:
    """Return the memory per worker on the host that has least for each worker."""
    shares: list[float] = []
    for group in by_host(workers).values():
        memory = host_memory(group)
        if isinstance(memory, Unknown):
            return memory
        shares.append(memory / len(group))
    return min(shares)
