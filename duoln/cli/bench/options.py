"""Options, checks, tables and records that the kinds of `duoln bench` share."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from duoln.backends.protocol import Backend
from duoln.bench import machine, operators, operators_torch
from duoln.bench.records import append_timings, check_target, make_case, make_record, write
from duoln.bench.turns import Entry, time_in_turns
from duoln.cli import console
from duoln.cli.rows_table import RowsTable
from duoln.errors import UsageError
from duoln.system.paths import path_argument

_MOST_VALUES = 1 << 48
"""The product of sizes that is refused: no array can have so many values."""


def _record_file(text: str) -> Path | str:
    return text if text == "-" else path_argument(text)


def add_common(parser: argparse.ArgumentParser, rounds: int, runs: int | None = None) -> None:
    """Add the options that every kind has."""
    parser.add_argument("--backend", help="default: DUOLN_BACKEND, else auto")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each side (default {rounds})")
    if runs is not None:
        parser.add_argument("--runs", type=int, default=runs, help=f"runs a turn (default {runs})")
    parser.add_argument("--json", type=_record_file, metavar="FILE",
                        help="write the record, with every sample; - is stdout")
    parser.add_argument("--append", type=path_argument, metavar="FILE.jsonl",
                        help="add each case as a line of this file")
    parser.add_argument("--label", metavar="TEXT", help="the machine's name in the record (default: made of its facts)")


def numbers(text: str, form: str) -> list[int]:
    """The value of an option such as `--shape 8,16`."""
    parts = text.split(",")
    if len(parts) != form.count(",") + 1 or not all(p.isdecimal() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"expected {form} of at least 1 each, found {text!r}")
    values = [int(p) for p in parts]
    if prod(values) >= _MOST_VALUES:
        raise argparse.ArgumentTypeError(f"expected {form} whose product is below 2 ** 48, found {text!r}")
    return values


def begin(args: argparse.Namespace) -> Backend:
    """The backend of a benchmark whose options have been checked; a line says which it is and how its rules run.

    Raises:
        UsageError: an option cannot be used; nothing has been timed. BackendError: the backend cannot be used here.
    """
    _check(args)
    from duoln import runtime

    backend, why = runtime.choose(args.backend)
    console.say(f"backend: {why}")
    return backend


def _check(args: argparse.Namespace) -> None:
    runs = getattr(args, "runs", 1)
    for name, value in (("rounds", args.rounds), ("runs", runs)):
        if value < 1:
            raise UsageError(f"[bench] --{name}: expected at least 1, found {value}")
    if args.label == "":
        raise UsageError("[bench] expected a label, found an empty one")
    for target in (None if args.json == "-" else args.json, args.append):
        if target is not None:
            check_target(target)
    if isinstance(args.json, Path) and args.append is not None and args.json.resolve() == args.append.resolve():
        raise UsageError(f"[bench] expected two files for --json and --append, found {args.append} for both")
    if any(peer == "liger" or peer.startswith("torch") for peer in args.peer):
        operators_torch.check_installed()
    if "jax" in args.peer and find_spec("jax") is None:
        raise UsageError("[bench] --peer jax needs JAX, which is not installed; pip install jax")
    remark = machine.busy()
    if remark:
        console.say(remark, style="yellow")


@contextmanager
def recorded(kind: str, args: argparse.Namespace, backend: Backend) -> Iterator[list[Mapping[str, Any]]]:
    """A list for the cases that the block measures. When it ends, the limits of the machine are told, and the record is
    written, if that is asked for, with the copy's bandwidth beside each case. A case that fails loses no earlier one.
    """
    cases: list[Mapping[str, Any]] = []
    try:
        yield cases
    finally:
        if cases:
            console.tell(operators.machine_limits(backend), tables_are_results(args))
            _record_cases(kind, args, backend, cases)


def _record_cases(kind: str, args: argparse.Namespace, backend: Backend, cases: Sequence[Mapping[str, Any]]) -> None:
    if args.json is None and args.append is None:
        return
    copy_gbps = operators.measure_copy(backend)["gbps"]
    made = [make_case(**{"copy_gbps": copy_gbps, "runs": args.runs, **case}) for case in cases]
    write_record(make_record(kind, backend, args.label, copy_gbps, made), args)


def tables_are_results(args: argparse.Namespace) -> bool:
    """True if the tables are the result, for stdout. With `--json -` a document is, and the tables go to stderr."""
    return bool(args.json != "-")


def time_sides(title: str, entries: Sequence[Entry], args: argparse.Namespace, unit: str, scale: float,
               ) -> list[dict[str, Any]]:
    """Time sides in turns, and show their times, our share of each, and their peak memory beyond libraries and data.

    Args:
        title: what is timed.
        entries: the sides.
        args: the options of `add_common`.
        unit: of the times that are shown.
        scale: units in a second.
    """
    console.say(f"{title}: {args.rounds} turns of {args.runs} runs a side")
    rows = time_in_turns(entries, args.rounds, args.runs)
    table = [(row["name"], f"{row['median'] * scale:.2f}", f"{row['p10'] * scale:.2f} - {row['p90'] * scale:.2f}",
              f"{row['ratio']:.2f}", _mib(row["facts"].get("peak_bytes"))) for row in rows]
    console.show(RowsTable(title, ("side", unit, "p10 - p90", "duoln / side", "peak MiB"), table, whole=range(5)),
                 tables_are_results(args))
    return rows


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2 ** 20:.0f}"


def write_record(record: Mapping[str, Any], args: argparse.Namespace) -> None:
    """Write a record where `--append` and `--json` say, if they say so."""
    if args.append is not None:
        console.say(f"added {append_timings(record, args.append)} lines to {args.append}")
    if args.json == "-":
        console.put_json(record)
    elif args.json is not None:
        write(record, args.json)
        console.say(f"wrote {args.json}")
