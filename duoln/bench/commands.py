"""`duoln bench ...`."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_commands(commands: Any) -> None:
    """Add `bench` to the command line."""
    bench = commands.add_parser("bench", help="time duoln, beside a peer in the same run")
    kinds = bench.add_subparsers(dest="kind", metavar="KIND", required=True)
    train = kinds.add_parser("train", help="one training step of a task")
    train.add_argument("--task", default="mnist")
    train.add_argument("--variant", default="ln")
    train.add_argument("--preset", metavar="NAME")
    train.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    train.add_argument("--batch-size", type=int, action="append", help="may be repeated (default 128 and 4)")
    train.add_argument("--backend", help="default: DUOLN_BACKEND, else auto")
    train.add_argument("--peer", action="append", default=[], help="torch or torch-fused; may be repeated")
    train.add_argument("--rounds", type=int, default=15, help="turns of each side")
    train.add_argument("--steps", type=int, default=20, help="steps a turn")
    train.add_argument("--json", action="store_true", help="every sample, as one JSON object on stdout")
    train.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    from duoln import console
    from duoln.bench.train_step import compare
    from duoln.errors import UsageError
    from duoln.tasks import make_config, parse_settings
    from duoln.tasks.registry import find_task

    if args.rounds < 1 or args.steps < 1:
        raise UsageError(f"[bench] expected rounds and steps of at least 1, found {args.rounds} and {args.steps}")
    task = find_task(args.task)
    for peer in args.peer:
        task.peer(peer)
    records = []
    for size in args.batch_size or [128, 4]:
        settings = {**parse_settings(args.settings), "batch_size": size}
        make_config(task, args.variant, args.preset, settings)
        console.say(f"{task.name} {args.variant}, batch {size}: {args.rounds} turns of {args.steps} steps a side")
        records.append(compare({"task": task.name, "variant": args.variant, "preset": args.preset,
                                "settings": settings, "backend": args.backend}, args.peer, args.rounds, args.steps))
    rows = [(str(r["asked"]["settings"]["batch_size"]), row["name"], f"{row['median'] * 1e3:.2f}",
             f"{row['p10'] * 1e3:.2f} - {row['p90'] * 1e3:.2f}", f"{row['ratio']:.2f}")
            for r in records for row in r["rows"]]
    console.show(console.rows_table(f"One training step of {task.name} {args.variant}",
                                    ("batch", "side", "ms (median)", "p10 - p90", "duoln / side"), rows))
    if args.json:
        console.put(json.dumps({"schema": "duoln-bench/1", "records": records}))
    return 0
