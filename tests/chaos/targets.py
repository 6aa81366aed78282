"""The parsers of clustertune, each as a function of bytes, and random inputs for them.

A target lists the errors that its parser may raise: callers show them as one line. Any
other error, more CPU time or more memory than the limits is a finding.
"""

from __future__ import annotations

import json
import os
import re
import resource
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

import click
import dask
import numpy as np
import psutil
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from clustertune import checks, preload
from clustertune.cli import main, running
from clustertune.core import arguments, settings
from clustertune.core.model import Finding, LayoutSummary, Severity, WorkerShare
from clustertune.core.report import Report
from clustertune.core.results import Done
from clustertune.core.sections import headlines
from clustertune.integrations import libraries
from clustertune.operations import history, schedules
from clustertune.operations.playbooks import reading
from clustertune.operations.playbooks.reading import PlaybookError

CORPUS = Path(__file__).parents[1] / "corpus"
#: seconds of CPU for one input: nested YAML takes 1 s, and an endless loop more
SLOW = 20.0
MEMORY = 6 * 2**30  # bytes by which the address space of the process may grow


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
    words
        Words of the format.
    inputs
        Makes the strategy that draws random inputs.
    """

    name: str
    read: Callable[[bytes], object]
    allowed: tuple[type[BaseException], ...]
    starts: Callable[[], Sequence[bytes]]
    words: Callable[[], Sequence[str]]
    inputs: Callable[[Target], st.SearchStrategy[bytes]]

    @cached_property
    def seeds(self) -> tuple[bytes, ...]:
        """Valid inputs, and inputs of earlier findings."""
        kept = sorted((CORPUS / self.name).glob("*"))
        return (*self.starts(), *(p.read_bytes() for p in kept))

    @cached_property
    def dictionary(self) -> tuple[str, ...]:
        return tuple(self.words())


def attempt(target: Target, data: bytes) -> bool:
    """Read one input; whether it was refused with an allowed error."""
    begin = process_time()
    with _limited_memory(), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            target.read(data)
        except target.allowed:
            return True
    took = process_time() - begin
    assert took < SLOW, f"{target.name} took {took:.1f} s for {len(data):,} bytes"
    return False


@contextmanager
def _limited_memory() -> Iterator[None]:
    most = resource.getrlimit(resource.RLIMIT_AS)
    there = psutil.Process().memory_info().vms  # tests before have added to it
    resource.setrlimit(resource.RLIMIT_AS, (there + MEMORY, most[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, most)


def fuzz(target: Target, inputs: int, *, same: bool) -> None:
    """Read so many random inputs, the same ones each time or others; raise findings."""

    @hypothesis_settings(
        max_examples=inputs,
        derandomize=same,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate]
        if same
        else list(Phase),  # a test needs no smallest one
    )
    @given(data=target.inputs(target))
    def read(data: bytes) -> None:
        attempt(target, data)

    read()


# --- how inputs are made --------------------------------------------------------------

#: values and texts that often break programs
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3.5, -0.0, 1e-320, 1e308, -1e308, 2**31, 2**63),
    *(10**19, 10**30, 10**320, float("inf"), float("-inf"), float("nan")),
    *("", " ", "\n", "\0", "\t", "0", "-1", "1e999", "nan", "inf", "-inf", "9" * 400),
    *("ä", "\u202e", "😀", "\ud800", "\x1b[2J", "<script>", "%s%n", "{}", "{0}", "'"),
    *("200,000", "1_000", "1e5", "2 GiB", "-5s", "1e30 weeks", "10 minutes", "25%"),
    *("101%", "%", "nan%", "inf%", "../../etc/passwd", "~root/x", "null", "true"),
    *("!!python/none", "&a", "*a", "auto", "fit", "named", "given", "array", "float32"),
    *("O", "V9", "i8,f4", "M8[Y]", "a" * 5000, "[" * 5000),
    *([], {}, [[]], [None], {"": None}, {"x": {"y": [0]}}),
)
DEEPEST = 12  # levels below which nothing is changed


def _deep(depth: int) -> Any:
    """Return a list in lists."""
    deep: Any = 0
    for _ in range(depth):
        deep = [deep]
    return deep


def _values(words: Sequence[str]) -> st.SearchStrategy[Any]:
    """Draw odd values, words of the format, and nested data of both."""
    known = st.sampled_from(words)
    leaves = st.sampled_from(ODD) | known | st.floats() | st.integers() | st.text()
    nested = st.recursive(
        leaves,
        lambda x: st.lists(x, max_size=4) | st.dictionaries(known, x, max_size=5),
        max_leaves=12,
    )
    return nested | st.sampled_from((9, 40, 2000)).map(_deep)


@st.composite
def _texts(draw: Any, target: Target) -> bytes:
    """Draw an input of which a few places are cut, repeated, or replaced."""
    data = draw(st.sampled_from(target.seeds))
    odd = tuple(x for x in ODD if isinstance(x, str))
    words = st.sampled_from((*target.dictionary, *odd)).map(
        lambda text: text.encode(errors="surrogatepass")
    )
    for _ in range(draw(st.integers(1, 4))):
        places = st.integers(0, len(data))
        begin, end = sorted((draw(places), draw(places)))
        part = data[begin : min(end, begin + 200)]
        copies = st.sampled_from((b"", part * 2, part * 20, part[::-1]))
        data = data[:begin] + draw(words | st.binary(max_size=9) | copies) + data[end:]
    return bytes(data)


@st.composite
def _trees(draw: Any, target: Target) -> bytes:
    """Draw an input of which a few values are replaced, renamed, or removed."""
    data = parsed(draw(st.sampled_from(target.starts())))
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(list(_paths(data))))
        data = _put(draw, data, path, target.dictionary)
    return dumped(data)


def _paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every place in nested data, as the path of keys to it."""
    yield path
    if len(path) > DEEPEST or not isinstance(data, dict | list):
        return
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield from _paths(value, (*path, key))


