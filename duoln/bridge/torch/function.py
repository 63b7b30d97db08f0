"""Pure functions of duoln as functions of PyTorch, with gradients of first order."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Never, cast
from uuid import uuid4
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch.autograd import forward_ad

from duoln.backends.protocol import Backend
from duoln.bridge.functions import over_trees
from duoln.bridge.torch.arrays import backend_for, natives_of, on_device, tensor_of, unshare_arrays
from duoln.core import Tensor
from duoln.core.arguments import described
from duoln.core.gradient import pullback_at
from duoln.errors import DtypeError, GradientError, UsageError
from duoln.system import limits

NOT_EXPORTED = ("expected a model of PyTorch's own operators, found a layer or function of duoln; export the model "
                "with torch.nn's layers, or save its state_dict")
Back = Callable[[Sequence[torch.Tensor | None]], list[torch.Tensor | None]]
_PROCESS = os.getpid()
"""The process that has loaded PyTorch; another one was forked from it."""
_SOFT = 1
"""omp_pause_soft of OpenMP 5.0, section 3.2.44: the threads may be started again."""


def differentiable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of PyTorch's tensors that computes `fn`, a pure function of duoln's tensors, with its gradient.

        >>> norm = differentiable(lambda x, gain: ops.rms_norm(x, gain))
        >>> norm(x, gain).sum().backward()

    Arguments and results are trees of dicts, lists and tuples. Every torch.Tensor in the arguments reaches `fn` as a
    duoln.Tensor with the same memory, everything else as it is. Each tensor of the result is one of PyTorch's. Under
    autocast 16 bits become float32. A backward pass that finds an argument, or a result that the gradient may need,
    changed in place raises PyTorch's error for that.

    `torch.compile` breaks its graph around the call. The layers of this package stay within the graph.

    Raises:
        DtypeError: a tensor has a dtype or a device that duoln has not, or tensors lie on several devices.
        GradientError: by the backward pass, for a gradient of a gradient.
    """
    run: Any = torch.compiler.disable(over_trees(fn, torch.Tensor, apply))
    run.__prepare_scriptable__ = refuse_script
    return cast("Callable[..., Any]", run)


def refuse_script() -> Never:
    """The answer to `torch.jit.script`, which would read the text of a function."""
    raise UsageError(f"[bridge] torch.jit.script: {NOT_EXPORTED}")


def apply(fn: Callable[..., Sequence[Tensor]], tensors: Sequence[torch.Tensor], keeps_results: bool = True,
          ) -> tuple[torch.Tensor, ...]:
    """`fn` of tensors, recorded by PyTorch's autograd where a gradient is needed.

    With `keeps_results` the gradient may read the results, which must not change then.
    """
    for k, x in enumerate(tensors):
        if not isinstance(x, torch.Tensor):
            raise DtypeError(f"[bridge] argument {k}: expected a torch.Tensor, found {described(x)}")
    for x in tensors[:1]:
        backend_for(x.device.type)  # refuses a device before PyTorch is asked about it
    if torch.jit.is_tracing() or torch.compiler.is_exporting() or _is_traced_by_fx():
        raise UsageError(f"[bridge] tracing: {NOT_EXPORTED}")
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise GradientError("[bridge] a derivative of forward mode is not supported: duoln has backward passes only. "
                            "Where one is needed, use a layer of PyTorch's own, or a loop of its operators")
    if tensors and torch.is_autocast_enabled(tensors[0].device.type):
        tensors = [x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in tensors]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        results: tuple[torch.Tensor, ...] = _Call.apply(fn, keeps_results, *tensors)
        return results
    return tuple(forward(fn, tensors, ())[0])


def _is_traced_by_fx() -> bool:
    """True within `make_fx`, which would keep the results of the traced values as constants."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


class _Call(torch.autograd.Function):
    """A call in PyTorch's graph."""

    @staticmethod
    def forward(ctx: Any, fn: Callable[..., Sequence[Tensor]], keeps_results: bool,  # type: ignore[override]
                *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results, ctx.back = forward(fn, tensors, ctx.needs_input_grad[2:])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(y for y in results if not y.is_floating_point()))
        # The gradient reads the memory of these, not what hooks on saved tensors make of them. PyTorch checks that the
        # graph was not freed and that nothing was changed; the latter not where a hook has saved a copy.
        saved = [*tensors, *(results if keeps_results else ())]
        ctx.save_for_backward(*saved)
        ctx.versions = [(x.detach(), x._version) for x in saved]
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:  # type: ignore[override]
        saved = ctx.saved_tensors
        if any(x._version != version for x, version in ctx.versions):
            raise GradientError("[bridge] a tensor that the gradient needs was modified by an inplace operation; "
                                "change a clone of it. Hooks on saved tensors keep no copy for a layer of duoln")
        with torch.no_grad():
            results = ctx.back(gradients)
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # PyTorch frees what is saved, too
            del ctx.back, ctx.versions
        if torch.is_grad_enabled():
            given = [x for x in (*gradients, *saved) if x is not None and x.is_floating_point()]
            places = [k for k, g in enumerate(results) if g is not None]
            for k, g in zip(places, _FirstOrder.apply(len(given), *given, *(results[k] for k in places)), strict=True):
                results[k] = g
        return None, None, *results


