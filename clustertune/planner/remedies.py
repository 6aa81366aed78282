"""Make remedies with the names and numbers of the view (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from clustertune.core.model import (
    ADDRESS,
    CollectionInfo,
    Layout,
    Unknown,
    View,
    WorkerSnapshot,
)
from clustertune.core.wording import Literal, code, names_text, variable
from clustertune.planner.contents import has_groups
from clustertune.planner.machines import by_host, host_memory

#: variables that ``prepare`` takes by position
POSITIONAL = ("X", "y", "*others")
MAX_WORKERS = 20  # a call for more of them names none if it is for all


class Fix(NamedTuple):
    """One fix as Python code and as a command, each in its text or alone.

    The fields are those of :class:`~clustertune.core.model.Finding`.
    """

    remedy: str
    command: str = ""  # empty: no command does the same


# --- calls ----------------------------------------------------------------------------


def prepare(view: View, model: str | None = None, **arguments: Literal) -> str:
    """Return a call of ``prepare`` for the given data.

    ``model`` is the variable of an estimator; by default that of the call is named.
    """
    variables = {"eval_set": "eval_set"} if len(view.layouts) > 1 else {}
    own: dict[str, Literal] = {}
    profile = view.goal.workload
    if model or view.goal.model_given:
        variables["estimator"] = model or "model"
    elif view.goal.workload_chosen and profile.name != "generic":
        own["estimator"] = profile.name
    if view.goal.workers is not None:
        own["workers"] = sort_ids(view.goal.workers)
    texts = [f"{name}={variable}" for name, variable in variables.items()]
    texts += [f"{name}={code(value)}" for name, value in (own | arguments).items()]
    return prepare_again(view.layouts[0].arguments if view.layouts else (), *texts)


def prepare_again(labels: Collection[str], *texts: str) -> str:
    """Return a call of ``prepare`` for training data with these labels.

    ``texts`` are further arguments, as code.
    """
    results = _variables(labels) or list(POSITIONAL[:2])
    named = [name if name in POSITIONAL else f"{name}={name}" for name in results]
    # prepare refuses groups without a ranker
    if {"qid", "group"} & {*results} and "estimator=" not in str(texts):
        named.append("estimator=model")
    line = f"clustertune.prepare({', '.join(['client', *named, *texts])})"
    one = f".{results[0]}" if len(results) == 1 else ""
    if "eval_set=eval_set" in texts:  # eval sets are not unpacked
        line, kept = "prepared", f"prepared = {line}; "
        return (
            f"{kept}{', '.join(results)} = prepared{one}; eval_set = prepared.eval_set"
        )
    return f"{', '.join(results)} = {line}{one}"


def omit_rechunk(call: str, view: View) -> str:
    """Return code: a call of ``prepare`` without the user's ``rechunk``."""
    return f"{call}` without `rechunk={view.goal.rechunk}"


def load(view: View) -> str:
    """Return a call of ``prepare`` that loads lazy data for any workload."""
    return prepare(view) if view.loads_data else prepare(view, persist=True)


def release(view: View) -> str:
    """Return a call that releases all data of this client except the given data.

    It is empty if none of that is in memory: such a call raises an error.
    """
    if not any(m.loaded for m in view.collections):
        return ""
    evals = ["eval_set"] if len(view.layouts) > 1 else []
    kept = ", ".join([*_variables(view.layouts[0].arguments), *evals])
    return f"clustertune.release_data(client, keep=[{kept}])"


def on_workers(function: str, ids: Collection[str | int], **arguments: Literal) -> Fix:
    """Return a call for these workers; without ids for all."""
    named = {"workers": sort_ids(ids)} if ids else {}
    every: dict[str, Literal] = arguments | named
    texts = [f"{name}={code(value)}" for name, value in every.items()]
    python = f"clustertune.{function}({', '.join(['client', *texts])})"
    words = [word for name, value in every.items() for word in _words(name, value)]
    # an escaped name would be another name
    shown = all(map(str.isprintable, words))
    verb = function.partition("_")[0]  # of merge_workers, trim_memory, ...
    line = shlex.join(["clustertune", verb, *words])
    return Fix(python, line if shown else "")


