"""Writing a text with a trained network, point after point until the window has passed the last character; pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoln import Stream, ops, tensor
from duoln.errors import DivergedError, UsageError
from duoln.nn import Params
from duoln.pictures.drawing import check_picture, figure
from duoln.plugins.handwriting.corpus import ALPHABET, PADDING
from duoln.plugins.handwriting.data import DEVIATION, MEAN
from duoln.plugins.handwriting.model import POINT, Synthesis
from duoln.tasks import option
from duoln.tasks.originals import in_home
from duoln.tasks.values import Trained

_POINTS_A_CHARACTER = 40
"""About twice the number that people need; a window that has not moved until then will not move."""


@dataclass(frozen=True)
class Options:
    """The options of `duoln sample handwriting`."""

    text: str = option("layer norm", "what to write: letters, space and . ! ?")
    bias: float = option(0.5, "how neatly: 0 is as the writers write, larger is neater")
    seed: int = option(0, "of the random numbers")
    steps: int | None = option(None, f"points at most; by default {_POINTS_A_CHARACTER} a character")
    attention: str | None = option(None, "a picture of where in the text each point looked, such as attention.png")


class Written(NamedTuple):
    """A line that the network has written."""

    offsets: np.ndarray
    """(points, 2), in units of the whiteboard, y downwards."""
    pen_up: np.ndarray
    """(points,), 1 at the last point of each stroke."""
    phi: np.ndarray
    """(points, characters): where in the text each point looked."""
    passed: bool
    """True if the window passed the text; else the number of points ran out."""


def sample(trained: Trained, options: Options, out: Path) -> list[Path]:
    """Write a text into `out`, and the picture of the window if it is asked for.

    Raises:
        UsageError: a text that the model cannot write, an option out of range, or a picture's name that is none.
        DivergedError: the model gives no finite numbers.
    """
    classes, longest = ALPHABET.encode_strictly("handwriting", options.text), trained.config.text_length
    if len(classes) > longest:
        raise UsageError(f"[handwriting] text: expected at most {longest} characters, as the model was trained with; "
                         f"found {len(classes)}")
    attention = None if options.attention is None else in_home(options.attention)
    for picture in (out, *([] if attention is None else [attention])):
        check_picture(picture)
    model = trained.model
    assert isinstance(model, Synthesis)
    written = write(model, trained.params, classes, options.bias, options.seed,
                    options.steps or _POINTS_A_CHARACTER * len(classes))
    draw(out, written.offsets, written.pen_up)
    if attention is None:
        return [out]
    draw_attention(attention, written.phi, options.text)
    return [out, attention]


def write(model: Synthesis, params: Params, classes: np.ndarray, bias: float, seed: int, steps: int) -> Written:
    """Sample a line without priming: the first point is (0, 0), as in every line of the corpus.

    Graves 2013, section 5.3-5.5: with bias b deviations are exp(s - b) and weights softmax(p (1 + b)); the line ends
    when the window looks at the place after the last character more than at any other.

    Raises:
        UsageError: a bias below 0 or not finite, or no steps.
        DivergedError: the outputs of the network are not finite.
    """
    if not (math.isfinite(bias) and bias >= 0):
        raise UsageError(f"[handwriting] bias: expected a finite number of at least 0, found {bias}")
    if steps < 1:
        raise UsageError(f"[handwriting] steps: expected at least 1, found {steps}")
    be = params["output"]["weight"].backend
    length = len(classes)
    padded = np.append(classes, PADDING).astype(np.int32)[None]  # one place more: there the line ends
    characters = ops.one_hot(tensor(padded, be), size=ALPHABET.classes)
    rng = Stream(seed, "handwriting.sample")
    walk = model.begin(params, characters)
    point = np.zeros(POINT, np.float32)
    point[:2] = -MEAN / DEVIATION
    points: list[np.ndarray] = []
    looks: list[np.ndarray] = []
    passed = False
    for _ in range(steps):
        walk, phi = model.step(params, tensor(point[None], be), characters, walk)
        output = model.mixture(params, walk).numpy()[0].astype(np.float64)
        look = phi.numpy()[0]
        if not (np.isfinite(output).all() and np.isfinite(look).all()):
            raise DivergedError(f"[handwriting] the model gives numbers that are not finite at point {len(points) + 1}")
        if look[length] > look[:length].max() and points:
            passed = True
            break
        point = draw_point(output, bias, rng)
        points.append(point)
        looks.append(look[:length])
    whole = np.array(points)
    return Written(whole[:, :2] * DEVIATION + MEAN, whole[:, 2], np.array(looks), passed)


def draw_point(output: np.ndarray, bias: float, rng: Stream) -> np.ndarray:
    """One point from the parameters of the mixture: float32 (3,). Raises DivergedError if it is beyond float32."""
    end, parts = output[0], output[1:].reshape(6, -1)
    logits, (m1, m2), (s1, s2), r = parts[0] * (1 + bias), parts[1:3], parts[3:5] - bias, parts[5]
    k = rng.categorical(logits=logits)
    u, v = rng.gaussian((2,))
    rho = math.tanh(r[k])
    with np.errstate(over="ignore"):
        x = m1[k] + np.exp(s1[k]) * u
        y = m2[k] + np.exp(s2[k]) * (rho * u + math.sqrt(max(1 - rho * rho, 0.0)) * v)
        up = float(rng.uniform(()) < 0.5 - 0.5 * math.tanh(0.5 * end))
        point = np.array([x, y, up], np.float32)
    if not np.isfinite(point).all():
        raise DivergedError(f"[handwriting] expected a point that float32 holds, found log deviations of {s1[k]:.6g} "
                            f"and {s2[k]:.6g}")
    return point


def draw(out: Path, offsets: np.ndarray, pen_up: np.ndarray) -> None:
    """Write a picture of a line of handwriting to `out`."""
    parts = strokes(offsets, pen_up)
    width, height = np.maximum(np.ptp(np.concatenate(parts), axis=0), 1.0)
    with figure(out, size=(8.0, float(np.clip(8.0 * height / width, 0.8, 4.0)))) as (_, axes):
        axis = axes[0][0]
        for stroke in parts:
            axis.plot(stroke[:, 0], stroke[:, 1], color="black", linewidth=1.0)
        axis.set_aspect("equal")
        axis.invert_yaxis()
        axis.axis("off")


def strokes(offsets: np.ndarray, pen_up: np.ndarray) -> list[np.ndarray]:
    """The strokes of a line: arrays (points, 2) of places on the whiteboard."""
    places = np.cumsum(offsets, axis=0)
    bounds = [0, *(np.flatnonzero(pen_up) + 1), len(places)]
    return [places[a:b] for a, b in pairwise(bounds) if b > a]


def draw_attention(out: Path, phi: np.ndarray, text: str) -> None:
    """Write a picture of the window: for each point, how much it looked at each character."""
    if phi.shape[1] != len(text):
        raise UsageError(f"[handwriting] expected weights of {len(text)} characters, found {phi.shape[1]}")
    with figure(out, size=(8.0, 3.0)) as (_, axes):
        axis = axes[0][0]
        axis.imshow(phi.T, aspect="auto", origin="lower", cmap="magma", interpolation="nearest")
        axis.set_yticks(range(len(text)), list(text))
        axis.set_xlabel("point")
