"""What we expect of the CUDA rules on an NVIDIA H100, before they have run on one: plain data.

Each prediction says from what it was computed, and which figure of `duoln bench survey` decides it;
`python -m duoln.kernels.predictions` prints them. The launches of a training step are counted, not estimated:
`python tests/tools/count_launches.py --write` writes `launch_counts.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from duoln.kernels.recurrent.cluster_model import MHZ, PUSHED_BYTES
from duoln.kernels.recurrent.cluster_plan import Device, plan

COPY_GBPS = 3000.0
"""What a plain copy moves on an H100, read and written; times bound by memory are scaled by what the device copies."""
SHEETS = {"H100": {"GB/s": 3350.0, "bf16": 989.0, "tf32": 495.0},
          "H200": {"GB/s": 4800.0, "bf16": 989.0, "tf32": 495.0}}
"""Data sheets: memory, and TFLOP/s of dense products on tensor cores."""

COSTS = {
    "ours": (4.0, "launch of ours", "launches of ours"), "products": (5.0, "product", "products"),
    "library": (8.0, "launch of CuPy's own", "launches of CuPy's own"), "graphs": (10.0, "graph", "graphs"),
    "copies": (3.0, "copy", "copies"), "uploads": (15.0, "upload", "uploads"), "waits": (10.0, "wait", "waits")}
"""What a call of CuPy takes on the host beside our own Python, estimated in us, and the words for one and for several.
An upload is an array from the host; a value that is read is a wait."""
H100 = Device.of(9, 132, 227 << 10)
PRODUCTS_TFLOPS = 40.0
"""What cuBLAS does in float32 with products of a whole sequence."""
NODE_US, PRODUCT_NODE_US = 1.3, 4.0
"""What a launch in a graph, and a small product, take on the device at least."""

Shape = tuple[int, ...]


class Reading(NamedTuple):
    """Where a survey has the figure that decides a prediction."""

    part: str
    """The part of the survey: its record is `PART.json`."""
    figure: str
    """"us": the time of a case, of a layer or a step the host's; "device us": its device's. "gradient us": that
    of forward + backward less that of forward. "ratio": the time of a case over that of `beside`. Otherwise the name of
    a figure, or its beginning."""
    op: str = ""
    passes: str = ""
    shape: Shape = ()
    side: str = "duoln"
    beside: str = ""
    steps: int = 1
    """Time steps over which the time is divided."""


class Prediction(NamedTuple):
    """One prediction."""

    name: str
    what: str
    value: float
    """For an H100; of a `scale` that is a data sheet, the share of its figure."""
    unit: str
    because: str
    """What it was computed from."""
    reading: Reading
    within: float = 1.5
    """It holds if measured and predicted differ by at most this factor."""
    scale: str = ""
    """"copy": a time that is bound by memory. "GB/s", "bf16", "tf32": a share of the data sheet. Empty: as it is."""
    more_is_better: bool = False


class Counts(NamedTuple):
    """What one training step, or one time step of it, asks of CuPy, by the names of COSTS."""

    ours: float
    products: float
    library: float
    graphs: float
    copies: float
    uploads: float
    waits: float
    python_us: float
    """Time of our own Python, measured with kernels that do nothing."""

    @property
    def host_us(self) -> float:
        """The time that the host takes: it is what a step takes, if the device is faster."""
        calls: list[float] = [us * getattr(self, name) for name, (us, _, _) in COSTS.items()]
        return self.python_us + sum(calls)

    def __str__(self) -> str:
        asked = [f"{n:g} {one if n == 1 else several}"
                 for name, (_, one, several) in COSTS.items() if (n := getattr(self, name))]
        return ", ".join([*asked, f"{self.python_us:.0f} us of Python"])


COUNTS_FILE = Path(__file__).with_name("launch_counts.json")


def counts() -> dict[str, Counts]:
    """The counted steps, by name."""
    content: dict[str, Any] = json.loads(COUNTS_FILE.read_text(encoding="utf-8"))
    return {name: Counts(**entry) for name, entry in content["counts"].items()}


def predictions() -> list[Prediction]:
    """Every prediction, in the order of the survey's parts."""
    return [*_correctness(), *_device(), *_operators(), *_cells(), *_steps()]


