"""The commands that take one variant of a task: `duoln summary TASK`, the options that name it, its configuration."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from duoln.cli import facts
from duoln.errors import UsageError

if TYPE_CHECKING:
    from duoln.tasks.task import Config, Task
    from duoln.tasks.values import Splits


def add_command(commands: Any) -> None:
    """Add `summary` to the command line."""
    parser = commands.add_parser("summary", help="the layers of a task's model: shapes, parameters and memory, for the "
                                                 "first training batch")
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    parser.set_defaults(run=_summary)


def _summary(args: argparse.Namespace) -> int:
    from duoln import runtime
    from duoln.cli import console
    from duoln.training.summary import summary_of

    task, variant, cfg, splits = configured(args)
    backend = runtime.backend("numpy")
    model, batch = task.model(cfg), runtime.to_tensors(splits.train(0), backend)
    params = runtime.init(model, cfg.seed, backend)
    made = summary_of(model, params, lambda p: task.loss(model, p, batch))
    if args.json:
        console.put_json({"task": task.name, "variant": variant, "dataset": splits.dataset._asdict(),
                          "batch_size": cfg.batch_size, **made._asdict(), "rows": [row._asdict() for row in made.rows]})
        return 0
    console.put(f"{task.title}, {variant}: the loss of a batch of {cfg.batch_size}\n\n"
                + (made.text(console.width()) if console.width() else made.text()))
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """The task, and the options that choose its variant and settings."""
    parser.add_argument("task")
    parser.add_argument("--variant", metavar="NAME", help="may be omitted if the task has only one")
    parser.add_argument("--preset", metavar="NAME", help="paper, small or smoke; see `duoln show TASK`")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
                        help="a setting of the task, see `duoln show TASK`; may be repeated")
    parser.add_argument("--seed", type=int, help="0 to 2^64 - 1 (default 0)")
    parser.add_argument("--batch-size", type=int)
    facts.add_plugin_option(parser)


def configured(args: argparse.Namespace) -> tuple[Task, str, Config, Splits]:
    """The task, the name of the variant, its configuration and its data.

    Raises:
        UsageError: the task, the variant, the preset or a setting is unknown, or none of several variants is named.
        DataMissingError: there are no data.
    """
    from duoln.tasks import make_config
    from duoln.tasks.registry import find_task
    from duoln.tasks.settings import check_config

    task = find_task(args.task, args.plugins)
    if args.variant is None and len(task.variants) > 1:
        raise UsageError(f"[{task.name}] expected --variant with one of {', '.join(task.variants)}, found none")
    variant = next(iter(task.variants)) if args.variant is None else args.variant
    settings = facts.settings_of(task, args)
    settings |= facts.given_by_options(args, settings, "seed", "batch_size")
    cfg = make_config(task, variant, args.preset, settings)
    check_config(task, variant, cfg)
    say_absent()
    splits = task.data(cfg)
    say_data(splits)
    return task, variant, cfg, splits


def say_absent() -> None:
    """A warning for each folder of DUOLN_DATA that does not exist."""
    from duoln.cli import console
    from duoln.data.files import absent_folders

    for line in absent_folders():
        console.say(line, style="yellow")


def say_data(splits: Splits) -> None:
    """Say which data a run is trained on, and what its task remarks about them."""
    from duoln.cli import console

    console.say(f"data: {splits.dataset.label}", style="" if splits.dataset.provenance == "original" else "yellow")
    for remark in filter(None, splits.remarks):
        console.say(f"  {remark}", style="yellow")
