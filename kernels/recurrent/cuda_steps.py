"""The recurrent operators on CUDA by steps: one product for all inputs, one product and one kernel per time step, and
one product per weight.

Kept for the gradient, per time step and row: x_proj and h_proj, of a tanh RNN their sum, the states, and three floats
for each norm. In 16 bits the products and the hidden states take half the bytes. A state that adds up over time, an
LSTM's cell and a GRU's state, is float32; a GRU's is kept a second time as the products take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy

from duoln.backends import cublas
from duoln.backends.protocol import Array, Backend
from duoln.core.storage import converted
from duoln.kernels.recurrent import cuda
from duoln.kernels.recurrent.launches import STEPS
from duoln.ops.recurrent.variants import CELLS

_NONE = dict.fromkeys(("gain_x", "bias_x", "gain_h", "bias_h", "gain_c", "bias_c", "d_hs", "carry"))
"""The arguments that a variant may not have."""


class Saved(NamedTuple):
    """The values of a sequence, or of one time step, that its gradient needs; all in the order of computation."""

    problem: cuda.Problem
    x_proj: Array
    """(T, B, gates * H); of a tanh RNN the sum of both products."""
    h_proj: Array
    """Like x_proj; of a tanh RNN room for that of one time step."""
    h: Array
    """(T + 1, B, H)."""
    h_stored: Array
    """The same as the products take it."""
    c: Array | None
    """The cells of an LSTM, like `h`."""
    stats: Array
    """(norms, T * B, 3)."""
    w_stats: Array | None = None
    """The statistics of the rows of the recurrent weights, which walks of one launch take."""

    def arguments(self, **more: Any) -> dict[str, Any]:
        """The arguments that both directions share, and more."""
        problem = self.problem
        return {**_NONE, **problem.norms, "bias": problem.bias, "w_h": problem.w_h, "w_stats": self.w_stats,
                "x_proj": self.x_proj, "h_proj": self.h_proj, "mask": problem.walk.mask, "h": self.h, "c": self.c,
                "stats": self.stats, "time_step": 0, **more}


class Gradients(NamedTuple):
    """The gradients of the products and norms of all time steps, each as its kernel writes them."""

    x_proj: Array
    h_proj: Array
    """`x_proj` itself where both are one."""
    x_gates: Array | None
    """After the norm of x_proj, or of the sum; None without norms of the gates."""
    h_gates: Array | None
    """After the norm of h_proj; `x_gates` itself where both are one."""
    c_norm: Array | None
    """After the norm of an LSTM's cell."""

    @classmethod
    def room(cls, saved: Saved) -> Gradients:
        """Arrays without values yet."""
        variant, like = saved.problem.variant, saved.x_proj
        d_x_proj = cupy.empty_like(like)
        d_h_proj = cupy.empty_like(like) if variant.is_apart else d_x_proj
        d_x_gates = cupy.empty_like(like) if variant.normed.gates else None
        is_second = d_x_gates is not None and variant.products_apart
        c = saved.c if variant.normed.cell else None
        d_c_norm = None if c is None else cupy.empty(c[1:].shape, dtype=c.dtype)
        return cls(d_x_proj, d_h_proj, d_x_gates, cupy.empty_like(like) if is_second else d_x_gates, d_c_norm)

    def arguments(self) -> dict[str, Array | None]:
        """The arguments of a kernel."""
        return {"d_x_proj": self.x_proj, "d_h_proj": None if self.h_proj is self.x_proj else self.h_proj,
                "d_x_gates": self.x_gates, "d_h_gates": self.h_gates, "d_c_norm": self.c_norm}


