"""A causal Transformer over characters, and its learning rate of each update."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Literal

from duoln import Tensor, nn, ops
from duoln.nn import Params

Place = Literal["pre", "post", "none"]
Kind = Literal["layer", "rms"]


class CharacterTransformer(nn.Module):
    """Vectors of characters and places, blocks, and the weights that predict the next character.

    The vectors start with the variance 1 / width and are multiplied by sqrt(width) (Vaswani et al. 2017, section 3.4);
    those of the places are learnt. All matrices start as Glorot and Bengio 2010 have it ("Xavier"); none is made
    smaller for the number of blocks. After the last block of a "pre" model stands one more norm (Xiong et al. 2020).

    Each argument but `classes`, the number of characters, is the setting of this name.

    Shape:
        `states`: x int32 (B, T), T at most `length` -> (B, T, width); `nats`: with y int32 (B, T) -> (B, T);
        `logits` -> (B, T, classes).
    """

    def __init__(self, classes: int, length: int, blocks: int, width: int, heads: int, hidden: int, norm: Place,
                 kind: Kind = "layer") -> None:
        self.classes, self.length, self.width = classes, length, width
        start = nn.init.gaussian(1 / sqrt(width))
        self.characters = nn.Embedding(classes, width, table_init=start)
        self.places = nn.Embedding(length, width, table_init=start)
        self.blocks = nn.Sequential(*(
            nn.TransformerBlock(width, heads, hidden, norm="none" if norm == "none" else kind,
                                place="post" if norm == "post" else "pre", activation="relu", causal=True)
            for _ in range(blocks)))
        if norm == "pre":
            self.last_norm = nn.LayerNorm(width) if kind == "layer" else nn.RMSNorm(width)
        self.output = nn.Linear(width, classes)

    def states(self, params: Params, x: Tensor) -> Tensor:
        """The output of the last block, or of the norm after it, for each character and those before it."""
        vectors = self.characters(params["characters"], x) + params["places"]["table"][:x.shape[1]]
        h: Tensor = self.blocks(params["blocks"], vectors * sqrt(self.width))
        return self.last_norm(params["last_norm"], h) if "last_norm" in params else h

    def nats(self, params: Params, x: Tensor, y: Tensor) -> Tensor:
        """-log p of each next character. The probabilities of all characters are never stored at once."""
        output = params["output"]
        return ops.linear_cross_entropy(self.states(params, x), output["weight"], output["bias"], y)

    def logits(self, params: Params, x: Tensor) -> Tensor:
        """The logits of each next character."""
        return self.output(params["output"], self.states(params, x))


# The learning rate -----------------------------------------------------------------------------------------------

BETA2 = 0.98
"""Adam's second coefficient, as Xiong et al. 2020 have it."""


def inverse_root(rate: float, full: int, warm: bool) -> Callable[[int], float]:
    """`rate` at the update numbered `full` (counted from 1), and rate * sqrt(full / number) at those after it.

    Before it the rate rises along a line (`warm`: Xiong et al. 2020, eq. 1 and Vaswani et al. 2017, section 5.3), or is
    `rate` from the first update on. With `full` 0 the rate is always `rate`.
    """
    return partial(_rate, rate, full, warm)


def rate_remark(updates: int, full: int, warm: bool) -> str:
    """A sentence about a run of so many updates that ends within its warm-up; "" about others."""
    return (f"the learning rate still rises at the last of {updates:,} updates: warmup is {full:,}"
            if warm and updates < full else "")


def _rate(rate: float, full: int, warm: bool, step: int) -> float:
    number = step + 1
    if number <= full:
        return rate * number / full if warm else rate
    return rate * sqrt(full / number) if full else rate
