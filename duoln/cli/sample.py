"""`duoln sample RUN`: samples of a trained model."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from duoln.cli import facts
from duoln.cli.parser import Parser
from duoln.errors import UsageError
from duoln.system.paths import path_argument


def add_command(commands: Any) -> None:
    """Add `sample` to the command line. Each task has its own options, which are read after the run."""
    sample = commands.add_parser("sample", help="what a trained model generates",
                                 epilog="`duoln sample RUN --help` has the options of that run's task")
    add_run(sample, "...")
    sample.set_defaults(run=_sample)


def add_run(parser: argparse.ArgumentParser, rest: str) -> None:
    """The run, and what follows it: the options of its task."""
    facts.add_plugin_option(parser)
    parser.add_argument("trained", type=path_argument, metavar="RUN", help="a run folder, or a folder that holds one")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar=rest)


def _sample(args: argparse.Namespace) -> int:
    from duoln import runtime
    from duoln.cli import console
    from duoln.runs.trained import load_trained, task_of
    from duoln.tasks.registry import find_task

    task = find_task(task_of(args.trained), args.plugins)
    if task.sampling is None:
        raise UsageError(f"[{task.name}] the task has nothing to sample; {those_with('sampling', args.plugins)}")
    parser = Parser(prog=f"duoln sample {args.trained}", description=f"What a trained model of {task.name} generates.")
    parser.add_argument("--out", type=path_argument, default=args.trained / task.sample_name, metavar="FILE",
                        help="what to write (default %(default)s)")
    add_options(parser, task.sampling)
    given = vars(parser.parse_args(args.options))
    options = read_options(task.name, task.sampling, given)
    backend, why = runtime.choose(given["backend"])
    console.say(f"backend: {why}")
    trained = load_trained(task, args.trained, backend)
    console.say(f"model: {task.name} {trained.variant} after {trained.step} updates")
    if trained.step == 0:
        console.say("  it has not been trained, so its samples are random", style="yellow")
    for path in task.sample(trained, options, given["out"]):
        console.say(f"wrote {path}")
    return 0


def those_with(options: str, plugins: Sequence[str] | None) -> str:
    """In words, the tasks that have the attribute `options`."""
    from duoln.tasks.registry import Registry

    tasks = Registry(asked=plugins).tasks
    return f"tasks that have: {', '.join(n for n in tasks if getattr(tasks[n].task, options) is not None) or 'none'}"


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """`--backend`, and an option for each field of a task's own dataclass."""
    from duoln.runtime import CHOICES

    parser.add_argument("--backend", choices=CHOICES, help="default: DUOLN_BACKEND, else auto")
    for name, flag, meaning in options_of(kind):
        parser.add_argument(flag, dest=name, metavar="VALUE", help=meaning.replace("%", "%%"))


def options_of(kind: type) -> Iterator[tuple[str, str, str]]:
    """The name, the flag and the meaning of each option that is a field of a task's own dataclass."""
    from duoln.tasks.settings import kind_in_words, value_in_words

    kinds = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        default_text = "" if default is None else f" (default {value_in_words(default)})"
        yield (field.name, f"--{field.name.replace('_', '-')}",
               f"{kind_in_words(kinds[field.name])}: {field.metadata.get('help', '')}{default_text}")


def read_options(task: str, kind: type, given: Mapping[str, Any]) -> Any:
    """The user's options as an instance of the task's dataclass.

    Raises:
        UsageError: a value does not fit.
    """
    from duoln.tasks.settings import convert

    kinds = typing.get_type_hints(kind)
    return kind(**{key: convert(f"[{task}] --{key.replace('_', '-')}", given[key], kinds[key])
                   for key in kinds if given[key] is not None})
