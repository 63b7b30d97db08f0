"""Attention: a mean of values; the weight of a value is larger if its key fits the query better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op

_NEVER = -1e30
"""The score of a masked time step: its weight becomes 0. With minus infinity, a row of masked steps would give NaN."""


@op("query: real[rows, width], key: real[rows, steps+, width], value: real[rows, steps, out], "
    "score_vector: real[width], mask: bool[rows, steps] -> context: like value, weights: like query")
def additive_attention(query: Tensor, key: Tensor, value: Tensor, score_vector: Tensor, mask: Tensor,
                       ) -> tuple[Tensor, Tensor]:
    """The attention of Bahdanau et al. (2015), which adds the query to each key.

        weights = softmax over t of score_vector . tanh(query + key_t);  context = sum over t of weights_t value_t

    A time step where `mask` is False gets the weight 0, whatever its key and value are. If `mask` is False in a whole
    row, the weights and the context of the row are 0.

    Shape:
        query (B, A), key (B, T, A), value (B, T, M), score_vector (A,), mask bool (B, T), T at least 1
        -> context (B, M), weights (B, T).

    Raises:
        ShapeError, DtypeError: the arrays do not fit together.
    """


def _forward(be: Backend, query: Array, key: Array, value: Array, score_vector: Array, mask: Array,
             ) -> tuple[tuple[Array, Array], Any]:
    rows, steps, width = key.shape
    # With the weight 0 a key or a value that is not finite would give NaN.
    key, value = (be.where(be.expand_dims(mask, 2), x, 0.0) for x in (key, value))
    compared = be.tanh(key + be.expand_dims(query, 1))
    scores = be.matmul(be.reshape(compared, (rows * steps, width)), be.reshape(score_vector, (width, 1)))
    scores = be.where(mask, be.reshape(scores, (rows, steps)), _NEVER)
    powers = be.exp(scores - be.max(scores, axis=1, keepdims=True))
    weights = be.where(mask, powers / be.sum(powers, axis=1, keepdims=True), 0.0)
    context = be.reshape(be.matmul(be.reshape(weights, (rows, 1, steps)), value), (rows, value.shape[2]))
    return (context, weights), (compared, value, score_vector, mask, weights)


def _vjp(be: Backend, saved: Any, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> list[Array | None]:
    compared, value, score_vector, mask, weights = saved
    g_context, g_weights = gouts
    rows, steps, width = compared.shape
    gradients: list[Array | None] = [None] * 5
    if needs[2]:
        gradients[2] = _value_gradient(be, [(saved, gouts)])
    if needs[0] or needs[1] or needs[3]:
        if g_context is not None:
            through = be.reshape(be.matmul(value, be.reshape(g_context, (rows, value.shape[2], 1))), (rows, steps))
            g_weights = through if g_weights is None else g_weights + through
        mean = be.sum(weights * g_weights, axis=1, keepdims=True)
        g_scores = be.where(mask, weights * (g_weights - mean), 0.0)
        if needs[3]:
            columns = be.permute_dims(be.reshape(compared, (rows * steps, width)), (1, 0))
            gradients[3] = be.reshape(be.matmul(columns, be.reshape(g_scores, (rows * steps, 1))), (width,))
        if needs[0] or needs[1]:
            g_key = (1.0 - compared * compared) * (be.expand_dims(g_scores, 2) * score_vector)
            gradients[0], gradients[1] = be.sum(g_key, axis=1), g_key
    return [g if need else None for g, need in zip(gradients, needs, strict=True)]


def _value_gradient(be: Backend, uses: Sequence[tuple[Any, tuple[Array | None, Array | None]]]) -> Array:
    """The sum, over all queries, of the weights times the gradient of the context, as one product."""
    value = uses[0][0][1]
    used = [(saved[4], g_context) for saved, (g_context, _) in uses if g_context is not None]
    if not used:
        return be.zeros(value.shape, be.dtype(value))
    weights = be.concat([be.expand_dims(w, 2) for w, _ in used], axis=2)
    return be.matmul(weights, be.concat([be.expand_dims(g, 1) for _, g in used], axis=1))


additive_attention.add(Rule("composed", _forward, _vjp, pooled={2: _value_gradient}))
