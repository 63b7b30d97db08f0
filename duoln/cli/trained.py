"""`duoln sample RUN` and `duoln evaluate RUN`: what a trained model generates, and its task's own evaluation.

Each task has its own options, which are read after the run.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from duoln import runtime
from duoln.cli import console, facts
from duoln.cli.parser import Parser
from duoln.cli.rows_table import RowsTable
from duoln.errors import UsageError
from duoln.system.paths import path_argument
from duoln.tasks import registry
from duoln.tasks.settings import convert, kind_in_words, value_in_words
from duoln.tasks.task import Task
from duoln.tasks.values import Trained


def add_commands(commands: Any) -> None:
    """Add `sample` and `evaluate` to the command line."""
    for name, run, words in (("sample", _sample, "what a trained model generates"),
                             ("evaluate", _evaluate, "evaluate a trained model by the task's own protocol")):
        parser = commands.add_parser(name, help=words,
                                     epilog=f"`duoln {name} RUN --help` has the options of that run's task")
        facts.add_plugin_option(parser)
        parser.add_argument("trained", type=path_argument, metavar="RUN",
                            help="a run folder, or a folder that holds one")
        parser.add_argument("options", nargs=argparse.REMAINDER, metavar="...")
        parser.set_defaults(run=run)


def _sample(args: argparse.Namespace) -> int:
    task = _task_of(args)
    if task.sampling is None:
        raise UsageError(f"[{task.name}] the task has nothing to sample; {_those_with('sampling', args.plugins)}")
    parser = Parser(prog=f"duoln sample {args.trained}", description=f"What a trained model of {task.name} generates.")
    parser.add_argument("--out", type=path_argument, default=args.trained / task.sample_name, metavar="FILE",
                        help="what to write (default %(default)s)")
    trained, options, given = _loaded(task, task.sampling, parser, args)
    if trained.update == 0:
        console.say("  it has not been trained, so its samples are random", style="yellow")
    for path in task.sample(trained, options, given["out"]):
        console.say(f"wrote {path}")
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    task = _task_of(args)
    if task.evaluating is None:
        raise UsageError(f"[{task.name}] the task has no evaluation of its own beside that of `duoln run`; "
                         f"{_those_with('evaluating', args.plugins)}")
    parser = Parser(prog=f"duoln evaluate {args.trained}",
                    description=f"Evaluate a trained model of {task.name} by the task's own protocol.")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object on stdout")
    trained, options, given = _loaded(task, task.evaluating, parser, args)
    findings = task.evaluate(trained, options, console.say)
    if given["json"]:
        console.put_json({"task": task.name, "variant": trained.variant, "update": trained.update, **findings.figures})
        return 0
    console.show(RowsTable(findings.title, findings.headings, findings.rows, whole=[0]), data=True)
    for remark in findings.remarks:
        console.put(remark)
    return 0


def _task_of(args: argparse.Namespace) -> Task:
    from duoln.runs.trained import task_of

    return registry.find_task(task_of(args.trained), args.plugins)


def _loaded(task: Task, kind: type, parser: argparse.ArgumentParser,
            args: argparse.Namespace) -> tuple[Trained, Any, dict[str, Any]]:
    """The model of a run, the user's options as an instance of the task's class `kind`, and all that the user gave."""
    from duoln.runs.trained import load_trained

    _add_options(parser, kind)
    given = vars(parser.parse_args(args.options))
    options = _read_options(task.name, kind, given)
    backend, why = runtime.choose(given["backend"])
    console.say(f"backend: {why}")
    trained = load_trained(task, args.trained, backend)
    console.say(f"model: {task.name} {trained.variant} after {trained.update} updates")
    return trained, options, given


def _those_with(options: str, plugins: Sequence[str] | None) -> str:
    """In words, the tasks that have the attribute `options`."""
    tasks = registry.Registry(asked=plugins).tasks
    return f"tasks that have: {', '.join(n for n in tasks if getattr(tasks[n].task, options) is not None) or 'none'}"


def _add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """`--backend`, and an option for each field of a task's own dataclass."""
    parser.add_argument("--backend", choices=runtime.CHOICES, help="default: DUOLN_BACKEND, else auto")
    for name, flag, meaning in options_of(kind):
        parser.add_argument(flag, dest=name, metavar="VALUE", help=meaning.replace("%", "%%"))


def options_of(kind: type) -> Iterator[tuple[str, str, str]]:
    """The name, the flag and the meaning of each option that is a field of a task's own dataclass."""
    kinds = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        default_text = "" if default is None else f" (default {value_in_words(default)})"
        yield (field.name, f"--{field.name.replace('_', '-')}",
               f"{kind_in_words(kinds[field.name])}: {field.metadata.get('help', '')}{default_text}")


def _read_options(task: str, kind: type, given: Mapping[str, Any]) -> Any:
    """The user's options as an instance of the task's dataclass."""
    kinds = typing.get_type_hints(kind)
    return kind(**{key: convert(f"[{task}] --{key.replace('_', '-')}", given[key], kinds[key])
                   for key in kinds if given[key] is not None})
