"""Write lines of code for remedies, with the names and numbers of the view (pure)."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from clustertune.core.model import (
    ORDER,
    CollectionInfo,
    Layout,
    Unknown,
    View,
    WorkerSnapshot,
)
from clustertune.core.wording import names_text, printable, variable
from clustertune.planner.machines import by_host, host_memory

#: arguments that ``prepare`` takes by position
POSITIONAL = ("X", "y")
MAX_WORKERS = 20  # with more of them, a line of code names none


def prepare(view: View, **arguments: str) -> str:
    """Return a call of ``prepare`` for the given data.

    Parameters
    ----------
    view
        The data, the workers and the estimator of the call.
    **arguments
        Code of further arguments, by name.
    """
    results = _variables(view) or list(POSITIONAL)
    given = [x if x in (*POSITIONAL, "*others") else f"{x}={x}" for x in results]
    named = {"eval_set": "eval_set"} if len(view.layouts) > 1 else {}
    if estimator := _estimator(view):
        named["estimator"] = estimator
    if view.goal.workers is not None:
        named["workers"] = names(view.goal.workers)
    code = [f"{name}={value}" for name, value in (named | arguments).items()]
    call = f"clustertune.prepare({', '.join(['client', *given, *code])})"
    if len(results) == 1:
        return f"{results[0]} = {call}.{results[0]}"
    return f"{', '.join(results)} = {call}"


def cut(view: View) -> str:
    """Return how to cut the data with ``prepare``, without a full stop."""
    without = "" if view.goal.cutting_action else " without rechunk=False"
    return f"Run `{prepare(view)}`{without}"


def cut_by_hand(layout: Layout, n_partitions: int) -> str:
    """Return code that gives all collections of a layout so many partitions."""
    most = -(-int(layout.rows.sum()) // n_partitions)
    return "; ".join(_cut(m, most, n_partitions) for m in layout.collections)


def _cut(collection: CollectionInfo, most: int, n_partitions: int) -> str:
    name = variable(collection.label)
    if collection.kind == "array":
        return f"{name} = {name}.rechunk({{0: {most}}})"
    return f"{name} = {name}.repartition(npartitions={n_partitions})"


def _variables(view: View) -> list[str]:
    """Return the names of the training data, as arguments of a call."""
    labels = [m.label for m in view.layouts[0].collections] if view.layouts else []
    names = ["*others" if x.startswith("others[") else x for x in labels if x != ORDER]
    return list(dict.fromkeys(names))


def release(view: View) -> str:
    """Return a call that releases all data of this client except the given data."""
    evals = ["eval_set"] if len(view.layouts) > 1 else []
    kept = ", ".join(_variables(view) + evals)
    return f"clustertune.release_data(client, keep=[{kept}])"


def load(view: View) -> str:
    """Return a call of ``prepare`` that loads lazy data for any workload."""
    return prepare(view) if view.loads_data else prepare(view, persist="True")


def _estimator(view: View) -> str:
    """Return the code of ``estimator=``; empty if the call had none."""
    profile = view.goal.workload
    if not view.goal.workload_chosen or profile.name == "generic":
        return ""
    # the name of a workload does not have what these profiles know of the model
    if profile.needs_all_classes or profile.stops_early:
        return "model"
    return text(profile.name)


def on_workers(function: str, ids: Collection[str | int], **arguments: str) -> str:
    """Return a call for these workers; for all workers if there are many."""
    named = {"workers": names(ids)} if 0 < len(ids) <= MAX_WORKERS else {}
    code = ", ".join(f"{name}={value}" for name, value in (arguments | named).items())
    return f"clustertune.{function}(client{', ' if code else ''}{code})"


def names(ids: Collection[str | int]) -> str:
    """Return the code of a list of workers."""
    return f"[{', '.join(_name(id) for id in sorted(ids, key=_order))}]"


def _order(id: str | int) -> tuple[bool, str | int]:
    return (True, id) if isinstance(id, str) else (False, id)


def _name(id: str | int) -> str:
    return text(id) if isinstance(id, str) else str(id)


def text(value: str) -> str:
    """Return the code of an untrusted text."""
    return printable(json.dumps(value))


def limit(nbytes: float) -> str:
    """Return the code of a memory limit, rounded down to a readable number."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if nbytes >= size:
            return f'"{int(10 * nbytes / size) / 10:g} {unit}"'
    return str(int(nbytes))


# --- sentences ------------------------------------------------------------------------


def resize(
    workers: Sequence[WorkerSnapshot],
    nthreads: int | None = None,
    memory_limit: float | None = None,
) -> str:
    """Return how to give these workers another size, which needs nannies."""
    size = {} if nthreads is None else {"nthreads": str(nthreads)}
    if memory_limit is not None:
        size["memory_limit"] = limit(memory_limit)
    if all(w.nanny for w in workers):
        call = on_workers("resize_workers", [w.id for w in workers], **size)
        return f"Run `{call}`."
    options = (f"--{k.replace('_', '-')} {value}" for k, value in size.items())
    return f"Start these workers again with `{' '.join(options)}`."


def restart(workers: Sequence[WorkerSnapshot], when: str = "") -> str:
    """Return how to restart these workers without a loss of data."""
    if all(w.nanny for w in workers):
        call = on_workers("restart_workers", [w.id for w in workers])
        return f"run `{call}`{when}, which loses no data"
    return f"restart the workers with the tool that started them{when}"


def sentence(text: str) -> str:
    """Return the text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


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


def free_memory(view: View, workers: Sequence[WorkerSnapshot]) -> str:
    """Return how to free memory of these workers, by what fills the fullest one."""
    worst = max(workers, key=lambda w: w.process / max(1, w.memory_limit))
    if worst.unmanaged > worst.managed:
        trim = on_workers("trim_memory", [w.id for w in workers])
        return f"Run `{trim}`. If the memory stays, {restart(workers)}."
    remedy = "Delete collections that you do not need with `del`."
    if view.layouts:
        remedy += f" `{release(view)}` releases all other data of this client."
    if more := _more_memory(view):
        remedy += f" If that is not enough, run `{more}`."
    return remedy


def _more_memory(view: View) -> str:
    """Return a call for more memory: higher limits if the hosts allow, or a worker."""
    workers = view.now.workers
    share, highest = host_share(workers), max(w.memory_limit for w in workers)
    nannies = all(w.nanny for w in workers)
    if nannies and not isinstance(share, Unknown) and share > 1.1 * highest:
        return on_workers("resize_workers", (), memory_limit=limit(share))
    if view.now.can_scale is None:
        return f"clustertune.scale(client, {len(workers) + 1})"
    return ""


def host_share(workers: Sequence[WorkerSnapshot]) -> float | Unknown:
    """Return the memory per worker on the host that has least for each worker."""
    shares: list[float] = []
    for group in by_host(workers).values():
        memory = host_memory(group)
        if isinstance(memory, Unknown):
            return memory
        shares.append(memory / len(group))
    return min(shares)
