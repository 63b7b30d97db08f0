"""Skip-thoughts (Kiros et al. 2015), with decoders that get the code only as their first state."""

from __future__ import annotations

from typing import Literal

import numpy as np

from duoln import Stream, Tensor, nn, ops
from duoln.nn import Params

Norm = Literal["none", "layer-theano"]
FLOOR = 1e-8
"""Added to the probability of a word in the loss."""
LARGEST_NORM = 5.0
"""The norm to which all gradients together are clipped."""


def start_matrix(rng: Stream, shape: tuple[int, ...]) -> np.ndarray:
    """The initial matrix of the paper's code: orthogonal if it is square, otherwise uniform in +-0.1."""
    square = len(shape) == 2 and shape[0] == shape[1]
    return (nn.init.orthogonal if square else nn.init.uniform(0.1))(rng, shape)


class SkipThoughts(nn.Module):
    """A sentence's code, and from it the sentences before and after: one GRU each, one table, one output layer.

    The decoders begin in the state in which the encoder ends, and see the words of their sentence shifted by one, first
    a vector of zeros. Unlike the model of 2015 they have no other access to the code.

    Args:
        words, width, hidden, norm: the settings of these names. "layer-theano" is the form of the code behind the
            paper, with biases inside of the norms.
        floor: added to the probability of a word in the loss.

    Shape:
        `code`: words int32 (L, B), mask bool (L, B) -> (B, hidden); `nats`: as `data.Triplets.batch` has them ->
        (2, T, B).
    """

    def __init__(self, words: int, width: int, hidden: int, norm: Norm, floor: float = FLOOR) -> None:
        self.width, self.hidden, self.floor = width, hidden, floor

        def gru() -> nn.GRUCell:
            # In the code behind the paper an update gate of 1 keeps the state; in eq. 28 it renews it.
            return nn.GRUCell(width, hidden, norm=norm, update_gate="keeps", input_init=start_matrix)

        self.embedding = nn.Embedding(words, width)
        self.encoder, self.previous, self.next = gru(), gru(), gru()
        self.output = nn.Linear(hidden, words, weight_init=nn.init.uniform(0.1))

    def code(self, params: Params, words: Tensor, mask: Tensor) -> Tensor:
        """The last state of the encoder."""
        return self._encode(params, self.embedding(params["embedding"], words), mask)

    def nats(self, params: Params, words: Tensor, mask: Tensor, given: Tensor, targets: Tensor) -> Tensor:
        """-log(p + floor) of each word of the sentences around; 0 where the target is negative."""
        length, batch = words.shape
        steps = given.shape[1]
        # All vectors by one look-up: the gradient of a look-up is as large as the table.
        flat = ops.concat(ops.reshape(words, shape=(words.size,)), ops.reshape(given, shape=(given.size,)))
        vectors = self.embedding(params["embedding"], flat)
        seen = ops.reshape(vectors[:words.size], shape=(length, batch, self.width))
        inputs = ops.reshape(vectors[words.size:], shape=(2, steps, batch, self.width))
        code = self._encode(params, seen, mask)
        nothing = ops.zeros((1, batch, self.width), code.backend, inputs.dtype)
        states = [cell.sequence(params[name], ops.concat(nothing, inputs[k], axis=0), (code,))[0]
                  for k, (name, cell) in enumerate((("previous", self.previous), ("next", self.next)))]
        output = params["output"]
        nats = ops.linear_cross_entropy(ops.stack(states), output["weight"], output["bias"], targets, ignore_index=-1)
        if not self.floor:
            return nats
        return ops.where(targets >= 0, -ops.log(ops.exp(-nats) + self.floor), 0.0)

    def _encode(self, params: Params, vectors: Tensor, mask: Tensor) -> Tensor:
        return self.encoder.sequence(params["encoder"], vectors, mask=mask)[1][0]
