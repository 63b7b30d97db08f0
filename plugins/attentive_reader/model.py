"""The attentive reader (Hermann et al. 2015, section 3.2), as the code behind the paper has it, and where it starts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import sqrt
from typing import Literal, NamedTuple

import numpy as np

from duoln import Stream, Tensor, nn, ops
from duoln.errors import UsageError
from duoln.nn import Params, init

Start = Literal["paper", "glorot"]

_SHRINK = 0.05


class Weights(NamedTuple):
    """The initialisers of a start."""

    lstm: init.Initializer
    """For the LSTMs, gate by gate, the bilinear match and the passage's side of the attention."""
    dense: init.Initializer
    """For all other matrices."""
    score: init.Initializer
    """For the vector that makes a score of the attention's tanh."""
    table: init.Initializer
    """For the table of words."""


def _anew(rng: Stream) -> Stream:
    """The same stream for every weight, as if the generator were seeded again before each matrix."""
    return Stream(rng.seed, "attentive_reader.start")


def _uniform(rng: Stream, shape: init.Shape) -> np.ndarray:
    return init.uniform(sqrt(6.0 / (sum(shape) + 1)))(_anew(rng), shape)


def _shrunk_orthogonal(rng: Stream, shape: init.Shape) -> np.ndarray:
    """0.05 times an orthogonal matrix, where it is square; else uniform."""
    return _orthogonal(rng.seed, shape[0]) * np.float32(_SHRINK) if shape[0] == shape[1] else _uniform(rng, shape)


@lru_cache(maxsize=1)
def _orthogonal(seed: int, size: int) -> np.ndarray:
    """One draw, cached, because eighteen matrices are all this one."""
    return init.orthogonal(_anew(Stream(seed, "")), (size, size))


def _fan_in(rng: Stream, shape: init.Shape) -> np.ndarray:
    return init.uniform(1.0 / sqrt(shape[0]))(rng, shape)


def starting_weights(start: Start) -> Weights:
    """The initialisers of that name.

    "paper": the generator is seeded again before every matrix, so that matrices of one shape and kind are equal: all
    gates of both LSTMs, the match and the passage's side of the attention; and likewise the other square ones.
    "glorot": every matrix is drawn separately, by Glorot's uniform; words are normal with deviation 0.5.
    """
    if start == "paper":
        return Weights(_shrunk_orthogonal, _uniform, lambda rng, shape: _fan_in(_anew(rng), shape), _uniform)
    return Weights(init.glorot, init.glorot, _fan_in, init.gaussian(0.5))


Norm = Literal["none", "layer-theano", "batch"]
DropoutForm = Literal["paper", "inverted", "none"]
Likelihood = Literal["paper", "exact"]

_TERMS = ("of_passage", "of_question", "context", "asked", "mean")
"""The affine terms that "batch norm everywhere" normalises: two of the attention, three of the output."""
_BATCH_GAIN = 0.1
LIMIT = 10.0
"""The bound on the norm of all gradients together."""
_FLOOR = 1e-8
"""A number that the code behind the paper adds to a probability before it takes the logarithm."""
_NEVER = -1e9
"""The score of a place where there is no word."""


