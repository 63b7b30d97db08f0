"""`duoln bench ...`."""

from __future__ import annotations

import argparse
from typing import Any


def add_commands(commands: Any) -> None:
    """Add `bench` to the command line."""
    bench = commands.add_parser("bench", help="time duoln, beside a peer in the same run")
    kinds = bench.add_subparsers(dest="kind", metavar="KIND", required=True)
    train = kinds.add_parser("train", help="one training step of a task")
    train.add_argument("--task", default="mnist")
    train.set_defaults(run=lambda args: 0)
