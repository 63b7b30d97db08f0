"""The groups of `duoln bench`: each makes a row from plain values, so that every side's process makes the same one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from duoln.bench.row import CLIP, TOKENS, PeerSide, Row, Shape
from duoln.bench.wide import WIDE
from duoln.core import Op, composed_only
from duoln.core.arguments import described
from duoln.errors import UsageError
from duoln.kernels.attention import cases as of_attention
from duoln.kernels.recurrent import cases as of_recurrent
from duoln.kernels.registry import Case, Timed, operator, timed
from duoln.ops.recurrent.variants import CELLS, has_bias, norm_shapes
from duoln.runtime import tensor
from duoln.tasks.registry import load_plugins

_LEAST_COLD_BYTES = 64 << 10
"""Smaller inputs are timed warm: launching them takes longer than fetching them, and rotating through enough of them
would time the interpreter."""
COPIED = (4096, 4096)


# Operators on rows ------------------------------------------------------------------------------------

@cache
def operators() -> dict[str, Timed]:
    """Every operator that is timed, by name, those of plug-ins too."""
    load_plugins()
    return timed()


def ops(op: str, shape: Sequence[int], backward: bool = True, cold: bool = True) -> Row:
    """An operator on rows of values, with the gradients of its floating-point arguments for those of its results."""
    timed = operators()[op]  # loads the plug-ins that have it
    return of_operator(operator(op), timed, (shape[0], shape[1]), backward, cold)


def of_operator(op: Op[..., Any], timed: Timed, shape: tuple[int, int], backward: bool, cold: bool) -> Row:
    """As `ops`.

    Raises:
        UsageError: its first argument, or its result, has other axes.
    """
    rows = _result_rows(op, timed)
    case, rng = timed.case(shape), np.random.default_rng(0)
    given = {str(k): array for k, array in enumerate(case.inputs) if array is not None}
    places = [array is not None for array in case.inputs]
    gouts = {f"gout{k}": rng.standard_normal(shape[:axes], np.float32)
             for k, axes in enumerate(rows if backward else ())}

    def formula(of: Any, *values: Any) -> Any:
        left = iter(values)
        return of.timed(op.name, [next(left) if is_given else None for is_given in places], case.attrs)

    cache = "cold" if cold and 4 * shape[0] * shape[1] >= _LEAST_COLD_BYTES else "warm"
    reals = sum(array.dtype.kind == "f" for array in given.values())
    return Row(op.name, shape, "backward" if backward else "forward", {}, formula, reals, cache=cache, rule=op.name,
               moved=timed.bytes_moved(*shape, backward), flops=timed.operations(*shape, backward) or None,
               given={**given, **gouts})


def _result_rows(op: Op[..., Any], timed: Timed) -> list[int]:
    """The number of axes of each result, from a case of 2 rows and 3 columns."""
    like = timed.case((2, 3))
    if not isinstance(like, Case) or like.op != op.name:
        raise UsageError(f"[bench] {op.name}: expected of Timed.case an extend.Case of it, found {described(like)}")
    if like.inputs[0] is None or like.inputs[0].shape != (2, 3):
        raise UsageError(f"[bench] {op.name}: expected a first argument of (rows, width), as Timed.case makes it of "
                         "the shape (2, 3)")
    with composed_only():
        made = op(*(None if a is None else tensor(a, "numpy") for a in like.inputs), **like.attrs)
    shapes = [each.shape for each in (made if isinstance(made, tuple) else (made,))]
    if shapes[0] not in ((2, 3), (2,)):
        raise UsageError(f"[bench] {op.name}: expected a result of (rows, width) or (rows,), found {shapes[0]} of 2 "
                         "rows and 3 columns")
    return [len(shape) for shape in shapes]


def copy(shape: Sequence[int] | None = None) -> Row:
    """A plain copy of more than the caches hold, beside which other rows are seen."""
    rows, width = shape or COPIED
    return Row("copy", (rows, width), shapes={"x": (rows, width)}, formula=lambda of, x: of.copy(x), cache="cold",
               moved=8 * rows * width)


# Recurrent layers, attention --------------------------------------------------------------------------

def _layer_arrays(cell: str, norm: str, n_in: int, hidden: int, number: str = "") -> dict[str, Shape]:
    """The parameters of a layer, by the names of the operator, with a number behind."""
    width = CELLS[cell].gates * hidden
    bias = {"bias": (width,)} if has_bias(cell, norm) else {}
    shapes: dict[str, Shape] = {"w_x": (n_in, width), "w_h": (hidden, width), **bias, **norm_shapes(cell, norm, hidden)}
    return {f"{name}{number}": shape for name, shape in shapes.items()}


def rnn(cell: str, norm: str, shape: Sequence[int], backward: bool = True) -> Row:
    """A recurrent layer, and the gradients of everything: input, states, weights, norms."""
    steps, batch, n_in, hidden = shape
    names: dict[str, Shape] = {"x": (steps, batch, n_in), **{name: (batch, hidden) for name in CELLS[cell].states},
                               **_layer_arrays(cell, norm, n_in, hidden)}
    shapes = {**names, **({"share": (steps, batch, hidden)} if backward else {})}

    def formula(of: Any, *values: Any) -> Any:
        out = of.recurrent(cell, norm, dict(zip(names, values, strict=False)))[0]
        return of.sum(out * values[-1]) if backward else out

    size = of_recurrent.Shape(*shape)
    return Row(f"{cell} {norm}", tuple(shape), "gradient" if backward else "forward", shapes, formula,
               len(names) if backward else 0, rule=cell, flops=of_recurrent.flops(cell, size, backward),
               moved=None if backward else of_recurrent.least_bytes(cell, size), peers={
                   "products": [PeerSide("our products alone", {"form": "products"}, checked=False)],
                   "steps": [PeerSide("duoln, by steps", {"rule": "cuda steps"})], **_of_layers(cell, norm)})


def _of_layers(cell: str, norm: str) -> dict[str, list[PeerSide]]:
    """The sides of PyTorch that there are of a variant."""
    def side(name: str, form: str, peer: str = "torch", checked: bool = True) -> PeerSide:
        return PeerSide(name, {"peer": peer, "form": form}, checked)

    plain = side(f"torch.nn.{cell.upper()}, no norm", "plain", checked=False)
    loop, by_compiler = side("torch loop", "loop"), [side("torch loop, compiled", "hoisted", "torch-compile")]
    if norm == "recurrent-bias":
        return {"torch": [plain._replace(name="torch.nn.GRU")]}
    if cell == "lstm" and norm in ("layer-per-gate", "batch"):
        return {"torch": [loop], "torch-compile": by_compiler}
    if cell == "rnn" or norm not in ("layer", "none"):
        return {"torch": []}
    bridge = [side("duoln in torch", "bridge")] if cell == "lstm" else []
    return {"torch": [*bridge, loop, side("torch loop, hoisted", "hoisted"), plain], "torch-compile": by_compiler}


def attention(shape: Sequence[int], causal: bool = False, backward: bool = True) -> Row:
    """Scaled dot-product attention, and the gradients of queries, keys and values."""
    batch, heads, steps, width = shape
    names = ("query", "key", "value", "share") if backward else ("query", "key", "value")

    def formula(of: Any, *values: Any) -> Any:
        out = of.attention(*values[:3], causal=causal)
        return of.sum(out * values[3]) if backward else out

    size = of_attention.Shape(*shape)
    return Row(f"attention{' causal' * causal}", tuple(shape), "gradient" if backward else "forward",
               dict.fromkeys(names, (batch, heads, steps, width)), formula, 3 if backward else 0,
               rule="scaled_dot_product_attention", moved=None if backward else of_attention.least_bytes(size),
               flops=of_attention.flops(size, causal, backward),
               peers={"torch": [PeerSide("torch", {"peer": "torch"}),
                                PeerSide("torch, written out", {"peer": "torch", "form": "written out"})]})


# A language model -------------------------------------------------------------------------------------

class Sizes(NamedTuple):
    """Time steps of a piece of text, texts side by side, hidden units of each layer, different characters."""

    steps: int = 64
    batch: int = 16
    width: int = 128
    symbols: int = 96


def language_model(subject: str, sizes: Sequence[int] = Sizes(), form: str = "") -> Row:
    """A two-layer LN-LSTM on characters: the update by a piece of text, or sampled tokens, each of which is fed back.

    Beside it stand the layer of `duoln.bridge.torch`, a loop over LN-LSTM cells, and `nn.LSTM`, which has no norm.
    """
    size, samples = Sizes(*sizes), subject == "token"
    layers = [_layer_arrays("lstm", "layer", size.width, size.width, str(k)) for k in range(2)]
    params: dict[str, Shape] = {"table": (size.symbols, size.width), **layers[0], **layers[1],
                                "w_out": (size.width, size.symbols), "b_out": (size.symbols,)}
    rows = 1 if samples else size.batch
    ids = (1, 1) if samples else (size.steps, size.batch)
    states = [f"zero_{state}{k}" for k in range(2) for state in "hc"]
    shapes = {**params, "labels": ids, **dict.fromkeys(states, (rows, size.width))}

    def formula(of: Any, *values: Any) -> Any:
        arrays, after = dict(zip(shapes, values, strict=True)), []
        x = of.embedding(arrays["table"], arrays["labels"])
        for k, names in enumerate(layers):
            given = {name[:-1]: arrays[name] for name in names}
            x, last = of.recurrent("lstm", "layer", {
                "x": x, "h": arrays[f"zero_h{k}"], "c": arrays[f"zero_c{k}"], **given})
            after += last
        logits = of.linear(x.reshape((-1, size.width)), arrays["w_out"], arrays["b_out"])
        if samples:
            return [logits, *after]
        return of.softmax_cross_entropy(logits, arrays["labels_after"].reshape((-1,)))

    if not samples:
        shapes["labels_after"] = ids
    sides = {"torch, LSTM of duoln.bridge": "bridge", "torch, LN-LSTM by cells": "hoisted",
             "torch.nn.LSTM, no norm": "plain"}
    what = f"{TOKENS} sampled tokens" if samples else "an update"
    return Row(f"language model, {what}", size, "tokens" if samples else "step", shapes, formula, len(params),
               compiled=True, clip=None if samples else CLIP, form=form, peers={"torch": [
                   PeerSide(name, {"peer": "torch", "form": form}, form != "plain") for name, form in sides.items()]})


# A training step, the parts that a user meets, a device -----------------------------------------------

def train(task: str, variant: str, preset: str | None, settings: Mapping[str, Any],
          plugins: Sequence[str] | None = None) -> Row:
    """A training step of a task."""
    others = {key: value for key, value in settings.items() if key != "batch_size"}
    return Row(f"{task} {variant}", (settings["batch_size"],), "step", own="steps",
               settings={**({} if preset is None else {"preset": preset}), **others}, peers={
                   "eager": [PeerSide("duoln, eager", {"form": "eager"})],
                   "torch-compile": [PeerSide("torch, compiled", {"peer": "torch", "form": "compiled"})]})


_LAYER, _MODEL = (50, 32, 256, 256), Sizes(width=256)
_OTHERS: dict[str, dict[str, Callable[[], Row]]] = {
    "recurrent": {
        "gru-recurrent-bias": lambda: rnn("gru", "recurrent-bias", _LAYER),
        "lstm-layer-per-gate": lambda: rnn("lstm", "layer-per-gate", _LAYER),
        "lstm-batch": lambda: rnn("lstm", "batch", _LAYER)},
    "sampling": {
        "sample-lstm": lambda: language_model("token", _MODEL),
        "sample-cells": lambda: language_model("token", _MODEL, "cells")},
    "start": {"first-step": lambda: Row("", (128,), "step", rounds=2, own="steps")},
}
WIDE_NAMES = {**{group: list(rows) for group, rows in WIDE.items()},
              **{group: list(rows) for group, rows in _OTHERS.items()}}
"""The names of the rows of `wide`, by groups."""


def wide(name: str) -> Row:
    """A part that a user meets."""
    made = {key: row for rows in WIDE.values() for key, row in rows.items()}
    others = {key: make for rows in _OTHERS.values() for key, make in rows.items()}
    return (made[name] if name in made else others[name]())._replace(op=f"wide {name}")


def device(name: str) -> Row:
    """A limit of a CUDA device; `duoln.bench.device` has the names."""
    from duoln.bench.device import LIMITS

    return Row(name, (1,), own="device", moved=LIMITS[name].moved)


GROUPS: Mapping[str, Callable[..., Row]] = {
    "ops": ops, "copy": copy, "rnn": rnn, "attention": attention, "language-model": language_model, "train": train,
    "wide": wide, "device": device}


def row_of(asked: Mapping[str, Any]) -> Row:
    """The row of a request."""
    return GROUPS[asked["group"]](**asked["row"])
