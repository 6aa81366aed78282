"""Write the page of the command line from the commands.

Run ``python -m docs.make_cli`` in the project's folder. A test compares the file with
the commands.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import click

from clustertune.cli import main

ROOT = Path(__file__).parents[1]
WIDE = 10_000  # characters of a line, so that click breaks none

HEAD = """# The command line

<!-- made by docs/make_cli.py from the commands: edit those -->

    clustertune VERB [OBJECT] [ADDRESS]

`dask tune VERB` runs the same commands. Commands that change a cluster show a plan and
ask. They do not ask with `--yes`, and only show the plan with `--dry-run`. Without a
terminal, as in a CI job, they never wait for an answer: without `--yes` they exit with
code 2.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | `check`: a finding has at least the severity of `--fail-on`; `run`: the last \
checks found something critical; `history --last`: there is no report |
| 2 | wrong usage, also an unknown name, worker or id |
| 3 | the cluster was not reached |
| 4 | refused, and nothing was changed |
| 5 | failed, or done in part |
| 130 | interrupted |

Results go to stdout: as text, or with `-f json`, which has a `schema_version`.
Progress, questions and errors go to stderr. An error is one line.
"""
EVENTS = """
## Log of changes

clustertune logs each change in Dask's event log, under the topic `clustertune`. An
event has the change, the user, host and process, the reason (`--reason`; in Python
`dask.config.set({"clustertune.reason": "..."})`), and the steps with their outcomes.
The log exists as long as the scheduler, and Dask alone can read it:

```python
for time, event in client.get_events("clustertune"):
    print(event)
```

The scheduler logs events without `by` when steps begin and end.
"""
COMPLETION = """
## Completion

A shell completes commands and options after it has sourced the output of one of
these:

    eval "$(_CLUSTERTUNE_COMPLETE=bash_source clustertune)"         # in ~/.bashrc
    eval "$(_CLUSTERTUNE_COMPLETE=zsh_source clustertune)"          # in ~/.zshrc
    _CLUSTERTUNE_COMPLETE=fish_source clustertune | source          # in config.fish
"""
#: options of many commands, by the title of the section that describes them
COMMON = {
    "Which cluster": (
        """`ADDRESS` is the address of a scheduler, like `tcp://10.0.0.5:8786`. Without
`ADDRESS`, Dask's configuration names the cluster (`scheduler-address`,
`DASK_SCHEDULER_ADDRESS`).""",
        (
            "--scheduler-file",
            "--tls-ca-file",
            "--tls-cert",
            "--tls-key",
        ),
    ),
    "Before anything is changed": (
        "All commands that change a cluster have these options.",
        ("--dry-run", "--yes", "--reason"),
    ),
    "Less output": (
        "`check` and all commands that change a cluster have this option.",
        ("--quiet",),
    ),
}


def page() -> str:
    """Return the page of all commands."""
    context = click.Context(
        main, info_name="clustertune", max_content_width=WIDE, **main.context_settings
    )
    commands = [main.get_command(context, n) for n in main.list_commands(context)]
    found = [command for command in commands if command is not None]
    parts = [
        HEAD,
        *(_described_once(title, found) for title in COMMON),
        *(_section(command, context) for command in found),
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
        if isinstance(p, click.Option) and _title(p) == title
    }
    listed = [_option(options[name], click.Context(main)) for name in names]
    return "\n".join([f"\n## {title}\n", text, "", *listed, ""])


def _section(command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=command.name, parent=parent)
    usage = command.get_usage(context).removeprefix("Usage: ")
    lines = [
        f"\n## {command.name}",
        _code([" ".join(usage.split())]),
        inspect.cleandoc(command.help or ""),
        "\n".join(_options(command, context)),
        _examples(command.epilog or ""),
        *_subcommands(command, context),
    ]
    return "\n\n".join(line for line in lines if line) + "\n"


def _subcommands(command: click.Command, context: click.Context) -> Iterator[str]:
    """Return a section for each command of a group."""
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        text = _section(inner, context).strip()
        yield text.replace("## ", f"### {command.name} ", 1)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    options = [p for p in command.params if isinstance(p, click.Option)]
    yield from (_option(p, context) for p in options if not _title(p))
    taken = {_title(p) for p in options}
    titles = [title for title in COMMON if title in taken]
    if titles:
        yield f"- the options under {', '.join(f'*{title}*' for title in titles)}"


def _title(option: click.Option) -> str:
    """Return the title of the section with this option; empty: the command's own."""
    name = option.opts[-1]
    return next((title for title, (_, names) in COMMON.items() if name in names), "")


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