def _correctness() -> list[Prediction]:
    return [
        Prediction("compilation", "compiling every setting, processor time", 300, "s",
                   "583 settings, 200 s of NVRTC on one core of an AMD EPYC, and 16 processes that start",
                   Reading("selftest", "processor seconds")),
        Prediction("failures", "cases that fail", 0, "cases", "all pass in the emulation",
                   Reading("selftest", "failures"), 1.0)]


def _limit(name: str, what: str, value: float, unit: str, because: str, figure: str, within: float = 1.5,
           scale: str = "") -> Prediction:
    """A prediction of the device itself."""
    return Prediction(name, what, value, unit, because, Reading("device", figure), within, scale, unit != "us")


def _device() -> list[Prediction]:
    return [
        _limit("copy", "a plain copy, read + written", 0.9, "GB/s", "3.0 of 3.35 TB/s, published", "copy GB/s", 1.1,
               "GB/s"),
        _limit("launch", "a launch of our kernel from Python", 6, "us",
               f"{COSTS['ours'][0]:g} us of CuPy, and our checks of one argument", "launch of our kernel"),
        _limit("graph", "the same in a graph", 1.3, "us", "published for an H100", "the same in a graph"),
        _limit("product", "a product 64 x 256 x 1024 from Python", 12, "us", "bound by the host",
               "product 64 x 256 x 1024"),
        _limit("counter", "128 blocks exchange a value by a counter", 0.8, "us",
               "one atomic and one read in L2", "exchange of 128 blocks by a counter"),
        _limit("flags", "the same by flags", 0.55, "us",
               "one write and one read in L2; above 1.2 us a kernel that stays for many steps is not worth writing",
               "exchange of 128 blocks by flags"),
        _limit("cluster", "a cluster of 8 blocks exchanges a value", 0.27, "us",
               "180 cycles there; above 0.5 us a kernel that stays is not worth writing", "exchange in a cluster"),
        _limit("push", "a cluster of 8 blocks pushes values and waits for them", 0.3, "us",
               "the 420 cycles of the model of walks, a barrier of the block, and a load",
               "push and wait in a cluster"),
        _limit("push-width", "a block pushes 1 KB to each of 16 blocks, 4 bytes at a time",
               float(f"{PUSHED_BYTES * MHZ / 1e3:.2g}"), "GB/s", "what the model of walks takes, published of loads",
               "pushed to 16 blocks by 4 bytes", 1.3),
        _limit("gather-cluster", "a block gathers 16 KB of seven others in a cluster", 22, "GB/s",
               "2.65 TB/s of the whole device, published", "gathered in a cluster", 1.3),
        _limit("gather-l2", "the same from L2", 42, "GB/s", "5.5 TB/s of the whole device, published",
               "gathered from L2", 1.3),
        _limit("bf16", "tensor cores from registers, bf16", 0.6, "TFLOP/s",
               "mma.sync reaches 0.6 of the data sheet, published", "tensor cores bf16", 1.2, "bf16"),
        _limit("tf32", "the same, TF32", 0.6, "TFLOP/s", "the same", "tensor cores tf32", 1.2, "tf32")]


def _operators() -> list[Prediction]:
    both = Reading("ops", "ratio", "layer_norm", "forward+backward", (4096, 4096))
    return [
        *_layer_norm(4096, 52, 98, ""),
        *_layer_norm(8192, 102, 220, "; 249 registers leave one block a multiprocessor"),
        Prediction("ln-torch", "layer norm forward + backward, 4096 x 4096, over PyTorch's", 0.62, "times",
                   "150 us to 242 published", both._replace(beside="torch"), 1.3),
        Prediction("ln-liger", "the same over Liger's", 0.55, "times", "150 us to 275 published",
                   both._replace(beside="liger"), 1.4),
        *_norm("rms", "rms_norm", "RMS norm", 4096, (52, "x is read and y written once", 2),
               (90, "x and dy are read and dx written once; 117 registers leave two blocks a multiprocessor, layer "
                "norm's 141 leave one", 3)),
        *_norm("sum", "add_layer_norm", "layer norm of a sum", 4096,
               (104, "x and residual are read, the sum and y written once", 4),
               (131, "the sum and both gradients are read and one is written once", 4)),
        _cross_entropy("forward", 1, 62, "logits are read once"),
        _cross_entropy("forward+backward", 3, 190, "logits are read twice and a gradient is written once")]