class _FirstOrder(torch.autograd.Function):
    """Gradients that depend on others and on what the call was given, but have no gradient themselves."""

    @staticmethod
    def forward(ctx: Any, given: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        return tuple(x.view_as(x) for x in tensors[given:])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # type: ignore[override]
        raise GradientError("[differentiable] a gradient of a gradient is not supported: duoln is first order only. "
                            "Where one is needed, use a layer of PyTorch's own, or a loop of its operators")


def forward(fn: Callable[..., Sequence[Tensor]], tensors: Sequence[torch.Tensor], needs: Sequence[bool],
            ) -> tuple[list[torch.Tensor], Back]:
    """The results of `fn`, and the function that gives the gradients of the tensors that need one."""
    device = tensors[0].device if tensors else torch.device("cpu")
    if any(x.device != device for x in tensors):
        raise DtypeError(f"[bridge] expected tensors on one device, found {device} and "
                         f"{next(x.device for x in tensors if x.device != device)}")
    be, places = backend_for(device.type), [k for k, need in enumerate(needs) if need]
    pauses = device.type == "cpu" and getattr(fn, "takes_long", False) and len(tensors[0]) > 1  # one time step does not
    if pauses:
        pause_threads()
    with on_device(device):
        arguments = [Tensor(native, be) for native in natives_of("argument", tensors, be)]
        if not places:
            return _tensors(fn(*arguments), be), lambda gradients: []
        outputs, pull, tape = pullback_at(places, fn, arguments)
        tape.closed = True  # it is read by `back`, and nothing is added to it
        results = _tensors(outputs, be)

    def back(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        if pauses:
            pause_threads()
        with on_device(device):
            natives = natives_of("gradient", gradients, be)
            pulled = iter(unshare_arrays(pull(natives, keep=True), be))
            return [tensor_of(next(pulled), be, arguments[k].dtype) if need else None for k, need in enumerate(needs)]

    return results, back


def _tensors(outputs: Sequence[Tensor], be: Backend) -> list[torch.Tensor]:
    natives = unshare_arrays([y.data for y in outputs], be)
    return [tensor_of(native, be, y.dtype) for native, y in zip(natives, outputs, strict=True)]


def pause_threads() -> None:
    """End the threads that PyTorch keeps for this one; its next operation starts them again.

    They spin for some milliseconds after an operation, in case that another one follows, and would take cores from a
    kernel of duoln.
    """
    pause = _pause()
    if pause is not None and os.getpid() == _PROCESS:  # a forked process would wait for threads that it has not
        pause(_SOFT)


@lru_cache
def _pause() -> Callable[[int], int] | None:
    """The function of PyTorch's OpenMP library; None where it has none, or if duoln uses one thread."""
    if limits.workers() == 1:
        return None
    for file in sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*")):
        if hasattr(library := ctypes.CDLL(str(file)), "omp_pause_resource_all"):
            pause: Callable[[int], int] = library.omp_pause_resource_all
            return pause
    return None


class _Ticket(np.ndarray):
    """Random bits that stand for a backward function in a compiled graph, whose operators pass tensors alone."""

    back: Back


_tickets: WeakValueDictionary[bytes, _Ticket] = WeakValueDictionary()


def ticket_for(back: Back) -> torch.Tensor:
    """A tensor that keeps `back` as long as its memory lives."""
    bits = uuid4().bytes
    ticket = np.frombuffer(bytearray(bits), np.int64).view(_Ticket)
    ticket.back = back
    _tickets[bits] = ticket
    return torch.from_numpy(ticket)


def backward_of(ticket: torch.Tensor) -> Back:
    """The function that a ticket stands for.

    Raises:
        GradientError: a hook on saved tensors has saved a copy of it, or another number.
    """
    try:
        return _tickets[ticket.numpy().tobytes()].back
    except KeyError:
        raise GradientError("[bridge] expected what a layer of duoln has saved in a graph of torch.compile, found a "
                            "copy; hooks on saved tensors may copy it outside of torch.compile only") from None
