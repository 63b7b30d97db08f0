"""`duoln bench ...`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from duoln.bench import recurrent
from duoln.bench.records import SCHEMA
from duoln.bench.sides import Entry, compare, with_allocators
from duoln.errors import UsageError
from duoln.kernels.recurrent import cases
from duoln.ops.recurrent.variants import check_variant


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
    train.add_argument("--peer", action="append", default=[], help="torch or torch-fused; may be repeated")
    _add_common(train, rounds=15, runs=20)
    train.set_defaults(run=_train)

    rnn = kinds.add_parser("rnn", help="recurrent layers, forward and backward")
    rnn.add_argument("--cell", action="append", choices=("rnn", "lstm", "gru"), help="may be repeated (default lstm)")
    rnn.add_argument("--norm", action="append", metavar="NAME", help="may be repeated (default layer)")
    rnn.add_argument("--shape", action="append", type=_shape, metavar="T,B,IN,H", help="may be repeated")
    rnn.add_argument("--forward", action="store_true", help="forward only (default: forward and backward)")
    rnn.add_argument("--peer", action="append", default=[], choices=recurrent.PEERS)
    _add_common(rnn, rounds=9, runs=3)
    rnn.set_defaults(run=_rnn)


def _add_common(parser: argparse.ArgumentParser, rounds: int, runs: int) -> None:
    parser.add_argument("--backend", help="default: DUOLN_BACKEND, else auto")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each side (default {rounds})")
    parser.add_argument("--runs", type=int, default=runs, help=f"runs a turn (default {runs})")
    parser.add_argument("--json", action="store_true", help="every sample, as one JSON object on stdout")


def _shape(text: str) -> cases.Shape:
    parts = text.split(",")
    if len(parts) != 4 or not all(p.isdigit() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"expected T,B,IN,H of at least 1 each, found {text!r}")
    return cases.Shape(*(int(p) for p in parts))


def _check_counts(args: argparse.Namespace) -> None:
    if args.rounds < 1 or args.runs < 1:
        raise UsageError(f"[bench] expected rounds and runs of at least 1, found {args.rounds} and {args.runs}")


def _train(args: argparse.Namespace) -> int:
    from duoln import console
    from duoln.tasks import make_config, parse_settings
    from duoln.tasks.registry import find_task

    _check_counts(args)
    task = find_task(args.task)
    for peer in args.peer:
        task.peer(peer)
    records = []
    for size in args.batch_size or [128, 4]:
        settings = {**parse_settings(args.settings), "batch_size": size}
        make_config(task, args.variant, args.preset, settings)
        asked = {"kind": "train", "task": task.name, "variant": args.variant, "preset": args.preset,
                 "settings": settings, "backend": args.backend, "peer": None}
        entries = [Entry("duoln", asked)]
        for peer in args.peer:
            entries += with_allocators(peer, {**asked, "peer": peer})
        console.say(f"{task.name} {args.variant}, batch {size}: {args.rounds} turns of {args.runs} steps a side")
        records.append({"asked": asked, "case": f"batch {size}", "rows": compare(entries, args.rounds, args.runs)})
    _show(f"One training step of {task.name} {args.variant}", records, args, 1e3, "ms")
    return 0


def _rnn(args: argparse.Namespace) -> int:
    from duoln import console

    _check_counts(args)
    chosen = [(cell, norm, shape) for cell in args.cell or ["lstm"] for norm in args.norm or ["layer"]
             for shape in args.shape or cases.SHAPES]
    for cell, norm, _ in chosen:
        check_variant(cell, norm)
    records = []
    for cell, norm, shape in chosen:
        name = f"{cell} {norm} T{shape.steps} B{shape.batch} in{shape.n_in} H{shape.hidden}"
        console.say(f"{name}: {args.rounds} turns of {args.runs} runs a side")
        entries = recurrent.entries(cell, norm, shape, not args.forward, args.backend, args.peer)
        rows = compare(entries, args.rounds, args.runs)
        for row in rows:
            for key in ("median", "p10", "p90"):
                row[f"{key}_step"] = row[key] / shape.steps
            row["gflops"] = cases.flops(cell, shape, not args.forward) / row["median"] / 1e9
        records.append({"asked": dict(entries[0].asked), "case": name, "rows": rows})
    _show("Forward" if args.forward else "Forward and backward", records, args, 1e6, "us a time step", "_step")
    return 0


def _show(title: str, records: Sequence[dict[str, Any]], args: argparse.Namespace, scale: float, unit: str,
          suffix: str = "") -> None:
    from duoln import console

    for record in records:
        rows = [(row["name"], f"{row['median' + suffix] * scale:.2f}",
                 f"{row['p10' + suffix] * scale:.2f} - {row['p90' + suffix] * scale:.2f}", f"{row['ratio']:.2f}")
                for row in record["rows"]]
        headings = ("side", unit, "p10 - p90", "duoln / side")
        console.show(console.rows_table(f"{title}: {record['case']}", headings, rows))
    if args.json:
        console.put(json.dumps({"schema": SCHEMA, "rounds": args.rounds, "runs": args.runs, "records": records}))
