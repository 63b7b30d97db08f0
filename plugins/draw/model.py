"""DRAW (Gregor et al. 2015): a digit drawn stroke by stroke, by an LSTM that attends to a part of the canvas."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from duoln import Stream, Tensor, nn, ops
from duoln.errors import ShapeError
from duoln.nn import Params
from duoln.nn.init import Initializer
from duoln.plugins.draw.ops import WHERE, gaussian_latent, read_patches, split_look, write_patch, write_then_read

Norm = Literal["none", "weight", "layer-cell"]
Start = Literal["fan-in", "gaussian"]

PIXELS = 28
"""Images are squares of so many pixels a side."""
LARGEST_NORM = 10.0
"""The norm to which all gradients together are clipped."""


def fan_in(rng: Stream, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform in +-1 / sqrt(fan in), as Torch's linear layers start."""
    return nn.init.uniform(shape[0] ** -0.5)(rng, shape)


STARTS: dict[str, Initializer] = {"fan-in": fan_in, "gaussian": nn.init.gaussian(0.01)}


class Drawing(NamedTuple):
    """The generated images, after each glimpse."""

    canvases: list[Tensor]
    """Logits of the pixels, (B, 28, 28) each."""
    windows: list[Tensor]
    """The place at which each glimpse wrote, (B, 5) each."""


class Draw(nn.Module):
    """The network of section 6.4. With x the image, c the canvas and h^dec the decoder's state, glimpse t is

        error = x - sigmoid(c)
        r = gamma F_Y [x, error] F_X^T                     read through a grid placed by h^dec
        h^enc = LSTM(h^enc, [r, h^dec])
        mu, log sigma = W h^enc;  z = mu + sigma * noise
        h^dec = LSTM(h^dec, z)
        c = c + 1 / gamma F_Y^T (W h^dec) F_X              written through a grid of its own

    All start at zero. Norm "layer-cell" normalises the cell of both LSTMs before the output (eq. 29-31); "weight"
    makes every linear map gain * v / |v|, an output's weights at a time, with gain = |v| at the start, so that the
    function is at first the one without it.

    The linear maps of h^dec (where to read next, where to write, what to write) are one matrix, `look`; those of
    h^enc (mean, log sigma) are `posterior`.

    Shape:
        x (B, 784) of 0 and 1, noise (glimpses, B, latent) -> (B, 2): what the bound has for the pixels, and the
        divergence of the latent variables of all glimpses, in nats.
    """

    def __init__(self, glimpses: int, hidden: int, latent: int, read: int, write: int, norm: Norm,
                 start: Start) -> None:
        if min(read, write) < 2 or glimpses < 1:
            raise ShapeError(f"[draw] expected at least 1 glimpse and grids of at least 2 x 2, found {glimpses} and "
                             f"{read}, {write}")
        self.glimpses, self.hidden, self.latent, self.read, self.write = glimpses, hidden, latent, read, write
        self.norm = norm
        init = STARTS[start]
        cell_norm: Any = "layer-cell" if norm == "layer-cell" else "none"
        self.encoder = nn.LSTMCell(2 * read ** 2 + hidden, hidden, norm=cell_norm, input_init=init, recurrent_init=init)
        self.decoder = nn.LSTMCell(latent, hidden, norm=cell_norm, input_init=init, recurrent_init=init)
        self.posterior = nn.Linear(hidden, 2 * latent, weight_init=init)
        self.look = nn.Linear(hidden, 2 * WHERE + write * write, weight_init=init)

    def adapted(self, params: Params, rng: Stream) -> Params:
        return _directions(params) if self.norm == "weight" else params

    def __call__(self, params: Params, batch: dict[str, Tensor]) -> Tensor:
        params = _weights(params)
        x, noise = batch["x"], batch["noise"]
        rows = self._check(x, noise)
        image = ops.reshape(x, shape=(rows, PIXELS, PIXELS))
        encoder = self.encoder.first_states(params["encoder"], rows)
        decoder = self.decoder.first_states(params["decoder"], rows)
        canvas = ops.zeros(image.shape, x.backend, x.dtype)
        looked = self.look(params["look"], decoder[0])
        seen = read_patches(image, image - ops.sigmoid(canvas), looked[:, :WHERE], size=self.read)
        divergences: list[Tensor] = []
        for t in range(self.glimpses):
            encoder = self.encoder(params["encoder"], ops.concat(seen, decoder[0], axis=1), encoder)
            latent, nats = gaussian_latent(self.posterior(params["posterior"], encoder[0]), noise[t])
            divergences.append(nats)
            decoder = self.decoder(params["decoder"], latent, decoder)
            looked = self.look(params["look"], decoder[0])
            if t < self.glimpses - 1:
                canvas, seen = write_then_read(canvas, image, looked, read=self.read, write=self.write)
            else:
                canvas = canvas + self._write(looked)[0]
        divergence = ops.sum(ops.stack(divergences, axis=0), axis=0)
        missed = ops.sum(ops.bce_with_logits(ops.reshape(canvas, shape=x.shape), x), axis=1)
        return ops.stack(missed, divergence, axis=1)

    def generate(self, params: Params, noise: Tensor) -> Drawing:
        """Digits from the prior: `noise` (glimpses, B, latent) is the input of the decoder."""
        params = _weights(params)
        _, rows, _ = noise.shape
        decoder = self.decoder.first_states(params["decoder"], rows)
        canvas = ops.zeros((rows, PIXELS, PIXELS), noise.backend, noise.dtype)
        drawn = Drawing([], [])
        for t in range(self.glimpses):
            decoder = self.decoder(params["decoder"], noise[t], decoder)
            written, write_at = self._write(self.look(params["look"], decoder[0]))
            canvas = canvas + written
            drawn.canvases.append(canvas)
            drawn.windows.append(write_at)
        return drawn

    def _check(self, x: Tensor, noise: Tensor) -> int:
        if x.ndim != 2 or x.shape[1] != PIXELS * PIXELS:
            raise ShapeError(f"[draw] expected images (batch, {PIXELS * PIXELS}), found shape {x.shape}")
        if noise.shape != (self.glimpses, x.shape[0], self.latent):
            raise ShapeError(f"[draw] expected noise {(self.glimpses, x.shape[0], self.latent)}, "
                             f"found shape {noise.shape}")
        return x.shape[0]

    def _write(self, looked: Tensor) -> tuple[Tensor, Tensor]:
        """The addition to the canvas, and the place of the grid."""
        _, where, patch = split_look(looked, self.write)
        return write_patch(patch, where, pixels=PIXELS), where


def _directions(params: Params) -> Params:
    """Every matrix w as direction w and gain |w|, an output's column at a time."""
    made: Params = {}
    for name, value in params.items():
        if isinstance(value, dict):
            made[name] = _directions(value)
        elif value.ndim == 2:
            length = np.sqrt(np.sum(value.astype(np.float64) ** 2, axis=0)).astype(np.float32)
            made[name] = {"direction": value, "gain": length}
        else:
            made[name] = value
    return made


def _weights(params: Params) -> Params:
    """The matrices of directions and gains, made once for all glimpses; other parameters as they are."""
    if "direction" in params:
        made: Any = ops.weight_norm(params["direction"], params["gain"])
        result: Params = made
        return result
    return {name: _weights(value) if isinstance(value, dict) else value for name, value in params.items()}