def _words(name: str, value: Literal) -> Iterator[str]:
    """Return the options of a command for an argument."""
    option = "--worker" if name == "workers" else f"--{name.replace('_', '-')}"
    values = value if isinstance(value, tuple) else (value,)
    for each in values:
        yield from (option,) if each is True else (option, str(each))


def names(view: View, workers: Collection[WorkerSnapshot]) -> list[str | int]:
    """Return the ids that a call for these workers names; none if it is for all."""
    ids = [w.id for w in workers]
    everyone = {w.id for w in view.now.workers} <= {*ids}
    return [] if everyone and len(ids) > MAX_WORKERS else ids


def scale(view: View, n_workers: int) -> str:
    """Return a call that scales the cluster, and keeps rows of the data together."""
    found = view.layouts[0].collections if view.layouts else ()
    labels = [m.label for m in found if not m.from_sizes]  # sizes have no rows
    texts = ["client", str(n_workers), *_variables(labels)]
    return f"clustertune.scale({', '.join(texts)})"


def _variables(labels: Collection[str]) -> list[str]:
    """Return the names of the training data, as arguments of a call."""
    names = ["*others" if x.startswith("others[") else x for x in labels]
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


def run(line: str, effect: str = "") -> str:
    """Return a sentence with Python code and its effect."""
    return f"Run `{line}`{effect}."


def sentence(before: str, call: Fix, after: str = ".") -> Fix:
    """Return a sentence with a call, in both forms."""
    python = f"{before}`{call.remedy}`{after}"
    line = call.command
    return Fix(python, f"{before}`{line}{ADDRESS}{after}" if line else "")


def cut(view: View, effect: str = "") -> str:
    """Return how to cut the data with ``prepare``."""
    call = prepare(view)
    return run(call if view.goal.cutting_action else omit_rechunk(call, view), effect)


def resize(
    view: View,
    workers: Sequence[WorkerSnapshot],
    nthreads: int | None = None,
    memory_limit: float | None = None,
    before: str = "",
) -> Fix:
    """Return how to give these workers another size, which needs nannies.

    ``before`` is the text before the sentence.
    """
    size: dict[str, Literal] = {} if nthreads is None else {"nthreads": nthreads}
    if memory_limit is not None:
        size["memory_limit"] = limit(memory_limit)
    if may_restart(view, workers):
        call = on_workers("resize_workers", names(view, workers), **size)
        return sentence(f"{before}Run ", call)
    options = (f"--{k.replace('_', '-')} {code(value)}" for k, value in size.items())
    return Fix(f"{before}Start these workers again with `{' '.join(options)}`.")


def may_restart(view: View, workers: Sequence[WorkerSnapshot]) -> bool:
    """Whether clustertune can restart all these workers, through their nannies."""
    each = all(w.nanny and not w.objection for w in workers)
    return each and view.now.can_restart is None


def restart(
    view: View,
    workers: Sequence[WorkerSnapshot],
    before: str = "",
    when: str = "",
    **options: Literal,
) -> Fix:
    """Return how to restart these workers without a loss of data.

    ``before`` begins the sentence; ``when`` is the time of the restart.
    """
    if may_restart(view, workers):
        call = on_workers("restart_workers", names(view, workers), **options)
        verb = "run " if before else "Run "
        return sentence(f"{before}{verb}", call, f"{when}, which loses no data.")
    verb = "restart" if before else "Restart"
    why = f" ({view.now.can_restart})" if view.now.can_restart else ""
    text = f"{verb} the workers with the tool that started them{when}{why}."
    return Fix(f"{before}{text}")


def name_of(label: str) -> str:
    """Return the user's variable of a collection: ``X_valid`` for an eval set."""
    return f"{variable(label)}_valid" if "." in label else variable(label)


def edit(labels: Sequence[str], line: str) -> str:
    """Return code that works on these collections.

    Those of an eval set are taken from it first, and put back.
    """
    place = labels[0].rpartition(".")[0]
    if not place:
        return line
    pair = "X_valid, y_valid"
    more = [x for x in map(variable, labels) if x not in POSITIONAL]
    if not more:
        return f"{pair}, *rest = {place}; {line}; {place} = ({pair}, *rest)"
    taken = "; ".join(f"{x}_valid = named[{code(x)}]" for x in more)
    named = ", ".join(f"{code(x)}: {x}_valid" for x in more)
    put = f"{place} = ({pair}, {{**named, {named}}})"
    return f"{pair}, named = {place}; {taken}; {line}; {put}"


