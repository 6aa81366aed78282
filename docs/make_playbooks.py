"""Write the page of playbooks: the language, what steps can do, and those shipped.

``python -m docs.make_playbooks``, in the project's folder; a test compares what this
makes with the file.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from clustertune import checks
from clustertune.operations.playbooks import shelf
from clustertune.operations.playbooks.playbook import ACTIONS, ON_DATA

ROOT = Path(__file__).parents[1]

HEAD = """# Playbooks

<!-- made by docs/make_playbooks.py: edit that, or the files in playbooks/ -->

A playbook says in a file what to look at and what to do, before, between or after
training runs. It needs no Python:

    clustertune playbooks                              what there is
    clustertune playbooks between-runs                 the text of one
    clustertune run between-runs ADDRESS --dry-run     what it would do now
    clustertune run between-runs ADDRESS               shows that, asks, and does it
    clustertune run before-training --dataset X --dataset y --yes ADDRESS

and from Python, with collections that you hold:

```python
played = clustertune.run(client, "before-training", X, y)
print(played)
model.fit(played.X, played.y)
```

`PLAYBOOK` is a name or a file. A folder with files of your own is named by the key
`clustertune.playbooks` of Dask's configuration (`DASK_CLUSTERTUNE__PLAYBOOKS`); of
the same name, yours is taken. `--dataset` names published data, which is X, y and
others in that order; after steps that act on it the names point to what is new, as
after `clustertune prepare`.

`clustertune run` ends with 0 if all went well, 1 if the checks of the playbook find
something critical at the end (`--fail-on`), 2 if the playbook is wrong, 3 if the
cluster was not reached, 4 if a step was refused and nothing was done, 5 if one failed
or was done in part. `-f json` has what each step found, and the report of what it
did.

## The language

    version: 1
    name: between-runs
    description: Trim workers, and restart the ones that still need it; one at a time.
    steps:
      - check: [memory, workers]
      - when: unmanaged_memory
        at_least: warning
        holds: 1m
        do: restart
        with: {workers: named, if_needed: true, timeout: 2 minutes}
      - when: unmanaged_memory
        do: trim
    limits: {disrupted_workers: 1, minimum_workers: 2, settle: 30s}
    on_failure: stop

There is no more than this. It is data: nothing in it is evaluated. Whatever else YAML
can say (anchors, tags, keys that come twice) is refused, and so are files of more
than 64 KiB. Durations and sizes are written as elsewhere in Dask: `30s`, `2 minutes`,
`4 GiB`. All mistakes are said at once, before anything is done, each with its line:

    between-runs.yaml:14: steps[3].do: unknown action 'restrat'; choose from: persist,
    rebalance, rechunk, release, resize, restart, scale, trim (did you mean restart?)

**A step with `check`** looks, and says what it found. It names checks, words of their
names (`memory` stands for all below that have it), or `all`.

**A step with `do`** does something.

- `when` names a [check](checks.md): the step is done if that finds something at least
  as bad as `at_least` (`info`, `warning`, `critical`; by default `warning`). A check
  that cannot tell (`unknown`) is no reason to do anything; that is said.
- `holds`: it must find it for so long, on the same workers. The cluster is watched
  meanwhile; if the condition goes, the step is skipped.
- `with`: arguments of what is done. `workers: named` stands for the workers that the
  condition names. Without `workers` all are meant.

**`limits`** hold for all steps. `disrupted_workers` (1) may be restarted at the same
time, a number, or a part such as `25%`; `minimum_workers` (0) must run while others
are away, else the step is refused, and no playbook scales below it; `settle` (5s) is
waited after each step that has changed something, before the next one looks.

**`on_failure`**: after a step that failed, was refused or was done in part, `stop` or
`continue`.

`--set KEY=VALUE` (`settings={...}` in Python) puts another value in place of one in
the file: those of `with`, `at_least`, `holds`, `on_failure` and `limits`, by path
(`steps[2].with.timeout=5m`) or by the end of it where only one has that
(`n_workers=2`).

A dry run looks at each condition once and waits for nothing. What is planned in one
step is not there yet for the next one: pieces that are still to be loaded have no
plan.

## What steps can do

Each is the operation of that name, with its guards: see [workers](workers.md) and
[preparing data](prepare.md). Restarts lose no data in a playbook: `drop_data` is not
among the arguments, and `limits` bounds how many workers may be away. `env` takes
variables of thread pools and allocators only, as any other variable could
[run code](workers.md#another-size-resize). Other packages
[add actions](contributing.md#an-action), which take `timeout`.

"""

DOES = {
    "persist": 'load the given data; `prepare(..., only=["persist"])`',
    "rebalance": 'place its pieces: rows even, pairs together; `only=["rebalance"]`',
    "rechunk": 'cut and join its pieces where needed; `only=["rechunk"]`',
    "release": "let the given data go (data sets: unpublish them), or what `prefixes` "
    "name, or with `keep: given` all of this client's data but that",
    "resize": "give workers other threads, memory or variables",
    "restart": "restart workers, without losing what they hold; with `if_needed` trim "
    "first, and restart only workers that still need it",
    "scale": "have so many workers",
    "trim": "have workers give memory back that they do not need",
}

WORDS = """
## Words that name checks

| word | checks |
|---|---|
"""

SHIPPED = """
## Those that are shipped

`between-runs` and `memory-rescue` restart workers only
[by need](workers.md#only-workers-that-need-it-if_needed): they trim the workers that a
condition names, and restart the ones that are still above a threshold. `memory_growth`
needs three runs to tell; a worker that it names is restarted where the next run would
bring it above a threshold.

"""


def page() -> str:
    """The page of the documentation."""
    return HEAD + _actions() + WORDS + _words() + SHIPPED + "\n".join(_shipped())


def _actions() -> str:
    rows = [
        f"| `{name}` | {DOES[name]} | {'yes' if name in ON_DATA else ''} | "
        f"{', '.join(f'`{key}`' for key in keys)} |"
        for name, keys in ACTIONS.items()
    ]
    head = "| `do` | what it does | needs data | `with` |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def _words() -> str:
    by_word: dict[str, list[str]] = defaultdict(list)
    for name in checks.available():
        for word in name.split("_"):
            by_word[word].append(name)
    rows = [
        f"| `{word}` | {', '.join(f'`{name}`' for name in names)} |"
        for word, names in sorted(by_word.items())
        if len(names) > 1
    ]
    return "\n".join(rows) + "\n"


def _shipped() -> list[str]:
    parts = []
    for path in sorted((ROOT / "playbooks").glob("*.yaml")):
        read = shelf.read(path)
        text = path.read_text().rstrip("\n")
        parts.append(f"### {read.name}\n\n{read.description}\n\n```yaml\n{text}\n```\n")
    return parts


FILES = {"docs/playbooks.md": page}

if __name__ == "__main__":
    for name, make in FILES.items():
        (ROOT / name).write_text(make())
