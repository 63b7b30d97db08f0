"""Dropout (Srivastava et al. 2014), whose masks are data: they are made on the host and travel with the batch."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from duoln import tree
from duoln.backends.protocol import Backend
from duoln.core import Tensor
from duoln.core.arguments import BELOW_1, check_flag, check_integer, check_number, described
from duoln.core.gradient import is_recording
from duoln.core.op import context_value
from duoln.core.pytorch_names import hinted
from duoln.core.spec import check_float
from duoln.errors import DtypeError, GradientWarning, ShapeError, UsageError
from duoln.nn import observing
from duoln.nn.module import NOT_GIVEN, Module, Params, branch_at, check_params
from duoln.randomness import LARGEST_SEED, Stream

Shape = tuple[int, ...]
Masks = dict[str, Any]
"""Masks by the paths of their layers."""
_MASK = "mask"
_no_dropout: ContextVar[bool] = ContextVar("no_dropout", default=False)


class Dropout(Module):
    """Dropout: a mask leaves each value out with probability `p`, and divides the others by 1 - p.

    The masks of a training batch come from `DropoutMasks`, and `with_masks` puts them among the parameters. Without a
    mask, as in an evaluation, x is returned as it is: there is no mode. Within a gradient a `GradientWarning` tells of
    it once, because there a mask was probably forgotten.

        model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2))
        dropout = nn.DropoutMasks(model, seed=0)

        def loss(params, masks, x, label):
            return ops.softmax_cross_entropy(model(nn.with_masks(params, masks), x), label).mean()

        masks = dropout(update, params, x)      # of each update, outside the loss

    Args:
        p: the share of values that is left out, in [0, 1).
        shared: one mask serves all calls of a pass over the model, which have one shape (Gal and Ghahramani 2016). Else
            a layer is called once a pass: a model has a layer for each place.

    Shape:
        x of floats (...) -> the same; no parameters.
    """

    def __init__(self, p: float = 0.5, *, shared: bool = False) -> None:
        self.p = check_number("Dropout", "p", p, BELOW_1)
        self.shared = check_flag("Dropout", "shared", shared)

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        check_params("Dropout", params)
        check_float("Dropout", x)
        if observing.must_report(params):
            observing.report(params, _InputForm(x.shape, x.dtype))
            return x
        if _MASK not in params:
            if self.p and is_recording() and not _no_dropout.get():
                warnings.warn("[Dropout] found no mask inside a gradient, so no value is left out; training wants "
                              "model(nn.with_masks(params, masks), x), with masks of nn.DropoutMasks, and any other "
                              "gradient `with nn.no_dropout():`", GradientWarning, stacklevel=3)
            return x
        mask = params[_MASK]
        if mask.shape != x.shape:
            raise ShapeError(f"[Dropout] mask: expected shape {x.shape}, found {mask.shape}; each batch has masks of "
                             "its own, masks = dropout(update, params, x)")
        y: Tensor = x * mask  # 16 bits times float32 is float32, so that 1 / (1 - p) is not rounded
        return y.astype(x.dtype)


def dropout_of(name: str, given: float | Dropout) -> Dropout:
    """The layer that the argument `dropout` of another layer stands for; it may be the share of values alone."""
    return given if isinstance(given, Dropout) else Dropout(check_number(name, "dropout", given, BELOW_1))


class _InputForm(NamedTuple):
    """The shape and dtype of a layer's input."""

    shape: Shape
    dtype: str


@hinted
def no_dropout() -> AbstractContextManager[None]:
    """Within this context no gradient needs masks, so `Dropout` layers without masks give no warning."""
    return context_value(_no_dropout, True)