def drop_rows(
    layout: Layout, collection: CollectionInfo, *, infinite: bool = False
) -> str:
    """Return how to drop rows without a value of this collection everywhere."""
    names, name = [*map(name_of, layout.arguments)], name_of(collection.label)
    sizes = any(m.from_sizes for m in layout.collections)
    if sizes or len({m.kind == "array" for m in layout.collections}) > 1:
        return f"Drop these rows from {names_text(names, most=9)} before you load them."
    if collection.kind == "array":
        data = f"dask.array.ma.getdata({name})"
        keep = f"~(dask.array.isnan({data}) | dask.array.ma.getmaskarray({name}))"
        keep = f"dask.array.isfinite({name})" if infinite else keep
        key = collection.keys[0]  # it has a number for each dimension
        wide = isinstance(key, tuple) and len(key) > 2
    else:
        keep = f"{name}.notnull()"
        keep = f"~{name}.isin([numpy.inf, -numpy.inf])" if infinite else keep
        wide = collection.kind == "dataframe"
    keep = f"({keep}).all(axis=1)" if wide else keep
    kept = ", ".join(f"{name}[keep]" for name in names)
    line = f"keep = {keep}; {', '.join(names)} = {kept}"
    return run(edit(layout.labels, line), ", which drops these rows")


def sort_rows(layout: Layout, label: str) -> str:
    """Return how to sort the rows of all collections by the values of one."""
    names, by = [name_of(m.label) for m in layout.collections], name_of(label)
    first, *others = (m.kind for m in layout.collections)
    if {first, *others} == {"array"}:
        order = f'order = numpy.argsort({by}.compute(), kind="stable")'
        line = edit(layout.labels, f"{order}; {_taken(names)}")
        return run(line, ", which sorts the rows")
    if first == "dataframe" and set(others) == {"series"}:
        X, *rest = names
        added = ", ".join(f"_{name}={name}" for name in rest)
        frame = f'frame = {X}.assign({added}).sort_values("_{by}")'
        columns = [f"frame[list({X}.columns)]", *(f'frame["_{n}"]' for n in rest)]
        taken = f"{', '.join(names)} = {', '.join(columns)}"
        line = edit(layout.labels, f"{frame}; {taken}")
        return run(line, ", which sorts the rows")
    return f"Sort the rows of {names_text(names, most=9)} by {by} before you load them."


def join(layout: Layout, first: str, label: str) -> str:
    """Return how to join a collection with another one by their indexes.

    Rows may also match by position, with an index that says nothing: only the user
    knows which.
    """
    kinds = {m.label: m.kind for m in layout.collections}
    X, y = name_of(first), name_of(label)
    pair = first, label
    unindexed = edit(pair, f"{X}, {y} = {_unindexed(X)}, {_unindexed(y)}")
    by_position = f"If the rows match by position, run `{unindexed}`."
    if (kinds[first], kinds[label]) != ("dataframe", "series"):
        return f"Make {first} and {label} of one frame. {by_position}"
    frame = f'frame = {X}.join({y}.to_frame("_{y}"))'
    taken = f'{X}, {y} = frame[list({X}.columns)], frame["_{y}"]'
    line = edit(pair, f"{frame}; {taken}")
    return f"If the index says which rows belong together, run `{line}`. {by_position}"


def _unindexed(name: str) -> str:
    return f"{name}.reset_index(drop=True)"


def random_order(layout: Layout) -> str:
    """Return how to put the rows of all collections in random order."""
    if has_groups(layout):
        return "Put the groups in random order, and keep the rows of each together."
    names = [variable(m.label) for m in layout.collections]
    if {m.kind for m in layout.collections} == {"array"}:
        n = int(layout.rows.sum())
        order = f"order = numpy.random.default_rng(0).permutation({n})"
        return f"Run `{order}; {_taken(names)}`."
    return (
        f"Sort the rows by a column of random numbers before you take "
        f"{names_text(names, most=9)} of their frame."
    )


