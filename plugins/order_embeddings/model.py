"""The encoders of Vendrov et al. (2016): a GRU for sentences, an affine map for image features, one space for both."""

from __future__ import annotations

from functools import partial
from typing import Literal

from duoln import Tensor, nn, ops, optim
from duoln.nn import Params
from duoln.plugins.order_embeddings.ops import order_violation

Norm = Literal["none", "layer-theano", "layer"]
Score = Literal["order", "cosine"]


class OrderEmbedding(nn.Module):
    """Captions and images as points on the unit sphere, under "order" on its part where nothing is negative.

    Each argument is the setting of this name. Norm "layer-theano" is the authors' cell, with biases inside the norms.
    Score "order" is the violation of the order (eq. 3 of Vendrov et al.), of absolute values; "cosine" less the cosine
    of the points as they are.

    Shape:
        `captions`: ids int32 (T, N), mask bool (T, N) -> (N, joint_size). `images`: (M, image_size) ->
        (M, joint_size). `errors`: those two -> (N, M), lower is better.
    """

    def __init__(self, vocabulary: int, word_size: int, image_size: int, joint_size: int, norm: Norm = "none",
                 score: Score = "order", margin: float = 0.05) -> None:
        self.score, self.margin = score, margin
        self.words = nn.Embedding(vocabulary, word_size)
        # The authors' code starts square matrices orthogonal and others uniform.
        start = nn.init.orthogonal if word_size == joint_size else nn.init.uniform(0.1)
        # In the authors' code an update gate of 1 keeps the state; in eq. 25 it renews it.
        self.sentence = nn.GRUCell(word_size, joint_size, norm=norm, update_gate="keeps", input_init=start)
        self.image = nn.Linear(image_size, joint_size)

    def captions(self, params: Params, ids: Tensor, mask: Tensor) -> Tensor:
        """The points of sentences."""
        _, (last,) = self.sentence.sequence(params["sentence"], self.words(params["words"], ids), mask=mask)
        return self._embed_on_sphere(last)

    def images(self, params: Params, features: Tensor) -> Tensor:
        """The points of images."""
        return self._embed_on_sphere(self.image(params["image"], features))

    def errors(self, captions: Tensor, images: Tensor) -> Tensor:
        """The errors of all pairs."""
        if self.score == "order":
            return order_violation(captions, images)
        return -ops.matmul(captions, ops.permute_dims(images, axes=(1, 0)))

    def loss(self, captions: Tensor, images: Tensor) -> Tensor:
        """The training loss of captions and their own images, in one order."""
        return contrastive_loss(self.errors(captions, images), self.margin)

    def _embed_on_sphere(self, x: Tensor) -> Tensor:
        unit = x * ops.sum(ops.square(x), axis=-1, keepdims=True) ** -0.5
        return ops.abs(unit) if self.score == "order" else unit


def contrastive_loss(errors: Tensor, margin: float) -> Tensor:
    """The sum over all pairs i != j of max(0, margin - E_ij + E_ii) + max(0, margin - E_ij + E_jj).

    Shape:
        errors (B, B), each caption's own image on the diagonal -> ().
    """
    count = errors.shape[0]
    own = ops.one_hot(ops.arange(count, backend=errors.backend), size=count, dtype=errors.dtype)
    of_pairs = errors * own
    apart = margin - errors
    each = ops.relu(apart + ops.sum(of_pairs, axis=1, keepdims=True)) + ops.relu(apart + ops.sum(of_pairs, axis=0))
    return ops.sum(each * (1.0 - own))


CLIP_EACH = 2.0
"""The largest norm of the gradient of each array of the authors' code."""


def clip_each_array(limit: float) -> optim.Clip:
    """The gradient of each array of the authors' code scaled on its own, so that its norm is at most `limit`.

    Their GRU has separate arrays for the two gates and for the candidate; duoln keeps them side by side in one array.

    Raises:
        UsageError: the limit is not finite or not above 0.
    """
    return partial(_clip_authors, optim.clip_each_norm(limit))


def _clip_authors(clip: optim.Clip, gradients: Params) -> Params:
    cell = clip({name: _split_gates(g) for name, g in gradients["sentence"].items()})
    joined = {name: ops.concat(*parts, axis=-1) for name, parts in cell.items()}
    return {name: joined if name == "sentence" else clip(g) for name, g in gradients.items()}


def _split_gates(array: Tensor) -> tuple[Tensor, Tensor]:
    gates = array.shape[-1] // 3 * 2
    return array[..., :gates], array[..., gates:]
