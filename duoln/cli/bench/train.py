"""`duoln bench train`: one training step of a task, beside a peer."""

from __future__ import annotations

import argparse
from typing import Any

from duoln.bench.records import of_row
from duoln.bench.turns import Entry, with_allocators
from duoln.cli.bench.options import add_common, begin, recorded, time_sides
from duoln.errors import UsageError
from duoln.tasks.registry import find_task
from duoln.tasks.settings import make_config, parse_settings


def add_kind(kinds: Any) -> None:
    """Add `train`."""
    train = kinds.add_parser("train", help="one training step of a task")
    train.add_argument("--task", default="mnist")
    train.add_argument("--variant", default="ln")
    train.add_argument("--preset", metavar="NAME")
    train.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    train.add_argument("--batch-size", type=int, action="append", help="may be repeated (default 128 and 4)")
    train.add_argument("--plugin", action="append", metavar="NAME", dest="plugins",
                       help="load only the plug-in of this name; may be repeated")
    train.add_argument("--peer", action="append", default=[],
                       help="the same step in another library: torch, torch-fused, or what else the task has (an "
                            "unknown name lists them); may be repeated")
    add_common(train, rounds=15, runs=20)
    train.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    task = find_task(args.task, args.plugins)
    peers = list(dict.fromkeys(args.peer))
    for peer in peers:
        task.peer(peer)
    chosen, sizes = parse_settings(args.settings), list(dict.fromkeys(args.batch_size or [128, 4]))
    if "batch_size" in chosen:
        raise UsageError("[bench] --set batch_size: expected --batch-size, which may be repeated")
    if min(sizes) < 1:
        raise UsageError(f"[bench] --batch-size: expected at least 1, found {min(sizes)}")
    title = f"One training step of {task.name} {args.variant}"
    with recorded("train", args, begin(args)) as timed:
        for size in sizes:
            settings = {**chosen, "batch_size": size}
            cfg = make_config(task, args.variant, args.preset, settings)
            asked = {"kind": "train", "task": task.name, "variant": args.variant, "preset": args.preset,
                     "settings": settings, "backend": args.backend, "peer": None, "plugins": args.plugins}
            entries = [Entry("duoln", asked)]
            for peer in peers:
                entries += with_allocators(peer, {**asked, "peer": peer})
            rows = time_sides(f"{title}: batch {size}", entries, args, "ms", 1e3)
            preset = {} if args.preset is None else {"preset": args.preset}
            timed += [{"op": f"{task.name} {args.variant}", "passes": "step", "shape": [size],
                       "settings": {**preset, **{key: getattr(cfg, key) for key in chosen}}, **of_row(row)}
                      for row in rows]
    return 0
