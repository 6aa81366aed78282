"""Words that we do not use, links between pages, and numbers from benchmarks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.pages import DOCS, PAGES, ROOT, blocks

# --- words ----------------------------------------------------------------------------

UNUSED = re.compile(
    r"\b(whoever|nobody|somebody|anew|beside|lies|lets? go|in vain|without a word|"
    r"for ever|as it came|(is|are) said|be it|those that|what it (is|was)|"
    r"of its own)\b",
    re.IGNORECASE,
)
TEXTS = (".py", ".md", ".yaml", ".rst", ".html", ".js", ".css")


def _parts() -> Iterator[str]:
    """Return the README, and each folder with texts; a room for the package."""
    yield "README.md"
    for top in ("clustertune", "docs", "benchmarks", "playbooks", "tests"):
        yield top
        for folder in sorted((ROOT / top).iterdir()):
            if folder.is_dir() and folder.name not in ("__pycache__", "results"):
                yield f"{top}/{folder.name}"


def _files(part: str) -> list[Path]:
    """Return the texts of a part; subfolders have a part of their own at two levels."""
    path = ROOT / part
    if path.is_file():
        return [path]
    top_level = path.parent == ROOT
    found = path.glob("*") if top_level else path.rglob("*")
    texts = (p for p in found if p.suffix in TEXTS and "generated" not in p.parts)
    return sorted(p for p in texts if p != Path(__file__))


def _written(path: Path) -> str:
    """Return a file without the output of benchmarks, which is published as it is."""
    text = path.read_text()
    if path == DOCS / "benchmarks.md":
        text = re.sub(r"```text\n.*?```", _blank, text, flags=re.DOTALL)
    return text


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


@pytest.mark.parametrize("part", list(_parts()))
def test_unused_words(part: str) -> None:
    """Files have none of the words that readers would have to read twice."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r} in {line.strip()[:100]}"
        for path in _files(part)
        for number, line in enumerate(_written(path).splitlines(), 1)
        for match in UNUSED.finditer(line)
    ]
    assert not found, "\n".join(found)


def test_unused_words_are_found() -> None:
    """The test above can fail, and reads each source of the package once."""
    assert UNUSED.search("Nobody is asked.")
    assert UNUSED.search("the data lies there")
    assert not UNUSED.search("a family of lists, and let it go on")
    read = [path for part in _parts() for path in _files(part)]
    assert len(read) == len(set(read))
    sources = set((ROOT / "clustertune").rglob("*.py"))
    assert sources <= set(read)


# --- links ----------------------------------------------------------------------------

_LINK = re.compile(r"\]\(([^()\s]+)\)")
_WEB = ("http://", "https://", "mailto:")


class Link(NamedTuple):
    """A relative link of a page."""

    line: int
    target: str


def _links(page: str) -> Iterator[Link]:
    text = re.sub(r"```.*?```", _blank, PAGES[page].read_text(), flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), 1):
        for found in _LINK.finditer(line):
            if not found[1].startswith(_WEB):
                yield Link(number, found[1])


@cache
def _anchors(path: Path) -> frozenset[str]:
    """Return the targets of a page: headings as GitHub names them, and ``(name)=``."""
    text = re.sub(r"```.*?```", _blank, path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*?)\s*$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
    return frozenset(slugs) | set(re.findall(r"^\((\S+)\)=$", text, re.MULTILINE))


def _broken(page: str, link: Link) -> str:
    """Return what is wrong with a link, or an empty text."""
    file, _, anchor = link.target.partition("#")
    path = (PAGES[page].parent / file).resolve() if file else PAGES[page]
    where = f"{page}:{link.line}: {link.target}"
    if not path.exists():
        return f"{where}: there is no such file"
    if anchor and path.suffix == ".md" and anchor not in _anchors(path):
        return f"{where}: there is no such heading"
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages(page: str) -> None:
    """Each relative link leads to a file, and to a heading of it."""
    broken = [text for link in _links(page) if (text := _broken(page, link))]
    assert not broken, "\n".join(broken)


def test_broken_links_are_found() -> None:
    """The test above can fail."""
    page = "docs/workers.md"
    assert "no such file" in _broken(page, Link(1, "nothing.md"))
    assert "no such heading" in _broken(page, Link(1, "checks.md#nothing"))
    assert not _broken(page, Link(1, "#cluster-managers"))
    assert not _broken(page, Link(1, "benchmarks.md#restart"))


# --- numbers --------------------------------------------------------------------------

#: a figure of a benchmark: a number with a unit, a ratio, an interval, a count of runs
_FIGURE = re.compile(
    r"(?<![\w.])(\d+(?:\.\d+)?)(?= (?:s|ms|MB)\b| times\b| to \d|%| of \d+ peaks)"
    r"|(?<=interval of )(\d+\.\d+)|(?<= to )(\d+\.\d+)"
)
_SOURCE = re.compile(r"benchmarks\.md#([\w-]+)\)")
GENERATED = {"docs/benchmarks.md", "docs/workloads.md"}


def _section(name: str) -> str:
    """Return the section of a benchmark, and its raw output."""
    text = (DOCS / "benchmarks.md").read_text()
    begin = text.index(f"\n({name})=\n")
    end = text.find("\n(", begin + 2)
    result = ROOT / "benchmarks" / "results" / f"{name}.json"
    output = json.loads(result.read_text())["output"] if result.exists() else ""
    return text[begin : end if end > 0 else None] + output


def _has(section: str, figure: str) -> bool:
    """Return whether a section has a number that rounds to the figure."""
    places = len(figure.partition(".")[2])
    numbers = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]\d+)?", section)
    return any(f"{float(n):.{places}f}" == figure for n in numbers)


def _unsourced(page: str) -> Iterator[str]:
    text = re.sub(r"```.*?```", _blank, PAGES[page].read_text(), flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=[-|] ?)", text):
        named = _SOURCE.findall(paragraph)
        if not named:
            continue
        sections = "".join(map(_section, named))
        for groups in _FIGURE.findall(paragraph):
            figure = next(filter(None, groups))
            if not _has(sections, figure):
                yield f"{page}: {figure} is no result of {', '.join(named)}"


@pytest.mark.parametrize("page", sorted(PAGES.keys() - GENERATED))
def test_numbers_are_results_of_the_named_benchmarks(page: str) -> None:
    """A paragraph that links to a benchmark has only figures of that benchmark."""
    wrong = list(_unsourced(page))
    assert not wrong, "\n".join(wrong)


def test_blocks_in_all_languages_end() -> None:
    """An open fence would hide the rest of a page from these tests."""
    for page, path in PAGES.items():
        text = path.read_text()
        fences = len(re.findall(r"^ *```", text, re.MULTILINE))
        assert fences == 2 * len(list(blocks(text))), page
