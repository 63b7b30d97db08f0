"""Multi-head attention and the block of a Transformer (Vaswani et al. 2017, sections 3.2.2, 3.3 and 5.4)."""

from __future__ import annotations

from copy import copy
from typing import Any, Literal, get_args

from duoln import ops
from duoln.core import Tensor
from duoln.core.arguments import AT_LEAST_0, check_choice, check_flag, check_number
from duoln.core.spec import check_beside, check_tensors
from duoln.errors import ShapeError
from duoln.nn.dropout import Dropout, dropout_of
from duoln.nn.layers import Linear, check_sizes
from duoln.nn.module import NOT_GIVEN, Module, Params, branch, parameter
from duoln.nn.norm import LayerNorm, RMSNorm

NormPlace = Literal["pre", "post"]
NormKind = Literal["layer", "rms", "none"]
BlockActivation = Literal["relu", "gelu"]
_NORMS: dict[str, type[LayerNorm] | type[RMSNorm]] = {"layer": LayerNorm, "rms": RMSNorm}


class MultiHeadAttention(Module):
    """Attention by several heads, each of which sees width / heads of the width (Vaswani et al. 2017, section 3.2.2).

    One product makes the queries, keys and values of all heads, side by side in this order. Its weight starts as one
    matrix: Glorot's for `width` inputs and 3 `width` outputs.

        >>> layer = nn.MultiHeadAttention(8, heads=2)
        >>> layer(duoln.init(layer, 0), duoln.tensor(np.zeros((2, 5, 8), np.float32))).shape
        (2, 5, 8)

    Shape:
        x (B, T, width), memory (B, S, width) or None, mask bool (B, S), or one with four axes that broadcasts to
        (B, heads, T, S) -> (B, T, width); parameters projection.weight (width, 3 width) and .bias (3 width,),
        out.weight (width, width) and .bias (width,).
    """

    def __init__(self, width: int, heads: int, *, bias: bool = True) -> None:
        check_sizes("MultiHeadAttention", width=width, heads=heads)
        check_flag("MultiHeadAttention", "bias", bias)
        if width % heads:
            raise ShapeError(f"[MultiHeadAttention] heads: expected a divisor of width, found {heads} for {width}")
        self.width, self.heads, self.bias = width, heads, bias
        self.projection, self.out = (Linear(width, n, bias=bias) for n in (3 * width, width))

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN, mask: Tensor | None = None, *,
                 memory: Tensor | None = None, causal: bool = False) -> Tensor:
        """The outputs of the heads, side by side and multiplied by the weight of `out`.

        Args:
            params, x: see Shape.
            mask: which steps are real and not padding, (B, S); or what each query of each head sees.
            memory: where keys and values come from, `x` itself by default.
            causal: the query at time t sees the keys 0 .. t alone.

        Raises:
            ShapeError: an array has another shape.
        """
        own = branch("MultiHeadAttention", params, "projection")
        self._check("x", x)
        if memory is None:
            rows = ops.split(self.projection(own, x), 3, axis=-1)
        else:
            self._check("memory", memory)
            rows = self._projected(own, x, memory)
        query, key, value = (self._by_heads(y) for y in rows)
        out = ops.scaled_dot_product_attention(query, key, value, self._mask(mask, rows[1]), causal=causal)
        joined = ops.reshape(ops.permute_dims(out, axes=(0, 2, 1, 3)), shape=(*x.shape[:2], self.width))
        return self.out(branch("MultiHeadAttention", params, "out"), joined)

    def _check(self, role: str, x: Any) -> None:
        check_tensors("MultiHeadAttention", x)
        if x.ndim != 3 or x.shape[-1] != self.width:
            raise ShapeError(f"[MultiHeadAttention] {role}: expected shape (B, T, {self.width}), found {x.shape}")

    def _projected(self, own: Params, x: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
        """Queries of `x`, and keys and values of `memory`."""
        weight = parameter("MultiHeadAttention", own, "weight")
        bias = parameter("MultiHeadAttention", own, "bias") if self.bias else None
        cut = self.width
        query = ops.linear(x, weight[:, :cut], None if bias is None else bias[:cut])
        return query, *ops.split(ops.linear(memory, weight[:, cut:], None if bias is None else bias[cut:]), 2, axis=-1)

    def _mask(self, mask: Tensor | None, key: Tensor) -> Tensor | None:
        if mask is None:
            return None
        check_beside("MultiHeadAttention", "mask", mask, "bool", key)
        if mask.ndim == 4:
            return mask
        if mask.shape != key.shape[:2]:
            raise ShapeError(f"[MultiHeadAttention] mask: expected shape {key.shape[:2]} or four axes, "
                             f"found {mask.shape}")
        return ops.reshape(mask, shape=(mask.shape[0], 1, 1, mask.shape[1]))

    def _by_heads(self, x: Tensor) -> Tensor:
        """(B, T, width) as (B, heads, T, width / heads)."""
        parts = ops.reshape(x, shape=(*x.shape[:2], self.heads, self.width // self.heads))
        return ops.permute_dims(parts, axes=(0, 2, 1, 3))


class TransformerBlock(Module):
    """Attention, and two layers with an activation between them, each with a sum around it (section 3.1).

        place="post":  x = norm(x + attention(x));  x = norm(x + layers(x))  Vaswani et al. 2017
        place="pre":   x = x + attention(norm(x));  x = x + layers(norm(x))  Xiong et al. 2020, figure 1
        norm="none":   x = x + attention(x);        x = x + layers(x)

    After the last block of a "pre" model follows a norm of its own. Dropout acts on what is added to `x` (section
    5.4), by an `nn.Dropout` each; the weights of the attention have none.

        >>> block = nn.TransformerBlock(8, heads=2, place="pre", causal=True)
        >>> block(duoln.init(block, 0), duoln.tensor(np.zeros((2, 5, 8), np.float32))).shape
        (2, 5, 8)

    Args:
        width: the size of `x`.
        heads: of the attention, a divisor of `width`.
        hidden: the width between the two layers, 4 * width by default.
        norm: layer norm, RMS norm or none.
        place: where it stands.
        activation: between the two layers.
        causal: each time step sees itself and those before it alone.
        dropout: the share of values dropped; or an `nn.Dropout`, of which each place has a copy.
        eps: of the norms.

    Shape:
        x (B, T, width), mask as for `MultiHeadAttention` -> (B, T, width); parameters attention, attention_norm,
        hidden, out, hidden_norm.
    """

    def __init__(self, width: int, heads: int, hidden: int | None = None, *, norm: NormKind = "layer",
                 place: NormPlace = "pre", activation: BlockActivation = "relu", causal: bool = False,
                 dropout: float | Dropout = 0.0, eps: float = 1e-5) -> None:
        name = "TransformerBlock"
        check_sizes(name, width=width, heads=heads)
        self.n_hidden = 4 * width if hidden is None else hidden
        check_sizes(name, hidden=self.n_hidden)
        check_choice(name, "norm", norm, get_args(NormKind))
        check_choice(name, "place", place, get_args(NormPlace))
        check_choice(name, "activation", activation, get_args(BlockActivation))
        check_number(name, "eps", eps, AT_LEAST_0)
        self.width, self.heads, self.norm, self.place, self.activation = width, heads, norm, place, activation
        self.causal = check_flag(name, "causal", causal)
        drop = dropout_of(name, dropout)
        self.dropout = drop.p
        if drop.p:
            self.attention_dropout, self.hidden_dropout = copy(drop), copy(drop)
        self.eps = eps
        self.attention = MultiHeadAttention(width, heads)
        self.hidden = Linear(width, self.n_hidden, activation="relu" if activation == "relu" else None)
        self.out = Linear(self.n_hidden, width)
        if norm != "none":
            self.attention_norm, self.hidden_norm = (_NORMS[norm](width, eps=eps) for _ in range(2))

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN, mask: Tensor | None = None) -> Tensor:
        """Run the block. Raises ShapeError for an array of another shape."""
        if self.norm == "none":
            x = x + self._attend(params, x, mask)
            return x + self._transform(params, x)
        first, second = (branch("TransformerBlock", params, name) for name in ("attention_norm", "hidden_norm"))
        if self.place == "post":
            x, _ = self.attention_norm.of_sum(first, self._attend(params, x, mask), x)
            return self.hidden_norm.of_sum(second, self._transform(params, x), x)[0]
        attended = self._attend(params, self.attention_norm(first, x), mask)
        y, x = self.hidden_norm.of_sum(second, attended, x)
        return x + self._transform(params, y)

    def _attend(self, params: Params, x: Tensor, mask: Tensor | None) -> Tensor:
        y = self.attention(branch("TransformerBlock", params, "attention"), x, mask, causal=self.causal)
        return self._dropped("attention_dropout", params, y)

    def _transform(self, params: Params, x: Tensor) -> Tensor:
        wide = self.hidden(branch("TransformerBlock", params, "hidden"), x)
        y = self.out(branch("TransformerBlock", params, "out"), ops.gelu(wide) if self.activation == "gelu" else wide)
        return self._dropped("hidden_dropout", params, y)

    def _dropped(self, name: str, params: Params, y: Tensor) -> Tensor:
        return getattr(self, name)(branch("TransformerBlock", params, name), y) if self.dropout else y
