"""`duoln bench ops`: operators over rows, forward and forward + backward, beside a plain copy and a peer.

A launch is one call as a user makes it: the operator with its checks and, for backward, its tape. On a lazy library
(MLX) each launch of layer_norm takes a row of the last result as its bias, so that it cannot start before the last
launch ends. Cross-entropy and copy have no argument of that size, so a GPU may run their launches at the same time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from duoln import runtime
from duoln.backends.protocol import Backend
from duoln.bench import agreement, clock, operators_torch
from duoln.bench.clock import Chain, Samples, SlopeClock, take_turns
from duoln.bench.launch_chains import DuolnChain, cache_for
from duoln.bench.records import make_case
from duoln.bench.subjects import COPY, STREAMING, Subject
from duoln.core import Tensor
from duoln.errors import UsageError
from duoln.kernels.device_limits import memory
from duoln.kernels.registry import Shape

PEERS = operators_torch.PEERS

_COPY_ROUNDS = 5
AGAIN_ROUNDS = 3
"""Samples of the copy before each case."""
_PRODUCT = (2048, 1024, 1024)
"""Rows, depth and columns of the large product."""


class Plan(NamedTuple):
    """One thing to time."""

    subject: Subject
    shape: Shape
    cache: str
    backward: bool

    @property
    def name(self) -> str:
        """The plan in words."""
        return f"{self.subject.name} {passes(self.backward)} {self.shape[0]} x {self.shape[1]}, {self.cache}"


class Side(NamedTuple):
    """One side of a case that is ready to be timed."""

    name: str
    chain: Chain
    facts: dict[str, Any]
    """Entries of the case other than times."""


def passes(backward: bool) -> str:
    """The value of `pass` in a record."""
    return "forward+backward" if backward else "forward"


def make_plans(subjects: Sequence[Subject], shapes: Sequence[Shape] | None, small: bool, caches: Sequence[str],
               forward_only: bool) -> list[Plan]:
    """All plans, each of them once.

    Args:
        subjects: the operators; a copy among them is left out, as it is timed in any case.
        shapes: of all of them, or None for each one's own table.
        small: the reduced tables.
        caches: "cold", "warm" or both.
        forward_only: leave out forward + backward.
    """
    plans = [Plan(subject, shape, cache_for(shape, cache == "cold"), backward)
             for subject in subjects if subject.op is not None
             for shape in shapes or (subject.timed.small if small else subject.timed.shapes)
             for cache in caches
             for backward in ((False,) if forward_only else (False, True))]
    return list({plan.name: plan for plan in plans}.values())


class Yardstick:
    """A plain copy of more than the caches hold: the bandwidths of other cases are given as fractions of its bandwidth.

    On a CPU it is a copy of NumPy's arrays, whichever library computes: by our own C++ with streaming stores,
    or by NumPy where nothing is compiled. It is timed again before each case, because the speed of a machine changes.
    """

    def __init__(self, backend: Backend) -> None:
        [shape] = COPY.timed.shapes
        plan = Plan(COPY, shape, "cold", False)
        where = runtime.backend("numpy") if on_cpu(backend) else backend
        inputs = COPY.inputs(shape)
        self._plan, self._side = plan, _our_side(plan, where, inputs, agreement.compute(COPY, where, inputs, False))
        self._clock = SlopeClock(self._side.chain)

    @property
    def rule(self) -> str:
        """The rule by which it copies."""
        return str(self._side.facts["rule"])

    def gbps(self, rounds: int = AGAIN_ROUNDS) -> float:
        """10^9 bytes a second, read and written, from `rounds` samples taken now."""
        take_turns([self._clock], rounds)
        return _moved(self._plan) / statistics.median(self._clock.samples.seconds[-rounds:]) / 1e9

    def case(self) -> dict[str, Any]:
        """The case of all samples so far; it is its own measure."""
        taken = self._clock.samples
        return _case(self._plan, self._side, taken, _moved(self._plan) / statistics.median(taken.seconds) / 1e9)


def on_cpu(backend: Backend) -> bool:
    """True if a backend computes on the CPU: NumPy always, MLX where it has no GPU."""
    return backend.name == "numpy" or not getattr(backend, "on_gpu", True)


def measure_copy(backend: Backend, rounds: int = _COPY_ROUNDS) -> dict[str, Any]:
    """Time the yardstick once."""
    copy = Yardstick(backend)
    copy.gbps(rounds)
    return copy.case()


def _product_gflops(backend: Backend) -> float:
    """10^9 floating-point operations a second of a large product in float32, the best of some runs."""
    rows, depth, columns = _PRODUCT
    x, w = backend.ones((rows, depth)), backend.ones((depth, columns))
    best = float("inf")
    for _ in range(_COPY_ROUNDS):
        started = time.perf_counter()
        backend.to_numpy(backend.matmul(x, w)[:1, :1])  # waits for the device
        best = min(best, time.perf_counter() - started)
    return 2 * rows * depth * columns / best / 1e9


def machine_limits(backend: Backend) -> str:
    """One line for people: the bandwidth of a copy and the speed of a large product just now."""
    copy = measure_copy(backend)
    product = _product_gflops(backend)
    return f"limits of this machine just now: {copy_words(copy['gbps'], copy['rule'], backend)}, a large product " \
           f"{product:.0f} GFLOP/s"


def copy_words(gbps: float, rule: str, backend: Backend) -> str:
    """The bandwidth of a copy, and on a CPU who copies, where it makes a difference."""
    if rule == STREAMING:
        return f"a streaming copy, {gbps:.1f} GB/s"
    if on_cpu(backend):
        return f"NumPy's copy, {gbps:.1f} GB/s (no limit: it reads what it overwrites; nothing is compiled, because " \
               f"{memory.refusal()})"
    return f"a copy, {gbps:.1f} GB/s"


def measure(plan: Plan, backend: Backend, peers: Sequence[str], rounds: int,
            copy_gbps: float, missing: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Check and time one plan; the result is a case for duoln and one for each peer.

    Args:
        plan: what to time.
        backend: where duoln computes.
        peers: names of the peers.
        rounds: how many samples to take of each side.
        copy_gbps: the copy's bandwidth.
        missing: gets the reason for each peer that cannot run, by its name; None if each of them must.

    Raises:
        DuolnError: a rule or a peer computes something else, or the machine is too busy to time anything.
    """
    inputs = plan.subject.inputs(plan.shape)
    ours = agreement.compute(plan.subject, backend, inputs, plan.backward)
    sides = [_our_side(plan, backend, inputs, ours)]
    for peer in peers:
        try:
            sides.append(_peer_side(plan, backend, inputs, ours, peer))
        except Exception as error:  # a compiler of a peer may raise anything
            if missing is None:
                raise
            missing[peer] = f"{type(error).__name__}: {error}"
    clocks = [SlopeClock(side.chain) for side in sides]
    take_turns(clocks, rounds)
    return [_case(plan, side, one.samples, copy_gbps) for side, one in zip(sides, clocks, strict=True)]


