"""An operator of one's own with kernels in C++, CUDA and Metal: rows divided by their Euclidean norm.

    python -m duoln.examples.own_operator

The texts are beside this file: l2_rows.cpp, l2_rows.cu and l2_rows.metal. `duoln new-task NAME --operator` writes them
into a package of yours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import duoln
from duoln import extend, testing


@extend.op("x: real[*rows, width] -> like x")
def l2_rows(x: extend.Tensor, *, eps: extend.Above0 = 1e-6) -> extend.Tensor:
    """X / sqrt(sum of x^2 + eps), of each row."""


# The composed rule, of functions that every backend has ------------------------------------------------------

def composed_forward(be: extend.Backend, x: Any, *, eps: float) -> tuple[Any, Any]:
    """The value, and what the gradient needs."""
    scale = 1.0 / be.sqrt(be.sum(x * x, axis=-1, keepdims=True) + eps)
    return x * scale, (x, scale)


def composed_vjp(be: extend.Backend, saved: Any, gout: Any, needs: Any) -> tuple[Any]:
    """A gradient for each array argument: (g - x scale^2 sum(g x)) scale."""
    x, scale = saved
    return ((gout - x * (scale * scale * be.sum(gout * x, axis=-1, keepdims=True))) * scale,)


l2_rows.add(extend.Rule("composed", composed_forward, composed_vjp))


# The kernels: a text for each device, and one declaration, from which the entries' prototypes are printed -----

def plan(rows: int, width: int) -> extend.Layout:
    """On a GPU: a block for each row, of 32 to 256 threads."""
    threads = min(max(32, 1 << (width - 1).bit_length()), 256)
    return extend.Layout((rows,), (threads,), {"THREADS": threads})


_TEXT = str(Path(__file__).with_name("l2_rows"))
_forward = extend.Launch(_TEXT, "l2_rows_forward",
                         "x: stored[*rows, width], eps: float64 -> y: like x, scale: real[*rows]", plan)
_backward = extend.Launch(_TEXT, "l2_rows_backward",
                          "x: stored[*rows, width], scale: real[*rows], dy: like x -> dx: like x", plan)


def forward(be: extend.Backend, x: Any, *, eps: float) -> tuple[Any, Any]:
    """The launch of the backend's device."""
    y, scale = _forward[be.name](x, eps)
    return y, (x, scale)


def vjp(be: extend.Backend, saved: Any, gout: Any, needs: Any) -> tuple[Any]:
    """The gradient, of what forward kept."""
    return (_backward[be.name](*saved, gout),)


extend.fused(l2_rows, forward, vjp, _forward)  # the rules "compiled", "cuda" and "metal"
_ROWS = (1, 7), (3, 33), (2, 3, 64), (5, 1000), (1000, 100)
extend.register(
    l2_rows,
    lambda: [*(extend.case(l2_rows, shape, eps=0.5) for shape in _ROWS),  # an eps whose loss is seen
             *(extend.case(l2_rows, (9, 130), eps=1e-6).on_gpu(dtype) for dtype in ("float16", "bfloat16"))],
    extend.Timed(lambda shape: extend.case(l2_rows, shape, eps=1e-6), shapes=[(4096, 1024), (65536, 256)],
                 small=[(1024, 1024)], arrays=(2, 3), flops=(3, 6),  # x and y; then x, dy and dx
                 peer=lambda torch, x, eps: torch.nn.functional.normalize(x, dim=-1, eps=eps)))


def main() -> float:
    """Check the operator, its rule on this machine and its kernels; find the direction that has the largest product."""
    backend, rows = duoln.backend("numpy"), np.random.default_rng(0).standard_normal((5, 7))
    for dtype in extend.FLOATS:
        testing.check_op(l2_rows, [rows], lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6), backend,
                         dtype=dtype)
    x, target = duoln.tensor([[1.0, 1.0]], backend), duoln.tensor([[3.0, 4.0]], backend)
    for _ in range(200):
        x = x + 0.5 * duoln.value_and_grad(lambda x: (l2_rows(x) * target).sum())(x)[1]
    y = l2_rows(x).numpy()
    print(f"rules: {l2_rows.explain(x)}; the largest product is {float((y * target.numpy()).sum()):.4f} at {y}")
    return float((y * target.numpy()).sum())


if __name__ == "__main__":
    main()
