"""The table of predictions in `kernels/README.md`, which `kernels/predictions.py` makes.

    python tests/predictions_table.py          write it anew
"""

from __future__ import annotations

import re
from pathlib import Path

from duoln.kernels.predictions import table

README = Path(__file__).resolve().parents[1] / "kernels" / "README.md"
_BLOCK = re.compile(r"(<!-- python -m duoln.kernels.predictions -->\n).*?(<!-- end -->)", re.DOTALL)


def renewed() -> str:
    """The text of the README with its table made anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}{table()}{match[2]}", README.read_text(encoding="utf-8"))


if __name__ == "__main__":
    README.write_text(renewed(), encoding="utf-8")
