"""Write the page of playbooks: the language, the actions, and the shipped playbooks.

Run ``python -m docs.make_playbooks`` in the project's folder. A test compares the file
with the output.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from clustertune import checks
from clustertune.operations.playbooks import library
from clustertune.operations.playbooks.schema import ON_DATA, own_actions

ROOT = Path(__file__).parents[1]

HEAD = """# Playbooks

<!-- made by docs/make_playbooks.py: edit that, or the files in playbooks/ -->

A playbook is a YAML file with steps for a cluster: checks, and actions that depend on
their findings. It needs no Python:

    clustertune run --list                             list playbooks
    clustertune run --show between-runs                print one
    clustertune run --lint nightly.yaml                check a file without a cluster
    clustertune run between-runs ADDRESS --dry-run     show what it would do now
    clustertune run between-runs ADDRESS               show the plan, ask, run it

Steps that prepare data need Python, which gives them your collections:

```python
result = clustertune.run_playbook(client, "before-training", X, y)
print(result)
model.fit(result.X, result.y)
```

`PLAYBOOK` is a name or a file. The key `clustertune.playbooks` of Dask's configuration
(`DASK_CLUSTERTUNE__PLAYBOOKS`) names a folder with your own files. Your own playbooks
override shipped ones with the same name.

| exit code | meaning |
|---|---|
| 0 | all steps succeeded |
| 1 | the last checks found something critical (`--fail-on`) |
| 2 | the playbook is not valid |
| 3 | the cluster was not reached |
| 4 | a step was refused, and no step changed anything |
| 5 | a step failed, or was done in part |

`-f json` has the findings and the report of each step.

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

These are all keys. A playbook is data: clustertune evaluates nothing in it. The file is
YAML 1.2, so `yes` and `on` are text; write `true`. Anchors, tags, directives, duplicate
keys, and files of more than 64 KiB are refused. Durations and sizes have Dask's form:
`30s`, `2 minutes`, `4 GiB`. All mistakes are reported before anything is done, each
with its line:

    between-runs.yaml:14: steps[3].do: unknown action 'restrat'; choose from: load,
    merge, rebalance, rechunk, release, resize, restart, scale, trim (did you mean
    restart?)

**A step with `check`** runs checks and reports their findings. It takes names of
checks, words of their names (`memory` means all below that have this word), or `all`.

**A step with `do`** carries out an action.

- `when` names a [check](checks.md). The step is carried out if the check has a finding
  of at least the severity `at_least` (`info`, `warning`, `critical`; by default
  `warning`). If the check cannot decide (`unknown`), the step is skipped, and the
  result has the reason.
- `holds`: the check must find it for this long, on the same workers. If the condition
  ends earlier, the step is skipped.
- `with`: arguments of the action. `workers: named` means the workers that the condition
  names. Without `workers` the action applies to all workers.

**`limits`** apply to all steps. `disrupted_workers` (1) is the most workers that are
away at the same time: a number, or a part such as `25%`. `minimum_workers` (0) is the
least workers that run while others are away; otherwise the step is refused. No playbook
scales or merges below it. `settle` (5s) is the pause after each step that changed
something.

**`on_failure`** is `stop` or `continue`. It applies after a step that failed, was
refused, or was done in part.

`--set KEY=VALUE` (`settings={...}` in Python) replaces a value of the file: in `with`,
`at_least`, `holds`, `on_failure` or `limits`. KEY is a path
(`steps[2].with.timeout=5m`), or the end of a path if it is unique (`n_workers=2`).

A dry run evaluates each condition once and does not wait. It cannot plan steps that
depend on earlier ones: partitions that are not loaded have no plan.

## Checks in pipelines

`--lint` checks a file without a cluster, for example before each commit:

    clustertune run --lint nightly.yaml

It prints all problems with path and line, and exits with code 1 if there is one. With
`-f json` the problems are a list.

## Actions

Each action is the operation with this name, with its guards: see [workers](workers.md)
and [preparing data](prepare.md). Restarts in a playbook lose no data: `drop_data` is
not an argument, and `limits` bounds the number of workers that are away. `env` takes
variables of thread pools and allocators only, because any other variable could
[run code](workers.md#another-size-resize). Other packages
[add actions](contributing.md#an-action), which take `timeout`.

"""

WORDS = """
## Words that name checks

| word | checks |
|---|---|
"""

SHIPPED = """
## Shipped playbooks

`between-runs` and `memory-rescue` restart workers only
[if needed](workers.md#only-workers-that-need-it-if_needed). They trim the workers that
a condition names, and restart the workers that are still above a threshold.
`memory_growth` needs three runs. It restarts a worker if the next run would exceed a
threshold.

"""


def page() -> str:
    """The page of the documentation."""
    return HEAD + _actions() + WORDS + _words() + SHIPPED + "\n".join(_shipped())


def _actions() -> str:
    rows = [
        f"| `{name}` | {options['description']} | {'yes' * (name in ON_DATA)} | "
        f"{', '.join(f'`{key}`' for key in options['properties'])} |"
        for name, options in own_actions().items()
    ]
    head = "| `do` | effect | needs data | `with` |\n|---|---|---|---|\n"
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
        read = library.read(path)
        text = path.read_text().rstrip("\n")
        parts.append(f"### {read.name}\n\n{read.description}\n\n```yaml\n{text}\n```\n")
    return parts


FILES = {"docs/playbooks.md": page}

if __name__ == "__main__":
    for name, make in FILES.items():
        (ROOT / name).write_text(make())
