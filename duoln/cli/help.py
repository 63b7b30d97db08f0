"""`duoln help`: the pages of the documentation in the terminal, and a search for words in them and in public names."""

from __future__ import annotations

import argparse
import inspect
import posixpath
import re
import textwrap
from functools import cache
from importlib.resources import files
from typing import Any

from duoln.errors import UsageError

_INDEX = "README"
_FOLDER = "duoln/docs"
_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_SENTENCE = re.compile(r"(.+?\.)(?=\s+[A-Z`(]|$)")
_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)")


class _Topics(tuple[str, ...]):
    """The words that a shell completes after `duoln help`: the pages. Other words are searched for."""

    def __contains__(self, word: object) -> bool:
        return True


def add_command(commands: Any) -> None:
    """Add `help` to the command line."""
    parser = commands.add_parser("help", help="a page of the documentation, or where words are; alone, all pages")
    parser.add_argument("topic", nargs="?", metavar="TOPIC", choices=_Topics(topics()),
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
    from duoln.cli import console, help_search

    width = console.width()
    if args.topic is None:
        console.put("\n".join([*(_listed(topic, summary(topic), width) for topic in topics()), "",
                               "duoln help TOPIC shows one, duoln help WORD searches all of them; "
                               "duoln COMMAND --help shows the options of a command; "
                               "python -m pydoc duoln.nn.LSTM shows a public name."]))
    elif args.topic not in topics():
        console.put("\n".join(help_search.search(" ".join([args.topic, *args.more]), width)))
    elif args.more:
        raise UsageError(f"[help] expected one topic, found {args.topic!r} and {args.more[-1]!r}")
    else:
        console.show_page(for_a_terminal(page(args.topic)))
    return 0
