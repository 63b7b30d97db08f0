"""Hidden states and gradients over time, plain and normalised (section 3.1).

The paper: the summed inputs of a plain recurrent network tend to grow or shrink from one time step to the next, so
gradients explode or vanish; a layer-normalised one does not see a re-scaling of all summed inputs to a layer, so its
hidden-to-hidden dynamics are much more stable. Here recurrent weights that start orthogonal are scaled, and a gradient
of norm 1 at the last time step is propagated back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from duoln import Stream, nn, ops
from duoln.backends.protocol import Backend
from duoln.core import Tensor, value_and_grad
from duoln.errors import UsageError
from duoln.nn.cells import RecurrentCell
from duoln.ops.recurrent.variants import CellName

Norm = Literal["none", "layer"]
NORMS: tuple[Norm, ...] = get_args(Norm)
CELLS: tuple[CellName, ...] = get_args(CellName)
Scaled = Literal["w_h", "w_h and w_x"]
SCALED: tuple[Scaled, ...] = get_args(Scaled)

SCALES, DRAWS = (0.5, 1.0, 2.0, 4.0), 5
BATCH, INPUTS, HIDDEN = 8, 32, 64
_KINDS: dict[CellName, type[RecurrentCell]] = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}


class Walk(NamedTuple):
    """One network over time.

    `state` is the root mean square of the hidden state after each step, `gradient` the norm of the gradient by the
    states of that step (hidden state and cell), of an example; both of length `steps`. `moved` is the relative
    change of the hidden states of all steps from those of scale 1.
    """

    cell: CellName
    norm: Norm
    scaled: Scaled
    scale: float
    state: list[float]
    gradient: list[float]
    moved: float


class Span(NamedTuple):
    """The powers of ten between the least and the greatest gradient at the first step, over all scales of W_h, of one
    draw of a network; infinite for an overflow or a gradient of zero.
    """

    cell: CellName
    norm: Norm
    seed: int
    span: float


class Stability(NamedTuple):
    """All walks, and what they were made with."""

    walks: list[Walk]
    spans: list[Span]
    steps: int
    eps: float
    dtype: str

    def of(self, cell: CellName, norm: Norm, scaled: Scaled = "w_h") -> list[Walk]:
        """The walks of one network, by scale."""
        return [w for w in self.walks if (w.cell, w.norm, w.scaled) == (cell, norm, scaled)]


def walks(backend: Backend, seed: int = 0, steps: int = 100, scales: Sequence[float] = SCALES,
          eps: float = 1e-5) -> Stability:
    """Walk every cell, plain and layer-normalised, at every scale of its recurrent weights, and of all its weights.

    In float64 on NumPy, in float32 elsewhere.

    Args:
        backend: where the cells run.
        seed: of weights, inputs and the direction of the last gradient; spans have the four after it, too.
        steps: how many.
        scales: factors of the weights.
        eps: of the norms.

    Raises:
        UsageError: no time step, or a scale or eps that is not a positive number.
    """
    if steps < 1:
        raise UsageError(f"[stability] expected at least 1 step, found {steps}")
    for what, value in (*(("scale", s) for s in scales), ("eps", eps)):
        if not 0 < value < float("inf"):
            raise UsageError(f"[stability] expected a positive {what}, found {value:g}")
    dtype = "float64" if backend.name == "numpy" else "float32"
    all_walks, spans = list[Walk](), list[Span]()
    for cell, norm, draw, scaled in itertools.product(CELLS, NORMS, range(seed, seed + DRAWS), SCALED):
        if draw > seed and scaled != "w_h":
            continue
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow is a result here, and not an error
            made = {scale: _walk(backend, dtype, cell, norm, scaled, scale, draw, steps, eps)
                    for scale in dict.fromkeys((1.0, *map(float, scales)))}
        if scaled == "w_h":
            spans.append(Span(cell, norm, draw, _span([made[float(scale)][1][0] for scale in scales])))
        for scale in map(float, scales if draw == seed else ()):
            (like, _), (hidden, gradient) = made[1.0], made[scale]
            all_walks.append(Walk(cell, norm, scaled, scale, np.sqrt((hidden**2).mean(axis=(1, 2))).tolist(),
                                  gradient.tolist(), float(np.linalg.norm(hidden - like) / np.linalg.norm(like))))
    return Stability(all_walks, spans, steps, eps, dtype)


def _span(gradients: Sequence[float]) -> float:
    if not all(0 < gradient < np.inf for gradient in gradients):
        return float("inf")
    return float(np.log10(max(gradients) / min(gradients)))


def _walk(backend: Backend, dtype: str, cell: CellName, norm: Norm, scaled: Scaled, scale: float, seed: int, steps: int,
          eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states (steps, batch, hidden) and the norm of the gradient at each time step."""
    layer = _KINDS[cell](INPUTS, HIDDEN, norm=norm, eps=eps)
    params = layer.init(Stream(seed, "stability.init"))
    for name in scaled.split(" and "):
        params[name] = params[name] * scale
    rng = Stream(seed, "stability")
    x = rng.gaussian((steps, BATCH, INPUTS))
    direction = rng.gaussian((BATCH, HIDDEN))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)

    def tensor(array: np.ndarray) -> Tensor:
        return Tensor(backend.asarray(array, dtype), backend)

    weights = {name: tensor(array) for name, array in params.items()}
    inputs, end = tensor(x), tensor(direction)

    def run(nudges: list[tuple[Tensor, ...]]) -> tuple[Tensor, list[Tensor]]:
        """A zero is added to every state, because the gradient of the zero is that of the state."""
        states, hidden = layer.first_states(weights, BATCH), []
        for t, nudge in enumerate(nudges):
            states = tuple(s + n for s, n in zip(layer(weights, inputs[t], states), nudge, strict=True))
            hidden.append(states[0])
        return ops.sum(states[0] * end), hidden

    zeros = np.zeros((BATCH, HIDDEN))
    nudges = [tuple(tensor(zeros) for _ in layer.state_names) for _ in range(steps)]
    (_, hidden), gradients = value_and_grad(run, has_aux=True)(nudges)
    squares = [sum(float(np.sum(g.numpy().astype(np.float64)**2)) for g in at) for at in gradients]
    return np.stack([h.numpy().astype(np.float64) for h in hidden]), np.sqrt(np.array(squares) / BATCH)
