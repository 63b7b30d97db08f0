"""`duoln bench language-model`: an update and a sampled token of a two-layer LN-LSTM, beside a peer."""

from __future__ import annotations

import argparse
from typing import Any

from duoln.bench import language_model
from duoln.bench.language_model import SUBJECTS, TOKENS, Sizes
from duoln.bench.records import of_row
from duoln.bench.turns import time_in_turns
from duoln.cli import console
from duoln.cli.bench.options import add_common, begin, numbers, recorded, show_rows, tables_are_results


def add_kind(kinds: Any) -> None:
    """Add `language-model`."""
    parser = kinds.add_parser("language-model", help="a two-layer LN-LSTM on characters: an update, a sampled token")
    parser.add_argument("--sizes", type=_sizes, default=Sizes(), metavar="T,B,WIDTH,SYMBOLS",
                        help=f"of the text and the model (default {','.join(map(str, Sizes()))})")
    parser.add_argument("--peer", action="append", default=[], choices=language_model.PEERS)
    add_common(parser, rounds=9, runs=3)
    parser.set_defaults(run=_language_model)


def _sizes(text: str) -> Sizes:
    return Sizes(*numbers(text, "T,B,WIDTH,SYMBOLS"))


def _language_model(args: argparse.Namespace) -> int:
    with recorded("language-model", args, begin(args)) as timed:
        for subject in SUBJECTS:
            console.say(f"{subject}: {args.rounds} turns of {args.runs} runs a side")
            entries = language_model.entries(subject, args.sizes, args.backend, args.peer)
            rows = time_in_turns(entries, args.rounds, args.runs)
            what = "an update" if subject == "update" else f"{TOKENS} sampled tokens"
            sizes = ", ".join(f"{name} {size}" for name, size in args.sizes._asdict().items())
            show_rows(f"{what}: {sizes}", rows, 1e3, "ms", tables_are_results(args))
            timed += [{"op": f"language model, {what}", "passes": "step" if subject == "update" else "forward",
                       "shape": args.sizes, "moved": None, "flops": None, "rule": None, "source": None, **of_row(row)}
                      for row in rows]
    return 0