def _put(draw: Any, data: Any, path: tuple[Any, ...], words: Sequence[str]) -> Any:
    """Return the data with a changed value at a place."""
    if not path:
        return draw(_values(words))
    key, *inner = path
    how = draw(st.sampled_from(("replace", "remove", "more"))) if not inner else ""
    if isinstance(data, dict):
        if how in ("remove", "more"):  # the key gets another name
            value = {draw(st.sampled_from(words)): data[key]} if how == "more" else {}
            return {k: v for k, v in data.items() if k != key} | value
        return {**data, key: _put(draw, data[key], tuple(inner), words)}
    before, after = data[:key], data[key + 1 :]
    if how in ("remove", "more"):
        return before + (2 * [data[key]] if how == "more" else []) + after
    return [*before, _put(draw, data[key], tuple(inner), words), *after]


def _texts_or_trees(target: Target) -> st.SearchStrategy[bytes]:
    return _texts(target) | _trees(target)


@cache
def parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return yaml.safe_load(text)


def dumped(data: Any) -> bytes:
    """Return data as JSON, with infinity and nan as Python writes them."""
    try:
        return json.dumps(data).encode()
    except (RecursionError, ValueError):
        return b"[" * 3000


# --- playbooks ------------------------------------------------------------------------


def _read_playbook(data: bytes) -> None:
    """Load a playbook; its error has printable lines, each with the file's name."""
    try:
        steps = reading.load(data, "fuzz.yaml").steps
    except PlaybookError as error:
        lines = str(error).splitlines()
        assert all(line.startswith("fuzz.yaml") for line in lines)
        assert all(line.isprintable() for line in lines)
        raise
    for step in steps:
        assert str(step)


def _playbooks() -> list[bytes]:
    return [p.read_bytes() for p in reading.shipped().values()]


def _playbook_words() -> list[str]:
    known = [
        *("version", "name", "description", "steps", "limits", "on_failure"),
        *("check", "do", "when", "at_least", "holds", "with", "settle"),
        *reading.ARGUMENTS,
    ]
    return [
        *known,
        *reading.CALLS,
        *checks.available(),
        "info",
        "warning",
        "critical",
    ]


# --- reports --------------------------------------------------------------------------


def _read_report(data: bytes) -> None:
    """Read a report, show it without control characters, and read its JSON again."""
    report = Report.from_json(data.decode(errors="replace"))
    assert all(c.isprintable() or c == "\n" for c in str(report))
    assert 1 <= len(headlines(report)) <= 6
    assert report._repr_html_().startswith('<div class="clustertune">')
    again = Report.from_json(report.to_json())
    assert repr(asdict(again)) == repr(asdict(report))  # numbers keep their types


def _reports() -> list[bytes]:
    """A report with every kind of content."""
    step = Done(
        action="restart",
        summary="restart worker 0",
        status="planned",
        predicted_bytes=0,
        at_risk="",
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
    )
    return [report.to_json().encode()]


def _report_words() -> list[str]:
    kinds = (Report, Done, Finding, LayoutSummary, WorkerShare)
    return [n for kind in kinds for n in kind.__dataclass_fields__]


# --- configuration --------------------------------------------------------------------


def _read_config(data: bytes) -> None:
    """Read a file of Dask's configuration, or environment variables."""
    try:
        found = parsed(data)
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
            settings.history,
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
        "DASK_CLUSTERTUNE__CHECKS__STUCK_TASKS__MIN_SECONDS": "0.1",
    }
    return [dumped(own), dumped({"env": env}), yaml.safe_dump(own).encode()]


