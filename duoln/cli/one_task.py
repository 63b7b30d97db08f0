"""The commands that take one variant of a task: `duoln summary TASK`, and `duoln find-rate TASK`, the range test of
learning rates (Smith 2017).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duoln import runtime
from duoln.cli import console, facts
from duoln.cli.rows_table import RowsTable
from duoln.data.files import absent_folders
from duoln.errors import UsageError
from duoln.pictures import drawing
from duoln.system.filesystem import check_regular, make_folder
from duoln.system.paths import path_argument
from duoln.tasks import make_config, registry
from duoln.tasks.task import Config, Task
from duoln.tasks.values import Splits

if TYPE_CHECKING:
    from duoln.training.rate_test import RateTest

_FILES = ("rates.csv", "rates.png")
_ROWS = 20
"""About so many rows has the table of rates."""


def add_commands(commands: Any) -> None:
    """Add `summary` and `find-rate` to the command line."""
    parser = commands.add_parser("summary", help="the layers of a task's model: shapes, parameters and memory, for the "
                                                 "first training batch")
    _add_options(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    parser.set_defaults(run=_summary)

    parser = commands.add_parser("find-rate", help="which learning rates a task can be trained with: a short training "
                                                   "in which the rate grows with every update")
    _add_options(parser)
    parser.add_argument("--from", type=float, default=1e-6, metavar="RATE", dest="low", help="the first rate (1e-6)")
    parser.add_argument("--to", type=float, default=1.0, metavar="RATE", dest="high", help="the last rate (1)")
    parser.add_argument("--updates", type=int, default=100, metavar="N", help="at most so many updates (100)")
    parser.add_argument("--backend", choices=runtime.CHOICES, help="default: DUOLN_BACKEND, else auto")
    parser.add_argument("--out", type=path_argument, metavar="DIR",
                        help=f"write {' and '.join(_FILES)} there; without this nothing is written")
    parser.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    parser.set_defaults(run=_find_rate)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """The task, and the options that choose its variant and settings."""
    parser.add_argument("task")
    parser.add_argument("--variant", metavar="NAME", help="may be omitted if the task has only one")
    facts.add_settings_options(parser)
    parser.add_argument("--seed", type=int, help="0 to 2^64 - 1 (default 0)")
    parser.add_argument("--batch-size", type=int)
    facts.add_plugin_option(parser)


def _configured(args: argparse.Namespace) -> tuple[Task, str, Config, Splits]:
    """The task, the name of the variant, its configuration and its data."""
    task = registry.find_task(args.task, args.plugins)
    if args.variant is None and len(task.variants) > 1:
        raise UsageError(f"[{task.name}] expected --variant with one of {', '.join(task.variants)}, found none")
    variant = next(iter(task.variants)) if args.variant is None else args.variant
    cfg = make_config(task, variant, args.preset, facts.settings_of(task, args, "seed", "batch_size"))
    say_absent()
    splits = task.data(cfg)
    say_data(splits)
    return task, variant, cfg, splits


def say_absent() -> None:
    """A warning for each folder of DUOLN_DATA that does not exist."""
    for line in absent_folders():
        console.say(line, style="yellow")


def say_data(splits: Splits) -> None:
    """Say which data a run is trained on, and what its task remarks about them."""
    console.say(f"data: {splits.dataset.label}", style="" if splits.dataset.provenance == "original" else "yellow")
    for remark in filter(None, splits.remarks):
        console.say(f"  {remark}", style="yellow")


def _summary(args: argparse.Namespace) -> int:
    from duoln.training.summary import summary_of

    task, variant, cfg, splits = _configured(args)
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


def _find_rate(args: argparse.Namespace) -> int:
    from duoln.training.rate_test import LEAST_UPDATES, check_range, task_rates

    if args.updates < LEAST_UPDATES:
        raise UsageError(f"[find-rate] --updates: expected at least {LEAST_UPDATES}, found {args.updates}")
    check_range(args.low, args.high, args.updates)  # before data are read
    if args.out is not None:
        for name in _FILES:
            check_regular(args.out / name)
    task, variant, cfg, splits = _configured(args)
    backend, why = runtime.choose(args.backend)
    console.say(f"backend: {why}")
    console.say(f"{args.updates} updates at most, with rates from {args.low:g} to {args.high:g}")
    test = task_rates(task, cfg, splits, backend, args.low, args.high, args.updates)
    title = f"{task.title}, {variant}, batch {cfg.batch_size}"
    if args.out is not None:
        _write(title, test, cfg.learning_rate, args.out)
    if args.json:
        console.put_json({"task": task.name, "variant": variant, "dataset": splits.dataset._asdict(),
                          "batch_size": cfg.batch_size, "learning_rate": cfg.learning_rate, "backend": backend.name,
                          **{key: getattr(value, "tolist", lambda value=value: value)()
                             for key, value in test._asdict().items()}})
        return 0
    _show(title, test, cfg.learning_rate, args.updates)
    return 0


def _show(title: str, test: RateTest, own: float, asked: int) -> None:
    marks = {test.minimum: "least", test.steepest: "falls fastest"}
    chosen = [k for k, rate in enumerate(test.rates)
              if k % max(asked // _ROWS, 1) == 0 or rate in marks or k == len(test.rates) - 1]
    rows = [(f"{test.rates[k]:.2e}", f"{test.losses[k]:.5g}", f"{test.smoothed[k]:.5g}", marks.get(test.rates[k], ""))
            for k in chosen]
    console.show(RowsTable(title, ("rate", "loss", "smoothed", ""), rows, whole=range(4)), data=True)
    if test.diverged:
        console.put(f"stopped after {len(test.rates)} of {asked} updates, because the loss diverged")
    if test.steepest is None or test.tenth_of_minimum is None:
        console.put("the loss never fell, so no rate is suggested; try another range (--from, --to) or more --updates")
        return
    if not test.diverged and test.minimum == test.rates[-1]:
        console.put("the loss is least at the last rate: with a higher --to it may fall further")
    console.put(f"suggestions to start a search from, no more: {test.steepest:.2g}, where the loss falls fastest; "
                f"{test.tenth_of_minimum:.2g}, a tenth of the rate with the least loss")
    console.put(f"the task's own rate is {own:g}; another one: --set learning_rate={test.tenth_of_minimum:.2g}")


def _write(title: str, test: RateTest, own: float, out: Path) -> None:
    from duoln.training.rate_test import draw, write_table

    make_folder(out)
    written = [write_table(test, out / _FILES[0])]
    if drawing.can_draw():
        written.append(draw(title, test, own, out / _FILES[1]))
    for path in written:
        console.say(f"wrote {path}")
