"""Programs of MLX around one layer, drawn from a seed, and run with duoln's layer or with its twin of plain MLX; see `programs`."""

import random
from functools import partial
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from mlx import nn, optimizers
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from duoln import errors
from duoln.bridge import mlx as bridge

N, T, H = 3, 4, 6
KINDS = [(kind, norm) for kind in ("LSTM", "GRU", "RNN") for norm in ("none", "layer")] + [("LayerNorm", None), ("RMSNorm", None), ("AddLayerNorm", None)]
GROUPS = [("embedding",), ("linear before", "layer norm before"), ("transposed", "sliced"), ("linear after", "layer norm after"), ("frozen layer", "frozen before"),
          ("compile",), ("checkpoint", "nn checkpoint"), ("stop_gradient",), ("tied",), ("micro-batches", "second gradient"), ("states",), ("vjp",)]

RARE = "second gradient", "compile"  # on a CPU MLX compiles with g++


class Program(NamedTuple):
    """One program; `eval(repr(program))` is the same one."""

    seed: int
    kind: str
    norm: str | None
    optimizer: str
    features: tuple[str, ...]

    @classmethod
    def drawn(cls, seed):
        rng = random.Random(seed)
        kind, norm = rng.choice(KINDS)
        chosen = [name for group in GROUPS for name in [rng.choice(group)] if rng.random() < (0.1 if name in RARE else 0.35)]
        chosen = [name for name in chosen if (name != "states" or norm) and (name != "micro-batches" or "compile" not in chosen)]
        if "frozen layer" in chosen and "linear before" not in chosen:
            chosen.append("linear before")  # MLX refuses a model without a parameter to train
        return cls(seed, kind, norm, rng.choice(["SGD", "Adam"]), tuple(chosen))

    def has(self, *names):
        return any(name in self.features for name in names)


class Loop(nn.Module):
    """A recurrent layer with layer norm as a loop over time: eq. 20-22, 26-28 and 4 of the paper, in MLX's order of gates."""

    def __init__(self, kind, layer):
        super().__init__()
        self._kind = kind
        for name in ("Wx", "Wh", "Wxh", "Whh", "bias"):
            if layer.get(name) is not None:
                setattr(self, name, layer[name])
        for name in ("layernorm_i", "layernorm_h", "layernorm_c"):
            if name in layer:
                setattr(self, name, nn.LayerNorm(layer[name].weight.shape[0]))

    def __call__(self, x, h, c=None):
        outputs, cut = [], 2 * H

        def normed(norm, y):
            return [mx.fast.layer_norm(y[..., part], norm.weight[part], norm.bias[part], 1e-5) for part in (slice(0, cut), slice(cut, None))]

        for t in range(x.shape[1]):
            if self._kind == "LSTM":
                i, f, g, o = mx.split(self.layernorm_i(x[:, t] @ self.Wx.T) + self.layernorm_h(h @ self.Wh.T) + self.bias, 4, axis=-1)
                c = mx.sigmoid(f) * c + mx.sigmoid(i) * mx.tanh(g)
                h = mx.sigmoid(o) * mx.tanh(self.layernorm_c(c))
            elif self._kind == "GRU":
                (x_rz, x_n), (h_rz, h_n) = normed(self.layernorm_i, x[:, t] @ self.Wx.T), normed(self.layernorm_h, h @ self.Wh.T)
                r, z = mx.split(mx.sigmoid(x_rz + h_rz), 2, axis=-1)
                h = z * h + (1 - z) * mx.tanh(x_n + r * h_n)
            else:
                h = mx.tanh(self.layernorm_h(x[:, t] @ self.Wxh.T + h @ self.Whh.T))
            outputs.append(h)
        y = mx.stack(outputs, axis=1)
        return (y, c[:, None]) if self._kind == "LSTM" else y


class AddLayerNorm(nn.LayerNorm):
    def __call__(self, x, residual):
        return super().__call__(x + residual), x + residual


def _layer(program, is_ours):
    kind = program.kind
    if program.norm is None:
        return getattr(bridge, kind)(H) if is_ours else AddLayerNorm(H) if kind == "AddLayerNorm" else getattr(nn, kind)(H)
    layer = getattr(bridge, kind)(H, H, norm=program.norm)
    return layer if is_ours else Loop(kind, layer) if program.norm == "layer" else getattr(nn, kind)(H, H)


