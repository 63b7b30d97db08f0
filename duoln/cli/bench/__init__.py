"""`duoln bench`: one file for each kind of measurement, and what they share in `options`."""

from __future__ import annotations

from typing import Any


def add_command(commands: Any) -> None:
    """Add `bench` to the command line."""
    from duoln.cli.bench import attention, language_model, machines, operators, rnn, survey, train

    bench = commands.add_parser("bench", help="time duoln, beside a peer in the same run")
    kinds = bench.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind in (operators, train, rnn, attention, language_model, survey, machines):
        kind.add_kind(kinds)
