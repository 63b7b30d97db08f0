"""Hidden states and gradients over time, plain and normalised (section 3.1).

The paper: the summed inputs of a plain recurrent network tend to grow or shrink from one time step to the next, so
gradients explode or vanish; a layer-normalised one does not see a re-scaling of all summed inputs to a layer, so its
hidden-to-hidden dynamics are much more stable. Here recurrent weights that start orthogonal are scaled, and a gradient
of norm 1 at the last time step is propagated back.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from duoln import Stream, nn, ops
from duoln.backends.protocol import Backend
from duoln.cli.rows_table import RowsTable
from duoln.core import Tensor, value_and_grad
from duoln.nn.cells import RecurrentCell
from duoln.ops.recurrent.variants import CellName
from duoln.plugins.theory.report import TITLES, Report, error_text, power, precision, tensor

Norm = Literal["none", "layer"]
NORMS: tuple[Norm, ...] = get_args(Norm)
CELLS: dict[CellName, type[RecurrentCell]] = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}
SCALED = ("w_h", "w_h and w_x")
SCALES, DRAWS, STEPS, EPS = (0.5, 1.0, 2.0, 4.0), 5, 100, 1e-5
BATCH, INPUTS, HIDDEN = 8, 32, 64


class Walk(NamedTuple):
    """One network over time."""

    cell: CellName
    norm: Norm
    scaled: str
    scale: float
    state: list[float]
    """The root mean square of the hidden state after each step."""
    gradient: list[float]
    """The norm of the gradient by the states of each step (hidden state and cell), of an example."""
    moved: float
    """The relative change of the hidden states of all steps from those of scale 1."""


class Span(NamedTuple):
    """The powers of ten between the least and the greatest gradient at the first step, over all scales of W_h, of one
    draw of a network; infinite for an overflow or a gradient of zero.
    """

    cell: CellName
    norm: Norm
    seed: int
    span: float


def measure(backend: Backend, seed: int = 0) -> Report:
    """Walk every cell, plain and layer-normalised, at every scale of its recurrent weights, and of all its weights.

    Args:
        backend: where the cells run: in float64 on NumPy, in float32 elsewhere.
        seed: of weights, inputs and the direction of the last gradient; spans have the four after it, too.
    """
    walks, spans = list[Walk](), list[Span]()
    for cell, norm, draw, scaled in itertools.product(CELLS, NORMS, range(seed, seed + DRAWS), SCALED):
        if draw > seed and scaled != "w_h":
            continue
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow is a result here, and not an error
            made = {scale: walk(backend, cell, norm, scaled, scale, draw) for scale in SCALES}
        if scaled == "w_h":
            first = [gradient[0] for _, gradient in made.values()]
            spans.append(Span(cell, norm, draw, float(np.log10(max(first) / min(first)))
                              if all(0 < value < np.inf for value in first) else math.inf))
        for scale, (hidden, gradient) in (made if draw == seed else {}).items():
            like = made[1.0][0]
            walks.append(Walk(cell, norm, scaled, scale, np.sqrt((hidden**2).mean(axis=(1, 2))).tolist(),
                              gradient.tolist(), float(np.linalg.norm(hidden - like) / np.linalg.norm(like))))
    dtype = precision(backend)
    ranges = "; ".join(f"{TITLES[norm]} {power(min(first))} to {power(max(first))}" for norm in NORMS for first in [
        [_finite(w.gradient[0]) for w in walks if (w.cell, w.norm, w.scaled) == ("rnn", norm, "w_h")]])
    summary = f"RNN, gradient over {STEPS} steps at W_h x {min(SCALES):g} to {max(SCALES):g}: {ranges}"
    return Report(summary, None, {
        "walks": [w._asdict() for w in walks], "spans": [s._asdict() for s in spans], "steps": STEPS, "eps": EPS,
        "dtype": dtype}, _table(walks, dtype), (
        summary,
        "Layer norm's LSTM and GRU normalise W_h h alone, so the scale of W_h does not change them. Its RNN "
        "(eq. 4) normalises the sum W_h h + W_x x: the scale of W_h changes it, a common scale of both does "
        f"not. Other changes come from epsilon ({EPS:g}) and rounding, which a network can magnify "
        "from step to step."))


def _table(walks: Sequence[Walk], dtype: str) -> RowsTable:
    """A row for each network and way of scaling, a column for each scale."""
    rows = []
    for (cell, norm, scaled), group in itertools.groupby(walks, key=lambda w: (w.cell, w.norm, w.scaled)):
        of_scales = list(group)
        rows.append((cell.upper(), TITLES[norm], scaled.replace("w_", "W_"), *(power(w.gradient[0]) for w in of_scales),
                     error_text(max(_finite(w.moved) for w in of_scales))))
    return RowsTable(
        f"A gradient of 1 at the last of {STEPS} steps, at the first ({dtype}); change of the states",
        ("cell", "norm", "scaled", *(f"x {s:g}" for s in SCALES), "states"), rows, whole=range(len(SCALES) + 4))


def _finite(value: float) -> float:
    """Infinity for a NaN, too."""
    return value if math.isfinite(value) else math.inf


def walk(backend: Backend, cell: CellName, norm: Norm, scaled: str, scale: float,
         seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states (steps, batch, hidden) and the norm of the gradient at each time step."""
    dtype, layer = precision(backend), CELLS[cell](INPUTS, HIDDEN, norm=norm, eps=EPS)
    params = layer.init(Stream(seed, "stability.init"))
    for name in scaled.split(" and "):
        params[name] = params[name] * scale
    rng = Stream(seed, "stability")
    inputs = tensor(rng.gaussian((STEPS, BATCH, INPUTS)), backend, dtype)
    direction = rng.gaussian((BATCH, HIDDEN))
    end = tensor(direction / np.linalg.norm(direction, axis=1, keepdims=True), backend, dtype)
    weights = {name: tensor(array, backend, dtype) for name, array in params.items()}

    def run(nudges: list[tuple[Tensor, ...]]) -> tuple[Tensor, list[Tensor]]:
        """A zero is added to every state, because the gradient of the zero is that of the state."""
        states, hidden = layer.first_states(weights, BATCH), []
        for t, nudge in enumerate(nudges):
            states = tuple(s + n for s, n in zip(layer(weights, inputs[t], states), nudge, strict=True))
            hidden.append(states[0])
        return ops.sum(states[0] * end), hidden

    zeros = np.zeros((BATCH, HIDDEN))
    nudges = [tuple(tensor(zeros, backend, dtype) for _ in layer.state_names) for _ in range(STEPS)]
    (_, hidden), gradients = value_and_grad(run, has_aux=True)(nudges)
    squares = [sum(float(np.sum(g.numpy().astype(np.float64)**2)) for g in at) for at in gradients]
    return np.stack([h.numpy().astype(np.float64) for h in hidden]), np.sqrt(np.array(squares) / BATCH)
