"""Additive attention (Bahdanau et al. 2015): which step of a memory answers a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.errors import ShapeError
from duoln.ops.common import check_beside, check_float

_NEVER = -1e30
"""A score that softmax makes 0 of; infinity would make NaN of a row without any step."""


@op
def additive_attention(question: Tensor, keys: Tensor, vector: Tensor, memory: Tensor, there: Tensor,
                       ) -> tuple[Tensor, Tensor]:
    """What a question finds in a memory, and where.

        weights = softmax over t of vector . tanh(question + keys_t);  context = sum over t of weights_t memory_t

    Steps that are not there get the weight 0; a row in which none is there, even weights.

    Shape:
        question (B, A), keys (B, T, A), vector (A,), memory (B, T, M), there bool (B, T), T at least 1
        -> context (B, M), weights (B, T).

    Raises:
        ShapeError, DtypeError: arrays that do not fit.
    """
    check_float("additive_attention", question, keys, vector, memory)
    check_beside("additive_attention", "there", there, "bool", keys)
    rows, steps, width = keys.shape if keys.ndim == 3 else (-1, 0, -1)
    expected = {"question": (question, (rows, width)), "vector": (vector, (width,)), "there": (there, (rows, steps)),
                "memory": (memory, (rows, steps, *memory.shape[2:3]))}
    wrong = [name for name, (tensor, shape) in expected.items() if tensor.shape != shape]
    if wrong or steps < 1 or memory.ndim != 3:
        found = ", ".join(f"{name} {tensor.shape}" for name, (tensor, _) in expected.items())
        raise ShapeError(f"[additive_attention] expected question (B, A), vector (A,), there (B, T), memory (B, T, M) "
                         f"and keys (B, T, A) with T of at least 1, found {found}, keys {keys.shape}")
    return additive_attention.apply(question, keys, vector, memory, there)


def _forward(be: Backend, question: Array, keys: Array, vector: Array, memory: Array, there: Array,
             ) -> tuple[tuple[Array, Array], Any]:
    rows, steps, width = keys.shape
    compared = be.tanh(keys + be.expand_dims(question, 1))
    scores = be.matmul(be.reshape(compared, (rows * steps, width)), be.reshape(vector, (width, 1)))
    scores = be.where(there, be.reshape(scores, (rows, steps)), _NEVER)
    powers = be.exp(scores - be.max(scores, axis=1, keepdims=True))
    weights = powers / be.sum(powers, axis=1, keepdims=True)
    context = be.reshape(be.matmul(be.reshape(weights, (rows, 1, steps)), memory), (rows, memory.shape[2]))
    return (context, weights), (compared, vector, memory, there, weights)


def _vjp(be: Backend, saved: Any, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> list[Array | None]:
    compared, vector, memory, there, weights = saved
    g_context, g_weights = gouts
    rows, steps, width = compared.shape
    found: list[Array | None] = [None] * 5
    if needs[3]:
        found[3] = _memory_gradient(be, [(saved, gouts)])
    if any(needs[:3]):
        if g_context is not None:
            through = be.reshape(be.matmul(memory, be.reshape(g_context, (rows, -1, 1))), (rows, steps))
            g_weights = through if g_weights is None else g_weights + through
        mean = be.sum(weights * g_weights, axis=1, keepdims=True)
        g_scores = be.where(there, weights * (g_weights - mean), 0.0)
        if needs[2]:
            columns = be.permute_dims(be.reshape(compared, (rows * steps, width)), (1, 0))
            found[2] = be.reshape(be.matmul(columns, be.reshape(g_scores, (rows * steps, 1))), (width,))
        if needs[0] or needs[1]:
            g_keys = (1.0 - compared * compared) * (be.expand_dims(g_scores, 2) * vector)
            found[0], found[1] = be.sum(g_keys, axis=1), g_keys
    return [g if need else None for g, need in zip(found, needs, strict=True)]


def _memory_gradient(be: Backend, uses: Sequence[tuple[Any, tuple[Array | None, Array | None]]]) -> Array:
    """The sum over questions of weights times what the context's gradient is: one product for all of them."""
    memory = uses[0][0][2]
    asked = [(saved[4], g_context) for saved, (g_context, _) in uses if g_context is not None]
    if not asked:
        return be.zeros(memory.shape, be.dtype(memory))
    weights = be.concat([be.expand_dims(w, 2) for w, _ in asked], axis=2)
    return be.matmul(weights, be.concat([be.expand_dims(g, 1) for _, g in asked], axis=1))


additive_attention.add(Rule("composed", _forward, _vjp, pooled={3: _memory_gradient}))
