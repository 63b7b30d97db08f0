"""Listen, attend and spell (Chan et al. 2016): bidirectional LSTMs as a pyramid, and an LSTM that reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Literal, NamedTuple

import numpy as np

from duoln import Stream, Tensor, nn, ops
from duoln.errors import ShapeError
from duoln.nn import Params
from duoln.nn.cells import States
from duoln.nn.init import Initializer
from duoln.ops.recurrent.variants import Norm
from duoln.plugins.las.corpus import Alphabet

ListenerNorm = Literal["none", "layer", "upper", "cell", "over-time"]
SpellerNorm = Literal["none", "layer"]
SpellerState = Literal["kept", "swapped"]

CLIP = 1.0
"""The bound on each entry of the gradients."""
FORGET_BIAS = 1.0
"""The initial bias of the forget gates."""

Batch = Mapping[str, Tensor]


def lstm_initializer(n_in: int, n_hidden: int) -> Initializer:
    """The initialiser of both matrices of an LSTM cell, as in TensorFlow, on which nabu is built.

    There a cell has one matrix for input and state and all gates, (n_in + n_hidden, 4 n_hidden), and a variable without
    an initialiser starts as Glorot and Bengio (2010) have it, uniform in +-sqrt(6 / (n_in + 5 n_hidden)).
    """
    return nn.init.uniform(sqrt(6.0 / (n_in + 5 * n_hidden)))


class EncoderOutput(NamedTuple):
    """The listener's outputs for utterances."""

    values: Tensor
    """(B, T', M): the values of the attention; 0 in the padding."""
    keys: Tensor
    """(B, T', A): the keys, with which the speller's query is compared."""
    mask: Tensor
    """bool (B, T'): True in the utterance, False in the padding behind it."""


class Walk(NamedTuple):
    """The state of the speller after a symbol."""

    states: tuple[States, ...]
    """Hidden state and cell of each layer, (B, H)."""
    context: Tensor
    """(B, M): the last context."""


