"""`duoln bench`: the options that choose its rows, their record and table; its survey; and `duoln compare`."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from duoln import runtime
from duoln.backends.protocol import Backend
from duoln.bench import compare, groups, in_torch, machine, machines, text
from duoln.bench.groups import Sizes
from duoln.bench.records import append_timings, check_target, write
from duoln.bench.running import Bench, Plan, copy_words, on_cpu
from duoln.bench.survey import PARTS, SUMMARY, parts, survey
from duoln.bench.turns import SidePool
from duoln.cli import console
from duoln.cli.rows_table import RowsTable
from duoln.core.arguments import did_you_mean
from duoln.errors import UsageError
from duoln.kernels.attention import cases as of_attention
from duoln.kernels.recurrent import cases as of_recurrent
from duoln.kernels.registry import registered, timed
from duoln.ops.recurrent.variants import check_variant
from duoln.system.paths import path_argument
from duoln.tasks.registry import find_task
from duoln.tasks.settings import make_config, parse_settings


def add_command(commands: Any) -> None:
    """Add `bench` and `compare` to the command line."""
    bench = commands.add_parser("bench", help="time duoln, beside a peer in the same run")
    kinds = bench.add_subparsers(dest="kind", metavar="KIND", required=True)
    _add_groups(kinds)
    _add_survey(kinds)
    machines = kinds.add_parser("machines", help="what has been measured on which machine; measures nothing")
    machines.add_argument("files", nargs="*", type=path_argument, metavar="FILE.jsonl",
                          help="lines that `duoln bench ... --append FILE.jsonl` has added: these alone are shown")
    machines.set_defaults(run=_machines)

    versus = commands.add_parser("compare", help="compare files of `duoln bench ... --json FILE` from several machines")
    versus.add_argument("files", nargs="+", type=path_argument, metavar="FILE",
                        help="the others are compared with the first")
    versus.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    versus.set_defaults(run=_compare)


# The rows ---------------------------------------------------------------------------------------------

_MOST_VALUES = 1 << 48
"""The product of sizes that is refused: no array can have so many values."""
Rows = list[dict[str, Any]]


class Group(NamedTuple):
    """A group of rows on the command line."""

    help: str
    options: Callable[[argparse.ArgumentParser], None]
    peers: Sequence[str] | None
    """Those that there may be; None if that depends on the row."""
    check: Callable[[argparse.Namespace], Any]
    """Checks the options before anything is loaded; the result is for `rows`."""
    rows: Callable[[argparse.Namespace, Any, Backend], Rows]
    """The values of the rows."""


def _add_groups(kinds: Any) -> None:
    """Add every group."""
    for name, group in _GROUPS.items():
        parser = kinds.add_parser(name, help=group.help)
        group.options(parser)
        peers = "torch, torch-fused, or what else the task has (an unknown name lists them); may be repeated"
        parser.add_argument("--peer", action="append", default=[], choices=group.peers, metavar=None if group.peers else
                            "NAME", help=None if group.peers else peers)
        parser.add_argument("--backend", help="default: DUOLN_BACKEND, else auto")
        parser.add_argument("--rounds", type=int, default=9, help="turns of each side (default 9)")
        parser.add_argument("--runs", type=int, default=3, help="runs a turn (default 3)")
        parser.add_argument("--json", type=_record_file, metavar="FILE",
                            help="write the record, with every sample; - is stdout")
        parser.add_argument("--append", type=path_argument, metavar="FILE.jsonl",
                            help="add each case as a line of this file")
        parser.add_argument("--label", metavar="TEXT",
                            help="the machine's name in the record (default: made of its facts)")
        parser.set_defaults(run=lambda args, group=group: _run(args, group))


def _run(args: argparse.Namespace, group: Group) -> int:
    checked = group.check(args)
    _check(args)
    backend, why = runtime.choose(args.backend)
    console.say(f"backend: {why}")
    plans = [Plan(args.kind, row, args.peer) for row in group.rows(args, checked, backend)]
    with SidePool() as sides:
        bench = Bench(args.kind, backend, console.say, args.label, sides)
        try:
            bench.time(plans, args.rounds, args.runs,
                       lambda record: write(record, args.json) if isinstance(args.json, Path) else None)
        finally:  # an interrupt loses no earlier row
            if bench.cases:
                _show(bench, backend, args)
    return 0 if bench.error is None else bench.error.exit_code


def _show(bench: Bench, backend: Backend, args: argparse.Namespace) -> None:
    """The tables are the result, for stdout. With `--json -` a document is, and they go to stderr."""
    are_results = args.json != "-"
    headings, rows = text.table(bench.cases)
    console.show(RowsTable(f"{args.kind}, {backend.device}", headings, rows, whole=range(len(headings))), are_results)
    console.tell(f"100% is {copy_words(bench.gbps, backend)}", are_results)
    record = bench.record()
    if args.append is not None:
        console.say(f"added {append_timings(record, args.append)} lines to {args.append}")
    if args.json == "-":
        console.put_json(record)
    elif args.json is not None:
        console.say(f"wrote {args.json}")


def _check(args: argparse.Namespace) -> None:
    """Raises UsageError if an option cannot be used; nothing has been timed."""
    for name, value in (("rounds", args.rounds), ("runs", args.runs)):
        if value < 1:
            raise UsageError(f"[bench] --{name}: expected at least 1, found {value}")
    if args.label == "":
        raise UsageError("[bench] expected a label, found an empty one")
    for target in (None if args.json == "-" else args.json, args.append):
        if target is not None:
            check_target(target)
    if isinstance(args.json, Path) and args.append is not None and args.json.resolve() == args.append.resolve():
        raise UsageError(f"[bench] expected two files for --json and --append, found {args.append} for both")
    if any(peer.startswith("torch") for peer in args.peer):
        in_torch.check_installed()
    remark = machine.load_remark()
    if remark:
        console.say(remark, style="yellow")


def _record_file(word: str) -> Path | str:
    return word if word == "-" else path_argument(word)


def _numbers(form: str) -> Callable[[str], tuple[int, ...]]:
    """The type of an option such as `--shape 8,16`."""
    def parse(word: str) -> tuple[int, ...]:
        parts = word.split(",")
        if len(parts) != form.count(",") + 1 or not all(p.isdecimal() and int(p) > 0 for p in parts):
            raise argparse.ArgumentTypeError(f"expected {form} of at least 1 each, found {word!r}")
        values = tuple(int(p) for p in parts)
        if prod(values) >= _MOST_VALUES:
            raise argparse.ArgumentTypeError(f"expected {form} whose product is below 2 ** 48, found {word!r}")
        return values

    return parse


def _add_shape(parser: Any, name: str, form: str, what: str = "may be repeated") -> None:
    parser.add_argument(name, action="append", type=_numbers(form), metavar=form, help=what)


def _add_forward(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--forward", action="store_true", help="forward only (default: forward and backward)")


def _nothing(args: argparse.Namespace) -> None:
    return None


# Operators --------------------------------------------------------------------------------------------

def _ops_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--op", action="append", metavar="NAME",
                        help=f"{', '.join(timed())}, or one that a plug-in registers; may be repeated (default all)")
    sizes = parser.add_mutually_exclusive_group()
    _add_shape(sizes, "--shape", "ROWS,WIDTH", "of every operator, instead of each one's table; may be repeated")
    sizes.add_argument("--small", action="store_true", help="the small tables (default on a CPU)")
    sizes.add_argument("--full", action="store_true", help="the full tables (default on a GPU); minutes on a CPU")
    parser.add_argument("--warm", action="store_true", help="the same inputs every time, which a cache may hold")
    _add_forward(parser)


def _ops_check(args: argparse.Namespace) -> list[str]:
    known = groups.operators()
    for name in args.op or ():
        if name not in known:
            reason = "; it is registered without a timing: register(op, cases, timed)" if name in registered() else \
                did_you_mean(name, known)
            raise UsageError(f"[bench] --op: expected one of {', '.join(known)}; found {name!r}{reason}")
    return list(dict.fromkeys(args.op or known))


def _ops_rows(args: argparse.Namespace, names: list[str], backend: Backend) -> Rows:
    small, tables = args.small or (on_cpu(backend) and not args.full), groups.operators()
    return [{"op": name, "shape": shape, "backward": backward, "cold": not args.warm} for name in names
            for shape in dict.fromkeys(args.shape or (tables[name].small if small else tables[name].shapes))
            for backward in ((False,) if args.forward else (False, True))]


# Layers, a language model -----------------------------------------------------------------------------

def _rnn_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cell", action="append", choices=("rnn", "lstm", "gru"),
                        help="may be repeated (default lstm)")
    parser.add_argument("--norm", action="append", metavar="NAME", help="may be repeated (default layer)")
    _add_shape(parser, "--shape", "T,B,IN,H")
    _add_forward(parser)


def _rnn_check(args: argparse.Namespace) -> Rows:
    chosen = product(args.cell or ["lstm"], args.norm or ["layer"], args.shape or of_recurrent.SHAPES)
    rows = [{"cell": cell, "norm": norm, "shape": tuple(shape), "backward": not args.forward}
            for cell, norm, shape in dict.fromkeys(chosen)]
    for row in rows:
        check_variant(row["cell"], row["norm"])
    return rows


def _attention_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--causal", action="store_true", help="each query sees the keys up to its own alone")
    _add_shape(parser, "--shape", "B,H,T,D")
    _add_forward(parser)


def _attention_rows(args: argparse.Namespace, checked: None, backend: Backend) -> Rows:
    return [{"shape": tuple(shape), "causal": args.causal, "backward": not args.forward}
            for shape in dict.fromkeys(args.shape or of_attention.SHAPES)]


def _model_rows(args: argparse.Namespace, checked: None, backend: Backend) -> Rows:
    return [{"subject": subject, "sizes": tuple(sizes)} for sizes in dict.fromkeys(args.sizes or [Sizes()])
            for subject in ("update", "token")]


# Steps of a task, parts -------------------------------------------------------------------------------

def _train_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--variant", default="ln")
    parser.add_argument("--preset", metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--batch-size", type=int, action="append", help="may be repeated (default 128 and 4)")
    parser.add_argument("--plugin", action="append", metavar="NAME", dest="plugins",
                        help="load only the plug-in of this name; may be repeated")


def _train_check(args: argparse.Namespace) -> Rows:
    task = find_task(args.task, args.plugins)
    for peer in args.peer:
        task.peer(peer)
    chosen, sizes = parse_settings(args.settings), list(dict.fromkeys(args.batch_size or [128, 4]))
    if "batch_size" in chosen:
        raise UsageError("[bench] --set batch_size: expected --batch-size, which may be repeated")
    if min(sizes) < 1:
        raise UsageError(f"[bench] --batch-size: expected at least 1, found {min(sizes)}")
    rows = []
    for size in sizes:
        cfg = make_config(task, args.variant, args.preset, {**chosen, "batch_size": size})
        settings = {key: getattr(cfg, key) for key in (*chosen, "batch_size")}
        rows.append({"task": task.name, "variant": args.variant, "preset": args.preset, "settings": settings,
                     "plugins": args.plugins})
    return rows


def _wide_options(parser: argparse.ArgumentParser) -> None:
    names = [name for rows in groups.WIDE_NAMES.values() for name in rows]
    parser.add_argument("rows", nargs="*", metavar="ROW", choices=[*groups.WIDE_NAMES, *names, []],
                        help=f"a row or a group ({', '.join(groups.WIDE_NAMES)}; default all)")


def _wide_rows(args: argparse.Namespace, checked: None, backend: Backend) -> Rows:
    return [{"name": name} for group, rows in groups.WIDE_NAMES.items() for name in rows
            if not args.rows or name in args.rows or group in args.rows]


_TORCH = ("torch", "torch-compile")
_GROUPS = {
    "ops": Group("operators over rows", _ops_options, _TORCH, _ops_check, _ops_rows),
    "wide": Group("each part that a user meets, in a row of its own", _wide_options, _TORCH, _nothing,
                  _wide_rows),
    "train": Group("one training step of a task", _train_options, None, _train_check, lambda args, rows, _: rows),
    "rnn": Group("recurrent layers", _rnn_options, _TORCH, _rnn_check, lambda args, rows, _: rows),
    "attention": Group("scaled dot-product attention", _attention_options, _TORCH, _nothing, _attention_rows),
    "language-model": Group("a two-layer LN-LSTM on characters: an update, a sampled token", lambda parser: _add_shape(
        parser, "--sizes", "T,B,WIDTH,SYMBOLS", "of the text and the model, may be repeated"), ("torch",), _nothing,
        _model_rows),
}


# What has been measured -------------------------------------------------------------------------------

def _machines(args: argparse.Namespace) -> int:
    for name, works in machines.measured(args.files).items():
        headings, rows = machines.table(works)
        console.show(RowsTable(name, headings, rows, whole=(1, 2)), data=True)
    return 0


def _compare(args: argparse.Namespace) -> int:
    for path in args.files:
        if path.is_dir():
            raise UsageError(f"{path}: expected a file of `duoln bench ... --json FILE`, found a folder; for runs: "
                             f"duoln report {' '.join(map(str, args.files))}")
    comparison = compare.compare(args.files)
    if args.json:
        console.put_json(comparison.as_json())
        return 0
    for title, headings, rows in (compare.groups_table(comparison), compare.table(comparison)):
        console.show(RowsTable(title, headings, rows, whole=[0]), data=True)
    for line in compare.remarks(comparison):
        console.put(line)
    return 0


def _add_survey(kinds: Any) -> None:
    """Add `survey`."""
    parser = kinds.add_parser("survey", help="everything that one device can show: a folder of records and a summary")
    parser.add_argument("--out", type=path_argument, required=True, metavar="DIR",
                        help="a new folder, or that of a survey of this device, which is continued")
    parser.add_argument("--backend", default="cupy", choices=("cupy", "mlx", "numpy"),
                        help="cupy for an NVIDIA GPU (default), mlx for a Mac, numpy for a CPU")
    parser.add_argument("--part", action="append", choices=PARTS, dest="parts",
                        help="only this part; may be repeated (default all)")
    parser.add_argument("--seconds", type=_seconds, default=540.0, metavar="N",
                        help="for all of it (default 540): what is left shortens the later parts, or leaves them out")
    parser.add_argument("--tar", type=path_argument, metavar="FILE",
                        help="an archive of the folder, made anew after every part")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether it works, not how fast")
    parser.set_defaults(run=_survey)


def _survey(args: argparse.Namespace) -> int:
    until = time.monotonic() + args.seconds
    runtime.backend(args.backend)  # an error, where it cannot be used: every part would fail
    wanted = [part for part in parts(args.backend, args.out.absolute(), args.quick, os.cpu_count() or 1)
              if part.name in (args.parts or PARTS)]
    good = survey(wanted, args.out, console.say, until, args.tar)
    console.put((args.out / SUMMARY).read_text(encoding="utf-8"))
    return 0 if good else 1


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, found {word!r}")
    return seconds
