"""A compiled step line by line: its table in words, the time of each line, and a file for a trace viewer."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from duoln.backends.protocol import Array

_MOST_ARRAYS = 4


class Row(NamedTuple):
    """A line of a table."""

    name: str
    """The kernel, the function of NumPy, or the rule that Python runs."""
    where: str
    """"kernel", "NumPy" or "Python"."""
    shapes: Sequence[tuple[int, ...]]
    """The shapes of the arrays that it reads and writes."""
    moved: int
    """Their bytes."""
    why: str
    """Why Python runs it; empty for the others."""


class Table(Protocol):
    """The table of a step."""

    rows: Sequence[Row]

    def profile(self, natives: Sequence[Array]) -> list[float]:
        """The seconds of each row, of one call."""


def explained(rows: Sequence[Row]) -> str:
    """The rows as text, and how many lines are left to Python."""
    lines = [f"{k:4} {_words(row)}{f'  ({row.why})' if row.why else ''}" for k, row in enumerate(rows)]
    left = sum(row.where == "Python" for row in rows)
    return "\n".join([*lines, f"{len(rows)} lines, {left} of them by Python's rules"])


class Profile(NamedTuple):
    """The time of each line of one or several calls of a compiled step."""

    rows: Sequence[Row]
    seconds: Sequence[float]
    """The median of the calls, for each row."""

    def __str__(self) -> str:
        total = sum(self.seconds) or 1.0
        lines = [f"{'us':>9} {'share':>6} {'GB/s':>6}"]
        lines += [f"{1e6 * s:9.1f} {s / total:6.1%} {row.moved / max(s, 1e-9) / 1e9:6.1f}  {_words(row)}"
                  for row, s in zip(self.rows, self.seconds, strict=True)]
        sums: dict[str, float] = defaultdict(float)
        for row, s in zip(self.rows, self.seconds, strict=True):
            sums[f"{row.where} {row.name}"] += s
        lines += ["", *(f"{1e6 * s:9.1f} {s / total:6.1%}         {name}"
                        for name, s in sorted(sums.items(), key=lambda item: -item[1])),
                  f"{1e6 * total:9.1f} us in all"]
        return "\n".join(lines)

    def save(self, path: str | Path) -> None:
        """Write the lines in the Chrome trace format, which trace viewers open."""
        events, at = [], 0.0
        for row, s in zip(self.rows, self.seconds, strict=True):
            events.append({"name": row.name, "cat": row.where, "ph": "X", "ts": 1e6 * at, "dur": 1e6 * s, "pid": 0,
                           "tid": 0, "args": {"shapes": [list(shape) for shape in row.shapes], "bytes": row.moved}})
            at += s
        Path(path).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def _words(row: Row) -> str:
    shapes = " ".join("x".join(map(str, shape)) or "1" for shape in row.shapes[:_MOST_ARRAYS])
    more = f" and {len(row.shapes) - _MOST_ARRAYS} more" if len(row.shapes) > _MOST_ARRAYS else ""
    return f"{row.where:6} {row.name}  {shapes}{more}  {row.moved / 1e6:.3g} MB"
