"""Tables as CSV text, with Unix line ends."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    r"""The rows as CSV. Readers take a carriage return for the end of a row, so a text with one stands in quotes.

    Python quotes the characters of the writer's own line end alone: rows are made with "\r\n", and end with "\n". Half
    of a character (a lone surrogate), which UTF-8 does not have, is written as its number.
    """
    lines: list[str] = []
    csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n").writerows(rows)
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines).encode(errors="backslashreplace").decode()
