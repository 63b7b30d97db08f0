"""`duoln help`: the pages of the documentation in the terminal, and every public name."""

from __future__ import annotations

import argparse
import posixpath
import re
import textwrap
from functools import cache
from importlib.resources import files
from typing import Any

from duoln.errors import UsageError

_INDEX = "README"
_API = "api"
_FOLDER = "duoln/docs"
_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)")


class _Topics(tuple[str, ...]):
    """What a shell completes after `duoln help`: the pages. Other words are searched for."""

    def __contains__(self, word: object) -> bool:
        return True


def add_command(commands: Any) -> None:
    """Add `help` to the command line."""
    parser = commands.add_parser("help", help="a page of the documentation, or where words are; alone, all pages")
    parser.add_argument("topic", nargs="?", metavar="TOPIC", choices=_Topics((*topics(), _API)),
                        help=f"a page: {', '.join(topics())}; or {_API}: every public name; or words to search for")
    parser.add_argument("more", nargs="*", metavar="WORD",
                        help=f"after {_API}: one public name, such as nn.LSTM; else more words to search for")
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
    from duoln.cli.api import first_sentence

    title, _, rest = page(topic).partition("\n\n")
    return f"{title.removeprefix('# ')}: {first_sentence(for_a_terminal(rest))}"


def _listed(topic: str, words: str, width: int) -> str:
    """A page in the list: one line in a pipe."""
    line = f"{topic:<13} {words}"
    return textwrap.fill(line, width, subsequent_indent=14 * " ", break_on_hyphens=False) if width else line


def _help(args: argparse.Namespace) -> int:
    from duoln.cli import api, console, help_search

    name = args.more[0] if args.more else None
    if len(args.more) > (args.topic == _API) and args.topic in (*topics(), _API):
        raise UsageError(f"[help] expected one topic, found {args.topic!r} and {args.more[-1]!r}")
    width = console.width()
    if args.topic is None:
        pages = {topic: summary(topic) for topic in topics()}
        pages[_API] = "Every public name in a line; `duoln help api nn.LSTM` shows one of them with its docstring."
        console.put("\n".join([*(_listed(topic, words, width) for topic, words in pages.items()), "",
                               "duoln help TOPIC shows one, duoln help WORD searches all of them; "
                               "duoln COMMAND --help shows the options of a command."]))
    elif args.topic == _API and name is None:
        console.put("\n".join(api.lines(width)))
    elif args.topic == _API or ("." in args.topic and name is None):
        console.put(api.page(name or args.topic, width or api.PIPE))
    elif args.topic in topics():
        console.show_page(for_a_terminal(page(args.topic)))
    else:
        console.put("\n".join(help_search.search(" ".join([args.topic, *args.more]), width)))
    return 0
