"""`duoln bench ...` and `duoln compare`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duoln.bench import machine, operators, recurrent, text
from duoln.bench.records import append_timings, check_target, make_case, make_record, write
from duoln.bench.subjects import SUBJECTS
from duoln.bench.turns import Entry, time_in_turns, with_allocators
from duoln.errors import UsageError
from duoln.kernels.recurrent import cases
from duoln.ops.recurrent.variants import check_variant


def add_commands(commands: Any) -> None:
    """Add `bench` and `compare` to the command line."""
    bench = commands.add_parser("bench", help="time duoln, beside a peer in the same run")
    kinds = bench.add_subparsers(dest="kind", metavar="KIND", required=True)
    _add_ops(kinds)
    _add_train(kinds)
    _add_rnn(kinds)

    versus = commands.add_parser("compare", help="what `duoln bench ... --json FILE` wrote on several machines")
    versus.add_argument("files", nargs="+", type=Path, metavar="FILE", help="the first is what others are measured by")
    versus.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw the times (needs matplotlib)")
    versus.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    versus.set_defaults(run=_compare)


def _add_ops(kinds: Any) -> None:
    ops = kinds.add_parser("ops", help="operators over rows, beside a plain copy")
    ops.add_argument("--op", action="append", choices=tuple(SUBJECTS), help="may be repeated (default all)")
    ops.add_argument("--shape", action="append", type=_rows_width, metavar="ROWS,WIDTH",
                     help="of every operator; may be repeated (default: each one's table)")
    ops.add_argument("--small", action="store_true", help="the reduced tables, for a CPU")
    ops.add_argument("--forward", action="store_true", help="forward only (default: also forward and backward)")
    ops.add_argument("--cold", action="store_true", help="inputs that are in no cache (default)")
    ops.add_argument("--warm", action="store_true", help="the same inputs every time; with --cold both")
    ops.add_argument("--peer", action="append", default=[], choices=operators.PEERS)
    ops.add_argument("--append", type=Path, metavar="FILE.jsonl", help="add each case as a line of this file")
    _add_common(ops, rounds=15)
    ops.set_defaults(run=_ops)


def _add_train(kinds: Any) -> None:
    train = kinds.add_parser("train", help="one training step of a task")
    train.add_argument("--task", default="mnist")
    train.add_argument("--variant", default="ln")
    train.add_argument("--preset", metavar="NAME")
    train.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    train.add_argument("--batch-size", type=int, action="append", help="may be repeated (default 128 and 4)")
    train.add_argument("--plugin", action="append", metavar="NAME", dest="plugins",
                       help="load only the plug-in of this name; may be repeated")
    train.add_argument("--peer", action="append", default=[], help="torch or torch-fused; may be repeated")
    _add_common(train, rounds=15, runs=20)
    train.set_defaults(run=_train)


def _add_rnn(kinds: Any) -> None:
    rnn = kinds.add_parser("rnn", help="recurrent layers, forward and backward")
    rnn.add_argument("--cell", action="append", choices=("rnn", "lstm", "gru"), help="may be repeated (default lstm)")
    rnn.add_argument("--norm", action="append", metavar="NAME", help="may be repeated (default layer)")
    rnn.add_argument("--shape", action="append", type=_recurrent_shape, metavar="T,B,IN,H", help="may be repeated")
    rnn.add_argument("--forward", action="store_true", help="forward only (default: forward and backward)")
    rnn.add_argument("--peer", action="append", default=[], choices=recurrent.PEERS)
    _add_common(rnn, rounds=9, runs=3)
    rnn.set_defaults(run=_rnn)


def _add_common(parser: argparse.ArgumentParser, rounds: int, runs: int | None = None) -> None:
    parser.add_argument("--backend", help="default: DUOLN_BACKEND, else auto")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each side (default {rounds})")
    if runs is not None:
        parser.add_argument("--runs", type=int, default=runs, help=f"runs a turn (default {runs})")
    parser.add_argument("--json", metavar="FILE", help="write the record, with every sample; - is stdout")
    parser.add_argument("--label", metavar="TEXT", help="the machine's name in the record (default: made of its facts)")


def _numbers(text: str, form: str) -> list[int]:
    parts = text.split(",")
    if len(parts) != form.count(",") + 1 or not all(p.isdecimal() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"expected {form} of at least 1 each, found {text!r}")
    return [int(p) for p in parts]


def _rows_width(text: str) -> tuple[int, int]:
    rows, width = _numbers(text, "ROWS,WIDTH")
    return rows, width


def _recurrent_shape(text: str) -> cases.Shape:
    return cases.Shape(*_numbers(text, "T,B,IN,H"))


def _check(args: argparse.Namespace) -> None:
    """Raises UsageError before anything is timed; remarks on a machine that is busy."""
    from duoln.cli import console

    runs = getattr(args, "runs", 1)
    if args.rounds < 1 or runs < 1:
        raise UsageError(f"[bench] expected rounds and runs of at least 1, found {args.rounds} and {runs}")
    if args.label == "":
        raise UsageError("[bench] expected a label, found an empty one")
    for target in (None if args.json == "-" else args.json, getattr(args, "append", None)):
        if target is not None:
            check_target(Path(target))
    remark = machine.busy()
    if remark:
        console.say(remark, style="yellow")


# ops --------------------------------------------------------------------------------------------------

def _ops(args: argparse.Namespace) -> int:
    from duoln import runtime
    from duoln.cli import console

    _check(args)
    caches = [name for name, asked in (("cold", args.cold or not args.warm), ("warm", args.warm)) if asked]
    plans = operators.make_plans([SUBJECTS[name] for name in args.op or SUBJECTS], args.shape, args.small, caches,
                                 args.forward)
    backend, why = runtime.choose(args.backend)
    console.say(f"backend: {why}")
    copied = operators.measure_copy(backend, args.rounds)
    found = [copied]
    console.say(f"a copy: {copied['gbps']:.1f} GB/s")
    for k, plan in enumerate(plans):
        console.say(f"{plan.name} ({k + 1} of {len(plans)})")
        found += operators.measure(plan, backend, list(dict.fromkeys(args.peer)), args.rounds, copied["gbps"])
    record = make_record("ops", backend, args.label, copied["gbps"], found)
    _show_operators(found)
    if args.append is not None:
        console.say(f"added {append_timings(record, args.append)} lines to {args.append}")
    _write(record, args.json)
    return 0


def _show_operators(found: Sequence[Mapping[str, Any]]) -> None:
    from duoln.cli import console

    for name in SUBJECTS:
        of_one = [case for case in found if case["op"] == name]
        if of_one:
            title, headings, rows = text.operator_table(of_one)
            console.show(console.rows_table(title, headings, rows, whole=[0]))


# train, rnn -------------------------------------------------------------------------------------------

def _train(args: argparse.Namespace) -> int:
    from duoln.cli import console
    from duoln.tasks import make_config, parse_settings
    from duoln.tasks.registry import find_task

    _check(args)
    task = find_task(args.task, args.plugins)
    peers = list(dict.fromkeys(args.peer))
    for peer in peers:
        task.peer(peer)
    chosen = parse_settings(args.settings)
    title = f"One training step of {task.name} {args.variant}"
    found = []
    for size in dict.fromkeys(args.batch_size or [128, 4]):
        settings = {**chosen, "batch_size": size}
        cfg = make_config(task, args.variant, args.preset, settings)
        asked = {"kind": "train", "task": task.name, "variant": args.variant, "preset": args.preset,
                 "settings": settings, "backend": args.backend, "peer": None, "plugins": args.plugins}
        entries = [Entry("duoln", asked)]
        for peer in peers:
            entries += with_allocators(peer, {**asked, "peer": peer})
        console.say(f"{task.name} {args.variant}, batch {size}: {args.rounds} turns of {args.runs} steps a side")
        rows = time_in_turns(entries, args.rounds, args.runs)
        _show_rows(f"{title}: batch {size}", rows, 1e3, "ms")
        preset = {} if args.preset is None else {"preset": args.preset}
        found += [{"op": f"{task.name} {args.variant}", "passes": "step", "shape": [size],
                   "settings": {**preset, **{key: getattr(cfg, key) for key in chosen}}, **_of_row(row)}
                  for row in rows]
    _record_rows("train", args, found)
    return 0


def _rnn(args: argparse.Namespace) -> int:
    from duoln.cli import console

    _check(args)
    chosen = list(dict.fromkeys((cell, norm, shape) for cell in args.cell or ["lstm"]
                                for norm in args.norm or ["layer"] for shape in args.shape or cases.SHAPES))
    for cell, norm, _ in chosen:
        check_variant(cell, norm)
    title = "Forward" if args.forward else "Forward and backward"
    found = []
    for cell, norm, shape in chosen:
        name = f"{cell} {norm} T{shape.steps} B{shape.batch} in{shape.n_in} H{shape.hidden}"
        console.say(f"{name}: {args.rounds} turns of {args.runs} runs a side")
        entries = recurrent.entries(cell, norm, shape, not args.forward, args.backend, args.peer)
        rows = time_in_turns(entries, args.rounds, args.runs)
        _show_rows(f"{title}: {name}", rows, 1e6 / shape.steps, "us a time step")
        found += [{"op": f"{cell} {norm}", "passes": operators.passes(not args.forward), "shape": shape,
                   "moved": cases.least_bytes(cell, shape) if args.forward else None,
                   "flops": cases.flops(cell, shape, not args.forward),
                   "rule": row["facts"].get("rule"), "source": recurrent.source_of(cell, row["facts"].get("rule")),
                   **_of_row(row)} for row in rows]
    _record_rows("rnn", args, found)
    return 0


def _of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a case takes from a row of `turns.time_in_turns`."""
    return {"side": row["name"], "samples": row["samples"], "clock_name": "wall_run", "cache": "running",
            "warmups": row["facts"]["warmups"], "ratio": row["ratio"], "facts": row["facts"]}