class DropoutMasks:
    """Makes the masks of all `Dropout` layers of a model for a batch: `masks = dropout(update, params, x)`.

    The arguments after the number of the update are those of the model. A pass over the model, one for each form of
    batch, shows the shapes. A mask depends on the seed, the number of the update, and the path and shape of the layer:
    it has the same values on every backend and after a resumed run. Where several batches make one update, count them.

    A part of a model that is called several times in a pass may have masks of its own for each call:

        masks = nn.DropoutMasks(model.encoder, seed=0)
        first = masks(2 * update, params["encoder"], a)
        second = masks(2 * update + 1, params["encoder"], b)

    Then the model calls it as `self.encoder(nn.with_masks(params["encoder"], first), a)`.

    Args:
        model: the model.
        seed: the seed of the masks, at least 0.
        forward: a function that is called as `forward(params, ...)`; the model itself if None.
    """

    def __init__(self, model: Module, seed: int, *, forward: Callable[..., Any] | None = None) -> None:
        if not isinstance(model, Module):
            raise DtypeError(f"[DropoutMasks] model: expected a Module, found {described(model)}")
        self.seed = check_integer("DropoutMasks", "seed", seed, 0, LARGEST_SEED)
        self._forward: Callable[..., Any] = forward or model
        modules = dict(model.modules())
        self.layers = {path: layer for path, layer in modules.items() if isinstance(layer, Dropout) and layer.p}
        self._around = {path: [m for place, m in modules.items() if not place or path.startswith(f"{place}.")][-1]
                        for path in self.layers}
        self._shapes: dict[Any, dict[str, _InputForm]] = {}

    def __call__(self, update: int, params: Params, *inputs: Any) -> Masks:
        """The masks as tensors, by path.

        Raises:
            DtypeError: the number of the update is no integer. ShapeError: it is below 0.
            UsageError: a layer is not called with its branch of the parameters; or it is called more than once and not
                `shared`, or with several shapes.
        """
        update = check_integer("DropoutMasks", "update", update, 0)
        backend = _backend_of((params, inputs))
        return {path: Tensor(backend.asarray(mask), backend) for path, mask in
                self.on_host(update, self.shapes(params, *inputs)).items()}

    def shapes(self, params: Params, *inputs: Any) -> dict[str, _InputForm]:
        """The shape and dtype that each layer gets for such inputs, by path."""
        key = _form((params, inputs))
        if key not in self._shapes and self.layers:
            paths, where = list(self.layers), _backend_of((params, inputs))
            with observing.collect_reports("DropoutMasks", params, paths, where) as (asking, calls):
                self._forward(asking, *inputs)
            self._shapes[key] = {path: self._common_form(path, seen) for path, seen in zip(paths, calls, strict=True)}
        return self._shapes.get(key, {})

    def on_host(self, update: int, shapes: dict[str, _InputForm]) -> dict[str, np.ndarray]:
        """The masks of an update as arrays, float64 for such values and float32 for all others, by path."""
        masks = {}
        for path, seen in shapes.items():
            keep = 1 - self.layers[path].p
            kind = np.float64 if seen.dtype == "float64" else np.float32
            drawn = Stream(self.seed, f"dropout.{path}", step=update).keep_mask(seen.shape, keep)
            masks[path] = (drawn / kind(keep)).astype(kind)
        return masks

    def _common_form(self, path: str, calls: list[_InputForm]) -> _InputForm:
        """The input of a layer, the same in all its calls."""
        if not calls:
            raise UsageError(f"[DropoutMasks] expected a call of the Dropout at '{path}' with its branch of the "
                             "parameters, found none in a pass over the model")
        layer, around = self.layers[path], self._around[path]
        apart = ", or give each call masks of its own, as `python -m pydoc duoln.nn.DropoutMasks` shows"
        if len(calls) > 1 and not layer.shared:
            together = f"nn.Dropout({layer.p}, shared=True)"
            advice = f"make a Dropout for each call, let them share a mask, {together}"
            if _made_dropouts(around):
                advice = f"let them share a mask, {type(around).__name__}(..., dropout={together})"
            raise UsageError(f"[DropoutMasks] expected one call of the Dropout at '{path}' in a pass over the model, "
                             f"found {len(calls)}, which would leave out the same values; {advice}{apart}")
        shapes = sorted({seen.shape for seen in calls})
        if len(shapes) > 1:
            raise UsageError(f"[DropoutMasks] expected one shape in all calls of the Dropout at '{path}', which share "
                             f"a mask, found {' and '.join(map(str, shapes))}; give them inputs of one shape{apart}")
        return calls[0]


def _made_dropouts(module: Module) -> bool:
    """True for a layer of duoln that makes its Dropouts itself, from its argument `dropout`."""
    return any(kind.__module__.startswith("duoln.nn.") and "dropout" in inspect.signature(kind).parameters
               for kind in type(module).__mro__)


def _form(value: Any) -> Any:
    """A key of a pass's parameters and inputs: passes with equal keys have equal shapes and dtypes.

    Raises:
        DtypeError: a value is no array and no number, text or None.
    """
    if isinstance(value, Tensor | np.ndarray):
        return value.shape, str(value.dtype)
    if isinstance(value, dict):
        return dict, tuple((key, _form(branch)) for key, branch in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple([_form(branch) for branch in value])
    if value is None or isinstance(value, bool | int | float | str):
        return type(value), value
    raise DtypeError("[DropoutMasks] expected tensors, numbers, texts and None as parameters and inputs, found "
                     f"{described(value)}; forward=lambda params, x: ... may give the rest")


def _backend_of(values: Any) -> Backend:
    for leaf in tree.leaves(values):
        if isinstance(leaf, Tensor):
            return leaf.backend
    raise DtypeError("[DropoutMasks] expected tensors as parameters or inputs, found none; call dropout(update, "
                     "params, x) with what the model gets")


@hinted
def with_masks(params: Params, masks: Masks) -> Params:
    """The parameters with these masks in them, for a pass over the model that leaves values out.

    Raises:
        ShapeError: the parameters have no branch for a mask. DtypeError: the masks are no dict.
    """
    if not isinstance(masks, dict):
        raise DtypeError(f"[with_masks] masks: expected those of nn.DropoutMasks, found {described(masks)}")
    result: Params = tree.map(lambda x: x, params)
    for path, mask in masks.items():
        branch_at("with_masks", result, path)[_MASK] = mask
    return result
