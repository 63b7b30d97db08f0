"""What a training step asks of CuPy: launches, products, graphs, copies, uploads and waits, counted over its stand-in.

    python tests/tools/count_launches.py            print them
    python tests/tools/count_launches.py --write    keep them in kernels/launch_counts.json, for kernels/predictions.py

Kernels of CuPy's own are counted by what one call of CuPy launches: an operator or a function of arrays is one, a view is
none, and joining up to eight arrays is a copy of each. Our Python is processor time, the least of some runs, with kernels and products that do nothing and without the time of
NumPy's functions.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "tools")]

import numpy as np
import stand_in_capture
import stand_in_cublas
import stand_in_cupy

_VIEWS = {"reshape", "transpose", "expand_dims", "squeeze", "broadcast_to", "empty", "empty_like", "asnumpy"}
_LAUNCHING_METHODS = ("astype", "copy", "fill", "sum", "max", "mean", "min", "take", "__setitem__")
_JOINS = {"concatenate", "stack"}
_COPIED = 8
"""CuPy copies so many arrays one by one; more of them it joins in one launch, which reads their addresses in a table."""
_RUNS = 100
KINDS = ("ours", "products", "library", "graphs", "copies", "uploads", "waits")

Asked = str | Mapping[str, int] | None


class Counting:
    """A stand-in for CuPy whose kernels do nothing, and what was asked of it since `begin`."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.outside = 0.0
        """Seconds spent in what CuPy would do."""
        self._inside = False
        self.module = stand_in_cupy.make()
        self._count_functions()
        self._count_arrays()
        stand_in_cupy._Function.__call__ = self._counted("ours", lambda *a, **k: None)  # type: ignore[method-assign]
        for waited in (stand_in_capture.Stream, stand_in_capture.Event):
            waited.synchronize = self._counted("waits", lambda *a: None)  # type: ignore[method-assign]
        stand_in_capture.Graph.launch = self._counted("graphs", lambda *a: None)  # type: ignore[method-assign]
        stand_in_cupy._Pointer.copy_from_device_async = self._counted("copies", lambda *a: None)  # type: ignore[method-assign]
        # An address is one read in CuPy; the stand-in also notes whose it is, for graphs, which are not launched here.
        stand_in_cupy._Pointer.ptr = property(lambda p: p._array.__array_interface__["data"][0])  # type: ignore[assignment]
        for name in ("cublasGemmEx", "cublasGemmStridedBatchedEx"):
            setattr(stand_in_cublas.Library, name, self._counted("products", lambda *a: 0))
        sys.modules["cupy"] = self.module

    def begin(self) -> None:
        """Count from now on."""
        self.asked.clear()
        self.outside = 0.0

    def _counted(self, kind: str | Callable[..., Asked], function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if self._inside:  # a function that CuPy's function calls
                return function(*args, **named)
            self._inside, started = True, time.thread_time()
            try:
                return function(*args, **named)
            finally:
                self._inside = False
                asked = kind if isinstance(kind, str) else kind(*args)
                self.asked.update({asked: 1} if isinstance(asked, str) else asked or {})
                self.outside += time.thread_time() - started  # with the time of counting, which is not ours either

        return call

    def _count_functions(self) -> None:
        for name, function in vars(self.module).items():
            if not callable(function) or isinstance(function, type) or name == "make":
                continue
            kind: str | Callable[..., Asked]
            if name in _VIEWS:
                kind = "waits" if name == "asnumpy" else "views"
            elif name == "array":
                kind = lambda host, *rest: "library" if isinstance(host, stand_in_cupy.ndarray) else "uploads"  # noqa: E731
            elif name in _JOINS:
                kind = _joining
            elif name == "ascontiguousarray":
                kind = lambda x, *rest: "views" if x.flags.c_contiguous else "library"  # noqa: E731
            else:
                kind = "library"
            setattr(self.module, name, self._counted(kind, function))

    def _count_arrays(self) -> None:
        arrays = stand_in_cupy.ndarray
        of_ufunc = arrays.__array_ufunc__

        def ufunc(array: Any, function: Any, method: str, *inputs: Any, **named: Any) -> Any:
            return of_ufunc(array, function, method, *inputs, **named)

        counted = self._counted("library", ufunc)
        arrays.__array_ufunc__ = lambda *args, **named: counted(*args, **named)  # type: ignore[method-assign]
        for name in _LAUNCHING_METHODS:
            plain = getattr(np.ndarray, name)
            wrapped = self._counted("library", plain)
            setattr(arrays, name, lambda *args, _call=wrapped, **named: stand_in_cupy._device(_call(*args, **named)))


def _joining(arrays: Sequence[Any], *rest: Any) -> dict[str, int]:
    return {"library": len(arrays)} if len(arrays) <= _COPIED else {"library": 1, "uploads": 1}


def of_step(counting: Counting, run: Callable[[], object]) -> dict[str, float]:
    """What one call of a step asks; the first ones, which compile, allocate and capture, are left out."""
    for _ in range(4):
        run()
    counting.begin()
    run()
    asked = {kind: float(counting.asked[kind]) for kind in KINDS}
    seconds = []
    for _ in range(_RUNS):
        counting.begin()
        started = time.thread_time()
        run()
        seconds.append(time.thread_time() - started - counting.outside)
    return {**asked, "python_us": 1e6 * min(seconds)}


def difference(longer: dict[str, float], shorter: dict[str, float], steps: int) -> dict[str, float]:
    """What one of the steps asks by which two runs differ."""
    return {kind: max((longer[kind] - shorter[kind]) / steps, 0.0) for kind in longer}


def training(counting: Counting, name: str, form: str = "eager", **settings: Any) -> dict[str, float]:
    """An update of a task's smoke preset."""
    from duoln import core, runtime
    from duoln.tasks import make_config
    from duoln.tasks.registry import find_task
    from duoln.training.train_step import make_step, start_state

    backend = runtime.backend("cupy")
    task = find_task(name, [name])
    cfg = make_config(task, "ln", "smoke", settings)
    model, optimizer, splits = task.model(cfg), task.optimizer(cfg), task.data(cfg)
    step = make_step(task, model, optimizer)
    step = core.compile(step) if form == "compiled" else step
    state = start_state(model, optimizer, 0, backend)

    def run() -> None:
        nonlocal state
        batch = runtime.to_tensors(splits.train(0), backend)
        rate = runtime.tensor(np.float32(0.001), backend)
        state, figures = step(state, batch, rate)
        backend.end_step([], [figure.data for figure in figures.values()])()

    return of_step(counting, run)


def layer(counting: Counting, steps: int, backward: bool) -> dict[str, float]:
    """An LN-LSTM over some time steps."""
    import duoln
    from duoln import nn, ops, runtime
    from duoln.randomness import Stream

    backend = runtime.backend("cupy")
    model = nn.LSTM(3, 9, norm="layer")
    params = runtime.to_tensors(model.init(Stream(0, "init")), backend)
    x = runtime.tensor(np.ones((steps, 2, 3), np.float32), backend)

    def forward(p: Any) -> Any:
        return ops.sum(model(p, x)[0])

    return of_step(counting, lambda: duoln.value_and_grad(forward)(params) if backward else forward(params))


def _subjects(counting: Counting) -> dict[str, Callable[[], dict[str, float]]]:
    def time_step(backward: bool) -> dict[str, float]:
        return difference(layer(counting, 40, backward), layer(counting, 10, backward), 30)

    return {"MNIST, an update": lambda: training(counting, "mnist"),
            "MNIST, an update, compiled": lambda: training(counting, "mnist", "compiled"),
            "DRAW, a glimpse of an update": lambda: difference(
                training(counting, "draw", glimpses=14), training(counting, "draw", glimpses=10), 4),
            "DRAW, an update of two glimpses, compiled": lambda: training(counting, "draw", "compiled", glimpses=2),
            "LN-LSTM, a time step forward": lambda: time_step(False),
            "LN-LSTM, a time step forward + backward": lambda: time_step(True)}


def count(names: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """Everything that `kernels/predictions.py` needs, or some of it."""
    counting = Counting()
    made = {name: run() for name, run in _subjects(counting).items() if not names or name in names}
    return {name: {kind: round(value, 1) for kind, value in entry.items()} for name, entry in made.items()}


def main() -> int:
    """Count, and print or keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep them in kernels/launch_counts.json")
    args = parser.parse_args()
    made = count()
    for name, entry in made.items():
        print(f"{name}: {', '.join(f'{kind} {value:g}' for kind, value in entry.items())}")
    if args.write:
        about = {"command": "python tests/tools/count_launches.py --write", "counts": made}
        (ROOT / "kernels" / "launch_counts.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
