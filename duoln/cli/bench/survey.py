"""`duoln bench survey`: everything that one device can show, in one command."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from duoln import runtime
from duoln.bench.survey import PARTS, SUMMARY, parts, survey
from duoln.cli import console
from duoln.system.paths import path_argument


def add_kind(kinds: Any) -> None:
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


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, found {text!r}")
    return seconds
