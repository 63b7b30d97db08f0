"""`duoln bench survey`: everything that one device can show, in one command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from duoln import runtime
from duoln.bench.survey import SUMMARY, survey
from duoln.cli import console


def add_kind(kinds: Any) -> None:
    """Add `survey`."""
    parser = kinds.add_parser("survey", help="everything that one device can show: a folder of records and a summary")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--backend", default="cupy", choices=("cupy", "mlx", "numpy"),
                        help="cupy for an NVIDIA GPU (default), mlx for a Mac, numpy for a CPU")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether it works, not how fast")
    parser.set_defaults(run=_survey)


def _survey(args: argparse.Namespace) -> int:
    runtime.backend(args.backend)  # an error, where it cannot be used: every part would fail
    good = survey(args.backend, args.out, args.quick, console.say)
    console.put((args.out / SUMMARY).read_text(encoding="utf-8"))
    return 0 if good else 1
