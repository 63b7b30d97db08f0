"""`duoln bench ops`: operators over rows, forward and forward + backward, beside a plain copy and a peer.

A launch is one call as a user makes it: the operator with its checks and, for backward, its tape. On a lazy library
(MLX) each launch of layer_norm takes a row of the last result as its bias, so that it cannot start before the last
launch ends. Cross-entropy and copy have no argument of that size, so a GPU may run their launches at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Backend
from duoln.bench import agreement, clock, operators_torch
from duoln.bench.clock import Chain, SlopeClock, take_turns
from duoln.bench.launch_chains import DuolnChain, cache_for
from duoln.bench.records import make_case
from duoln.bench.subjects import COPY, Shape, Subject
from duoln.core import Tensor
from duoln.errors import UsageError

PEERS = operators_torch.PEERS

_COPY_ROUNDS = 5


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
             for shape in shapes or (subject.small if small else subject.shapes)
             for cache in caches
             for backward in ((False,) if forward_only else (False, True))]
    return list({plan.name: plan for plan in plans}.values())


def measure_copy(backend: Backend, rounds: int = _COPY_ROUNDS) -> dict[str, Any]:
    """Time a plain copy of more than the caches hold; the bandwidths of other cases are given as fractions of its
    bandwidth.
    """
    [shape] = COPY.shapes
    [case] = measure(Plan(COPY, shape, "cold", False), backend, (), rounds, None)
    return case


def measure(plan: Plan, backend: Backend, peers: Sequence[str], rounds: int,
            copy_gbps: float | None, missing: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Check and time one plan; the result is a case for duoln and one for each peer.

    Args:
        plan: what to time.
        backend: where duoln computes.
        peers: names of the peers.
        rounds: how many samples to take of each side.
        copy_gbps: the copy's bandwidth; None for the copy itself, which is its own measure.
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
    rows, width = plan.shape
    moved = plan.subject.bytes_moved(rows, width, plan.backward)
    cases = []
    for side, one in zip(sides, clocks, strict=True):
        taken = one.samples
        speed = copy_gbps or moved / float(np.median(taken.seconds)) / 1e9
        cases.append(make_case(
            op=plan.subject.name, passes=passes(plan.backward), shape=plan.shape, side=side.name,
            samples=taken.seconds, clock_name=clock.NAME, cache=plan.cache, warmups=taken.warmups, copy_gbps=speed,
            moved=moved, flops=plan.subject.flops(rows, width, plan.backward) or None, launches=taken.launches,
            repeated=taken.repeated, **clock.events(taken.device_seconds, taken.no_graph), **side.facts))
    return cases


def _our_side(plan: Plan, backend: Backend, inputs: agreement.Values, ours: agreement.Values) -> Side:
    tensors = {name: Tensor(backend.asarray(a), backend) for name, a in inputs.items()}
    rule = plan.subject.rule(tensors)
    if plan.subject.op is not None and rule != "composed":
        agreement.check_rule(f"{plan.name}, rule '{rule}'", plan.subject, backend, inputs, ours, plan.backward)
    return Side("duoln", DuolnChain(plan.subject, backend, inputs, plan.cache, plan.backward), {
        "rule": rule, "source": plan.subject.source(rule),
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


