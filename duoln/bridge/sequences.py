"""What the recurrent layers of both bridges compute, as pure functions of duoln's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duoln import ops
from duoln.core import Tensor
from duoln.errors import UsageError
from duoln.ops.recurrent.variants import CELLS, CellName, check_variant, norm_shapes

NORMS = {"x": "layernorm_i", "h": "layernorm_h", "c": "layernorm_c"}
"""The modules that hold a layer's norms, by what they normalise: the names that `duoln.load_pytorch` reads."""


def check_norm(name: str, cell: CellName, norm: str) -> None:
    """Raises UsageError for a norm that a layer of another library cannot have."""
    check_variant(cell, norm, name)
    if norm == "batch":
        raise UsageError(f"[{name}] norm: expected one without a population, found 'batch', which duoln.nn has")
    if norm == "recurrent-bias":
        raise UsageError(f"[{name}] norm: expected 'none', which has the recurrent bias here, found 'recurrent-bias'")


def sequence(cell: CellName, norm: str, eps: float, reverse: bool = False, bias: bool = True, mask: bool = False,
             ) -> Callable[..., Sequence[Tensor]]:
    """A cell over a sequence, of these tensors: x, the states, w_x, w_h, the bias and the mask if it has them, and the
    norms' parameters.

    Shape:
        x (T, B, in), states (B, H), w_x (in, gates * H), w_h (H, gates * H) -> hidden states (T, B, H), last states.
    """
    operator, states, names = getattr(ops, cell), len(CELLS[cell].states), list(norm_shapes(cell, norm, 1))

    def walk(x: Tensor, *arrays: Tensor) -> Sequence[Tensor]:
        rest = iter(arrays)
        arguments = [next(rest) for _ in range(states + 2)]
        of_bias, of_mask = (next(rest) if given else None for given in (bias, mask))
        results: tuple[Tensor, ...] = operator(x, *arguments, of_bias, of_mask, dict(zip(names, rest, strict=True)),
                                               norm=norm, eps=eps, reverse=reverse)
        return results

    walk.takes_long = True  # type: ignore[attr-defined]  # so PyTorch's threads are paused
    return walk
