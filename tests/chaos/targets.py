"""The parsers of clustertune, each as a function of bytes.

A target lists the errors that its parser may raise: callers show them as one line. Any
other error is a finding.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import click
import dask
import numpy as np
import yaml
from click.testing import CliRunner

from clustertune import checks, preload
from clustertune.cli import main, running
from clustertune.core import arguments, settings
from clustertune.core.model import Finding, Severity
from clustertune.core.report import Report
from clustertune.core.results import Done, LayoutSummary, WorkerShare
from clustertune.integrations import libraries
from clustertune.operations import history
from clustertune.operations.playbooks import PlaybookError, available, reading
from clustertune.operations.scheduling import triggers
from tests.chaos import mutations
from tests.chaos.mutations import dumped, tree

CORPUS = Path(__file__).parents[1] / "corpus"


@dataclass(frozen=True)
class Target:
    """One parser.

    Attributes
    ----------
    read
        Parses an input.
    allowed
        Errors that the parser may raise.
    starts
        Valid inputs, from which others are made.
    draw
        Makes a random input from valid ones.
    share
        Fraction of all inputs.
    """

    name: str
    read: Callable[[bytes], object]
    allowed: tuple[type[BaseException], ...]
    starts: Callable[[], Sequence[bytes]]
    words: Callable[[], Sequence[str]]
    draw: Callable[[Random, Target], bytes]
    share: float

    @cached_property
    def seeds(self) -> tuple[bytes, ...]:
        """Valid inputs, and inputs of earlier findings."""
        kept = sorted((CORPUS / self.name).glob("*"))
        return (*self.starts(), *(p.read_bytes() for p in kept))

    @cached_property
    def dictionary(self) -> tuple[str, ...]:
        return tuple(self.words())

    def input(self, seed: int) -> bytes:
        """Make the input of a seed."""
        return self.draw(Random(f"{self.name} {seed}"), self)


# --- how inputs are made --------------------------------------------------------------


def _as_text(rng: Random, target: Target) -> bytes:
    start = rng.choice(target.seeds)
    return mutations.text(rng, start, target.seeds, target.dictionary)


def _as_tree(rng: Random, target: Target) -> bytes:
    """Change an input as text, or as the data that it contains."""
    start = rng.choice(target.seeds)
    if rng.random() < 0.4:
        return mutations.text(rng, start, target.seeds, target.dictionary)
    try:
        data = parsed(start)
    except (ValueError, yaml.YAMLError, RecursionError):
        return mutations.text(rng, start, target.seeds, target.dictionary)
    return dumped(tree(rng, data, target.dictionary))


@cache
def parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return yaml.safe_load(text)


# --- playbooks ------------------------------------------------------------------------


def _read_playbook(data: bytes) -> None:
    """Load a playbook."""
    for step in reading.load(data, "fuzz.yaml").steps:
        str(step)


def _playbooks() -> list[bytes]:
    return [p.read_bytes() for p in available().values()]


def _playbook_words() -> list[str]:
    known = [
        *("version", "name", "description", "steps", "limits", "on_failure"),
        *("check", "do", "when", "at_least", "holds", "with", "settle"),
        *(key for known in reading.ACTIONS.values() for key in known),
    ]
    return [
        *known,
        *reading.ACTIONS,
        *checks.available(),
        "info",
        "warning",
        "critical",
    ]


# --- reports --------------------------------------------------------------------------


def _read_report(data: bytes) -> None:
    report = Report.from_json(data.decode(errors="replace"))
    str(report)
    report._repr_html_()
    report.to_json()


def _reports() -> list[bytes]:
    """A report with every kind of content."""
    step = Done(
        action="restart",
        summary="restart worker 0",
        gain="memory",
        status="planned",
        predicted_bytes=0,
        at_risk="nothing",
    )
    finding = Finding(
        severity=Severity.warning,
        message="it leaks",
        subject=(0, "b"),
        evidence={"bytes": np.int64(5), "share": 0.5, "why": None},
        check="memory_growth",
    )
    share = WorkerShare(worker=0, partitions=1, rows=10, nbytes=80, share=1.0)
    summary = LayoutSummary(
        label="training data",
        collections=("X",),
        partitions=1,
        loaded=True,
        rows=10,
        nbytes=80,
        separated=None,
        imbalance=0.0,
        workers=(share,),
    )
    report = Report(
        status="planned",
        seconds=0.1,
        found=(finding,),
        before=(summary,),
        steps=(step,),
        needs=("rows",),
        forecast={0: 5},
    )
    return [report.to_json().encode()]


def _report_words() -> list[str]:
    kinds = (Report, Done, Finding, LayoutSummary, WorkerShare)
    return [n for kind in kinds for n in kind.__dataclass_fields__]


# --- configuration --------------------------------------------------------------------


def _read_config(data: bytes) -> None:
    """Read a file of Dask's configuration, or environment variables."""
    try:
        found = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, AttributeError):
        return  # Dask reports it
    if not isinstance(found, dict):
        return
    if isinstance(found.get("env"), dict):
        env = {str(k): str(v) for k, v in found["env"].items()}
        found = dask.config.collect_env(env)
    own = found.get("clustertune", {})
    with dask.config.set({"clustertune": own if isinstance(own, dict) else {}}):
        for read in (
            checks.configured,
            history.configured,
            available,
            preload.configured_schedules,
        ):
            _tolerant(read, (ValueError,))