def forward(problem: cuda.Problem, be: Backend, states: tuple[Array, ...],
            eps: float) -> tuple[tuple[Array, ...], Saved]:
    """All hidden states (T, B, H) and the last states (B, H), and what the gradient needs."""
    h, *cells = states
    walk, variant = problem.walk, problem.variant
    (time_steps, batch, _), dtype = walk.x.shape, be.dtype(walk.x)
    is_in_proj = not variant.kernel_adds_bias or variant.has_inner_bias
    x_proj = cuda.projection(be, walk.x, problem.w_x, problem.bias if is_in_proj else None)
    h_proj = cupy.empty(h.shape, dtype=h.dtype) if variant.keeps_sum else cupy.empty_like(x_proj)
    is_wide = variant.increases_h and dtype != "float32"
    hs = cuda.states(h if is_wide else converted(be, h, dtype), time_steps)
    h_stored = cuda.states(be.astype(h, dtype), time_steps) if is_wide else hs
    c = cuda.states(cells[0], time_steps) if cells else None
    stats = cupy.empty((variant.norm_count, time_steps * batch, 3), dtype=states[-1].dtype)
    saved = Saved(problem, x_proj, h_proj, hs, h_stored, c, stats)
    step = STEPS[variant.cell, variant.norm, "forward"].bind(
        saved.arguments(h_stored=h_stored if is_wide else None, eps=eps), varying="time_step")
    multiply = cublas.TimeProducts(h_stored, problem.w_h, h_proj)
    for t in range(time_steps):
        multiply(t)
        step(t)
    last = [] if c is None else [c[-1].copy()]
    return (walk.in_time(h_stored[1:]), cuda.copy_last_state(be, hs), *last), saved


def vjp(be: Backend, saved: Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    """The gradients of all arguments of a sequence operator, from those of its results."""
    problem, walk, variant = saved.problem, saved.problem.walk, saved.problem.variant
    d_hs = None if gouts[0] is None else walk.in_time(gouts[0])
    d_states = [cuda.gradient_buffer(d, saved.h[0]) for d in gouts[1:]]
    dh = d_states[0]
    has_carry = walk.mask is not None or variant.increases_h
    carry = cupy.zeros_like(dh) if has_carry else None
    gradients = Gradients.room(saved)
    step = STEPS[variant.cell, variant.norm, "backward"].bind(
        saved.arguments(**gradients.arguments(), d_hs=d_hs, dh=dh, carry=carry, dc=d_states[-1]), varying="time_step")
    multiply = cublas.TimeProducts(gradients.h_proj, problem.w_h.T, dh)
    for t in range(walk.x.shape[0] - 1, -1, -1):
        step(t)
        multiply(t)
        if walk.limit is not None:
            if carry is not None:
                dh += carry
                carry.fill(0)
            walk.clip_gradients(*d_states)
    if carry is not None:
        dh += carry
    of_parameters = parameter_gradients(saved, gradients)
    return [cuda.input_gradient(gradients.x_proj, problem.w_x, walk) if needs[0] else None, *d_states,
            cuda.weight_gradient(walk.x, gradients.x_proj),
            cuda.weight_gradient(saved.h_stored[:-1], gradients.h_proj), of_parameters.get("bias"), None,
            *[of_parameters[name] for name in problem.norms]]


def parameter_gradients(saved: Saved, gradients: Gradients) -> dict[str, Array]:
    """Gradients of the bias and the norms, by name, from all time steps at once."""
    problem, variant, made = saved.problem, saved.problem.variant, dict[str, Array]()
    of_gates = [("h", saved.x_proj, gradients.x_gates)] if variant.keeps_sum else [
        ("x", saved.x_proj, gradients.x_gates), ("h", saved.h_proj, gradients.h_gates)]
    for k, (name, values, d) in enumerate(of_gates):
        if d is not None:
            made[f"gain_{name}"], made[f"bias_{name}"] = _norm_gradients(
                variant.cell, values, saved.stats, k * variant.parts, d)
    if gradients.c_norm is not None and saved.c is not None:
        # The cell of a masked row is not the one normalised at this time step, but its gradient here is zero.
        made["gain_c"], made["bias_c"] = cuda.gain_and_bias(saved.c[1:], saved.stats[-1], gradients.c_norm)
    d_bias = cuda.bias_gradient(problem, made, gradients.x_proj)
    return made if d_bias is None else {**made, "bias": d_bias}


def _norm_gradients(cell: str, proj: Array, stats: Array, norm: int, d_gates: Array) -> tuple[Array, Array]:
    """Gradients of gain and bias of a product; the parts of a cell's gates each have a norm, from `norm` on."""
    parts = CELLS[cell].parts
    if len(parts) == 1:
        return cuda.gain_and_bias(proj, stats[norm], d_gates)
    cut = proj.shape[-1] * parts[0] // CELLS[cell].gates
    first = cuda.gain_and_bias(proj, stats[norm], d_gates, 0, cut)
    second = cuda.gain_and_bias(proj, stats[norm + 1], d_gates, cut)
    return cupy.concatenate((first[0], second[0])), cupy.concatenate((first[1], second[1]))