class Model(nn.Module):
    """The layer, and what comes before and after it."""

    def __init__(self, program, is_ours, is_cut):
        super().__init__()
        self._program, self._is_cut = program, is_cut
        self.before = [*([nn.Embedding(7, H)] if program.has("embedding") else []), *([nn.Linear(H, H)] if program.has("linear before") else []),
                       *([nn.LayerNorm(H)] if program.has("layer norm before") else [])]
        self.layer = _layer(program, is_ours)
        self.after = [*([nn.LayerNorm(H)] if program.has("layer norm after") else []), *([nn.Linear(H, 3)] if program.has("linear after") else [])]

    def call(self, x, *states):
        if self._program.norm is None:
            y = self.layer(x, x[::-1]) if self._program.kind == "AddLayerNorm" else self.layer(x)
            return mx.concatenate(y, axis=1) if isinstance(y, tuple) else y
        y = self.layer(x, *states)  # MLX returns the hidden and the cell states of all time steps, duoln the last cell
        return mx.concatenate([y[0], y[1][:, -1:]], axis=1) if isinstance(y, tuple) else y

    def __call__(self, x, states):
        program = self._program
        for part in self.before:
            x = part(x)
        x = mx.contiguous(x.swapaxes(1, 2)).swapaxes(1, 2) if program.has("transposed") else mx.concatenate([x, x / 2], axis=-1)[..., ::2] if program.has("sliced") else x
        run = mx.checkpoint(self.call) if program.has("checkpoint") else nn.utils.checkpoint(self, self.call) if program.has("nn checkpoint") else self.call
        if program.has("checkpoint"):  # which has gradients of its arguments alone
            names = tree_flatten(self.layer.trainable_parameters())

            def pure(x, states, values):
                self.layer.update(_tree(names, values))
                return self.call(x, *states)

            values = [value for _, value in names]
            y = mx.checkpoint(pure)(x, states, values)
            self.layer.update(_tree(names, values))
        else:
            y = run(x, *states)
        y = mx.stop_gradient(y) if self._is_cut else y
        if program.has("tied"):
            y = self.call(y[:, ::-1], *states)
            y = mx.stop_gradient(y) if self._is_cut else y
        y = y + mx.stop_gradient(y) ** 2 if program.has("stop_gradient") else y
        for part in self.after:
            y = part(y)
        return (y ** 2 * mx.linspace(-1, 2, y.size).reshape(y.shape)).mean()


def _tree(names, values):
    return tree_unflatten([(name, value) for (name, _), value in zip(names, values, strict=True)])


def run(program, side):
    """The losses, the first gradients and the last parameters by name; the sides are those of `programs.run`."""
    mx.random.seed(program.seed)
    rng = np.random.default_rng(program.seed)
    twin, model = Model(program, False, side == "cut"), Model(program, True, False)
    twin.update(tree_map(lambda p: p + mx.array(rng.normal(size=p.shape), mx.float32) / 5, twin.parameters()))
    model.update(twin.parameters())
    model = model if side == "ours" else twin
    for part in [model.layer] if program.has("frozen layer") else model.before if program.has("frozen before") else []:
        part.freeze()
    x = mx.array(rng.integers(0, 7, (N, T))) if program.has("embedding") else mx.array(rng.normal(size=(N, T, H)), mx.float32)
    states = [mx.array(rng.normal(size=(N, H)), mx.float32) * program.has("states") for _ in range(2 if program.kind == "LSTM" else 1)]
    optimizer = optimizers.SGD(0.05, 0.9) if program.optimizer == "SGD" else optimizers.Adam(1e-2)

    def loss(model, x, states):
        value = model(x, states)
        if program.has("second gradient"):
            value = value + sum((g ** 2).sum() for g in mx.grad(lambda states: model(x, states))(states))
        return value

    gradient = nn.value_and_grad(model, loss)

    def step(x, states):
        if program.has("micro-batches"):
            parts = [gradient(model, x[k:k + 1], [s[k:k + 1] for s in states]) for k in range(N)]
            value, gradients = sum(p[0] for p in parts), tree_map(lambda *g: sum(g), *(p[1] for p in parts))
        else:
            value, gradients = gradient(model, x, states)
        optimizer.update(model, gradients)
        return value, gradients

    if program.has("compile"):
        state = [model.state, optimizer.state]
        step = partial(mx.compile, inputs=state, outputs=state)(step)
    of_states = lambda states: loss(model, x, states)  # noqa: E731
    results = dict(enumerate(mx.vjp(lambda *states: of_states(list(states)), states, [mx.ones(())])[1] if program.has("vjp") else mx.grad(of_states)(states))) \
        if program.norm else {}
    if not program.has("embedding"):
        results["x"] = mx.grad(lambda x: loss(model, x, states))(x)
    results = {f"gradient of {name}": g for name, g in results.items()}
    for update in range(3):
        results[f"loss {update}"], gradients = step(x, states)
        if not update:
            results.update({f"gradient of {name}": g for name, g in tree_flatten(gradients)})
    return {name: np.array(value) for name, value in {**results, **dict(tree_flatten(model.parameters()))}.items()}


def _differences(a, b):
    return [name for name in dict.fromkeys([*a, *b]) if name not in a or name not in b or not np.allclose(a[name], b[name], rtol=2e-3, atol=2e-4)]


def judged(program):
    """As `programs.judged`."""
    twin = run(program, "twin")
    try:
        ours = run(program, "ours")
    except Exception as error:
        return ("refused" if type(error).__module__ == errors.__name__ else "wrong"), f"{type(error).__name__}: {str(error)[:100]}"
    if not any(name.startswith("gradient") for name in _differences(twin, run(program, "cut"))):
        return "again", ""
    different = _differences(ours, twin)
    return ("wrong", f"{len(different)} differ: {', '.join(different[:6])}") if different else ("equal", "")
