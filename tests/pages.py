"""Blocks of code and commands on the pages of the documentation."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    if "generated" not in path.parts
}
_FENCED = re.compile(
    r"^ *(?P<fence>```+)(?P<language>[^\n]*)\n(?P<code>.*?)^ *(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"<!-- ([^\n]*) -->\n *\Z")
_INDENTED = re.compile(r"^ {4}(clustertune .*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of code."""

    line: int
    language: str
    code: str
    mark: str = ""  # the comment above it: "what: name", or "not run: why"


def blocks(text: str) -> Iterator[Block]:
    """Return the fenced blocks of a page."""
    for found in _FENCED.finditer(text):
        comment = _COMMENT.search(text[: found.start()])
        yield Block(
            line=text[: found.start()].count("\n") + 1,
            language=found["language"].strip(),
            code=textwrap.dedent(found["code"]),
            mark=comment[1] if comment else "",
        )


def commands(text: str) -> Iterator[tuple[list[str], bool]]:
    """Return the commands of a page as words, and whether they run."""
    indented = _INDENTED.finditer(_FENCED.sub(_blank, text))
    found = [(match.start(), match[1], True) for match in indented]
    for match in _FENCED.finditer(text):
        if match["language"] in ("sh", "shell"):
            comment = _COMMENT.search(text[: match.start()])
            runs = comment is None
            code = match["code"].replace("\\\n", " ")
            found += [(match.start(), x.strip(), runs) for x in code.splitlines()]
    for _, line, runs in sorted(found, key=lambda x: x[0]):
        # a remark or a redirection may follow
        command = re.split(r" {3,}| > ", line.replace("[OPTIONS]", ""))[0]
        words = shlex.split(re.sub(r"[][]", "", command), comments=True)
        if words:
            yield words, runs


def _blank(match: re.Match[str]) -> str:
    """Replace all characters but line breaks."""
    return re.sub(r"[^\n]", " ", match[0])