class Encoder(nn.Module):
    """An LSTM with a learned first hidden state that starts at 0; the first cell is 0.

    As the authors' LSTM it adds its bias twice: without norms here; with norms "layer-theano" does so by itself, inside
    the input's norm and again outside.

    Shape:
        x (T, B, n_in), mask bool (T, B) -> the states (T, B, hidden) and the last one (B, hidden).
    """

    def __init__(self, cell: nn.LSTMCell) -> None:
        self.cell = cell
        cell.gathers = False  # that code evaluates by the statistics of the batch too

    def weights(self, rng: Stream) -> Params:
        return {"first": np.zeros(self.cell.n_hidden, np.float32)}

    def read(self, params: Params, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The states, and the last one."""
        own = params["cell"]
        if self.cell.norm == "none":
            own = {**own, "bias": own["bias"] * 2.0}
        _, cell = self.cell.first_states(own, x.shape[1])
        first = ops.broadcast_to(params["first"].astype(x.dtype), shape=cell.shape)
        states, last = self.cell.sequence(own, x, (first, cell), mask)
        return states, last[0]


class Reader(nn.Module):
    """A passage and a question about it -> a score for every word of the table, and one class more.

    Both are read by an LSTM of their own. With passage states d_t and the question's last state q

        s_t = v . tanh(d_t W_d + b_d + q W_q + (d_t M) . (q M)),   a = softmax(s) where there are words,
        g = tanh((sum_t a_t d_t) W_c + q W_g + b_g + mean(d) W_m), logits = g W_o + b_o.

    Args:
        words: the setting `table`; all others have the names of theirs.
        everywhere: batch norm also for the five affine terms d W_d, q W_q, c W_c, q W_g and mean(d) W_m, over all rows,
            those where there are no words included; always by the statistics of the batch.
        dropout: of words and of g. "paper": values are dropped in training and multiplied by `keep` in use; "inverted":
            those kept are divided by `keep` in training.
        tied: a word's score is the product of g and the word's vector (Press and Wolf 2017), with no class beyond.

    Shape:
        As `batches.as_batch` gives it, and in training bool keep_passage (T, B, width), keep_question (U, B, width) and
        keep_joint (B, hidden) -> (B, words + 1), or (B, words) if tied.
    """

    def __init__(self, words: int, width: int, hidden: int, norm: Norm, everywhere: bool = False,
                 gain: float | None = None, start: Start = "paper", dropout: DropoutForm = "paper", keep: float = 0.5,
                 likelihood: Likelihood = "paper", tied: bool = False) -> None:
        if not 0 < keep <= 1:
            raise UsageError(f"[attentive_reader] expected keep in (0, 1], found {keep}")
        if tied and width != hidden:
            raise UsageError(f"[attentive_reader] tied: expected equal width and hidden, found {width} and {hidden}")
        begin = starting_weights(start)
        self.hidden, self.everywhere, self.dropout, self.keep = hidden, everywhere, dropout, keep
        self._score, self.likelihood, self.words, self.tied = begin.score, likelihood, words, tied

        def encoder() -> Encoder:
            return Encoder(nn.LSTMCell(width, hidden, norm=norm, gain=gain, input_init=begin.lstm,
                                       recurrent_init=begin.lstm))

        def linear(bias: bool, how: nn.init.Initializer, out: int = hidden) -> nn.Linear:
            return nn.Linear(hidden, out, bias=bias, weight_init=how)

        self.embedding = nn.Embedding(words, width, table_init=begin.table)
        self.passage, self.question = encoder(), encoder()
        self.match = linear(False, begin.lstm)
        self.of_passage, self.of_question = linear(True, begin.lstm), linear(False, begin.dense)
        self.context, self.asked, self.mean = (linear(bias, begin.dense) for bias in (False, True, False))
        if not tied:
            self.output = linear(True, begin.dense, words + 1)

    def weights(self, rng: Stream) -> Params:
        params: Params = {"score": self._score(rng.child("score"), (self.hidden, 1))}
        if self.tied:
            params["bias"] = np.zeros(self.words, np.float32)
        if self.everywhere:
            params |= {f"gain_{name}": np.full(self.hidden, _BATCH_GAIN, np.float32) for name in _TERMS}
        return params

    def __call__(self, params: Params, batch: Mapping[str, Tensor]) -> Tensor:
        states, mask = self._read(params, batch, "passage")[0], batch["passage_mask"]
        asked = self._read(params, batch, "question")[1]
        attention = ops.expand_dims(self.attention(params, states, asked, mask), axis=-1)
        context = ops.sum(attention * states, axis=0)
        mean = self._mean(states, mask)
        joint = ops.tanh(self._term(params, "context", context) + self._term(params, "asked", asked)
                         + self._term(params, "mean", mean))
        joint = self._dropped(joint, batch.get("keep_joint"))
        if self.tied:
            return ops.linear(joint, ops.permute_dims(params["embedding"]["table"], axes=(1, 0)), params["bias"])
        return self.output(params["output"], joint)

    def loss(self, params: Params, batch: Mapping[str, Tensor]) -> Tensor:
        """-log p of each answer among all words, in nats: (B,). A full softmax, whatever `likelihood` is."""
        nats = ops.softmax_cross_entropy(self(params, batch), batch["answer"])
        return -ops.log(ops.exp(-nats) + _FLOOR) if self.likelihood == "paper" else nats

    def attention(self, params: Params, states: Tensor, asked: Tensor, mask: Tensor) -> Tensor:
        """The attention to each place of the passage: (T, B), a column adds up to 1."""
        # (d M) . (q M) is d . (q M M'): one product for the question in the place of one for every word.
        match = params["match"]["weight"]
        query = ops.matmul(ops.matmul(asked, match), ops.permute_dims(match, axes=(1, 0)))
        near = ops.sum(states * query, axis=-1, keepdims=True)
        seen = ops.tanh(self._term(params, "of_passage", states) + self._term(params, "of_question", asked) + near)
        scores = ops.squeeze(ops.matmul(seen, params["score"]), axis=-1)
        return ops.softmax(ops.where(mask, scores, _NEVER), axis=0)

    def _read(self, params: Params, batch: Mapping[str, Tensor], side: str) -> tuple[Tensor, Tensor]:
        words = self._dropped(self.embedding(params["embedding"], batch[side]), batch.get(f"keep_{side}"))
        states: tuple[Tensor, Tensor] = getattr(self, side).read(params[side], words, batch[f"{side}_mask"])
        return states

    def _dropped(self, x: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            return ops.where(keep, x / self.keep if self.dropout == "inverted" else x, 0.0)
        return x * self.keep if self.dropout == "paper" else x

    def _term(self, params: Params, name: str, x: Tensor) -> Tensor:
        """An affine term; batch norm leaves its bias outside, where it means something."""
        own = params[name]
        if not self.everywhere:
            y: Tensor = getattr(self, name)(own, x)
            return y
        xhat = ops.batch_norm(ops.matmul(x, own["weight"]), params[f"gain_{name}"])[0]
        return (xhat + own["bias"]).astype(x.dtype) if "bias" in own else xhat

    @staticmethod
    def _mean(states: Tensor, mask: Tensor) -> Tensor:
        real = ops.expand_dims(ops.astype(mask, dtype=states.dtype), axis=-1)
        return ops.sum(states * real, axis=0) / ops.sum(real, axis=0)