def _record_rows(kind: str, args: argparse.Namespace, found: Sequence[Mapping[str, Any]]) -> None:
    """Write what `train` or `rnn` measured, if that is asked for, with the copy's bandwidth beside it."""
    if args.json is None:
        return
    from duoln import runtime

    backend = runtime.backend(args.backend)
    copy_gbps = operators.measure_copy(backend)["gbps"]
    made = [make_case(**{"copy_gbps": copy_gbps, "runs": args.runs, **case}) for case in found]
    _write(make_record(kind, backend, args.label, copy_gbps, made), args.json)


def _show_rows(title: str, rows: Sequence[Mapping[str, Any]], scale: float, unit: str) -> None:
    from duoln.cli import console

    shown = [(row["name"], f"{row['median'] * scale:.2f}", f"{row['p10'] * scale:.2f} - {row['p90'] * scale:.2f}",
              f"{row['ratio']:.2f}") for row in rows]
    console.show(console.rows_table(title, ("side", unit, "p10 - p90", "duoln / side"), shown))


def _write(record: Mapping[str, Any], target: str | None) -> None:
    from duoln.cli import console

    if target == "-":
        console.put_json(record)
    elif target is not None:
        write(record, Path(target))
        console.say(f"wrote {target}")


# compare ----------------------------------------------------------------------------------------------

def _compare(args: argparse.Namespace) -> int:
    from duoln.bench import compare as comparing
    from duoln.cli import console
    from duoln.pictures import drawing

    if args.plot is not None:
        check_target(args.plot)
        drawing.check_picture(args.plot)
    comparison = comparing.compare(args.files)
    if args.plot is not None:
        from duoln.bench.plot import draw

        console.say(f"wrote {draw(comparison, args.plot)}")
    if args.json:
        console.put_json(comparison.as_json())
        return 0
    title, headings, rows = comparing.table(comparison)
    console.show(console.rows_table(title, headings, rows, whole=[0]), data=True)
    for line in comparing.remarks(comparison):
        console.put(line)
    return 0