def _config_words() -> list[str]:
    known = checks.available()
    each = [k for c in known.values() for k in checks.settings_of(c)]
    return [*known, *each, "clustertune", "checks", "history", "label"]


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


@st.composite
def _arguments(draw: Any, target: Target) -> bytes:
    """Draw a command with some of its options, and other words."""
    path, command = draw(st.sampled_from(_commands()))
    words = list(path)
    odd = _values(target.dictionary).map(_argument)
    options = [p for p in command.params if isinstance(p, click.Option)]
    some = st.lists(st.sampled_from(options), max_size=4) if options else st.just([])
    for option in draw(some):
        words.append(draw(st.sampled_from((*option.opts, *option.secondary_opts))))
        if isinstance(option.type, click.Choice):
            words.append(draw(st.sampled_from([*map(str, option.type.choices), "a"])))
        elif isinstance(option.type, click.IntRange):
            words.append(draw(st.integers(-1, 10**30).map(str) | odd))
        elif not option.is_flag or draw(st.integers(0, 19)) == 0:
            words.append(draw(odd))
    more = st.lists(st.sampled_from(target.dictionary) | odd, max_size=2)
    words += draw(more)
    if draw(st.integers(0, 9)) == 0:
        words = draw(st.permutations(words))
    return json.dumps(words).encode()


def _argument(value: Any) -> str:
    """Return a value as bytes without a zero byte, in any encoding."""
    text = value if isinstance(value, str) else dumped(value).decode()
    return os.fsdecode(text.replace("\0", "").encode(errors="surrogatepass"))


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
    files = [str(p) for p in reading.shipped().values()]
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
            with dask.config.set({"clustertune.history.path": str(path)}):
                result = CliRunner().invoke(
                    main, ["history", "-f", form], catch_exceptions=False
                )
            assert result.exit_code == 0
            assert "\x1b" not in result.output


def _histories() -> list[bytes]:
    own = [
        history.Record(
            call="fit", label="j", began=1e9 + i, seconds=10.0 / n, status="done",
            workers=n, threads=n, hosts=1, rows=1000, columns=3, nbytes=10**6,
            partitions=4, workload="xgboost", predicted_peak=2**29, peak=2**29,
            limit=2**30, spilled=0, busy=1.5,
        )
        for i, n in enumerate((1, 2, 4, 2, 8))
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        for record in own:
            history.append(record, path)
        whole = path.read_bytes()
        return [whole, whole.splitlines()[-1]]


def _lines(target: Target) -> st.SearchStrategy[bytes]:
    """Change the bytes of a history, or the records in it."""
    last = target.starts()[-1]
    record = replace(target, starts=lambda: [last])
    trees = st.lists(_trees(record), min_size=1, max_size=5).map(b"\n".join)
    return _texts(target) | trees


def _history_words() -> list[str]:
    return list(history.Record.__dataclass_fields__)


# --- small texts ----------------------------------------------------------------------


def _read_cron(data: bytes) -> None:
    text = data.decode(errors="replace")
    cron, _, name = text.partition("|")
    zone = schedules.time_zone(name or "UTC")
    for start in (1_700_000_000.0, 1_743_000_000.0):
        schedules.cron_times(cron, zone, start, 3e5)


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
            *reading.ARGUMENTS.values(),
            arguments.workers_wanted,
            arguments.restarting,
            arguments.part,
        ):
            _tolerant(lambda r=read, v=value: r("given", v), (ValueError,))


TARGETS: Mapping[str, Target] = {
    t.name: t
    for t in (
        Target("playbooks", _read_playbook, (PlaybookError,), _playbooks,
            _playbook_words, _texts_or_trees),
        Target("reports", _read_report, (ValueError,), _reports, _report_words,
            _texts_or_trees),
        Target("config", _read_config, (), _configs, _config_words, _texts_or_trees),
        Target("arguments", _read_arguments, (), lambda: [b'["check"]'],
            _command_words, _arguments),
        Target("history", _read_history, (), _histories, _history_words, _lines),
        Target("cron", _read_cron, (ValueError,),
            lambda: [b"0 3 * * *|UTC", b"*/15 2-5 1,15 JAN-DEC MON#1|Europe/Berlin",
                b"0 0 L * *|", b"30 2 29 2 SUN"],
            lambda: ["*", "/", "-", ",", "#", "L", "W", "MON", "FEB", "60", "UTC"],
            _texts),
        Target("values", _read_argument, (),
            lambda: [b"2 GiB", b"10 minutes", b"25%", b'{"A": "b"}', b"[1, 2]", b"0.5",
                b'"float32"', b"true"],
            lambda: ["GiB", "minutes", "s", "%", "e", "-", ".", "kB", "ns", "days"],
            _texts),
    )
}  # fmt: skip
