"""Almost valid inputs: typing errors and extreme values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

#: values and texts that often break programs
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3.5, -0.0, 1e-320, 1e308, -1e308, 2**31, 2**63),
    *(10**19, 10**30, 10**320, float("inf"), float("-inf"), float("nan")),
    *("", " ", "\n", "\0", "\t", "0", "-1", "1e999", "nan", "inf", "-inf", "9" * 400),
    *("ä", "\u202e", "😀", "\ud800", "\x1b[2J", "<script>", "%s%n", "{}", "{0}", "'"),
    *(
        "200,000",
        "1_000",
        "1e5",
        "2 GiB",
        "-5s",
        "1e30 weeks",
        "10 minutes",
        "25%",
        "101%",
        "%",
        "nan%",
        "inf%",
    ),
    *("../../etc/passwd", "~root/x", "null", "true", "!!python/none", "&a", "*a"),
    *("auto", "fit", "named", "given", "array", "float32", "O", "V9", "i8,f4", "M8[Y]"),
    *([], {}, [[]], [None], {"": None}, {"x": {"y": [0]}}),
)
DEEPEST = 12  # levels below which nothing is changed
TEXTS = tuple(x for x in ODD if isinstance(x, str))


def odd(rng: Random) -> Any:
    """Draw an unexpected value, a deep one, or a long one."""
    chance = rng.random()
    if chance < 0.02:
        deep: Any = 0
        for _ in range(rng.choice((9, 40, 2000))):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        return deep
    if chance < 0.04:
        return rng.choice(("a", "[", "1", " ", "é")) * rng.choice((100, 5000))
    if chance < 0.1:
        return rng.uniform(-10, 10) * 10 ** rng.randint(-5, 25)
    return rng.choice(ODD)


def tree(rng: Random, data: Any, words: Sequence[str]) -> Any:
    """Change a few places of nested data."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        path = rng.choice(list(paths(data)))
        data = put(data, path, _changed(rng, at(data, path), words))
    return data


def paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested data, as the path of keys to it."""
    yield path
    if len(path) > DEEPEST:
        return
    if isinstance(data, dict):
        for key, value in data.items():
            yield from paths(value, (*path, key))
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from paths(value, (*path, i))


def at(data: Any, path: tuple[Any, ...]) -> Any:
    """The value at a place."""
    for key in path:
        data = data[key]
    return data


def put(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The data with another value at a place."""
    if not path:
        return value
    first, *rest = path
    inner = put(data[first], tuple(rest), value)
    if isinstance(data, dict):
        return {**data, first: inner}
    return [*data[:first], inner, *data[first + 1 :]]


def _changed(rng: Random, data: Any, words: Sequence[str]) -> Any:
    if isinstance(data, dict) and data and rng.random() < 0.6:
        return _changed_mapping(rng, data, words)
    if isinstance(data, list) and data and rng.random() < 0.6:
        return _changed_list(rng, data, words)
    if isinstance(data, (int, float)) and rng.random() < 0.4:
        return _changed_number(rng, data)
    return _other(rng, words)


def _changed_mapping(rng: Random, data: dict[str, Any], words: Any) -> Any:
    """Remove a key, rename it, or replace its value."""
    key, how = rng.choice(list(data)), rng.random()
    if how < 0.33:
        return {k: v for k, v in data.items() if k != key}
    if how < 0.5:
        return {(rng.choice(words) if k == key else k): v for k, v in data.items()}
    return {**data, rng.choice((key, *words)): _other(rng, words)}


def _changed_list(rng: Random, data: list[Any], words: Any) -> Any:
    """Remove an item, repeat it, or insert another one."""
    i, how = rng.randrange(len(data)), rng.random()
    if how < 0.33:
        return data[:i] + data[i + 1 :]
    return [*data[:i], data[i] if how < 0.6 else _other(rng, words), *data[i:]]


def _changed_number(rng: Random, number: float) -> Any:
    factor = rng.choice((-1, 0, 2, 1e9, 1e18, 1e-9, 1e300))
    if rng.random() >= 0.7:
        return str(number)
    try:
        return number * factor
    except OverflowError:  # an int too large for a float
        return -number


def _other(rng: Random, words: Sequence[str]) -> Any:
    return rng.choice(words) if rng.random() < 0.4 else odd(rng)


def text(rng: Random, data: bytes, others: Sequence[bytes], words: Any) -> bytes:
    """Change a few places of a text."""
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        data = _MUTATIONS[rng.randrange(len(_MUTATIONS))](rng, data, others, words)
    return data


def _flip(rng: Random, data: bytes, *_: Any) -> bytes:
    if not data:
        return b"\xff"
    i = rng.randrange(len(data))
    return data[:i] + bytes([data[i] ^ (1 << rng.randrange(8))]) + data[i + 1 :]


def _cut(rng: Random, data: bytes, *_: Any) -> bytes:
    a, b = sorted(rng.randint(0, len(data)) for _ in range(2))
    return data[:a] + data[b:]


def _end(rng: Random, data: bytes, *_: Any) -> bytes:
    return data[: rng.randint(0, len(data))]


def _repeat(rng: Random, data: bytes, *_: Any) -> bytes:
    a, b = sorted(rng.randint(0, len(data)) for _ in range(2))
    part = data[a : min(b, a + 200)]
    return data[:a] + part * rng.choice((2, 2, 20)) + data[a:]


def _insert(rng: Random, data: bytes, _: Any, words: Sequence[str]) -> bytes:
    i = rng.randint(0, len(data))
    word = rng.choice((*words, *TEXTS)).encode(errors="surrogatepass")
    return data[:i] + word + data[i:]


def _token(rng: Random, data: bytes, _: Any, words: Sequence[str]) -> bytes:
    """Replace one word."""
    parts = data.split(b" ")
    word = rng.choice((*words, *TEXTS)).encode(errors="surrogatepass")
    parts[rng.randrange(len(parts))] = word
    return b" ".join(parts)


def _line(rng: Random, data: bytes, *_: Any) -> bytes:
    """Swap two lines, or indent one."""
    lines = data.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    if rng.random() < 0.5:
        lines[i], lines[j] = lines[j], lines[i]
    else:
        lines[i] = b" " * rng.randint(0, 6) + lines[i].lstrip()
    return b"\n".join(lines)


def _splice(rng: Random, data: bytes, others: Sequence[bytes], _: Any) -> bytes:
    other = rng.choice(others) if others else b""
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


_MUTATIONS = (_flip, _cut, _end, _repeat, _insert, _token, _line, _splice)


def dumped(data: Any) -> bytes:
    """Data as JSON, with infinity and nan as Python writes them."""
    try:
        return json.dumps(data).encode()
    except (RecursionError, ValueError):
        return b"[" * 3000
