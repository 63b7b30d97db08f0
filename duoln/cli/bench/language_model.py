"""`duoln bench language-model`: an update and a sampled token of a two-layer LN-LSTM, beside a peer."""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

from duoln.bench import language_model
from duoln.bench.language_model import SUBJECTS, TOKENS, UPDATE, Sizes
from duoln.bench.records import of_row
from duoln.cli.bench.options import add_common, begin, numbers, recorded, time_sides


def add_kind(kinds: Any) -> None:
    """Add `language-model`."""
    parser = kinds.add_parser("language-model", help="a two-layer LN-LSTM on characters: an update, a sampled token")
    parser.add_argument("--sizes", type=_sizes, action="append", metavar="T,B,WIDTH,SYMBOLS",
                        help=f"of the text and the model, may be repeated (default {','.join(map(str, Sizes()))})")
    parser.add_argument("--peer", action="append", default=[], choices=language_model.PEERS)
    add_common(parser, rounds=9, runs=3)
    parser.set_defaults(run=_language_model)


def _sizes(text: str) -> Sizes:
    return Sizes(*numbers(text, "T,B,WIDTH,SYMBOLS"))


def _language_model(args: argparse.Namespace) -> int:
    with recorded("language-model", args, begin(args)) as timed:
        for size, subject in product(dict.fromkeys(args.sizes or [Sizes()]), SUBJECTS):
            entries = language_model.entries(subject, size, args.backend, args.peer)
            what = UPDATE if subject == "update" else f"{TOKENS} sampled tokens"
            words = ", ".join(f"{name} {count}" for name, count in size._asdict().items())
            rows = time_sides(f"{what}: {words}", entries, args, "ms", 1e3)
            timed += [{"op": f"language model, {what}", "passes": "step" if subject == "update" else "forward",
                       "shape": size, "moved": None, "flops": None, "rule": None, "source": None, **of_row(row)}
                      for row in rows]
    return 0
