"""A causal Transformer over characters."""

from __future__ import annotations

from math import sqrt

from duoln import Tensor, nn, ops
from duoln.nn import Params
from duoln.nn.attention import NormKind, NormPlace


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

    def __init__(self, classes: int, length: int, blocks: int, width: int, heads: int, hidden: int, norm: NormPlace,
                 kind: NormKind = "layer") -> None:
        self.classes, self.length, self.width = classes, length, width
        start = nn.init.gaussian(1 / sqrt(width))
        self.characters = nn.Embedding(classes, width, table_init=start)
        self.places = nn.Embedding(length, width, table_init=start)
        self.blocks = nn.Sequential(*(
            nn.TransformerBlock(width, heads, hidden, norm=norm, kind=kind, activation="relu", causal=True)
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
