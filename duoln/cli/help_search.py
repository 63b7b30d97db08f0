"""Searches the documentation for words: lines of the pages, and public names with their first sentences."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType

from duoln.cli import help
from duoln.core.arguments import did_you_mean
from duoln.errors import UsageError

MODULES = ("duoln", "duoln.nn", "duoln.nn.init", "duoln.ops", "duoln.optim", "duoln.data", "duoln.tasks",
           "duoln.extend", "duoln.testing", "duoln.training.train", "duoln.training.summary",
           "duoln.training.rate_test", "duoln.runtime", "duoln.errors",
           "duoln.randomness", "duoln.tree")
"""The modules whose names are public."""

_NEEDS_A_DEVICE = {"duoln.extend.cuda", "duoln.extend.metal"}
_ISE = re.compile(r"(?<=i)[sz](?=e|ing|ation)", re.IGNORECASE)
"""The letter in which two spellings of English differ: optimiser and optimizer."""
_LINES = 3
"""The most lines of a page."""


def public_names(module: ModuleType) -> list[str]:
    """The names that a module offers, without other modules, and without those that need the library of a device."""
    own = [name for name, value in vars(module).items()
           if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__]
    return [name for name in getattr(module, "__all__", own)
            if f"{module.__name__}.{name}" not in _NEEDS_A_DEVICE and not inspect.ismodule(getattr(module, name))]


def search(words: str, width: int) -> Iterator[str]:
    """Lines that say where some words are, with the commands that show more; each ends at `width`, which 0 leaves open.

    Case does not count, nor a plural, nor z for s in "normalise". A public name may also hold the words in another one,
    as LayerNorm does.

    Raises:
        UsageError: they are nowhere; the message proposes a page or a name that is near.
    """
    parts = [_ISE.sub("[sz]", re.escape(part)) for part in re.split(r"[\s_-]+", words.removeprefix("duoln."))
             if re.search(r"\w", part)]
    word = re.compile(rf"(?<![a-z0-9]){'[ _-]?'.join(parts)}(?:e?s)?(?![a-z0-9])", re.IGNORECASE)
    in_pages = [(topic, line) for topic in help.topics() for line in _lines(help.page(topic), word)] if parts else []
    names = {name: help.first_sentence(inspect.getdoc(value)) for name, value in _public()}
    inside = re.compile("".join(parts), re.IGNORECASE)
    in_names = [(name, text) for name, text in names.items()
                if parts and (inside.search(name.replace("_", "")) or word.search(text))]
    if not in_pages and not in_names:
        known = [*help.topics(), *(name.rpartition(".")[2] for name in names)]
        raise UsageError(f"[help] expected a page, a public name or words in them, found {words!r}"
                         f"{did_you_mean(words, known)}; `duoln help` lists the pages")
    for heading, rows in (("pages: duoln help PAGE", in_pages), ("public names: python -m pydoc duoln.NAME", in_names)):
        if rows:
            yield heading
            column = max(len(name) for name, _ in rows)
            yield from (_cut(f"  {name:<{column}}  {text}".rstrip(), width) for name, text in rows)


def _cut(line: str, width: int) -> str:
    return line if not width or len(line) <= width else f"{line[:width - 4].rstrip()} ..."


def _lines(page: str, word: re.Pattern[str]) -> list[str]:
    """The first lines of a page with a word, its headings before others."""
    lines = [line.strip() for line in help.for_a_terminal(page).splitlines() if word.search(line)]
    return [line.lstrip("# ") for line in sorted(lines, key=lambda line: not line.startswith("#"))][:_LINES]


def _public() -> Iterator[tuple[str, object]]:
    seen: set[int] = set()
    for module in map(importlib.import_module, MODULES):
        for name in public_names(module):
            value = getattr(module, name)
            if id(value) not in seen:
                seen.add(id(value))
                yield f"{module.__name__}.{name}".removeprefix("duoln."), value