def _tolerant(read: Callable[[], Any], allowed: Any) -> None:
    """Call one of several parsers; it may refuse the input."""
    try:
        read()
    except allowed:
        return


def _configs() -> list[bytes]:
    own = settings.defaults()
    env = {
        "DASK_CLUSTERTUNE__HISTORY__LABEL": "10",
        "DASK_CLUSTERTUNE__CHECKS__MEMORY_GROWTH__LEAST": "0.1",
        "DASK_CLUSTERTUNE__PLAYBOOKS": "/tmp",
    }
    return [dumped(own), dumped({"env": env}), yaml.safe_dump(own).encode()]


def _config_words() -> list[str]:
    known = checks.available()
    each = [k for c in known.values() for k in checks.settings_of(c)]
    return [*known, *each, "clustertune", "checks", "history", "playbooks", "label"]


# --- the command line -----------------------------------------------------------------

#: arguments that would start processes or use the network
_NETWORK = re.compile(r"^(gateway|coiled|kubernetes):.|://(?!127\.0\.0\.1:9$)")
_NOT_FUZZED = {"demo"}


def _read_arguments(data: bytes) -> None:
    """Run a command, which must not end with a traceback."""
    words = json.loads(data)
    if any(_NETWORK.search(w) for w in words) or _NOT_FUZZED & set(words):
        return
    # no scheduler answers, so do not wait for one; restored for later tests
    with (
        patch.object(running, "CONNECT", 0.02),
        dask.config.set({"scheduler-address": None}),
    ):
        result = CliRunner().invoke(main, words)
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        raise error
    if result.exit_code not in (0, 1, 2, 3, 4, 5, 130):
        raise AssertionError(f"exit code {result.exit_code}")
    if "Traceback" in result.output:
        raise AssertionError(result.output[-500:])


def _draw_arguments(rng: Random, target: Target) -> bytes:
    path, command = rng.choice(_commands())
    words = list(path)
    options = [p for p in command.params if isinstance(p, click.Option)]
    for option in rng.sample(options, min(len(options), rng.choice((0, 1, 1, 2, 4)))):
        words.append(rng.choice((*option.opts, *option.secondary_opts)))
        if not option.is_flag or rng.random() < 0.05:
            words.append(_value(rng, option.type))
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        words.insert(rng.randint(len(path), len(words)), _word(rng, target))
    if rng.random() < 0.1:
        rng.shuffle(words)
    return json.dumps(words).encode()


def _value(rng: Random, kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice) and rng.random() < 0.8:
        return str(rng.choice(list(kind.choices)))
    if isinstance(kind, click.IntRange) and rng.random() < 0.6:
        return str(rng.choice((0, 1, 2, 10, 10**6, 2**31, 2**63, 10**30, -1)))
    return _text(rng)


def _text(rng: Random) -> str:
    value = mutations.odd(rng)
    text = value if isinstance(value, str) else dumped(value).decode()
    # arguments are bytes without a zero byte, in any encoding
    data = text.replace("\0", "").encode(errors="surrogatepass")
    return os.fsdecode(data)


def _word(rng: Random, target: Target) -> str:
    return rng.choice(target.dictionary) if rng.random() < 0.7 else _text(rng)


@cache
def _commands() -> list[tuple[tuple[str, ...], click.Command]]:
    found = []
    context = click.Context(main, **main.context_settings)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        if name not in _NOT_FUZZED:
            found.append(((name,), command))
        if isinstance(command, click.Group):
            inner = click.Context(command, parent=context)
            for verb in command.list_commands(inner):
                below = command.get_command(inner, verb)
                assert below is not None
                found.append(((name, verb), below))
    return found


