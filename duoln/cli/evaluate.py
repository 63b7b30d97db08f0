"""`duoln evaluate RUN`: the evaluation of a trained model by the task's own protocol."""

from __future__ import annotations

import argparse
from typing import Any

from duoln.cli.parser import Parser
from duoln.cli.sample import add_options, add_run, read_options, those_with
from duoln.errors import UsageError


def add_command(commands: Any) -> None:
    """Add `evaluate` to the command line. Each task has its own options, which are read after the run."""
    evaluate = commands.add_parser("evaluate", help="evaluate a trained model by the task's own protocol",
                                   epilog="`duoln evaluate RUN --help` has the options of that run's task")
    add_run(evaluate, "...")
    evaluate.set_defaults(run=_evaluate)


def _evaluate(args: argparse.Namespace) -> int:
    from duoln import runtime
    from duoln.cli import console
    from duoln.cli.rows_table import RowsTable
    from duoln.runs.trained import load_trained, task_of
    from duoln.tasks.registry import find_task

    task = find_task(task_of(args.trained), args.plugins)
    if task.evaluating is None:
        raise UsageError(f"[{task.name}] the task has no evaluation of its own beside that of `duoln run`; "
                         f"{those_with('evaluating', args.plugins)}")
    parser = Parser(prog=f"duoln evaluate {args.trained}",
                    description=f"Evaluate a trained model of {task.name} by the task's own protocol.")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object on stdout")
    add_options(parser, task.evaluating)
    given = vars(parser.parse_args(args.options))
    options = read_options(task.name, task.evaluating, given)
    backend, why = runtime.choose(given["backend"])
    console.say(f"backend: {why}")
    trained = load_trained(task, args.trained, backend)
    console.say(f"model: {task.name} {trained.variant} after {trained.step} updates")
    findings = task.evaluate(trained, options, console.say)
    if given["json"]:
        console.put_json({"task": task.name, "variant": trained.variant, "step": trained.step, **findings.figures})
        return 0
    console.show(RowsTable(findings.title, findings.headings, findings.rows, whole=[0]), data=True)
    for remark in findings.remarks:
        console.put(remark)
    return 0