def _moved(plan: Plan) -> int:
    return plan.subject.timed.bytes_moved(*plan.shape, plan.backward)


def _case(plan: Plan, side: Side, taken: Samples, copy_gbps: float) -> dict[str, Any]:
    return make_case(
        op=plan.subject.name, passes=passes(plan.backward), shape=plan.shape, side=side.name,
        samples=taken.seconds, clock_name=clock.NAME, cache=plan.cache, warmups=taken.warmups, copy_gbps=copy_gbps,
        moved=_moved(plan), flops=plan.subject.timed.operations(*plan.shape, plan.backward) or None,
        launches=taken.launches, repeated=taken.repeated, **clock.events(taken.device_seconds, taken.no_graph),
        **side.facts)


def _our_side(plan: Plan, backend: Backend, inputs: agreement.Values, ours: agreement.Values) -> Side:
    tensors = {name: Tensor(backend.asarray(a), backend) for name, a in inputs.items()}
    rule = plan.subject.rule(tensors)
    if plan.subject.op is not None and rule != "composed":
        agreement.check_rule(f"{plan.name}, rule '{rule}'", plan.subject, backend, inputs, ours, plan.backward)
    package = {"facts": {"package": plan.subject.package}} if plan.subject.package else {}
    return Side("duoln", DuolnChain(plan.subject, backend, inputs, plan.cache, plan.backward), {
        **package, "rule": rule, "source": plan.subject.source(rule),
        "max_error": agreement.max_error(plan.subject, backend, inputs, ours, plan.backward)})


def _peer_side(plan: Plan, backend: Backend, inputs: agreement.Values, ours: agreement.Values, peer: str) -> Side:
    if peer not in PEERS:
        raise UsageError(f"[bench] expected a peer of {', '.join(PEERS)}; found {peer!r}")
    device = operators_torch.device_for(backend.name)
    theirs = operators_torch.compute(plan.subject, inputs, plan.backward, device, peer)
    agreement.check_agreement(f"{plan.name}, {peer}", theirs, ours, "duoln",
                              agreement.allowed(plan.shape))
    return Side(peer, operators_torch.TorchChain(plan.subject, inputs, plan.cache, plan.backward, device, peer), {
        "max_error": agreement.max_error(plan.subject, backend, inputs, theirs, plan.backward),
        "facts": operators_torch.facts(device)})


