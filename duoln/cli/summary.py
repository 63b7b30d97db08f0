"""`duoln summary TASK`: the layers of a task's model."""

from __future__ import annotations

import argparse
from typing import Any

from duoln.cli import one_task


def add_command(commands: Any) -> None:
    """Add `summary` to the command line."""
    parser = commands.add_parser("summary", help="the layers of a task's model: shapes, parameters and memory, for the "
                                                 "first training batch")
    one_task.add_options(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    parser.set_defaults(run=_summary)


def _summary(args: argparse.Namespace) -> int:
    from duoln import runtime
    from duoln.cli import console
    from duoln.randomness import Stream
    from duoln.training.summary import summary_of

    task, variant, cfg, splits = one_task.configured(args)
    backend = runtime.backend("numpy")
    model, batch = task.model(cfg), runtime.to_tensors(splits.train(0), backend)
    params = runtime.to_tensors(model.init(Stream(cfg.seed, "init")), backend)
    made = summary_of(model, params, lambda p: task.loss(model, p, batch))
    if args.json:
        console.put_json({"task": task.name, "variant": variant, "dataset": splits.dataset._asdict(),
                          "batch_size": cfg.batch_size, **made._asdict(), "rows": [row._asdict() for row in made.rows]})
        return 0
    console.put(f"{task.title}, {variant}: the loss of a batch of {cfg.batch_size}\n\n"
                + (made.text(console.width()) if console.width() else made.text()))
    return 0
