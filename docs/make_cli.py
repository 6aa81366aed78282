"""Write the page of the command line, made from the commands.

``python -m docs.make_cli``, in the project's folder; a test compares what this makes
with the file.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import click

from clustertune.cli import main
from clustertune.cli.lazy import LazyGroup

ROOT = Path(__file__).parents[1]
WIDE = 10_000  # characters of a line, so that click breaks none

HEAD = """# The command line

<!-- made by docs/make_cli.py from the commands: edit those -->

    clustertune VERB [OBJECT] [ADDRESS]

The same commands are there as `dask tune VERB`. Commands that look change nothing.
Those that change a cluster show what they would do and ask; with `--yes` they do not
ask, with `--dry-run` they only show. Where nobody can answer, as in a job of a CI
system, they never wait: without `--yes` they end with exit code 2.

| exit code | meaning |
|---|---|
| 0 | clean, or done |
| 1 | `check`: something was found that is at least as bad as `--fail-on`; elsewhere \
what was asked for will not work, or was not found |
| 2 | what was typed is wrong |
| 3 | the cluster was not reached |
| 4 | refused, and nothing was changed |
| 5 | failed, or done in part |
| 130 | interrupted |

Results go to stdout, as text or with `-f json` (which has a `schema_version`) or
`-f html`; progress, questions and errors go to stderr. An error is one line.
"""
EVENTS = """
## Who has changed what

What is done, from the command line or from Python, is noted in Dask's own event log,
under the topic `clustertune`: what, by whom (user, host, process), why (`--reason`; in
Python `dask.config.set({"clustertune.reason": "..."})`), and workers, memory, findings
and data before and after. It is there for as long as the scheduler, for everybody with
Dask alone:

```python
for time, event in client.get_events("clustertune"):
    print(event)
```

Events without `by` are notes of the scheduler's side, as steps begin and end there.
"""
COMPLETION = """
## Completion

Commands and options are completed in a shell that has sourced what the command itself
prints:

    eval "$(_CLUSTERTUNE_COMPLETE=bash_source clustertune)"         # in ~/.bashrc
    eval "$(_CLUSTERTUNE_COMPLETE=zsh_source clustertune)"          # in ~/.zshrc
    _CLUSTERTUNE_COMPLETE=fish_source clustertune | source          # in config.fish
"""
#: options that many commands have, by the title under which they are described once
COMMON = {
    "Which cluster": (
        """Without `ADDRESS`, which is a scheduler's, like `tcp://10.0.0.5:8786`, Dask's
configuration says which (`scheduler-address`, `DASK_SCHEDULER_ADDRESS`). Commands that
may start workers know `--cluster`, too.""",
        (
            "--scheduler-file",
            "--cluster",
            "--tls-ca-file",
            "--tls-cert",
            "--tls-key",
        ),
    ),
    "Before anything is changed": (
        "All commands that change a cluster have these.",
        ("--dry-run", "--yes", "--quiet", "--reason"),
    ),
}


def page() -> str:
    """All commands, as a page of the documentation."""
    context = click.Context(
        main, info_name="clustertune", max_content_width=WIDE, **main.context_settings
    )
    commands = [main.get_command(context, n) for n in main.list_commands(context)]
    found = [command for command in commands if command is not None]
    common = [name for _, names in COMMON.values() for name in names]
    parts = [
        HEAD,
        *(_described_once(title, found) for title in COMMON),
        *(_section(command, context, common) for command in found),
        EVENTS,
        COMPLETION,
    ]
    return "".join(parts)


def _described_once(title: str, commands: Collection[click.Command]) -> str:
    text, names = COMMON[title]
    options = {
        p.opts[-1]: p
        for command in commands
        for p in command.params
        if isinstance(p, click.Option)
    }
    listed = [_option(options[name], click.Context(main)) for name in names]
    return "\n".join([f"\n## {title}\n", text, "", *listed, ""])


def _section(
    command: click.Command, parent: click.Context, common: Collection[str]
) -> str:
    context = click.Context(command, info_name=command.name, parent=parent)
    usage = command.get_usage(context).removeprefix("Usage: ")
    lines = [
        f"\n## {command.name}",
        _code([" ".join(usage.split())]),
        inspect.cleandoc(command.help or ""),
        *_verbs(command, context),
        "\n".join(_options(command, context, common)),
        _examples(command.epilog or ""),
        *_subcommands(command, context, common),
    ]
    return "\n\n".join(line for line in lines if line) + "\n"


def _verbs(command: click.Command, context: click.Context) -> Iterator[str]:
    """Verbs of `plan`, and what they take that the commands of that name do not."""
    if not isinstance(command, LazyGroup):
        return
    verbs = command.list_commands(context)
    yield f"VERB is one of {', '.join(f'`{v}`' for v in verbs)}. Besides:"
    inner = command.get_command(context, verbs[0])
    alone = main.get_command(context, verbs[0])
    assert inner is not None
    assert alone is not None
    theirs = {p.opts[-1] for p in alone.params}
    own = [p for p in inner.params if p.opts[-1] not in theirs]
    yield "\n".join(_option(p, context) for p in own if isinstance(p, click.Option))


def _subcommands(
    command: click.Command, context: click.Context, common: Collection[str]
) -> Iterator[str]:
    """Those of a group that are there only, each with a heading of its own."""
    if isinstance(command, LazyGroup) or not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        text = _section(inner, context, common).strip()
        yield text.replace("## ", f"### {command.name} ", 1)


def _options(
    command: click.Command, context: click.Context, common: Collection[str]
) -> Iterator[str]:
    options = [p for p in command.params if isinstance(p, click.Option)]
    yield from (_option(p, context) for p in options if p.opts[-1] not in common)
    taken = {p.opts[-1] for p in options}
    titles = [t for t, (_, names) in COMMON.items() if taken & set(names)]
    if titles:
        yield f"- those under {' and '.join(f'*{title}*' for title in titles)}"


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None
    names, text = record
    return f"- `{names}`: {' '.join(text.split())}"


def _examples(epilog: str) -> str:
    lines = [line for line in epilog.splitlines() if line.startswith("  ")]
    return f"Examples:\n\n{_code(lines)}" if lines else ""


def _code(lines: Iterable[str]) -> str:
    return "\n".join(["```sh", *(line.strip() for line in lines), "```"])


FILES = {"docs/cli.md": page}

if __name__ == "__main__":
    for name, make in FILES.items():
        (ROOT / name).write_text(make())