def _taken(names: Sequence[str]) -> str:
    """Return code that takes the rows of Arrays in an order."""
    arrays = ", ".join(names)
    every = f"({arrays},)" if len(names) == 1 else f"({arrays})"
    unpacked = f"{arrays}," if len(names) == 1 else arrays
    # Dask takes rows of known chunks only
    return f"{unpacked} = [x.compute_chunk_sizes()[order] for x in {every}]"


def number_classes(collection: CollectionInfo, *, training: bool) -> str:
    """Return how to number classes from 0; eval sets use the list of the training.

    An eval set may be of pandas or NumPy, whose methods lack some of Dask's parameters.
    """
    name = name_of(collection.label)
    if collection.kind == "array":
        listed = f"dask.array.unique({name}).compute()"
        array = name if training else f"dask.array.asarray({name})"
        numbered = f"{array}.map_blocks(lambda part: numpy.searchsorted("
        numbered += 'classes, part), dtype="int64")'
    elif collection.kind == "series":
        listed = f"sorted({name}.dropna().unique().compute())"
        numbers = "{name: i for i, name in enumerate(classes)}"
        changed = f'map({numbers}, meta=({name}.name, "int64"))'
        if not training:
            changed = 'replace(classes, [*range(len(classes))]).astype("float64")'
        numbered = f"{name}.astype(object).{changed}"
    else:
        return f"Give the classes of {collection.label} the numbers from 0."
    line = f"{name} = {numbered}"
    if training:
        return run(f"classes = {listed}; {line}", "; then class i is `classes[i]`")
    line = edit([collection.label], line)
    return run(line, " with the sorted list `classes` of the classes of y")


def to_float32(collection: CollectionInfo) -> str:
    """Return code that makes numbers of float32 of the features."""
    name, types = name_of(collection.label), '"float32"'
    if not all(t.startswith(("int", "uint", "float")) for t in collection.types):
        numbers = f'{name}.select_dtypes("number").columns'
        types = f'dict.fromkeys({numbers}, "float32")'
    return edit([collection.label], f"{name} = {name}.astype({types})")


def free_memory(view: View, workers: Sequence[WorkerSnapshot]) -> Fix:
    """Return how to free memory of these workers, by what fills the fullest one."""
    worst = max(workers, key=lambda w: w.process / max(1, w.memory_limit))
    if worst.unmanaged > worst.managed:
        return trim(view, workers)
    text = "Delete collections that you do not need with `del`."
    if line := release(view):
        text += f" `{line}` releases all other data of this client."
    if more := _more_memory(view):
        text += f" If that is not enough, run `{more}`."
    return Fix(text)


def trim(view: View, workers: Sequence[WorkerSnapshot]) -> Fix:
    """Return how to return unused memory of these workers."""
    first = sentence("Run ", on_workers("trim_memory", names(view, workers)))
    then = restart(view, workers, "If the memory stays, ")
    command = first.command and f"{first.command} {then.command or then.remedy}"
    return Fix(f"{first.remedy} {then.remedy}", command)


def _more_memory(view: View) -> str:
    """Return a call for more memory: higher limits if the hosts allow, or a worker."""
    workers = view.now.workers
    share, highest = host_share(workers, workers), max(w.memory_limit for w in workers)
    may = may_restart(view, workers)
    if may and not isinstance(share, Unknown) and share > 1.1 * highest:
        return on_workers("resize_workers", (), memory_limit=limit(share)).remedy
    return scale(view, len(workers) + 1) if view.now.can_scale is None else ""


def host_share(
    workers: Sequence[WorkerSnapshot], there: Sequence[WorkerSnapshot]
) -> float | Unknown:
    """Return the memory that the hosts have for each of these workers.

    It is an equal share, or less if other workers ``there`` have higher limits.
    """
    shares, groups = list[float](), by_host(there)
    for host, some in by_host(workers).items():
        group, changed = groups[host], {w.id for w in some}
        memory = host_memory(group)
        if isinstance(memory, Unknown):
            return memory
        kept = sum(w.memory_limit for w in group if w.id not in changed)
        shares += [memory / len(group), (memory - kept) / len(some)]
    return min(shares, default=0.0)
