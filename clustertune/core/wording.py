"""Format bytes, seconds, counts and names for messages.

Dask's ``format_bytes`` and ``format_time`` are not used: they show more digits than a
message needs (``1.50 GiB``, ``3m 2s``) and mix decimal with binary prefixes.

Anyone who can start a worker can choose its name. So unprintable characters of names
(escape sequences, line breaks, changes of the text direction) are shown as codes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone, tzinfo
from difflib import get_close_matches
from typing import Any

Literal = str | int | bool | tuple[str | int, ...]

_MAX_NAME_LENGTH = 60
MAX_PATH = 300  # characters of a path in a message


def bytes_text(n: float) -> str:
    """Format bytes with a binary prefix: ``1.5 GiB``."""
    sign, n = ("-" if n < 0 else ""), abs(n)
    if n < 1024:
        return f"{sign}{n:.0f} B"
    for prefix in "KMGTPE":
        n /= 1024
        # from 1023.95 on, one decimal would round up to 1024.0
        if n < 1023.95 or prefix == "E":
            break
    return f"{sign}{n:.1f} {prefix}iB"


def seconds_text(s: float) -> str:
    """Format a duration with a suitable unit: ``0.25 s``, ``12 s``, ``3 min``."""
    if s < 9.95:
        return f"{s:.2g} s"
    if s < 99.5:
        return f"{s:.0f} s"
    if s < 99.5 * 60:
        return f"{s / 60:.0f} min"
    return f"{s / 3600:.3g} h"


def time_text(when: float, tz: tzinfo | None = None, *, unit: str = "seconds") -> str:
    """Format epoch seconds in a zone (by default the local one) and in UTC.

    ``2026-03-29 03:00:00 CEST (01:00:00 UTC)``. UTC has a date only if it differs.
    ``unit`` is that of ``datetime.isoformat``.
    """
    utc = datetime.fromtimestamp(when, timezone.utc)
    local = utc.astimezone(tz)
    shown = f"{local.replace(tzinfo=None).isoformat(' ', unit)} {local:%Z}"
    if shown.endswith(" UTC"):
        return shown
    day, _, time = utc.replace(tzinfo=None).isoformat(" ", unit).partition(" ")
    return f"{shown} ({time if shown.startswith(day) else f'{day} {time}'} UTC)"


def utc_text(when: float) -> str:
    """Format epoch seconds as ISO 8601 in UTC, for JSON: ``2026-03-29T01:00:00Z``."""
    return f"{datetime.fromtimestamp(when, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def rounds_text(fit: Mapping[str, Any]) -> str:
    """Format the progress of a fit, which the scheduler plugin lists."""
    total = "" if fit["rounds"] is None else f" of {fit['rounds']:,}"
    texts = [f"round {fit['round']:,}{total}"]
    texts += [fit["metric"]] if fit["metric"] else []
    texts += [f"{fit['rate']:.3g} rounds/s"] if fit["rate"] else []
    return ", ".join(texts)


def times_text(ratio: float) -> str:
    """Format a ratio with three digits: ``2 times``, ``1.06 times``."""
    return f"{ratio:.3g} times"


def plural(n: float, noun: str, nouns: str | None = None) -> str:
    """Format a count and its noun: ``1 key``, ``12,000 partitions``, ``3.5 CPUs``."""
    count = f"{int(n):,}" if n == int(n) else f"{n:.3g}"
    return f"{count} {noun if n == 1 else nouns or noun + 's'}"


def are(things: Collection[object]) -> str:
    """Return ``is`` for one thing, else ``are``."""
    return "is" if len(things) == 1 else "are"


def verb(things: Collection[object], singular: str) -> str:
    """Return the verb for this number of things: ``holds``, ``hold``; ``has``."""
    if len(things) == 1:
        return singular
    return {"has": "have", "is": "are"}.get(singular, singular.removesuffix("s"))


def printable(text: str | int, *, longest: int | None = None) -> str:
    """Escape untrusted text for a terminal, and cut it to ``longest`` characters."""
    whole = str(text)
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode()
        for c in whole[:longest]
    )
    return safe if longest is None or len(whole) <= longest else f"{safe}..."


def code(value: Literal) -> str:
    """Return the Python code of a value, which may have untrusted text."""
    if isinstance(value, str):
        # the escapes of JSON for rare characters, such as emojis, are not Python's
        return printable(json.dumps(value, ensure_ascii=False))
    if isinstance(value, bool | int):
        return str(value)
    return f"[{', '.join(map(code, value))}]"


def names_text(
    names: Sequence[str | int], *, most: int = 3, longest: int = _MAX_NAME_LENGTH
) -> str:
    """Format untrusted names: ``a, b and c``, ``a, b, c and 7 more``."""
    shown = [printable(name, longest=longest) for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most:,} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def partitions_text(files: Mapping[int, str]) -> str:
    """Format numbers of partitions, and the file of each; an empty one is unknown.

    ``partition 3 (/data/c.csv)``, ``partitions 1 and 2 (/data/a.csv and /data/b.csv)``.
    """
    text = f"partition{'s' * (len(files) > 1)} {names_text([*files], most=10)}"
    known = list(dict.fromkeys(filter(None, files.values())))
    return f"{text} ({names_text(known, longest=MAX_PATH)})" if known else text


def near(word: str, known: Iterable[str]) -> str:
    """Return the most similar known word, like `` (did you mean memory?)``, or ""."""
    found = get_close_matches(word[:_MAX_NAME_LENGTH], list(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def workers_text(ids: Sequence[str | int]) -> str:
    """Format ids of workers: ``worker 3``, ``workers 0, 1, 2 and 7 more``."""
    return (
        f"worker{'' if len(ids) == 1 else 's'} {names_text(sorted(ids, key=natural))}"
    )


def natural(name: str | int) -> list[tuple[bool, int, str]]:
    """Return the key of an order in which ``w2`` is before ``w10``."""
    parts = re.split(r"([0-9]+)", str(name))
    return [(not x.isdecimal(), int(x) if x.isdecimal() else 0, x) for x in parts if x]


def variable(label: str) -> str:
    """Return the user's name of a collection: ``X`` for ``eval_set[0].X``."""
    return label.rpartition(".")[2]


def message(error: BaseException) -> str:
    """Return the message of an error.

    An error that another process has sent may have its arguments only, such as
    ``UnicodeDecodeError``, whose text is empty then.
    """
    return str(error) or ", ".join(map(str, error.args))


def reading_fix(error: str) -> str:
    """How to read the files of a partition with this error; "": it is unknown."""
    if "UnicodeDecodeError" in error:
        return 'Read files of another encoding with `encoding=`, such as "cp1252"'
    if "EmptyDataError" in error:
        return "Leave out files of 0 bytes, such as with `if path.stat().st_size`"
    if "ParserError" in error:
        return "Read files with another separator with `sep=`"
    if "KeyError" not in error:
        return ""
    return (
        "If files lack columns, read them with `frame = dd.from_map(lambda file: "
        "pd.read_parquet(file).reindex(columns=columns), files)`, which leaves these "
        "values missing"
    )
