"""Describe the data in memory: who wants it, and what a step would lose (pure)."""

from __future__ import annotations

from collections.abc import Collection

from clustertune.core.model import Holding, View
from clustertune.core.wording import bytes_text, names_text, plural


def divided_names(view: View, prefix: str, together: Collection[str]) -> str:
    """Published names that hold keys of a prefix and keys that are to stay; or nothing.

    The name would go, and what only the name holds with it.
    """
    holdings = view.now.holdings or ()
    names = {n for h in holdings if h.prefix == prefix and h.keys for n in h.published}
    for name in sorted(names):
        other = {h.prefix for h in holdings if h.keys and name in h.published}
        staying = sorted(other - {prefix, *together})
        if staying:
            return (
                f"the published {names_text([name])} also holds {names_text(staying)}, "
                "which would be lost with the name. Give these prefixes, too, or run "
                f"client.unpublish_dataset({name!r}) first"
            )
    return ""


def nbytes_text(holdings: Collection[Holding]) -> str:
    """Their bytes in words."""
    return bytes_text(sum(h.nbytes for h in holdings))


def whose(holdings: Collection[Holding]) -> str:
    """Who else wants them, in words that follow "which"."""
    clients = sorted({c for h in holdings for c in h.others})
    published = sorted({n for h in holdings for n in h.published})
    named = {s for h in holdings for s in h.shared if s[0] != "published"}
    others = sorted(f"{kind} {name}" for kind, name in named)
    parts = [f"other clients want ({names_text(clients)})"] if clients else []
    parts += [f"are published as {names_text(published)}"] if published else []
    parts += [f"are shared by {names_text(others)}"] if others else []
    return " and ".join(parts) or "no client has asked for by name"


def at_risk(holdings: tuple[Holding, ...]) -> str:
    """What will be lost, in words."""
    holdings = tuple(h for h in holdings if h.keys)
    if not holdings:
        return "nothing: no data is in memory"
    most = sorted(holdings, key=lambda h: -h.nbytes)
    prefixes = list(dict.fromkeys(h.prefix for h in most if h.prefix))
    text = (
        f"{plural(sum(h.keys for h in holdings), 'key')} ({nbytes_text(holdings)}), "
        f"named {names_text(prefixes, most=5)}"
    )
    scattered = sum(h.scattered for h in holdings)
    text += f"; {scattered:,} of them were scattered" if scattered else ""
    others = [h for h in holdings if not h.alone]
    text += f"; {nbytes_text(others)} are those which {whose(others)}" if others else ""
    names = sorted({n for h in holdings for n in h.published})
    if names:
        text += f"; the published {names_text(names, most=5)} will be unpublished"
    return text
