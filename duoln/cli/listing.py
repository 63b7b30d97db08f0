"""`duoln list`, the tasks, and `duoln show TASK`, what one of them can be told.

Both print lines, not tables: a table cuts or breaks names where the terminal is narrow, and these names are typed.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from duoln.cli import facts

if TYPE_CHECKING:
    from duoln.tasks.meanings import Setting
    from duoln.tasks.task import Task

_INDENT = "    "


def add_commands(commands: Any) -> None:
    """Add `list` and `show` to the command line."""
    listing = commands.add_parser("list", help="the tasks, with their variants and presets")
    listing.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    facts.add_plugin_option(listing)
    listing.set_defaults(run=_list)

    show = commands.add_parser("show", help="one task: its settings, presets and variants")
    show.add_argument("task")
    show.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    facts.add_plugin_option(show)
    show.set_defaults(run=_show)


def _list(args: argparse.Namespace) -> int:
    from duoln.cli import console
    from duoln.tasks.registry import Registry

    registry = Registry(asked=args.plugins)
    facts.say_slow(registry.slow)
    if args.json:
        console.put_json({
            "tasks": [{"name": f.task.name, "title": f.task.title, "paper": f.task.paper,
                       "variants": list(f.task.variants), "presets": list(f.task.presets),
                       "distribution": f.distribution} for f in registry.tasks.values()],
            "broken": [b._asdict() for b in registry.broken]})
        return 0
    lines = [line for entry in registry.tasks.values() for line in (
        _wrapped(f"{_titled(entry.task)}, from {entry.distribution}"),
        _wrapped(f"variants: {', '.join(entry.task.variants)}", _INDENT),
        _wrapped(f"presets: {', '.join(entry.task.presets) or 'none'}", _INDENT))]
    console.put("\n".join(lines))  # at once: a reader such as `head` leaves after some lines
    for broken in registry.broken:
        console.put(_wrapped(f"{broken.name}: broken, from {broken.distribution}: {broken.reason}"), style="red")
    return 0


def _show(args: argparse.Namespace) -> int:
    from duoln.cli import console
    from duoln.tasks.meanings import settings_of
    from duoln.tasks.registry import find_task

    task = find_task(args.task, args.plugins)
    settings = settings_of(task)
    if args.json:
        console.put_json({"name": task.name, "title": task.title, "paper": task.paper, "distribution": task.owner,
                          "settings": [{"name": s.name, "type": s.kind, "default": s.default, "meaning": s.meaning}
                                       for s in settings],
                          "presets": {name: dict(changes) for name, changes in task.presets.items()},
                          "variants": {name: dict(changes) for name, changes in task.variants.items()},
                          "references": dict(task.references)})
        return 0
    console.put("\n".join(_lines(task, settings)))  # at once: a reader such as `head` leaves after some lines
    return 0


def _lines(task: Task, settings: Sequence[Setting]) -> list[str]:
    from duoln.tasks.kinds import value_in_words

    lines = [_wrapped(_titled(task)), "",
             _wrapped(f"settings, of `duoln run {task.name} --set NAME=VALUE` (--seed, --epochs and --batch-size are "
                      "options too)")]
    for each in settings:
        lines += [f"  {each.name}={value_in_words(each.default)}",
                  _wrapped(f"{each.kind}. {each.meaning or 'The task does not say what it means.'}", _INDENT)]
    for heading, option, changes in (("presets", "--preset", task.presets), ("variants", "--variant", task.variants)):
        lines += ["", f"{heading}, of {option} NAME, and what each changes"]
        lines += [f"  {name}\n{_wrapped(_changes(own), _INDENT)}" for name, own in changes.items()]
    return lines


def _titled(task: Task) -> str:
    return f"{task.name}: {task.title}" + (f" ({task.paper})" if task.paper else "")


def _changes(settings: Mapping[str, Any]) -> str:
    from duoln.tasks.kinds import value_in_words

    return ", ".join(f"{key}={value_in_words(value)}" for key, value in settings.items()) or "nothing"


def _wrapped(text: str, indent: str = "") -> str:
    """The text in lines of the terminal's width, which no word is broken for; one line where stdout is no terminal."""
    from duoln.cli import console

    words = " ".join(text.split())
    width = console.width()
    return textwrap.fill(words, width or len(indent + words) + 1, initial_indent=indent,
                         subsequent_indent=indent or "  ", break_long_words=False, break_on_hyphens=False)
