"""The fused NumPy rules of the recurrent operators: they agree with the composed rule, give the same bits on every run,
and keep as little for the gradient as they promise.
"""

import sys
import threading
import time

import numpy as np
import pytest
from ops.test_rnn import Problem

from duoln import ops
from duoln.kernels import host
from duoln.kernels.recurrent import parts, ragged
from duoln.kernels.recurrent.cases import KEPT
from duoln.testing import check_rule

FUSED = {"rnn": ("none", "layer"), "lstm": ("none", "layer", "layer-cell", "layer-theano"),
         "gru": ("none", "layer", "layer-theano")}
CASES = [(cell, norm) for cell, norms in FUSED.items() for norm in norms]


def _arguments(problem, dtype):
    """The operator's arrays in its order, with the bias and mask that may be missing."""
    arrays = [a.astype(dtype) for a in problem.arrays]
    head, rest = arrays[:3 + problem.n_states], arrays[3 + problem.n_states:]
    bias = rest.pop(0) if problem.has_bias else None
    return [*head, bias, problem.mask, *rest]


def _options(cell):
    return [{"remat": False}, {"remat": True}] if cell == "lstm" else [{}]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
@pytest.mark.parametrize(("cell", "norm"), CASES)
def test_rule(cell, norm, reverse, masked, dtype, rng, numpy_backend):
    op = getattr(ops, cell)
    p = Problem(cell, norm, rng, steps=6, batch=5, n_in=7, hidden=9, masked=masked)
    for more in _options(cell):
        check_rule(op, op.rules("numpy")[0], _arguments(p, dtype),
                   {"norm": norm, "eps": 1e-5, "eps_place": "inside", "reverse": reverse, **more}, numpy_backend,
                   length=2000)


# Sequences of many lengths: the rules skip padding.

LENGTHS = {"falling": [9, 7, 4, 1], "any": [3, 9, 0, 5, 1, 9, 2], "one long": [9] + [1] * 30, "short": [2, 1, 2],
           "none": [0, 0], "many": [1 + 7 * k % 9 for k in range(50)]}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("cell", "norm"), CASES)
def test_padded_sequences(cell, norm, lengths, rng, numpy_backend):
    op = getattr(ops, cell)
    p = Problem(cell, norm, rng, steps=9, batch=len(lengths), n_in=4, hidden=6, masked=True)
    arguments = _arguments(p, "float64")
    arguments[p.n_states + 4] = np.arange(9)[:, None] < np.array(lengths)
    for more in _options(cell):
        check_rule(op, op.rules("numpy")[0], arguments,
                   {"norm": norm, "eps": 1e-5, "eps_place": "inside", "reverse": False, **more}, numpy_backend,
                   length=2000)


