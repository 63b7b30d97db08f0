"""Graves' synthesis network (2013, section 5): three LSTMs, a soft window over the text, a mixture for the pen."""

from __future__ import annotations

from typing import Literal, NamedTuple

from duoln import Stream, Tensor, nn, ops
from duoln.nn import Params
from duoln.nn.cells import States
from duoln.plugins.handwriting.corpus import ALPHABET
from duoln.plugins.handwriting.ops import soft_window

Norm = Literal["none", "layer"]
CLIP_OUTPUT = 100.0
"""The bound on the gradient of the output layer's pre-activations."""
CLIP_STEPS = 10.0
"""The bound on the gradients that flow from a time step to the one before it."""
CLIP_WEIGHTS = 10.0
"""The bound on each entry of the parameters' gradients."""
ADAM_EPS = 1e-6
"""Epsilon of Adam."""
_START = nn.init.uniform(0.1)
"""The initialiser of weights and biases."""
POINT = 3
"""Two offsets and the end-of-stroke bit."""
_LAYERS = ("layer1", "layer2", "layer3")


class Walk(NamedTuple):
    """The state of the network after a step."""

    states: dict[str, States]
    """Hidden state and cell of each layer, (B, H)."""
    kappa: Tensor
    """(B, K): where in the text each Gaussian of the window is."""
    window: Tensor
    """(B, 57): what it reads there."""


class Synthesis(nn.Module):
    """x_t and the text -> the parameters of the mixture for x_{t+1}.

    The inputs of layer1 are x_t and w_{t-1}; w_0 is the first character. The window is a linear map of its output. The
    inputs of layers 2 and 3 are x_t, w_t and the hidden state below. Several inputs have one W_x in eq. 20: the norm is
    over the sum of their terms.

    Args:
        norm, hidden, gaussians, mixtures: the settings of these names; `advance` is `window_advance`.
        clip_steps: the bound on the gradients of h, c and the window between steps; 0 for none.
        clip_output: the bound on the gradient of the output; 0 for none.

    Shape:
        `outputs`: x (T, B, 3), text int32 (B, U) -> (T, B, 1 + 6 mixtures).
    """

    def __init__(self, norm: Norm, hidden: int, gaussians: int, mixtures: int, clip_steps: float = 0.0,
                 clip_output: float = 0.0, advance: float = 1.0) -> None:
        self.gaussians, self.mixtures, self.advance = gaussians, mixtures, advance
        self.clip_steps, self.clip_output = clip_steps, clip_output

        def lstm(n_in: int) -> nn.LSTMCell:
            return nn.LSTMCell(n_in, hidden, norm=norm, input_init=_START, recurrent_init=_START,
                               gradient_limit=clip_steps or None)

        self.layer1 = lstm(POINT + ALPHABET.classes)
        self.layer2, self.layer3 = lstm(POINT + ALPHABET.classes + hidden), lstm(POINT + ALPHABET.classes + hidden)
        self.window = nn.Linear(hidden, 3 * gaussians, weight_init=_START)
        self.output = nn.Linear(3 * hidden, 1 + 6 * mixtures, weight_init=_START)

    def adapted(self, params: Params, rng: Stream) -> Params:
        for name in (*_LAYERS, "window", "output"):
            params[name]["bias"] = _START(rng.child(name).child("bias"), params[name]["bias"].shape)
        return params

    def outputs(self, params: Params, x: Tensor, text: Tensor) -> Tensor:
        """The output of the network at every step, the points before it given.

        The window's feedback reaches layer 1 alone, so layers 2 and 3 run over the whole sequence at once.
        """
        characters = ops.one_hot(text, size=ALPHABET.classes, dtype=x.dtype)
        walk = self.begin(params, characters)
        below, windows = [], []
        for point in ops.unstack(x):
            walk, _ = self._read(params, point, characters, walk)
            below.append(walk.states["layer1"][0])
            windows.append(walk.window)
        window = ops.stack(*windows)
        hidden = [ops.stack(*below)]
        for name, cell in (("layer2", self.layer2), ("layer3", self.layer3)):
            seen = ops.concat(x, window, hidden[-1], axis=-1)
            hidden.append(cell.sequence(params[name], seen)[0])
        return self._output(params, ops.concat(*hidden, axis=-1))

    def begin(self, params: Params, characters: Tensor) -> Walk:
        """Before the first step: zeros, and the window on the first character."""
        batch = characters.shape[0]
        be, dtype = characters.backend, characters.dtype
        states = {name: getattr(self, name).first_states(params[name], batch) for name in _LAYERS}
        return Walk(states, ops.zeros((batch, self.gaussians), be, dtype), characters[:, 0])

    def step(self, params: Params, point: Tensor, characters: Tensor, walk: Walk) -> tuple[Walk, Tensor]:
        """One step of all layers: where the network then is, and phi (B, U), where in the text it looked."""
        walk, phi = self._read(params, point, characters, walk)
        states = dict(walk.states)
        for name, under in (("layer2", "layer1"), ("layer3", "layer2")):
            seen = ops.concat(point, walk.window, states[under][0], axis=-1)
            states[name] = getattr(self, name)(params[name], seen, self._bounded(states[name]))
        return walk._replace(states=states), phi

    def mixture(self, params: Params, walk: Walk) -> Tensor:
        """The output of the network in its state: (B, 1 + 6 mixtures)."""
        return self._output(params, ops.concat(*(walk.states[name][0] for name in _LAYERS), axis=-1))

    def _read(self, params: Params, point: Tensor, characters: Tensor, walk: Walk) -> tuple[Walk, Tensor]:
        """Layer 1 and the window."""
        seen = ops.concat(point, self._bound(walk.window), axis=-1)
        first = self.layer1(params["layer1"], seen, self._bounded(walk.states["layer1"]))
        window, kappa, phi = soft_window(self.window(params["window"], first[0]), walk.kappa, characters,
                                         advance=self.advance)
        return Walk({**walk.states, "layer1": first}, kappa, window), phi

    def _bound(self, x: Tensor) -> Tensor:
        return ops.clip_gradient(x, limit=self.clip_steps) if self.clip_steps else x

    def _bounded(self, states: States) -> States:
        return tuple(self._bound(state) for state in states)

    def _output(self, params: Params, hidden: Tensor) -> Tensor:
        y = self.output(params["output"], hidden)
        return ops.clip_gradient(y, limit=self.clip_output) if self.clip_output else y
