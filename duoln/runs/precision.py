"""The precision of a run: in how many bits its training step stores activations and weights.

In bf16 a step stores in 16 bits a rounded copy of each weight, the batch, and so the activations. The parameters
themselves, the optimizer's slots and the gradients are float32: a step of the optimizer is often smaller than half a
unit in the last place of bfloat16, and would be lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duoln import tree
from duoln.core import Tensor
from duoln.core.arguments import check_choice
from duoln.errors import DataFormatError, UsageError
from duoln.nn import in_16_bits
from duoln.runs.folder import read_json
from duoln.runs.places import CONFIG

FLOAT32, BF16 = PRECISIONS = ("float32", "bf16")
_STORED = "bfloat16"


def check_precision(name: str, precision: Any) -> str:
    """The precision. Raises UsageError for an unknown name, DtypeError for a value that is no name."""
    checked: str = check_choice(name, "precision", precision, PRECISIONS)
    return checked


def read_precision(folder: Path) -> str | None:
    """The precision of the run in a folder; None if there is no run.

    Raises:
        DataFormatError: `config.json` is damaged.
    """
    path = folder / CONFIG
    if not path.is_file():
        return None
    precision = read_json(path).get("precision")
    if precision not in PRECISIONS:
        raise DataFormatError(path, 0, f"one of {', '.join(PRECISIONS)} as precision", f"{precision!r:.60}")
    return str(precision)


def resumed_precision(folder: Path, asked: str | None) -> str:
    """The precision with which a run goes on: that of its folder. A run that has no folder yet begins as asked.

    Raises:
        UsageError: another one was asked for. DataFormatError: `config.json` is damaged.
    """
    before = read_precision(folder)
    if before is None or asked in (None, before):
        return before or asked or FLOAT32
    raise UsageError(f"[precision] expected {before}, the precision of {folder / CONFIG} with which the run goes on, "
                     f"found {asked}; leave it out, or begin a run with another --out")


def stored_params(params: Any, precision: str) -> Any:
    """The parameters as the model computes with them. Gradients flow back through the rounding."""
    return in_16_bits(params, _STORED) if precision == BF16 else params


def stored_batch(batch: dict[str, Tensor], precision: str) -> dict[str, Tensor]:
    """The batch as the model computes with it: its floats rounded, the rest as it is."""
    if precision != BF16:
        return batch
    rounded: dict[str, Tensor] = tree.map(lambda t: t.astype(_STORED) if t.dtype == "float32" else t, batch)
    return rounded
