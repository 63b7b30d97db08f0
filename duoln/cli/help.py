"""`duoln help`: the pages of the documentation in the terminal, and a search for words in them and in public names."""

from __future__ import annotations

import argparse
import importlib
import inspect
import posixpath
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from types import ModuleType
from typing import Any

from duoln.cli import console
from duoln.core.arguments import did_you_mean
from duoln.errors import UsageError

_INDEX = "README"
_FOLDER = "duoln/docs"
_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_SENTENCE = re.compile(r"(.+?\.)(?=\s+[A-Z`(]|$)")
_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)")


def add_command(commands: Any) -> None:
    """Add `help` to the command line."""
    parser = commands.add_parser("help", help="a page of the documentation, or where words are; alone, all pages")
    parser.add_argument("topic", nargs="?", metavar="TOPIC",
                        help=f"a page: {', '.join(topics())}; or words to search for")
    parser.add_argument("more", nargs="*", metavar="WORD", help="more words to search for")
    parser.set_defaults(run=_help)


@cache
def topics() -> tuple[str, ...]:
    """The names of the pages, in the order in which the index has them."""
    names = [path.name.removesuffix(".md") for path in files("duoln").joinpath("docs").iterdir()
             if path.name.endswith(".md")]
    index = page(_INDEX)
    return tuple(sorted(names, key=lambda name: (index.find(f"({name}.md"), name)))


def page(topic: str) -> str:
    """The Markdown of a page."""
    return files("duoln").joinpath("docs", f"{topic}.md").read_text(encoding="utf-8")


def for_a_terminal(text: str) -> str:
    """A page whose links say what to type, because a terminal opens none: outside blocks of code."""
    return "".join(part if part.startswith("```") else _LINK.sub(_typed, part) for part in _CODE.split(text))


def _typed(link: re.Match[str]) -> str:
    is_picture, text, target = link.groups()
    path = posixpath.normpath(posixpath.join(_FOLDER, target))
    folder, file = posixpath.split(path)
    if is_picture:
        return f"(picture: {text}, `{path}`)"
    if folder != _FOLDER:
        return text if text.strip("`") == path else f"{text} (`{path}`)"
    topic = file.removesuffix(".md")
    return f"`duoln help {topic}`" if text.strip("`") in (topic, file) else f"{text} (`duoln help {topic}`)"


def summary(topic: str) -> str:
    """The title of a page and its first sentence."""
    title, _, rest = page(topic).partition("\n\n")
    return f"{title.removeprefix('# ')}: {first_sentence(for_a_terminal(rest))}"


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring or a page's paragraph, in one line."""
    paragraph = " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())
    match = _SENTENCE.match(paragraph)
    return match[1] if match else paragraph


def _listed(topic: str, words: str, width: int) -> str:
    """A page in the list: one line in a pipe."""
    line = f"{topic:<13} {words}"
    return textwrap.fill(line, width, subsequent_indent=14 * " ", break_on_hyphens=False) if width else line


def _help(args: argparse.Namespace) -> int:
    width = console.width()
    if args.topic is None:
        console.put("\n".join([*(_listed(topic, summary(topic), width) for topic in topics()), "",
                               "duoln help TOPIC shows one, duoln help WORD searches all of them; "
                               "duoln COMMAND --help shows the options of a command; "
                               "python -m pydoc duoln.nn.LSTM shows a public name."]))
    elif args.topic not in topics():
        console.put("\n".join(search(" ".join([args.topic, *args.more]), width)))
    elif args.more:
        raise UsageError(f"[help] expected one topic, found {args.topic!r} and {args.more[-1]!r}")
    else:
        console.show_page(for_a_terminal(page(args.topic)))
    return 0


# Search -----------------------------------------------------------------------------------------------

MODULES = ("duoln", "duoln.nn", "duoln.nn.init", "duoln.ops", "duoln.optim", "duoln.data", "duoln.tasks",
           "duoln.extend", "duoln.testing", "duoln.training.train", "duoln.training.summary",
           "duoln.training.rate_test", "duoln.runtime", "duoln.errors", "duoln.tree")
"""The modules whose names are public."""

_ISE = re.compile(r"(?<=i)[sz](?=e|ing|ation)", re.IGNORECASE)
"""The letter in which two spellings of English differ: normalise and normalize."""
_LINES = 3
"""The most lines of a page."""


def public_names(module: ModuleType) -> list[str]:
    """The names that a module offers, without other modules."""
    own = [name for name, value in vars(module).items()
           if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__]
    return [name for name in getattr(module, "__all__", own) if not inspect.ismodule(getattr(module, name))]


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
    in_pages = [(topic, line) for topic in topics() for line in _lines(page(topic), word)] if parts else []
    names = {name: first_sentence(inspect.getdoc(value)) for name, value in _public()}
    inside = re.compile("".join(parts), re.IGNORECASE)
    in_names = [(name, text) for name, text in names.items()
                if parts and (inside.search(name.replace("_", "")) or word.search(text))]
    if not in_pages and not in_names:
        known = [*topics(), *(name.rpartition(".")[2] for name in names)]
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
    lines = [line.strip() for line in for_a_terminal(page).splitlines() if word.search(line)]
    return [line.lstrip("# ") for line in sorted(lines, key=lambda line: not line.startswith("#"))][:_LINES]


def _public() -> Iterator[tuple[str, object]]:
    seen: set[int] = set()
    for module in map(importlib.import_module, MODULES):
        for name in public_names(module):
            value = getattr(module, name)
            if id(value) not in seen:
                seen.add(id(value))
                yield f"{module.__name__}.{name}".removeprefix("duoln."), value
