"""Where a word is in the documentation: lines of the pages, and public names with their first sentences."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator

from duoln.cli import api, help
from duoln.core.arguments import did_you_mean
from duoln.errors import UsageError

_ISE = re.compile(r"(?<=i)[sz](?=e|ing|ation)", re.IGNORECASE)
"""The letter in which two spellings of English differ: optimiser and optimizer."""
_LINES = 3
"""The most lines of a page."""


def search(words: str, width: int) -> Iterator[str]:
    """Lines that say where some words are, with the commands that show more; each ends at `width`, which 0 leaves open.

    Case does not count, nor a plural, nor z for s in "normalise". A public name may also hold the words in another one,
    as LayerNorm does.

    Raises:
        UsageError: they are nowhere; the message proposes a page or a name that is near.
    """
    parts = [_ISE.sub("[sz]", re.escape(part)) for part in re.split(r"[\s_-]+", words) if part]
    word = re.compile(rf"(?<![a-z0-9]){'[ _-]?'.join(parts)}(?:e?s)?(?![a-z0-9])", re.IGNORECASE)
    in_pages = [(topic, line) for topic in help.topics() for line in _lines(help.page(topic), word)] if parts else []
    names = {name: api.first_sentence(inspect.getdoc(value)) for name, value in _public()}
    inside = re.compile("".join(parts), re.IGNORECASE)
    in_names = [(name, text) for name, text in names.items()
                if parts and (inside.search(name.replace("_", "")) or word.search(text))]
    if not in_pages and not in_names:
        known = [*help.topics(), *(name.rpartition(".")[2] for name in names)]
        raise UsageError(f"[help] expected a page, a public name or words in them, found {words!r}"
                         f"{did_you_mean(words, known)}; `duoln help` lists the pages")
    for heading, rows in (("pages: duoln help PAGE", in_pages), ("public names: duoln help api NAME", in_names)):
        if rows:
            yield heading
            column = max(len(name) for name, _ in rows)
            yield from (api.cut(f"  {name:<{column}}  {text}".rstrip(), width) for name, text in rows)


def _lines(page: str, word: re.Pattern[str]) -> list[str]:
    """The first lines of a page with a word, its headings before others."""
    lines = [line.strip() for line in help.for_a_terminal(page).splitlines() if word.search(line)]
    return [line.lstrip("# ") for line in sorted(lines, key=lambda line: not line.startswith("#"))][:_LINES]


def _public() -> Iterator[tuple[str, object]]:
    seen: set[int] = set()
    for module in map(importlib.import_module, api.MODULES):
        for name in api.public_names(module):
            value = getattr(module, name)
            if id(value) not in seen:
                seen.add(id(value))
                yield f"{module.__name__}.{name}".removeprefix("duoln."), value
