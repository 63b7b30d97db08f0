"""`duoln list`, the tasks, `duoln show TASK`, what one of them can be told, and `duoln data prepare`, for its corpus.

No name is cut or broken, because names are typed: where the terminal is narrow, the table of tasks is lines.
"""

from __future__ import annotations

import argparse
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from duoln.cli import console, facts
from duoln.cli.rows_table import RowsTable
from duoln.cli.trained import options_of
from duoln.data.files import data_folders
from duoln.errors import DataError, DataMissingError, UsageError
from duoln.runs.folder import read_json
from duoln.runs.places import CONFIG, RESULT
from duoln.system.paths import cache_folder, path_argument
from duoln.tasks import make_config, registry
from duoln.tasks.originals import locate
from duoln.tasks.settings import Setting, settings_of, through_json, value_in_words
from duoln.tasks.task import Task

_INDENT = "    "


def add_commands(commands: Any) -> None:
    """Add `list`, `show` and `data` to the command line."""
    listing = commands.add_parser("list", help="the tasks, with their variants and presets")
    listing.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    facts.add_plugin_option(listing)
    listing.set_defaults(run=_list)

    show = commands.add_parser("show", help="one task: its settings, presets and variants")
    show.add_argument("task")
    show.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    facts.add_plugin_option(show)
    show.set_defaults(run=_show)

    data = commands.add_parser("data", help="prepare a corpus of your own for a task")
    kinds = data.add_subparsers(dest="kind", metavar="KIND", required=True)
    prepare = kinds.add_parser("prepare", help="read a corpus as it is distributed, write what the task reads")
    prepare.add_argument("task")
    prepare.add_argument("--from", type=path_argument, required=True, metavar="DIR", dest="source", help="the corpus")
    facts.add_plugin_option(prepare)
    prepare.add_argument("--out", type=path_argument, metavar="DIR",
                         help="a folder like DUOLN_DATA (default: the first one of DUOLN_DATA, else the cache)")
    prepare.set_defaults(run=_prepare)


def _list(args: argparse.Namespace) -> int:
    known = registry.Registry(asked=args.plugins)
    data = {name: states_of_data(entry.task) for name, entry in known.tasks.items()}
    times = {name: seconds_of_small(entry.task) for name, entry in known.tasks.items()}
    if args.json:
        console.put_json({
            "tasks": [{"name": name, "title": f.task.title, "paper": f.task.paper,
                       "variants": list(f.task.variants), "presets": list(f.task.presets),
                       "distribution": f.distribution, "data": data[name], "small_seconds": times[name][0]}
                      for name, f in known.tasks.items()],
            "broken": [b._asdict() for b in known.broken]})
        return 0
    rows = [(name, _titled(entry.task) + (f", from {entry.distribution}" if entry.distribution != "duoln" else ""),
             ", ".join(entry.task.variants), ", ".join(entry.task.presets) or "none", _of_states(data[name]),
             _time(times[name][0]))
            for name, entry in known.tasks.items()]
    console.show(RowsTable("Tasks", ("name", "task", "variants", "presets", "data", "small takes"), rows, whole=(0, 5),
                           ruled=True), data=True)
    devices = sorted({device for _, of_task in times.values() for device in of_task})
    console.say("data: here is below DUOLN_DATA or in the cache; the preset small makes its own where none is, after a "
                "try to download MNIST or CIFAR-10 (DUOLN_OFFLINE=1: none)")
    console.say("small takes: training of one variant by that preset, median of the runs that are kept, on "
                f"{', '.join(devices)}; -: none is kept")
    for broken in known.broken:
        console.put(_wrapped(f"{broken.name}: broken, from {broken.distribution}: {broken.reason}"), style="red")
    return 0