def _layer_norm(width: int, forward: float, gradient: float, besides: str) -> list[Prediction]:
    return _norm("ln", "layer_norm", "layer norm", width, (forward, "x is read and y written once", 2),
                 (gradient, f"x and dy are read and dx written once{besides}", 3))


def _norm(key: str, op: str, name: str, width: int, forward: tuple[float, str, int],
          gradient: tuple[float, str, int]) -> list[Prediction]:
    """Of both passes the microseconds, why, and how many arrays are read or written."""
    shape, size = (4096, width), 4 * 4096 * width
    (us, because, arrays), (gradient_us, because_gradient, gradient_arrays) = forward, gradient
    return [
        Prediction(f"{key}-{width}", f"{name} forward, 4096 x {width}", us, "us",
                   f"{_share(arrays * size, us)}: {because}", Reading("ops", "us", op, "forward", shape), 1.2, "copy"),
        Prediction(f"{key}-gradient-{width}", f"its gradient, 4096 x {width}", gradient_us, "us",
                   f"{_share(gradient_arrays * size, gradient_us)}: {because_gradient}",
                   Reading("ops", "gradient us", op, "", shape), 1.3, "copy")]


def _cross_entropy(passes: str, times: int, microseconds: float, because: str) -> Prediction:
    shape = (4096, 10_000)
    return Prediction(f"ce-{passes}", f"cross-entropy {passes.replace('+', ' + ')}, 4096 x 10,000", microseconds, "us",
                      f"{_share(times * 4 * shape[0] * shape[1], microseconds)}: {because}",
                      Reading("ops", "us", "softmax_cross_entropy", passes, shape), 1.3, "copy")


def _share(size: float, microseconds: float) -> str:
    """Bytes, and the share of a copy's speed that a time means for them."""
    return f"{size / 1e6:.0f} MB at {size / microseconds / 1e3 / COPY_GBPS:.0%} of a copy"


def _cells() -> list[Prediction]:
    forward, both = counts()["LN-LSTM, a time step forward"], counts()["LN-LSTM, a time step forward + backward"]
    small, middle, large = (100, 8, 400, 400), (100, 64, 256, 256), (30, 64, 620, 1024)
    kernels, outside = 25 + 28, 30
    beside, walk = Reading("rnn", "ratio", "lstm layer", "forward+backward", small), _walk_us(small, backward=True)
    return [
        *(_lstm(name, shape, passes, _walk_us(shape, backward=passes != "forward"),
                "the model of walks, and the products outside them")
          for name, shape, passes in (("walk-forward", small, "forward"), ("walk", small, "forward+backward"),
                                      ("walk-middle", middle, "forward+backward"))),
        _by_steps("lstm-forward", small, "forward", max(forward.host_us, 9),
                  f"the device needs 9 us, the host {forward}"),
        _by_steps("lstm", small, "forward+backward", max(both.host_us, 22),
                  f"the device needs 9 + 13 us, the host {both}"),
        _by_steps("lstm-middle", middle, "forward+backward", max(both.host_us, 22), "the same"),
        _lstm("lstm-large", large, "forward+backward", kernels + outside,
              f"too large for a walk; the device needs {kernels} us, and {outside} us of products outside the time "
              "loop"),
        Prediction("lstm-torch", f"LN-LSTM forward + backward, {small}, over PyTorch's loop", round(walk / 470, 3),
                   "times", "470 us a time step of the loop, all launches", beside._replace(beside="torch loop"), 2.0),
        Prediction("lstm-cudnn", "the same over cuDNN's plain LSTM", round(walk / 26, 2), "times",
                   "10 + 16 us a time step of cuDNN in float32", beside._replace(beside="torch.nn.LSTM, no norm"), 2.0)]


