"""Attention: a mean of values; the weight of a value is larger if its key fits the query better.

Scaled dot-product attention (Vaswani et al. 2017, eq. 1) never holds the scores of all queries at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan, prod, sqrt
from typing import Any

from duoln.backends.protocol import Array, Backend, Shape
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import Above0
from duoln.errors import ShapeError
from duoln.ops.linalg import transposed
from duoln.ops.shape import reshape

_MASKED = -1e30
"""The score of a masked time step: its weight becomes 0. With minus infinity, a row of masked steps would give NaN."""
_NEVER = -3e38
"""The score of a key that a query does not see."""
_SCORES = 1 << 20
"""The largest number of scores in memory at one time."""
_BLOCKS, _LEAST_ROWS = 64, 32
"""With more scores than `_SCORES`, queries are processed in up to 64 blocks, of at least 32 rows."""


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


def _additive_forward(be: Backend, query: Array, key: Array, value: Array, score_vector: Array,
                      mask: Array) -> tuple[tuple[Array, Array], Any]:
    rows, steps, width = key.shape
    # With the weight 0 a key or a value that is not finite would give NaN.
    key, value = (be.where(be.expand_dims(mask, 2), x, 0.0) for x in (key, value))
    compared = be.tanh(key + be.expand_dims(query, 1))
    scores = be.matmul(be.reshape(compared, (rows * steps, width)), be.reshape(score_vector, (width, 1)))
    scores = be.where(mask, be.reshape(scores, (rows, steps)), _MASKED)
    powers = be.exp(scores - be.max(scores, axis=1, keepdims=True))
    weights = be.where(mask, powers / be.sum(powers, axis=1, keepdims=True), 0.0)
    context = be.reshape(be.matmul(be.reshape(weights, (rows, 1, steps)), value), (rows, value.shape[2]))
    return (context, weights), (compared, value, score_vector, mask, weights)


def _additive_vjp(be: Backend, saved: Any, gouts: tuple[Array | None, Array | None],
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


additive_attention.add(Rule("composed", _additive_forward, _additive_vjp, pooled={2: _value_gradient}))


@op("query: real[*lead, t, d+], key: real[*lead, s+, d], value: real[*lead, s, v], mask: bool? -> like query")
def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *,
                                 causal: bool = False, scale: Above0 | None = None) -> Tensor:
    """softmax(scale * query @ key^T) @ value, over the keys that each query sees.

    The scores are computed for some queries at a time and computed again for the gradient: what is kept is two numbers
    for each query. A query that sees no key gets 0. A key that a query does not see changes nothing for it, even if the
    key or its value is not finite; with a mask or `causal`, a query that sees a value that is not finite gets NaN.

    Args:
        query, key, value, mask: see Shape; a query sees the keys where `mask` is True.
        causal: the query at time t sees the keys 0 .. t alone, also where there are more keys than queries.
        scale: of the scores, 1 / sqrt(D) by default.

    Shape:
        query (..., T, D), key (..., S, D), value (..., S, V) with the same axes before, S at least 1; mask bool, of a
        shape that broadcasts to (..., T, S): (B, 1, 1, S) for padding -> (..., T, V).

    Raises:
        ShapeError, DtypeError: the arrays do not fit together. UsageError: `scale` is not above 0.
    """
    scaled_dot_product_attention.check(query, key, value, mask)
    if mask is not None:
        scores = (*query.shape[:-1], key.shape[-2])
        pairs = zip(reversed(mask.shape), reversed(scores), strict=False)
        if mask.ndim > len(scores) or any(n not in (1, m) for n, m in pairs):
            raise ShapeError("[scaled_dot_product_attention] mask: expected a shape that broadcasts to "
                             f"{scores}, found {mask.shape}")
        if mask.ndim < 2:
            mask = reshape(mask, shape=(1,) * (2 - mask.ndim) + mask.shape)
    scale = 1.0 / sqrt(query.shape[-1]) if scale is None else scale
    return scaled_dot_product_attention.apply(query, key, value, mask, causal=causal, scale=scale)


def blocks_of(shape: Shape, keys: int) -> Iterator[tuple[int, int]]:
    """The queries whose scores are computed at once, [first, last), for queries of shape (..., T, D)."""
    queries, rows = shape[-2], prod(shape[:-2])
    size = queries
    if rows * queries * keys > _SCORES:
        size = max(min(queries // _BLOCKS, _SCORES // (rows * keys)), _LEAST_ROWS)
    for first in range(0, queries, max(size, 1)):
        yield first, min(first + size, queries)


def _visible_keys(be: Backend, mask: Array | None, causal: bool, first: int, last: int, keys: int) -> Array | None:
    """Which of the first `keys` keys the queries [first, last) see; None for all of them."""
    seen = None
    if mask is not None:
        rows = slice(first, last) if mask.shape[-2] != 1 else slice(None)
        seen = mask[..., rows, :keys]
    if causal and keys > first + 1:
        before = be.expand_dims(be.arange(last - first) + first, 1) >= be.arange(keys)
        seen = before if seen is None else be.logical_and(seen, before)
    return seen


def _mask_nonfinite(be: Backend, key: Array, value: Array, mask: Array | None,
                    causal: bool) -> tuple[Array, Array, Array]:
    """Keys for the scores, and keys and values to be summed, where a key that a query does not see has the weight 0.

    What is not finite would give NaN with this weight, so it is 0 in the sums. A value that is not finite makes the
    scores of its key NaN instead, for the queries that see it.
    """
    if mask is None and not causal:
        return key, key, value
    is_finite = be.isfinite(value)
    scored = be.where(be.all(is_finite, axis=-1, keepdims=True), key, nan)
    return scored, be.where(be.isfinite(key), key, 0.0), be.where(is_finite, value, 0.0)


def _scores(be: Backend, queries: Array, keys: Array, seen: Array | None) -> Array:
    scores = be.matmul(queries, keys)
    return scores if seen is None else be.where(seen, scores, _NEVER)


def _forward(be: Backend, query: Array, key: Array, value: Array, mask: Array | None, causal: bool,
             scale: float) -> tuple[Array, Any]:
    scored, _, values = _mask_nonfinite(be, key, value, mask, causal)
    keys = transposed(be, scored)
    outs, tops, totals = [], [], []
    for first, last in blocks_of(query.shape, key.shape[-2]):
        end = min(last, key.shape[-2]) if causal else key.shape[-2]
        seen = _visible_keys(be, mask, causal, first, last, end)
        scores = _scores(be, query[..., first:last, :] * scale, keys[..., :end], seen)
        top = be.max(scores, axis=-1, keepdims=True)
        powers = be.exp(scores - top)
        if seen is not None:  # the scores of a query that sees no key are equal
            powers = be.where(seen, powers, 0.0)
        total = be.sum(powers, axis=-1, keepdims=True)
        if mask is not None:
            total = be.where(total == 0, 1.0, total)
        outs.append(be.matmul(powers, values[..., :end, :]) / total)
        tops.append(top)
        totals.append(total)
    if not outs:
        out = be.zeros((*query.shape[:-1], value.shape[-1]), be.dtype(query))
        return out, (query, key, value, mask, causal, scale, out, None, None)
    out = _joined(be, outs)
    return out, (query, key, value, mask, causal, scale, out, _joined(be, tops), _joined(be, totals))


def _joined(be: Backend, blocks: list[Array]) -> Array:
    return blocks[0] if len(blocks) == 1 else be.concat(blocks, axis=-2)


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    query, key, value, mask, causal, scale, out, top, total = saved
    scored, summed, value = _mask_nonfinite(be, key, value, mask, causal)
    keys, values = transposed(be, scored), transposed(be, value)
    along = be.sum(gout * out, axis=-1, keepdims=True)
    if mask is not None or causal:  # the weights of a query with a NaN are NaN themselves, but for those of hidden keys
        along = be.where(be.isfinite(along), along, 0.0)
    d_query: list[Array] = []
    d_key = be.zeros(key.shape, be.dtype(key)) if needs[1] else None
    d_value = be.zeros(value.shape, be.dtype(value)) if needs[2] else None
    for first, last in blocks_of(query.shape, key.shape[-2]):
        end = min(last, key.shape[-2]) if causal else key.shape[-2]
        queries, g = query[..., first:last, :] * scale, gout[..., first:last, :]
        seen = _visible_keys(be, mask, causal, first, last, end)
        powers = be.exp(_scores(be, queries, keys[..., :end], seen) - top[..., first:last, :])
        weights = powers / total[..., first:last, :]
        if seen is not None:
            weights = be.where(seen, weights, 0.0)
        if d_value is not None:
            d_value = _add_to_rows(be, d_value, end, be.matmul(transposed(be, weights), g))
        if not (needs[0] or needs[1]):
            continue
        d_scores = weights * (be.matmul(g, values[..., :end]) - along[..., first:last, :])
        if needs[0]:
            d_query.append(be.matmul(d_scores, summed[..., :end, :]) * scale)
        if d_key is not None:
            d_key = _add_to_rows(be, d_key, end, be.matmul(transposed(be, d_scores), queries))
    if needs[0] and not d_query:
        d_query = [be.zeros(query.shape, be.dtype(query))]
    return _joined(be, d_query) if needs[0] else None, d_key, d_value, None


def _add_to_rows(be: Backend, total: Array, end: int, part: Array) -> Array:
    """`total` with `part` added to its first `end` rows."""
    if end == total.shape[-2]:
        return total + part
    return be.slice_add(total, (..., slice(end), slice(None)), part)


scaled_dot_product_attention.add(Rule("composed", _forward, _vjp))