def _show(args: argparse.Namespace) -> int:
    task = registry.find_task(args.task, args.plugins)
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
    lines = [_wrapped(f"{task.name}: {_titled(task)}"), "",
             _wrapped(f"settings, of `duoln run {task.name} --set NAME=VALUE` (--seed, --epochs and --batch-size are "
                      "options too)")]
    for each in settings:
        lines += [f"  {each.name}={value_in_words(each.default)}",
                  _wrapped(f"{each.kind}. {each.meaning or 'The task does not say what it means.'}", _INDENT)]
    for heading, option, changes in (("presets", "--preset", task.presets), ("variants", "--variant", task.variants)):
        lines += ["", f"{heading}, of {option} NAME, and what each changes"]
        lines += [f"  {name}\n{_wrapped(_changes(own), _INDENT)}" for name, own in changes.items()]
    for command, options in (("sample", task.sampling), ("evaluate", task.evaluating)):
        if options is not None:
            lines += ["", f"options of `duoln {command} RUN`, for a run of this task"]
            lines += [f"  {flag}\n{_wrapped(meaning, _INDENT)}" for _, flag, meaning in options_of(options)]
    return lines


def _of_states(data: Mapping[str, str]) -> str:
    """The corpora that are in each state."""
    names: dict[str, list[str]] = {}
    for name, state in data.items():
        names.setdefault(state, []).append(name)
    return "\n".join(f"{state}: {', '.join(names[state])}" for state in sorted(names)) or "made"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _titled(task: Task) -> str:
    return task.title + (f" ({task.paper})" if task.paper else "")


def _changes(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value_in_words(value)}" for key, value in settings.items()) or "nothing"


def _wrapped(text: str, indent: str = "") -> str:
    """The text in lines of the terminal's width, which no word is broken for; one line where stdout is no terminal."""
    words = " ".join(text.split())
    width = console.width()
    return textwrap.fill(words, width or len(indent + words) + 1, initial_indent=indent,
                         subsequent_indent=indent or "  ", break_long_words=False, break_on_hyphens=False)


def _prepare(args: argparse.Namespace) -> int:
    task = registry.find_task(args.task, args.plugins)
    if not args.source.exists():
        raise DataMissingError(f"{args.source}: expected the corpus of {task.name}, found nothing there")
    target = args.out or [*data_folders(), cache_folder()][0]
    for path in task.prepare(args.source, target):
        console.say(f"wrote {path}")
    return 0


PRESET = "small"


def states_of_data(task: Task) -> dict[str, str]:
    """For each corpus of a task "here", "not here", or "incomplete" where some of its files are missing."""
    return {name: _state(corpus) for name, corpus in task.corpora.items()}


def _state(corpus: Sequence[Sequence[str]]) -> str:
    state = "not here"
    for files in corpus:
        try:
            if locate(files) is not None:
                return "here"
        except DataError:
            state = "incomplete"
    return state


def seconds_of_small(task: Task) -> tuple[float | None, set[str]]:
    """The median training time of one variant by the preset "small", of the runs that are kept, and on which devices.

    It is None where no run of these settings is kept.
    """
    results = list(_results_of_small(task))
    devices = {start["backend"]["device"] for result in results for start in result["starts"]}
    times = [result["epochs"] * result["seconds_per_epoch"] for result in results]
    return (statistics.median(times) if times else None), devices


def _results_of_small(task: Task) -> Iterator[dict[str, Any]]:
    from duoln.runs import kept

    if PRESET not in task.presets:
        return
    try:
        wanted = {name: through_json(make_config(task, name, PRESET, {"seed": 0})) for name in task.variants}
    except UsageError:  # `duoln run` tells what is wrong with the preset
        return
    for path in sorted(kept.kept_folder(task).glob(f"*/*/{CONFIG}")):
        run = read_json(path)
        settings = wanted.get(run["variant"], {})  # a kept run may have settings that are constants today
        if settings and all({**run["config"], "seed": 0}.get(key) == value for key, value in settings.items()):
            yield read_json(path.parent / RESULT)
