"""The peers of `duoln bench ops`: torch.nn.functional's norms and cross_entropy, on the CPU or on CUDA."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

import numpy as np

from duoln.bench.clock import MOST_LAUNCHES, DeviceSeconds
from duoln.bench.launch_chains import Rotation
from duoln.bench.subjects import Subject, buffer_count, buffers
from duoln.errors import UsageError

PEERS = ("torch", "torch-compile", "liger")
"""PyTorch's own operators; the same by `torch.compile`; Liger's Triton kernel, layer norm alone."""

Call = Callable[[Any, Mapping[str, Any]], Any]
"""A function of x and the other arguments that returns the value."""


def device_for(backend: str) -> str:
    """The device of PyTorch beside a backend of ours: CUDA beside CuPy if it can, else the CPU."""
    return "cuda" if backend == "cupy" and _torch().cuda.is_available() else "cpu"


def default_device(device: str) -> AbstractContextManager[Any]:
    """The context in which PyTorch creates tensors on `device`. PyTorch's global default is left alone."""
    context: AbstractContextManager[Any] = _torch().device(device)
    return context


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by `torch.compile`, which compiles when it is first called."""
    result: Callable[..., Any] = _torch().compile(function)
    return result


def facts(device: str) -> dict[str, str]:
    """The library and its device."""
    torch = _torch()
    described = {"library": f"torch {torch.__version__}", "device": device}
    return described | ({"threads": str(torch.get_num_threads())} if device == "cpu" else {})


def compute(subject: Subject, inputs: Mapping[str, np.ndarray], backward: bool, device: str, peer: str = "torch",
            ) -> dict[str, np.ndarray]:
    """The results of one launch under duoln's names."""
    tensors = _tensors(inputs, device, ("x", *subject.shared) if backward else ())
    gout = tensors["gout"] if backward else None
    arrays = _run(_torch(), caller(peer, subject), subject, tensors["x"], tensors, gout)
    return {name: a.detach().cpu().numpy() for name, a in arrays.items()}


class TorchChain:
    """Launches of PyTorch's own operator; buffers and results rotate as they do for duoln."""

    def __init__(self, subject: Subject, inputs: Mapping[str, np.ndarray], cache: str, backward: bool,
                 device: str, peer: str = "torch") -> None:
        torch = self._torch = _torch()
        rows, width = inputs["x"].shape
        cold = cache == "cold"
        count = buffer_count((rows, width), cold)
        self._pools = {}
        for name in subject.rows_arguments():
            host, places = buffers(inputs[name], count)
            whole = torch.from_numpy(host).to(device)
            self._pools[name] = [whole[place].detach().requires_grad_(backward and name == "x") for place in places]
        self._gouts = [t.detach() for t in self._pools["x"]]
        self._tensors = _tensors({k: v for k, v in inputs.items() if k not in self._pools}, device,
                                 subject.shared if backward else ())
        self._gout_rotates = inputs["gout"].shape == (rows, width)
        self._subject, self._backward, self._call = subject, backward, caller(peer, subject)
        self._rotation = Rotation(count, cold)
        self._results: deque[dict[str, Any]] = deque(maxlen=count if cold else 1)
        self.warmups = count if cold else 1
        self.most = 2 * MOST_LAUNCHES
        self._on_gpu = device == "cuda"

    def launch(self, count: int) -> None:
        """Run or queue `count` launches, one after the other."""
        for _ in range(count):
            mine, ahead = self._rotation.next()
            gout = self._gouts[ahead] if self._gout_rotates else self._tensors["gout"]
            tensors = {**{name: pool[mine] for name, pool in self._pools.items()}, **self._tensors}
            self._results.append(_run(self._torch, self._call, self._subject, tensors["x"], tensors,
                                      gout if self._backward else None))

    def wait(self) -> None:
        """Wait until every queued launch is computed."""
        if self._on_gpu:
            self._torch.cuda.synchronize()

    def capture(self, count: int) -> DeviceSeconds | None:
        """A graph of `count` launches; None on the CPU.

        PyTorch gives the gradient of a tensor on the stream of its first use, and keeps that while a result is alive
        that was computed from it. So no result of before may live while another stream captures, nor one of this later.
        """
        if not self._on_gpu:
            return None
        self._results.clear()
        try:
            return graph_seconds(lambda: self.launch(count))
        finally:
            self._results.clear()


def _run(torch: Any, call: Call, subject: Subject, x: Any, tensors: Mapping[str, Any], gout: Any) -> dict[str, Any]:
    if gout is None:
        with torch.no_grad():
            return subject.named(call(x, tensors))
    results = subject.named(call(x, tensors))
    gradients = torch.autograd.grad(list(results.values()), [x, *(tensors[name] for name in subject.shared)],
                                    subject.gouts(tensors, gout))
    return {**results, **dict(zip(("x", *subject.shared), gradients, strict=True))}


def caller(peer: str, subject: Subject) -> Call:
    """A function by which a peer computes an operator.

    Raises:
        UsageError: the peer has no such operator, or is not installed.
    """
    torch = _torch()
    if peer == "liger":
        if subject.name != "layer_norm":
            raise UsageError(f"[bench] expected layer_norm for the peer liger, found {subject.name}")
        norm = _liger_layer_norm()
        return lambda x, tensors: norm.apply(x, tensors["gain"], tensors["bias"], subject.attributes["eps"])
    call = _eager(torch, subject)
    if peer == "torch":
        return call
    torch.compiler.reset()  # PyTorch stops compiling a function after eight shapes
    return compiled(call)


def _eager(torch: Any, subject: Subject) -> Call:
    peer = subject.timed.peer
    if peer is None:
        raise UsageError(f"[bench] PyTorch has no peer of {subject.name}")
    others = (*subject.rows_arguments()[1:], *subject.shared, *subject.labels)
    return lambda x, tensors: peer(torch, x, *(tensors[name] for name in others), **subject.attributes)


def _liger_layer_norm() -> Any:
    try:
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    except ImportError as error:
        raise UsageError(f"[bench] the peer liger needs Liger: {error}; pip install liger-kernel") from error
    return LigerLayerNormFunction


def _tensors(arrays: Mapping[str, np.ndarray], device: str, tracked: Sequence[str]) -> dict[str, Any]:
    """Copies of the arrays as tensors, with integers as int64; PyTorch computes gradients of the `tracked` ones."""
    torch = _torch()
    return {name: torch.tensor(a.astype(np.int64) if a.dtype.kind == "i" else a, device=device,
                               requires_grad=name in tracked) for name, a in arrays.items()}


def graph_seconds(run: Callable[[], None]) -> DeviceSeconds:
    """Capture what `run` queues; as `device_seconds` of our backend."""
    torch = _torch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def seconds() -> float:
        graph.replay()
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        milliseconds: float = first.elapsed_time(last)
        return milliseconds / 1e3

    return seconds


def wait_after(queue: Callable[[], None], device: str) -> None:
    """Queue work, and wait for it."""
    queue()
    if device == "cuda":
        _torch().cuda.synchronize()


def check_installed() -> None:
    """Raises UsageError if PyTorch is not installed; it is not loaded."""
    if find_spec("torch") is None:
        raise UsageError('[bench] --peer needs PyTorch, which is not installed; pip install ".[peers]" or torch')


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise UsageError(f"[bench] --peer torch needs PyTorch: {error}; pip install torch") from error
    return torch