@pytest.mark.parametrize("cell", FUSED)
def test_no_gradient_at_the_outputs_of_padded_sequences(cell, rng, numpy_backend):
    """A loss on last states only gives no gradient to the outputs."""
    problem = Problem(cell, "layer", rng, steps=9, batch=7, n_in=4, hidden=6, masked=True)
    arguments = _arguments(problem, "float64")
    arguments[problem.n_states + 4] = np.arange(9)[:, None] < np.array(LENGTHS["any"])
    attrs = {"norm": "layer", "eps": 1e-5, "eps_place": "inside", "reverse": False}
    gout = (None, *(rng.standard_normal((7, 6)) for _ in range(problem.n_states)))
    attrs.update(_options(cell)[0])
    needs = [a is not None and a.dtype.kind == "f" for a in arguments]
    fused, composed = ([g for g in rule.vjp(numpy_backend, rule.forward(numpy_backend, *arguments, **attrs)[1], gout, needs)
                        if g is not None] for rule in getattr(ops, cell).rules("numpy"))
    assert len(fused) >= sum(needs) // 2
    for a, b in zip(fused, composed, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("lengths", [[9] * 20, sorted(range(1, 129), reverse=True), [5], [30] + [2] * 40])
def test_stretches_cover_every_real_step(lengths):
    lengths, covered = np.array(lengths), np.zeros((30 if max(lengths) <= 30 else 128, len(lengths)), bool)
    for steps, rows in ragged.stretches(lengths):
        assert steps.stop > steps.start and not covered[steps].any()
        covered[steps, :rows] = True
    real = np.arange(len(covered))[:, None] < lengths
    assert not (real & ~covered).any() and covered.sum() <= 1.4 * real.sum() + 16 * len(covered)


def _floats(saved, skip):
    """How many floats a rule keeps, without the inputs it was given."""
    total, seen = 0, set()
    stack = list(saved)
    while stack:
        item = stack.pop()
        if isinstance(item, tuple | list):
            stack += item
        elif isinstance(item, np.ndarray) and item.dtype.kind == "f" and id(item) not in seen:
            seen.add(id(item))
            total += 0 if any(a is not None and np.may_share_memory(a, item) for a in skip) else item.size
    return total


@pytest.mark.parametrize(("cell", "norm", "options", "kept"), [
    *((cell, norm, _options(cell)[0], kept) for (cell, norm), kept in KEPT.items()),
    ("lstm", "layer", {"remat": True}, 2), ("lstm", "none", {"remat": True}, 2)])
def test_memory_for_the_gradient(cell, norm, options, kept, rng, numpy_backend):
    steps, batch, hidden = 40, 30, 16
    p = Problem(cell, norm, rng, steps=steps, batch=batch, n_in=3, hidden=hidden)
    arguments = _arguments(p, "float32")
    rule = getattr(ops, cell).rules("numpy")[0]
    _, saved = rule.forward(numpy_backend, *arguments, norm=norm, eps=1e-5, eps_place="inside", reverse=False, **options)
    per_step_and_row = _floats(saved, arguments) / (steps * batch)
    assert per_step_and_row <= kept * hidden + 8  # and a few scale factors, and the weights once


@pytest.mark.parametrize(("cell", "norm"), [("lstm", "batch"), ("lstm", "layer-per-gate"), ("gru", "batch"),
                                            ("rnn", "layer-theano")])
def test_the_remaining_variants_are_left_to_the_composed_rule(cell, norm, rng, numpy_backend):
    p = Problem(cell, norm, rng)
    rule = getattr(ops, cell).rules("numpy")[0]
    arguments = _arguments(p, "float32")
    attrs = {"eps": 1e-5, "reverse": False}
    assert norm in rule.supports(numpy_backend, *arguments, norm=norm, eps_place="inside", **attrs)
    assert "outside" in rule.supports(numpy_backend, *arguments, norm="layer", eps_place="outside", **attrs)


class TestPartsOfTheBatch:
    """A large batch is computed in parts, side by side."""

    @pytest.fixture
    def three_workers(self, monkeypatch):
        monkeypatch.setenv("DUOLN_THREADS", "3")
        for cached in (host.workers, host._pool):
            cached.cache_clear()
        yield
        for cached in (host.workers, host._pool):
            cached.cache_clear()

    @pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
    @pytest.mark.parametrize(("cell", "norm"), CASES)
    def test_equals_the_composed_rule(self, cell, norm, masked, rng, numpy_backend, three_workers, monkeypatch):
        op = getattr(ops, cell)
        p = Problem(cell, norm, rng, steps=3, batch=53, n_in=4, hidden=5, masked=masked)
        monkeypatch.setattr(parts, "FEWEST_VALUES", 0)
        assert len(parts.bounds(3, 53, 5)) == 3
        for more in _options(cell):
            check_rule(op, op.rules("numpy")[0], _arguments(p, "float64"),
                       {"norm": norm, "eps": 1e-5, "eps_place": "inside", "reverse": False, **more}, numpy_backend,
                       length=2000)

    def test_small_batches_and_a_blas_that_cannot_be_limited_stay_whole(self, monkeypatch, three_workers):
        assert len(parts.bounds(10**4, parts.FEWEST_ROWS, 10**3)) == len(parts.bounds(100, 128, 64)) == 1
        assert len(parts.bounds(100, 128, 256)) == 3
        monkeypatch.setattr(host.openblas, "can_limit", lambda: False)
        assert parts.bounds(100, 1000, 256) == [slice(0, 1000)]

    def test_two_callers_at_once_leave_the_settings_as_they_were(self, three_workers):
        """Each brings back the settings that it read: the second must not read those that the first has set."""
        get, interval = host.openblas._function("get_num_threads"), sys.getswitchinterval()
        before, first_is_in = get(), threading.Event()
        first = threading.Thread(target=host.side_by_side, args=([lambda: first_is_in.set() or time.sleep(0.1), int],))
        second = threading.Thread(target=host.side_by_side, args=([lambda: time.sleep(0.3), int],))
        first.start()
        first_is_in.wait()
        second.start()
        for caller in (first, second):
            caller.join()
        assert (get(), sys.getswitchinterval()) == (before, interval)

    def test_errors_and_settings_reach_every_thread(self, three_workers):
        def fail():
            raise ValueError("here")

        interval = sys.getswitchinterval()
        with pytest.raises(ValueError, match="here"):
            host.side_by_side([lambda: 0, fail])
        assert sys.getswitchinterval() == interval
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            host.side_by_side([lambda: 0, lambda: np.full(1, 1e38, np.float32) * np.float32(10)])
