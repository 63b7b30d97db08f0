"""Walks of clusters that are broken on purpose, as in `hostgpu_broken.py`: what blocks tell each other, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from hostgpu_broken import Broken, Result

from duoln.core import Rule
from duoln.kernels import source
from duoln.ops import lstm
from duoln.runtime import backend
from duoln.testing import hostgpu

HIDDEN, CLUSTER, ROWS, TIME_STEPS, BATCH = 12, 4, 2, 5, 3
_GATES, _EPS = 4 * HIDDEN, 1e-5
_MACROS = {"HIDDEN": HIDDEN, "CLUSTER": CLUSTER, "ROWS": ROWS, "UNITS": 1, "THREADS": 64, "EACH": 1, "SLICES": 3, "KEPT": 4}
_LAYER = {**_MACROS, "NORM_GATES": 1, "NORM_CELL": 1}
_NONE = {**_MACROS, "NORM_GATES": 0, "NORM_CELL": 0}
_NORMS = ("gain_x", "bias_x", "gain_h", "bias_h", "gain_c", "bias_c")


class _Sequence(NamedTuple):
    """The arguments of an LSTM whose inputs are x_proj itself."""

    x_proj: np.ndarray
    h: np.ndarray
    c: np.ndarray
    w_h: np.ndarray
    bias: np.ndarray
    norms: dict[str, np.ndarray]

    @classmethod
    def of(cls, norm: bool, alike: bool = False) -> _Sequence:
        """Arrays of a seed; with `alike`, the units of the second block are as those of the first."""
        rng = np.random.default_rng(11)

        def floats(*shape: int) -> np.ndarray:
            values = rng.standard_normal(shape).astype(np.float32)
            if alike and shape[-1] in (HIDDEN, _GATES):
                units = values.reshape(*shape[:-1], -1, CLUSTER, HIDDEN // CLUSTER)
                units[..., 1, :] = units[..., 0, :]
            return values

        norms = {name: floats(HIDDEN if name.endswith("c") else _GATES) for name in _NORMS} if norm else {}
        return cls(floats(TIME_STEPS, BATCH, _GATES), floats(BATCH, HIDDEN), floats(BATCH, HIDDEN),
                   floats(HIDDEN, _GATES), floats(_GATES), norms)

    @property
    def parameters(self) -> list[np.ndarray | None]:
        """As the kernels take them."""
        norms = [self.norms.get(name) for name in _NORMS]
        return [*norms[:4], self.bias, *norms[4:]]

    def run(self) -> tuple[Rule, tuple[np.ndarray, ...], object]:
        """The composed rule in float64, its results and what it keeps."""
        rule = lstm.rules("numpy")[-1]
        arrays = (self.x_proj, self.h, self.c, np.eye(_GATES), self.w_h, self.bias, None, *self.norms.values())
        out, kept = rule.forward(backend("numpy"), *(None if a is None else a.astype(np.float64) for a in arrays),
                                 norm="layer" if self.norms else "none", eps=_EPS, reverse=False,
                                 gradient_limit=None)
        return rule, out, kept


class _Walked(NamedTuple):
    """What a walk forward leaves."""

    w_stats: np.ndarray | None
    stats: np.ndarray
    h: np.ndarray
    c: np.ndarray
    h_proj: np.ndarray


_SIZES = [np.int32(n) for n in (TIME_STEPS, BATCH, 4 * HIDDEN, HIDDEN)]
"""The sizes that both walks take first."""


def _walk(program: hostgpu.Program, of: _Sequence, seed: int) -> _Walked:
    norm, rows = bool(of.norms), TIME_STEPS * BATCH
    stats = np.full((3 * norm, rows, 3), np.nan, np.float32)
    w_stats = None
    if norm:
        x = of.x_proj.reshape(rows, _GATES).astype(np.float64)
        stats[0] = np.stack([x.mean(1), np.zeros(rows), 1 / np.sqrt(x.var(1) + _EPS)], 1)
        w_stats = np.zeros((1, HIDDEN, 3), np.float32)
        w_stats[0, :, 0] = of.w_h.mean(1)
    h, c = (np.full((TIME_STEPS + 1, BATCH, HIDDEN), np.nan, np.float32) for _ in range(2))
    h[0], c[0] = of.h, of.c
    walked = _Walked(w_stats, stats, h, c, np.full_like(of.x_proj, np.nan))
    program.launch("lstm_walk_forward", (-(-BATCH // ROWS) * CLUSTER,), (_MACROS["THREADS"],), [
        of.x_proj, of.w_h, w_stats, *of.parameters, None, h, c, walked.h_proj, stats, *_SIZES, np.float32(_EPS)], seed=seed)
    return walked


def _forward(norm: bool) -> Callable[..., Result]:
    def launch(program: hostgpu.Program, seed: int) -> Result:
        of = _Sequence.of(norm)
        walked = _walk(program, of, seed)
        hs, _, c = of.run()[1]
        yield walked.h[1:], hs
        yield walked.c[-1], c

    return launch


def _alike(program: hostgpu.Program, seed: int) -> Result:
    """Units that are alike in two blocks stay so to the bit: all blocks add up in one order."""
    of = _Sequence.of(norm=True, alike=True)
    units = _walk(program, of, seed).h.reshape(TIME_STEPS + 1, BATCH, CLUSTER, -1)
    yield units[:, :, 0] != units[:, :, 1], np.zeros_like(units[:, :, 0])
    yield units.reshape(TIME_STEPS + 1, BATCH, HIDDEN)[1:], of.run()[1][0]


def _backward(norm: bool) -> Callable[..., Result]:
    def launch(program: hostgpu.Program, seed: int) -> Result:
        of = _Sequence.of(norm)
        rule, out, kept = of.run()
        sound = hostgpu.compile(source.text("recurrent/lstm/walk.cu"), _LAYER if norm else _NONE)
        walked = _walk(sound, of, seed)
        given = tuple(np.random.default_rng(7).standard_normal(a.shape) for a in out)
        wanted = rule.vjp(backend("numpy"), kept, given, [True] * 3 + [False] * (4 + len(of.norms))) if rule.vjp else []
        d_hs, dh, dc = (g.astype(np.float32) for g in given)
        d_x_proj, d_h_proj = (np.full_like(of.x_proj, np.nan) for _ in range(2))
        kinds = 14 if norm else 4
        program.launch("lstm_walk_backward", (-(-BATCH // ROWS) * CLUSTER,), (_MACROS["THREADS"],), [
            of.x_proj, walked.h_proj, of.w_h, walked.w_stats, *of.parameters, None, walked.c, walked.stats, d_hs, dh, dc,
            d_x_proj, d_h_proj if norm else None, np.full((BATCH, kinds, HIDDEN), np.nan, np.float32),
            *_SIZES, np.int32(TIME_STEPS + 1), np.float32(np.inf)], seed=seed)
        yield from zip((d_x_proj, dh, dc), wanted[:3], strict=True)

    return launch


_FORWARD, _BACKWARD = source.text("recurrent/lstm/walk.cu"), source.text("recurrent/lstm/walk_backward.cu")
_BUFFERS = "int slot_of(int use) { return use & 1; }\n__device__ __forceinline__ int parity_of(int use) { return use >> 1 & 1; }"
_ONE_BUFFER = "int slot_of(int use) { return 0; }\n__device__ __forceinline__ int parity_of(int use) { return use & 1; }"
_NO_WAIT, _OVER = "without a wait at its signal|a push over", "a push over|'(states|partial|d_states)'.*no barrier"


def _of(name: str, old: str, new: str, message: str, norm: bool = True, backward: bool = False) -> Broken:
    return Broken("exchange in a cluster", name, _BACKWARD if backward else _FORWARD, old, new,
                  _backward(norm) if backward else _forward(norm), message, _LAYER if norm else _NONE, ours=True)


WALKS = [
    _of("no wait for what blocks tell", "    wait_at(signal, parity_of(use));\n", "", _NO_WAIT),
    _of("no wait for the states", "if (t > 0) wait_at(states.signals[slot_of(t)], parity_of(t - 1));", "", _NO_WAIT),
    _of("no wait for the gradient of the states", "    wait_at(d.signals[slot], parity_of(use));\n", "", _NO_WAIT, backward=True),
    _of("one buffer, forward", _BUFFERS, _ONE_BUFFER, f"{_OVER}|{_NO_WAIT}", norm=False),
    _of("one buffer, backward", _BUFFERS, _ONE_BUFFER, _OVER, norm=False, backward=True),
    _of("one buffer, with norms", _BUFFERS, _ONE_BUFFER, _OVER),
    _of("the wrong parity", "return use >> 1 & 1;", "return ~use >> 1 & 1;", _NO_WAIT),
    _of("the wrong parity, backward", "return use >> 1 & 1;", "return ~use >> 1 & 1;", _NO_WAIT, backward=True),
    _of("states are sent after the last time step", "if (t + 1 < time_steps) send", "send",
        "has ended while a push|a push into a block that has ended"),
    _of("no barrier of the cluster before the first push", "    cluster_barrier();\n", "    __syncthreads();\n",
        "no barrier of the cluster|has not made|has not reached"),
    _of("each block adds up from its own rank on", "told.values[slot_of(use)][rank][p.row][n]",
        "told.values[slot_of(use)][(rank + p.rank) % CLUSTER][p.row][n]", "")._replace(launch=_alike),
    _of("a block tells all but the last", "if (p.lane < CLUSTER) push_values", "if (p.lane < CLUSTER - 1) push_values",
        "waits for ever"),
    _of("too few bytes are expected", "ROWS * HIDDEN * int(sizeof(float))", "(ROWS * HIDDEN - 1) * int(sizeof(float))",
        "too few bytes are expected"),
    _of("bytes are expected by every thread", "if (threadIdx.x == 0) expect_at(signal", "expect_at(signal",
        "expected twice"),
    _of("parts of the product are read at once", "        product<Cell>(weights, states, partial, t);\n        __syncthreads();",
        "        product<Lstm>(weights, states, partial, t);", "'partial'.*no barrier"),
    _of("the gradient of the gates is multiplied at once", "        __syncthreads();\n        distribute", "        distribute",
        "'d_states'.*no barrier", backward=True)]
"""Broken walks; two of them need units that are alike in two blocks, or no norms, to be seen."""
