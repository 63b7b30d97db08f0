"""`duoln bench language-model`: an update and a sampled token of a two-layer LN-LSTM, beside a peer."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from duoln.bench import language_model
from duoln.bench.language_model import SUBJECTS, TOKENS, UPDATE, Sizes
from duoln.bench.records import of_row, spread
from duoln.cli import console
from duoln.cli.bench.options import add_common, begin, numbers, recorded, time_sides
from duoln.errors import UsageError
from duoln.pictures import style
from duoln.pictures.drawing import check_picture, figure
from duoln.system.paths import path_argument

_BARS = {"torch, LN-LSTM by cells": "LayerNorm, a loop over cells",
         "torch, LSTM of duoln.bridge": "LayerNorm, duoln.bridge", "torch.nn.LSTM, no norm": "no norm, torch.nn.LSTM"}
"""The sides that are drawn, with their words."""


def add_kind(kinds: Any) -> None:
    """Add `language-model`."""
    parser = kinds.add_parser("language-model", help="a two-layer LN-LSTM on characters: an update, a sampled token")
    parser.add_argument("--sizes", type=_sizes, action="append", metavar="T,B,WIDTH,SYMBOLS",
                        help=f"of the text and the model, may be repeated (default {','.join(map(str, Sizes()))})")
    parser.add_argument("--plot", type=path_argument, metavar="FILE.png", help="also draw the updates beside PyTorch's")
    parser.add_argument("--peer", action="append", default=[], choices=language_model.PEERS)
    add_common(parser, rounds=9, runs=3)
    parser.set_defaults(run=_language_model)


def _sizes(text: str) -> Sizes:
    return Sizes(*numbers(text, "T,B,WIDTH,SYMBOLS"))


def _language_model(args: argparse.Namespace) -> int:
    if args.plot is not None:
        if not args.peer:
            raise UsageError("[bench] --plot: expected --peer torch, whose times are drawn, found no peer")
        check_picture(args.plot)
    with recorded("language-model", args, begin(args)) as timed:
        for size, subject in product(dict.fromkeys(args.sizes or [Sizes()]), SUBJECTS):
            entries = language_model.entries(subject, size, args.backend, args.peer)
            what = UPDATE if subject == "update" else f"{TOKENS} sampled tokens"
            words = ", ".join(f"{name} {count}" for name, count in size._asdict().items())
            rows = time_sides(f"{what}: {words}", entries, args, "ms", 1e3)
            timed += [{"op": f"language model, {what}", "passes": "step" if subject == "update" else "forward",
                       "shape": size, "moved": None, "flops": None, "rule": None, "source": None, **of_row(row)}
                      for row in rows]
        if args.plot is not None:
            console.say(f"wrote {_draw(timed, args.plot)}")
    return 0


def _draw(cases: Sequence[Mapping[str, Any]], target: Path) -> Path:
    """A panel for each size of the model, and in it a bar for each side: the median of the timed updates."""
    updates = [case for case in cases if case["op"].endswith(UPDATE) and case["side"] in _BARS]
    sizes = list(dict.fromkeys(Sizes(*case["shape"]) for case in updates))
    with figure(target, 1, len(sizes), size=(style.WIDTH, 1.7)) as (_, [panels]):
        for axes, size in zip(panels, sizes, strict=True):
            own = [case for case in updates if Sizes(*case["shape"]) == size]
            medians = {case["side"]: 1e3 * spread(case["samples"])["median"] for case in own}
            rows = [(words, medians[side]) for side, words in _BARS.items()]
            bars = axes.barh([words for words, _ in rows], [ms for _, ms in rows], 0.6,
                             color=[style.look(k).colour for k in range(len(rows))])
            axes.bar_label(bars, [f"{ms:.0f} ms" for _, ms in rows], fontsize=style.SMALL, padding=2)
            axes.invert_yaxis()
            axes.margins(x=0.35)
            axes.tick_params(labelsize=style.SMALL, labelleft=axes is panels[0])
            axes.set_title(f"{size.steps} steps, batch {size.batch}, {size.width} units", fontsize=style.MIDDLE)
    return target
