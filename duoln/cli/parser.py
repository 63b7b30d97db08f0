"""The parser of a command line: argparse, whose output goes to the same streams as all other output."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from duoln.cli import console
from duoln.core.arguments import did_you_mean, nearest
from duoln.core.pytorch_names import our_word
from duoln.tasks.registry import Registry

_INVALID_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")
_QUOTED = re.compile(r"'([^']+)'")
_LACKS_VALUE = re.compile(r"argument (\S+?)[:/].* expected (?:one|at least one) argument$")
_ABOUT_FLAGS = re.compile("unrecognized arguments|arguments are required")
"""Errors that a misspelt flag leads to: it is no flag, so an argument may be missing."""


class ParsedError(SystemExit):
    """The parser has ended: it showed help or the version, or the command line is wrong and `message` says why."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(code)
        self.message = message


class Parser(argparse.ArgumentParser):
    """argparse's parser, which writes help as a result, raises errors as `ParsedError`, and proposes what is meant.

    The parsed values have the options of the innermost command as `flags`.
    """

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all words: a sub-command refuses a flag that it does not know, because it knows which it has.

        Raises:
            ParsedError: the command line is wrong, or asks for help.
        """
        self._words = list(sys.argv[1:] if args is None else args)
        values, strangers = super().parse_known_args(self._words, namespace)
        if strangers:
            self.error(f"unrecognized arguments: {' '.join(strangers)}")
        if not hasattr(values, "flags"):
            values.flags = list(self._option_string_actions)
        return values, []

    def _print_message(self, message: str, file: Any = None) -> None:
        """The help or the version, as a result."""
        console.put(message.rstrip())

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the parser."""
        raise ParsedError(status, message or "")

    def error(self, message: str) -> NoReturn:
        """End the parser because the command line is wrong."""
        wrong, lack = _INVALID_CHOICE.search(message), _LACKS_VALUE.match(message)
        if lack:
            message += self._value_that_is_meant(lack[1])
        elif wrong:
            message += did_you_mean(wrong[1], _QUOTED.findall(wrong[2]) or wrong[2].split(", "))
        elif _ABOUT_FLAGS.match(message.removeprefix("the following ")):
            message += self._flag_that_is_meant()
        listed = "options" if self._subparsers is None else "commands"
        raise ParsedError(2, f"{self.prog}: error: {message}\n`{self.prog} --help` lists the {listed}")

    def _value_that_is_meant(self, flag: str) -> str:
        """The end of an error: it joins a flag to the word after it, if that begins with "-" and is no flag."""
        k = next((k for k, word in enumerate(self._words[:-1]) if len(word) > 2 and flag.startswith(word)), None)
        value = "" if k is None else self._words[k + 1]
        is_flag = any(known.startswith(value.partition("=")[0]) for known in self._option_string_actions)
        return f"; a value that begins with '-' is joined: {flag}={value}" if value and not is_flag else ""

    def _flag_that_is_meant(self) -> str:
        """The end of an error: it proposes a flag for the first one that is unknown, if one is near."""
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for word in self._words:
            given = word.partition("=")[0]
            if given.startswith("-") and not any(flag.startswith(given) for flag in self._option_string_actions):
                near = nearest(given.lstrip("-"), [flag.removeprefix("--") for flag in known])
                if near is None and "--set" in known:
                    name = given.lstrip("-").replace("-", "_")
                    return f"; a setting of the task is given by --set {our_word(name) or name}=VALUE"
                return f"; did you mean '--{near}'?" if near else ""
        return ""


def add_commands_of_plugins(commands: Any, word: str | None) -> None:
    """Add the commands that plug-ins bring.

    Args:
        commands: the sub-parsers of `duoln`.
        word: the command that is asked for; where nobody brings it, a line names each plug-in that is broken.
    """
    registry = Registry()
    for (name, summary, options, run), distribution in registry.commands.values():
        if name in commands.choices:
            console.say(f"left out: command {name!r} of {distribution}, because duoln has one of that name", "yellow")
            continue
        parser = commands.add_parser(name, help=summary.replace("%", "%%"))  # argparse fills in what follows a "%"
        options(parser)
        parser.set_defaults(run=run)
    if word not in commands.choices and word is not None and not word.startswith("-"):
        for broken in registry.broken:
            console.say(f"plug-in '{broken.name}' of {broken.distribution} is broken: {broken.reason}", "yellow")


def wants_json(words: Sequence[str]) -> bool:
    """True if a command line asks for JSON on stdout; the command line may be wrong.

    `--json` may be abbreviated; for `bench` it takes a file, and the file `-` is stdout.
    """
    for k, word in enumerate(words):
        name, _, value = word.partition("=")
        if len(name) > len("--") and "--json".startswith(name):
            return words[0] != "bench" or (value or "".join(words[k + 1:k + 2])) == "-"
    return False
