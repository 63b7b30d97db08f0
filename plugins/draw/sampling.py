"""Pictures of generated digits: a grid of them, and how some came about, glimpse by glimpse."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from duoln import Stream, tensor
from duoln.errors import UsageError
from duoln.pictures import drawing
from duoln.plugins.draw.model import PIXELS, Draw
from duoln.plugins.draw.ops import LIMIT
from duoln.tasks import Trained, option

_SEQUENCES, _COLUMNS = 5, 10
"""The number of digits that are shown at several glimpses, and of these glimpses."""
_MOST = 1024
_GREY: dict[str, Any] = {"cmap": "gray", "vmin": 0.0, "vmax": 1.0, "interpolation": "nearest"}


@dataclass(frozen=True)
class Options:
    """The options of `duoln sample draw`."""

    count: int = option(64, "how many digits")
    seed: int = option(0, "of the noise that the digits are drawn from")


def draw_pictures(trained: Trained, options: Options, out: Path) -> list[Path]:
    """Write the grid to `out`, and the sequences beside it as `NAME-glimpses`.

    Raises:
        UsageError: a picture that cannot be drawn, or too many digits; both before anything is computed.
    """
    beside = out.with_name(f"{out.stem}-glimpses{out.suffix}")
    drawing.check_picture(out)
    if not 1 <= options.count <= _MOST:
        raise UsageError(f"[draw] expected a count between 1 and {_MOST}, found {options.count}")
    canvases, windows = generate(trained, options.count, options.seed)
    _grid(canvases[-1], out)
    _sequences(canvases[:, :_SEQUENCES], windows[:, :_SEQUENCES], beside)
    return [out, beside]


def generate(trained: Trained, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits from the prior.

    Shape:
        -> chance of a 1 in each pixel after each glimpse (glimpses, count, 28, 28), and the squares that were
        written on: left, top, right, bottom (glimpses, count, 4).
    """
    model: Draw = trained.model  # type: ignore[assignment]
    backend = trained.params["look"]["bias"].backend
    noise = Stream(seed, "draw sample").gaussian((model.glimpses, count, model.latent)).astype(np.float32)
    drawn = model.generate(trained.params, tensor(noise, backend))
    logits = np.stack([canvas.numpy() for canvas in drawn.canvases]).astype(np.float64)
    where = np.stack([window.numpy() for window in drawn.windows]).astype(np.float64)
    return 0.5 * np.tanh(0.5 * logits) + 0.5, window_corners(where)


def window_corners(where: np.ndarray) -> np.ndarray:
    """The outermost means of the grids that `filterbank` makes of `where` (..., 5): (..., 4)."""
    clamped = np.clip(where, -LIMIT, LIMIT)
    middle = (clamped[..., :2] + 1) / 2 * PIXELS
    reach = (PIXELS - 1) / 2 * np.exp(clamped[..., 3:4])
    return np.concatenate((middle - reach, middle + reach), axis=-1)


def _grid(digits: np.ndarray, out: Path) -> None:
    wide = ceil(sqrt(len(digits)))
    high = ceil(len(digits) / wide)
    sheet = np.zeros((high * wide, PIXELS, PIXELS))
    sheet[:len(digits)] = digits
    picture = sheet.reshape(high, wide, PIXELS, PIXELS).transpose(0, 2, 1, 3).reshape(high * PIXELS, wide * PIXELS)
    inches = max(0.5 * wide, 2.0)
    with drawing.figure(out, size=(inches, max(inches * high / wide, 0.5))) as (_, axes):
        axes[0, 0].imshow(picture, **_GREY)
        axes[0, 0].axis("off")


def _sequences(canvases: np.ndarray, windows: np.ndarray, out: Path) -> None:
    glimpses, count = canvases.shape[:2]
    times = np.unique(np.linspace(0, glimpses - 1, min(glimpses, _COLUMNS)).round().astype(int))
    with drawing.figure(out, count, len(times), (0.75 * len(times), 0.85 * count)) as (_, axes):
        for k, t in enumerate(times):
            axes[0, k].set_title(f"{t + 1}", fontsize=8)
            for row in range(count):
                ax = axes[row, k]
                ax.imshow(canvases[t, row], **_GREY)
                left, top, right, bottom = np.clip(windows[t, row], -0.5, PIXELS - 0.5)
                ax.plot((left, right, right, left, left), (top, top, bottom, bottom, top), color="red", linewidth=0.8)
                ax.set_xticks([])
                ax.set_yticks([])
                ax.set_xlim(-0.5, PIXELS - 0.5)
                ax.set_ylim(PIXELS - 0.5, -0.5)