def _walk_us(shape: Shape, backward: bool) -> float:
    """A time step of an LN-LSTM's walk, with its share of the products outside."""
    _, batch, n_in, hidden = shape
    walks = [plan("lstm", "layer", direction, hidden, batch, H100) for direction in ("forward", "backward")]
    products = 8 * batch * n_in * hidden / PRODUCTS_TFLOPS / 1e6
    return sum(p.cycles / MHZ for p in walks[:1 + backward] if p) + products * (4 if backward else 1)


def _lstm(name: str, shape: Shape, passes: str, microseconds: float, because: str) -> Prediction:
    return Prediction(name, f"LN-LSTM {passes.replace('+', ' + ')}, {shape}, a time step", float(f"{microseconds:.2g}"),
                      "us", because, Reading("rnn", "device us", "lstm layer", passes, shape, steps=shape[0]))


def _by_steps(name: str, shape: Shape, passes: str, microseconds: float, because: str) -> Prediction:
    walk = _lstm(name, shape, passes, microseconds, because)
    return walk._replace(what=f"the same by steps, {passes.replace('+', ' + ')}, {shape}",
                         reading=walk.reading._replace(figure="us", side="duoln, by steps"))


def _steps() -> list[Prediction]:
    mnist, glimpse = counts()["MNIST, an update"], counts()["DRAW, a glimpse of an update"]
    graph = counts()["MNIST, an update, compiled"]
    time_steps, time_step, glimpses = 2 * (122 + 4), _walk_us((126, 64, 240, 240), backward=True), 64
    return [
        _step("mnist", "MNIST `ln`, an update, eager", mnist.host_us, f"the device needs 220 us, the host {mnist}",
              "mnist ln", 128),
        _step("mnist-graph", "the same as a graph", max(220, graph.host_us), f"the device as before, the host {graph}",
              "mnist ln", 128, "duoln, compiled"),
        _step("reader", "attentive reader `ln`, an update, eager", time_steps * time_step + mnist.host_us,
              f"the device: {time_steps} time steps of walks, {time_step:.1f} us each; the host as much as for MNIST",
              "attentive_reader ln", 64),
        _step("draw", "DRAW `ln`, an update, eager", glimpses * glimpse.host_us + mnist.host_us,
              f"the host: {glimpses} glimpses, each {glimpse}", "draw ln", 128),
        _step("draw-graph", "the same as a graph",
              glimpses * (NODE_US * (glimpse.ours + glimpse.library) + PRODUCT_NODE_US * glimpse.products),
              f"the device: {PRODUCT_NODE_US:g} us for a product and {NODE_US:g} us for another launch", "draw ln", 128,
              "duoln, compiled")]


def _step(name: str, what: str, microseconds: float, because: str, op: str, batch: int, side: str = "duoln, eager",
          ) -> Prediction:
    return Prediction(name, what, float(f"{microseconds:.2g}"), "us", because,
                      Reading("steps", "us", op, "step", (batch,), side))


def table() -> str:
    """The predictions as a table."""
    lines = ["| what | predicted for an H100 | holds within | from |", "| --- | --- | --- | --- |"]
    for p in predictions():
        of_sheet = " of the data sheet's" if p.scale in ("GB/s", "bf16", "tf32") else ""
        scaled = ", by the device's copy" if p.scale == "copy" else ""
        lines.append(f"| {p.what} | {p.value:g}{of_sheet} {p.unit}{scaled} | {p.within:g} | {p.because} |")
    costs = ", ".join(f"{one} {us:g}" for us, one, _ in COSTS.values())
    lines += ["", f"CuPy's own time on the host, estimated in us: {costs}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
