"""The table of walks in `kernels/README.md`: microseconds of a time step, by the model in `cluster_model.py`.

    python tests/walks_table.py            print it
    python tests/walks_table.py --write    write it anew
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from duoln.kernels.recurrent.cluster_model import MHZ
from duoln.kernels.recurrent.cluster_plan import Device, plan

README = Path(__file__).resolve().parents[1] / "kernels" / "README.md"
_BLOCK = re.compile(r"(<!-- python tests/walks_table.py --write -->\n).*?(<!-- end -->)", re.DOTALL)
SHAPES = ((100, 8, 400), (64, 128, 256), (100, 32, 240), (700, 8, 400))
"""Time steps, rows, units: handwriting, DRAW, the attentive reader, handwriting's longest lines."""


class Gpu(NamedTuple):
    """A device of the table."""

    name: str
    device: Device
    mhz: float


GPUS = (Gpu("H100 SXM", Device.of(9, 132, 227 << 10), MHZ), Gpu("H200", Device.of(9, 132, 227 << 10), MHZ),
        Gpu("B200", Device.of(10, 148, 227 << 10), 1850.0), Gpu("RTX 4090", Device.of(8, 128, 99 << 10), 2520.0))


def _cell(gpu: Gpu, cell: str, batch: int, hidden: int) -> str:
    plans = [plan(cell, "layer", direction, hidden, batch, gpu.device) for direction in ("forward", "backward")]
    if any(p is None for p in plans):
        return "steps"
    times = " + ".join(f"{p.cycles / gpu.mhz:.1f}" for p in plans if p)
    return f"{times} ({'; '.join(f'{p.cluster} x {p.rows}' for p in plans if p)})"


def table() -> str:
    """The table, for Markdown."""
    head = " | ".join(f"T {t}, B {b}, H {h}" for t, b, h in SHAPES)
    lines = [f"| cell, device | {head} |", "| --- " * (len(SHAPES) + 1) + "|"]
    for cell in ("lstm", "gru", "rnn"):
        for gpu in GPUS:
            cells = " | ".join(_cell(gpu, cell, batch, hidden) for _, batch, hidden in SHAPES)
            lines.append(f"| LN-{cell.upper()}, {gpu.name} | {cells} |")
    return "\n".join(lines) + "\n"


def renewed() -> str:
    """The text of the README with its table made anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}{table()}{match[2]}", README.read_text(encoding="utf-8"))


def main(arguments: Sequence[str]) -> None:
    """Print the table, or write it."""
    print(table(), end="")
    if "--write" in arguments:
        README.write_text(renewed(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