class Listener(nn.Module):
    """Bidirectional LSTMs; after each of the first `pyramids`, two steps become one of twice the width.

    Norm "layer" has eq. 7-9 of the chapter (20-22 of the paper) in every cell, "upper" in those of all layers but the
    first, and "cell" normalises the cell c alone, in every layer. "over-time" is the norm of its author's code: the
    cells are plain, and each value of a pyramid layer's output is normalised over time, padding included, with one gain
    and bias for all those layers.

    Args:
        n_in: width of the features.
        n_hidden: of each direction.
        pyramids: layers after which two steps become one.
        layers: layers above them.
        norm: see above.
        constant: a feature of this value stands beside the others in every frame; 0 is none. The layer norm of W_x x is
            the same for x and for 2 x; with a constant in x it is not.

    Shape:
        x (T, B, n_in), mask bool (T, B) -> (T / 2^pyramids, B, 2 n_hidden), the mask at those steps. T must be a
        multiple of 2^pyramids.
    """

    def __init__(self, n_in: int, n_hidden: int, pyramids: int, layers: int, norm: ListenerNorm,
                 constant: float = 0.0, eps: float = 1e-5) -> None:
        self.pyramids, self.norm, self.eps, self.wide = pyramids, norm, eps, 4 * n_hidden
        self.constant = constant
        self.layers: list[nn.LSTM] = []
        n_in += bool(constant)
        for k in range(pyramids + layers):
            start = lstm_initializer(n_in, n_hidden)
            self.layers.append(nn.LSTM(n_in, n_hidden, norm=_cell_norm(norm, k), bidirectional=True,
                                       forget_bias=FORGET_BIAS, eps=eps, input_init=start, recurrent_init=start))
            n_in = 4 * n_hidden if len(self.layers) <= pyramids else 2 * n_hidden

    def children(self) -> dict[str, nn.Module]:
        return {f"layer{k}": layer for k, layer in enumerate(self.layers)}

    def weights(self, rng: Stream) -> Params:
        if self.norm != "over-time":
            return {}
        return {"gain": np.ones(self.wide, np.float32), "bias": np.zeros(self.wide, np.float32)}

    def hear(self, params: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        """The last layer's outputs, 0 where there is no utterance, and where there is one."""
        *_, last = self.walk(params, batch)
        return last

    def walk(self, params: Params, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """The inputs of each layer in turn, with where there is an utterance; then the outputs of the last one."""
        x, mask = batch["x"], batch["mask"]
        if x.shape[0] % 2 ** self.pyramids:
            raise ShapeError(f"[las] expected x of a multiple of {2 ** self.pyramids} steps, found {x.shape[0]}")
        if self.constant:
            x = ops.concat(x, ops.full((*x.shape[:2], 1), self.constant, x.backend, x.dtype), axis=2)
        yield x, mask
        for k, layer in enumerate(self.layers):
            x, _ = layer(params[f"layer{k}"], x, mask=mask)
            x = dropped(ops.where(ops.expand_dims(mask, axis=2), x, 0.0), batch, f"keep_listener{k}")
            if k < self.pyramids:
                x, mask = _pairs(x), mask[::2]
                if self.norm == "over-time":
                    x = normalise_over_time(x, params["gain"], params["bias"], self.eps)
            yield x, mask


def _cell_norm(norm: ListenerNorm, layer: int) -> Norm:
    """The norm of the cells of one of the listener's layers."""
    if norm == "cell":
        return "layer-cell"
    return "layer" if norm == "layer" or (norm == "upper" and layer) else "none"


def _pairs(x: Tensor) -> Tensor:
    """Two steps side by side: (T, B, D) -> (T / 2, B, 2 D)."""
    steps, batch, width = x.shape
    halves = ops.permute_dims(ops.reshape(x, shape=(steps // 2, 2, batch, width)), axes=(0, 2, 1, 3))
    return ops.reshape(halves, shape=(steps // 2, batch, 2 * width))


def normalise_over_time(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Values standardised by their mean and deviation over the time steps of each utterance: (T, B, D)."""
    y: Tensor = ops.layer_norm(x, axis=0, eps=eps) * gain + bias
    return y.astype(x.dtype)


def dropped(x: Tensor, batch: Batch, name: str) -> Tensor:
    """`x` times the mask of that name, where the batch brings one; masks are scaled to keep the mean."""
    return x * batch[name] if name in batch else x


class Speller(nn.Module):
    """LSTMs that write one symbol after another; the inputs of the first one are the last symbol and its context.

    The last layer's output h is the query (Bahdanau et al. 2015): the weight of the value m_t is the softmax over t of
    v^T tanh(W h + U m_t), and (h, context) gives the next symbol's logits. State "swapped" is that of the author's
    code: each LSTM uses its last cell as hidden state, and its last hidden state as cell.

    Args:
        classes: symbols and the end mark, which is also the input before the first symbol.
        n_values: width of the listener's outputs.
        n_hidden: of each layer.
        layers: how many.
        n_attention: width of query and keys.
        norm: "layer" has eq. 7-9 of the chapter in every cell.
        state: the order in which a cell gets its last states, "swapped" or not.
    """

    def __init__(self, classes: int, n_values: int, n_hidden: int, layers: int, n_attention: int, norm: SpellerNorm,
                 state: SpellerState, eps: float = 1e-5) -> None:
        self.classes, self.n_values, self.n_attention, self.state = classes, n_values, n_attention, state
        widths = [classes + n_values, *[n_hidden] * (layers - 1)]
        self.cells = [nn.LSTMCell(n_in, n_hidden, norm=norm, forget_bias=FORGET_BIAS, eps=eps,
                                  input_init=lstm_initializer(n_in, n_hidden),
                                  recurrent_init=lstm_initializer(n_in, n_hidden)) for n_in in widths]
        self.query = nn.Linear(n_hidden, n_attention, bias=False)
        self.keys = nn.Linear(n_values, n_attention, bias=False)
        self.output = nn.Linear(n_hidden + n_values, classes)

    def children(self) -> dict[str, nn.Module]:
        own = {name: child for name, child in super().children().items() if "." not in name}
        return {**own, **{f"layer{k}": cell for k, cell in enumerate(self.cells)}}

    def weights(self, rng: Stream) -> Params:
        # TensorFlow takes the length of a vector for both its fans.
        start = nn.init.uniform(sqrt(3.0 / self.n_attention))
        return {"score": start(rng.child("score"), (self.n_attention,))}

    def attend_to(self, params: Params, outputs: Tensor, mask: Tensor) -> EncoderOutput:
        """The listener's outputs (T', B, M) by utterance, with their keys."""
        values = ops.permute_dims(outputs, axes=(1, 0, 2))
        return EncoderOutput(values, self.keys(params["keys"], values), ops.permute_dims(mask, axes=(1, 0)))

    def begin(self, params: Params, rows: int) -> Walk:
        """Before the first symbol."""
        like = params["output"]["weight"]
        states = tuple(cell.first_states(params[f"layer{k}"], rows) for k, cell in enumerate(self.cells))
        return Walk(states, ops.zeros((rows, self.n_values), like.backend, like.dtype))

    def step(self, params: Params, heard: EncoderOutput, walk: Walk, symbols: Tensor, batch: Batch, number: int,
             ) -> tuple[Walk, Tensor, Tensor]:
        """One symbol: the new state of the speller, the next symbol's logits (B, classes), and the weights (B, T').

        Args:
            params: the parameters.
            heard: the listener's keys and values.
            walk: the state of the speller.
            symbols: int32 (B,), the last classes.
            batch: the batch; in training it holds masks for dropout.
            number: the number of the step, from 0, which selects those masks.
        """
        x = ops.concat(ops.one_hot(symbols, size=self.classes, dtype=walk.context.dtype), walk.context, axis=1)
        states: list[States] = []
        for k, cell in enumerate(self.cells):
            h, c = cell(params[f"layer{k}"], x, walk.states[k])
            states.append((c, h) if self.state == "swapped" else (h, c))
            name = f"keep_speller{k}"
            x = h * batch[name][number] if name in batch else h
        context, weights = ops.additive_attention(self.query(params["query"], x), heard.keys, heard.values,
                                                  params["score"], heard.mask)
        logits = self.output(params["output"], ops.concat(x, context, axis=1))
        return Walk(tuple(states), context), logits, weights

    def teacher_force(self, params: Params, heard: EncoderOutput, labels: Tensor,
                      batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (L, B, classes) and weights (L, B, T') at each of the labels (L, B), given those before it.

        If the batch has `coin` (L, B) and `gumbel` (L, B, classes), a symbol drawn from the last logits replaces the
        label where `coin` says so (Bengio et al. 2015); no gradient flows through it.
        """
        rows = labels.shape[1]
        walk = self.begin(params, rows)
        symbols = ops.zeros((rows,), labels.backend, "int32") + Alphabet.end
        all_logits, all_weights = [], []
        for t in range(labels.shape[0]):
            walk, logits, weights = self.step(params, heard, walk, symbols, batch, t)
            all_logits.append(logits)
            all_weights.append(weights)
            symbols = labels[t]
            if "coin" in batch:
                drawn = ops.argmax(logits + batch["gumbel"][t], axis=1)
                symbols = ops.where(batch["coin"][t], drawn, symbols)
        return ops.stack(*all_logits), ops.stack(*all_weights)


class LasModel(nn.Module):
    """Listener and speller.

    `beam`, `longest` and `length_penalty` are settings of the search in evaluation, see `search.spell`.
    """

    def __init__(self, listener: Listener, speller: Speller, beam: int, longest: int, length_penalty: float) -> None:
        self.listener, self.speller = listener, speller
        self.beam, self.longest, self.length_penalty = beam, longest, length_penalty

    def hear(self, params: Params, batch: Batch) -> EncoderOutput:
        """The features x (T, B, n_in) and mask bool (T, B) of a batch, as the speller attends to them."""
        outputs, mask = self.listener.hear(params["listener"], batch)
        return self.speller.attend_to(params["speller"], outputs, mask)

    def label_losses(self, params: Params, batch: Batch) -> Tensor:
        """The mean cross-entropy of each utterance's labels, in nats: (B,). `weight` (L, B) is 1 / labels, or 0."""
        logits, _ = self.speller.teacher_force(params["speller"], self.hear(params, batch), batch["labels"], batch)
        return ops.sum(ops.softmax_cross_entropy(logits, batch["labels"]) * batch["weight"], axis=0)


# The inputs of the layers: their distribution tells how much they shift in training ---------------------------------

def layer_inputs(model: LasModel, params: Params, batch: Batch) -> dict[str, np.ndarray]:
    """The inputs of the listener's layers, of the attention and of the softmax, without padding and without dropout.

    The "gates" of a layer are the x_gates of its forward cells, with their norm if they have one: W_x x is what the
    input gives each gate. The first layer's inputs are the features, which do not move.

    Shape:
        -> arrays (steps of all utterances, units).
    """
    heard = {"x": batch["x"], "mask": batch["mask"]}
    inputs: dict[str, np.ndarray] = {}
    *layers, (values, mask) = model.listener.walk(params["listener"], heard)
    for k, (x, of_layer) in enumerate(layers):
        if k:
            inputs[f"listener {k + 1}"] = _unmasked_steps(x, of_layer)
        x_gates = _x_gates(params["listener"][f"layer{k}"]["forward0"], x)
        inputs[f"listener {k + 1}, gates"] = _unmasked_steps(x_gates, of_layer)
    inputs["attention"] = _unmasked_steps(values, mask)
    logits, _ = model.speller.teacher_force(params["speller"], model.speller.attend_to(params["speller"], values, mask),
                                     batch["labels"], {})
    inputs["softmax"] = logits.numpy()[batch["weight"].numpy() > 0]
    return inputs


def _x_gates(cell: Params, x: Tensor) -> Tensor:
    """The product x W_x, normalised where the cell has a norm of it, and its bias: (steps, rows, 4 H)."""
    steps, rows, width = x.shape
    x_proj = ops.matmul(ops.reshape(x, shape=(steps * rows, width)), cell["w_x"])
    if "gain_x" in cell:
        x_proj = ops.layer_norm(x_proj, cell["gain_x"], cell["bias_x"])
    return ops.reshape(x_proj + cell["bias"], shape=(steps, rows, x_proj.shape[1]))


def _unmasked_steps(x: Tensor, mask: Tensor) -> np.ndarray:
    """The steps at which there is an utterance: (steps of all, units)."""
    array: np.ndarray = x.numpy()[mask.numpy()]
    return array