def _command_words() -> list[str]:
    options = {o for _, c in _commands() for p in c.params for o in p.opts}
    files = [str(p) for p in available().values()]
    return [
        *(name for path, _ in _commands() for name in path),
        *(o for o in options if o.startswith("-")),
        *("X", "y", "1", "3", "0", "tcp://127.0.0.1:9", "--", "-", "-h"),
        *("leak", "memory:critical", "0 3 * * *", "UTC", "xgboost", "lightgbm"),
        *(*checks.available(), *libraries.available(), *files, __file__, "/", "."),
    ]


# --- the history ----------------------------------------------------------------------


def _read_history(data: bytes) -> None:
    """Read a history of any bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        path.write_bytes(data)
        for form in ("text", "json"):
            command = ["history", "--path", str(path), "-f", form]
            result = CliRunner().invoke(main, command, catch_exceptions=False)
            assert result.exit_code == 0
            assert "\x1b" not in result.output


def _histories() -> list[bytes]:
    own = [
        history.Record(
            call="fit", label="j", began=1e9 + i, seconds=10.0 / n, status="done",
            workers=n, threads=n, hosts=1, rows=1000, columns=3, nbytes=10**6,
            partitions=4, workload="xgboost", findings=(("warning", "uneven_rows"),),
            steps=("rebalance",), predicted_peak=2**29, peak=2**29, limit=2**30,
            moved_bytes=5, predicted_bytes=6, spilled=0, busy=1.5,
        )
        for i, n in enumerate((1, 2, 4, 2, 8))
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        for record in own:
            history.append(record, path)
        whole = path.read_bytes()
        return [whole, whole.splitlines()[-1]]


def _draw_history(rng: Random, target: Target) -> bytes:
    """Change the bytes of a history, or the records in it."""
    if rng.random() < 0.3:
        return mutations.text(rng, target.seeds[0], target.seeds, target.dictionary)
    rows = [parsed(line) for line in target.seeds[0].splitlines()]
    changed = tree(rng, rows, target.dictionary)
    lines = changed if isinstance(changed, list) else [changed]
    return b"\n".join(dumped(line) for line in lines)


def _history_words() -> list[str]:
    return list(history.Record.__dataclass_fields__)


# --- small texts ----------------------------------------------------------------------


def _read_cron(data: bytes) -> None:
    text = data.decode(errors="replace")
    cron, _, name = text.partition("|")
    zone = triggers.zone(name or "UTC")
    for start in (1_700_000_000.0, 1_743_000_000.0):
        triggers.cron_times(cron, zone, start, start + 3e5)


def _read_argument(data: bytes) -> None:
    """Parse a text, and its JSON value, as each kind of argument."""
    text = data.decode(errors="replace")
    values: list[Any] = [text]
    try:
        values.append(json.loads(text))
    except (ValueError, RecursionError):
        values.append(text.split(","))
    for value in values:
        for read in (
            *(r for readers in reading.ACTIONS.values() for r in readers.values()),
            arguments.workers_wanted,
            arguments.restarting,
            arguments.part,
        ):
            _tolerant(lambda r=read, v=value: r("given", v), (ValueError,))


_NO_WORDS: tuple[str, ...] = ("a", "0", "*")
TARGETS: Mapping[str, Target] = {
    t.name: t
    for t in (
        Target("playbooks", _read_playbook, (PlaybookError,), _playbooks,
            _playbook_words, _as_tree, 0.03),
        Target("reports", _read_report, (ValueError,), _reports, _report_words,
            _as_tree, 0.2),
        Target("config", _read_config, (), _configs, _config_words, _as_tree, 0.03),
        Target("arguments", _read_arguments, (), lambda: [b'["check"]'],
            _command_words, _draw_arguments, 0.03),
        Target("history", _read_history, (), _histories, _history_words,
            _draw_history, 0.02),
        Target("cron", _read_cron, (ValueError,),
            lambda: [b"0 3 * * *|UTC", b"*/15 2-5 1,15 JAN-DEC MON#1|Europe/Berlin",
                b"0 0 L * *|", b"30 2 29 2 SUN"],
            lambda: ["*", "/", "-", ",", "#", "L", "W", "MON", "FEB", "60", "UTC"],
            _as_text, 0.15),
        Target("values", _read_argument, (),
            lambda: [b"2 GiB", b"10 minutes", b"25%", b'{"A": "b"}', b"[1, 2]", b"0.5",
                b'"float32"', b"true"],
            lambda: ["GiB", "minutes", "s", "%", "e", "-", ".", "kB", "ns", "days"],
            _as_text, 0.28),
    )
}  # fmt: skip
