"""Every rule of the recurrent operators on the CPU, compiled and plain: they agree with the composed rule, with any mask, at every width and
number of rows about a walk's blocks, give the same bits for any number of threads, and keep as little for the gradient as they promise.
"""

import itertools

import numpy as np
import pytest
from conftest import every_second, get_backend
from ops.test_rnn import Problem

import duoln
from duoln import ops
from duoln.core import composed_only
from duoln.errors import ShapeError
from duoln.kernels import host, native
from duoln.kernels.linear.multiply import MOST_ROWS
from duoln.kernels.recurrent import positions
from duoln.kernels.recurrent.cells import COMPILED_WALKS, FUSED
from duoln.kernels.recurrent.positions import FEW_INPUTS
from duoln.ops.recurrent.variants import CELLS
from duoln.testing import check_error, check_op, check_rule
from duoln.testing.closeness import check_close, tolerance

COMPILED, PLAIN = "compiled walk", "fused steps"
NEEDS_COMPILER = pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled here")


def _rules(variants, before_the_walk=("lstm", "layer")):
    """The fused rules of variants: (name, cell, norm)."""
    return [*(pytest.param(COMPILED, *variant, marks=NEEDS_COMPILER) for variant in variants),
            pytest.param(COMPILED, *before_the_walk, marks=[NEEDS_COMPILER, pytest.mark.inputs_before_the_walk],
                         id=f"{COMPILED}-lstm-layer, inputs before the walk"),
            *((PLAIN, *variant) for variant in variants if variant in FUSED)]


RULES = _rules(COMPILED_WALKS)
"""All, and once more the LSTM of `layer`, with the product of few inputs made before its walk."""
ROW_RULES = _rules([variant for variant in COMPILED_WALKS if variant[1] != "batch"])
"""Those whose rows do not know of each other."""
WALKS = [pytest.param(*rule.values[1:], marks=rule.marks, id=rule.id and rule.id.removeprefix(f"{COMPILED}-"))
         for rule in RULES if not isinstance(rule, tuple)]
"""The compiled ones: (cell, norm)."""


def arguments_of(problem, dtype):
    """The operator's arrays in its order, with the bias and mask that may be missing."""
    arrays = [a.astype(dtype) for a in problem.arrays]
    head, rest = arrays[:3 + problem.n_states], arrays[3 + problem.n_states:]
    bias = rest.pop(0) if problem.has_bias else None
    return [*head, bias, problem.mask, *rest]


def make_arguments(cell, norm, rng, sizes, dtype, mask=None):
    """The same from sizes (time steps, rows, inputs, hidden units)."""
    steps, batch, n_in, hidden = sizes
    problem = Problem(cell, norm, rng, steps=steps, batch=batch, n_in=n_in, hidden=hidden)
    problem.mask = mask
    return arguments_of(problem, dtype)


def attributes(norm, reverse=False, eps=1e-5, gradient_limit=None):
    """The attributes of an operator."""
    return {"norm": norm, "eps": eps, "reverse": reverse, "gradient_limit": gradient_limit}


def rule_of(cell, name):
    """A rule by its name, "composed" too."""
    return next(rule for rule in getattr(ops, cell).rules("numpy") if rule.name == name)


def enough_rows(norm, sizes):
    """Sizes with so many rows that statistics over them are well-conditioned, where there are such."""
    steps, rows, *rest = sizes
    return (steps, max(rows, 6) if norm == "batch" else rows, *rest)


def results(rule, backend, arguments, attrs, gouts):
    """The outputs and the gradients of all float arrays."""
    outs, saved = rule.forward(backend, *arguments, **attrs)
    needs = [a is not None and a.dtype.kind == "f" for a in arguments]
    gradients = rule.vjp(backend, saved, tuple(gouts), needs)
    return [*outs, *(d for d, need in zip(gradients, needs, strict=True) if need)]


def gouts_of(cell, sizes, rng, dtype):
    """Gradients of all outputs of an operator."""
    steps, batch, _, hidden = sizes
    count = 2 if cell == "lstm" else 1
    shapes = [(steps, batch, hidden), *[(batch, hidden)] * count]
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def wide(arrays):
    """The same values in float64."""
    return [a.astype(np.float64) if a is not None and a.dtype.kind == "f" else a for a in arrays]


BOTH, DTYPES = (False, True), ("float32", "float64")
NAMES = [pytest.param(COMPILED, marks=NEEDS_COMPILER), PLAIN]
FUSED_LSTM, STEP = [norm for cell, norm in FUSED if cell == "lstm"], "compiled time step"
SIZES = {"": (6, 5, 7, 9), "one row": (4, 1, 3, 5), "one unit": (4, 3, 2, 1), "one time step": (1, 3, 2, 4)}


def _check(name, cell, arguments, attrs, backend):
    check_rule(getattr(ops, cell), rule_of(cell, name), arguments, backend, attrs, length=2000)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("name", "cell", "norm"), RULES)
def test_rule(name, cell, norm, sizes, rng, numpy_backend):
    sizes = enough_rows(norm, sizes)
    eps = 1e-5 if sizes[3] > 2 else 1.0  # a norm turns two values into +1 and -1: a small eps leaves no gradient
    for masked, reverse, dtype in every_second(BOTH, BOTH, DTYPES):
        mask = rng.random(sizes[:2]) < 0.7 if masked else None
        _check(name, cell, make_arguments(cell, norm, rng, sizes, dtype, mask),
               attributes(norm, reverse, eps=eps), numpy_backend)


@pytest.mark.parametrize(("cell", "norm"), WALKS)
@NEEDS_COMPILER
def test_one_time_step_of_few_rows_or_more(cell, norm, rng, numpy_backend):
    """With few rows the weights are read unpacked; a unit that fills its vectors, or not; few inputs, and more."""
    for (rows, inputs, hidden), reverse, dtype in every_second(
            ((1, 20, 16), (MOST_ROWS, 2, 5), (3, 20, 21), (MOST_ROWS + 1, 20, 16)), BOTH, DTYPES):
        arguments = make_arguments(cell, norm, rng, enough_rows(norm, (1, rows, inputs, hidden)), dtype)
        attrs = attributes(norm, reverse)
        _check(COMPILED, cell, arguments, attrs, numpy_backend)
        _, saved = rule_of(cell, COMPILED).forward(numpy_backend, *arguments, **attrs)
        w_x = arguments[3 if cell == "lstm" else 2]
        assert np.shares_memory(saved.walked.w_x, w_x) == (rows <= MOST_ROWS) or (
            norm in ("none", "layer-cell", "recurrent-bias", "batch") or (cell, norm) == ("gru", "layer-per-gate"))


@pytest.mark.few
@pytest.mark.parametrize(("name", "cell", "norm"), RULES)
def test_bounded_gradients_between_time_steps(name, cell, norm, rng, numpy_backend):
    for limit, sizes, masked, dtype in every_second((0.02, 0.3), ((6, 5, 7, 9), (3, 20, 2, 17)), BOTH, DTYPES):
        mask = rng.random(sizes[:2]) < 0.7 if masked else None
        _check(name, cell, make_arguments(cell, norm, rng, sizes, dtype, mask),
               attributes(norm, masked, gradient_limit=limit), numpy_backend)


# Masks -----------------------------------------------------------------------------------------------------

LENGTHS = {"falling": [9, 7, 4, 1], "any": [3, 9, 0, 5, 1, 9, 2], "one long": [9] + [1] * 30, "short": [2, 1, 2],
           "none": [0, 0], "many": [1 + 7 * k % 9 for k in range(50)]}


def _padding(name):
    return np.arange(9)[:, None] < np.array(LENGTHS[name])


@pytest.mark.few
@pytest.mark.parametrize(("name", "cell", "norm"), RULES)
def test_padded_sequences(name, cell, norm, rng, numpy_backend):
    for lengths, reverse in itertools.product(LENGTHS, BOTH):
        arguments = make_arguments(cell, norm, rng, (9, len(LENGTHS[lengths]), 4, 6), "float64", _padding(lengths))
        _check(name, cell, arguments, attributes(norm, reverse), numpy_backend)


@pytest.mark.parametrize(("name", "cell", "norm"), [*ROW_RULES, *(("composed", *variant) for variant in FUSED)])
def test_a_rule_takes_out_padding_itself(name, cell, norm, rng, numpy_backend):
    mask, gouts = _padding("any"), gouts_of(cell, (9, 7, 4, 6), rng, "float32")
    clean = make_arguments(cell, norm, rng, (9, 7, 4, 6), "float32", mask)
    hostile = [np.where(mask[..., None], clean[0], np.float32(np.nan)), *clean[1:]]
    of_both = (results(rule_of(cell, name), numpy_backend, arguments, attributes(norm), gouts) for arguments in (hostile, clean))
    for a, b in zip(*of_both, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "cell", "norm"), ROW_RULES)
def test_rows_and_time_steps_that_are_all_masked(name, cell, norm, rng, numpy_backend):
    mask = rng.random((7, 5)) < 0.6
    mask[:, 2] = mask[3] = False
    arguments = make_arguments(cell, norm, rng, (7, 5, 4, 6), "float64", mask)
    attrs, gouts = attributes(norm), gouts_of(cell, (7, 5, 4, 6), rng, "float64")
    _check(name, cell, arguments, attrs, numpy_backend)
    count = len(gouts) - 1
    hidden, *rest = results(rule_of(cell, name), numpy_backend, arguments, attrs, gouts)
    last, d_x, d_first = rest[:count], rest[count], rest[count + 1:2 * count + 1]
    for first, state in zip(arguments[1:], last, strict=False):
        np.testing.assert_array_equal(state[2], first[2])
    np.testing.assert_array_equal(hidden[:, 2], np.tile(arguments[1][2], (7, 1)))
    assert not d_x[~mask].any() and d_x[mask].all()
    np.testing.assert_allclose(d_first[0][2], gouts[1][2] + gouts[0][:, 2].sum(axis=0), rtol=1e-12)
    for d, gout in zip(d_first[1:], gouts[2:], strict=True):
        np.testing.assert_array_equal(d[2], gout[2])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_at_some_outputs(name, cell, rng, numpy_backend):
    """A loss on last states only gives no gradient to the outputs, and one on outputs none to the last states."""
    sizes = (9, 7, 4, 6)
    arguments = make_arguments(cell, "layer", rng, sizes, "float64", _padding("any"))
    d_hidden, *d_last = gouts_of(cell, sizes, rng, "float64")
    for gouts in ((None, *d_last), (d_hidden, *[None] * len(d_last))):
        fused, composed = (results(rule_of(cell, which), numpy_backend, arguments, attributes("layer"), gouts)
                           for which in (name, "composed"))
        for a, b in zip(fused, composed, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


# What a rule keeps and which variants it has ---------------------------------------------------------------

def _floats(saved, skip):
    """How many floats a rule keeps, without the inputs it was given."""
    total, seen = 0, set()
    stack = list(saved)
    while stack:
        item = stack.pop()
        if isinstance(item, tuple | list):
            stack += item
        elif isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, np.ndarray) and item.dtype.kind == "f" and id(item) not in seen:
            seen.add(id(item))
            total += 0 if any(a is not None and np.may_share_memory(a, item) for a in skip) else item.size
    return total


@NEEDS_COMPILER
@pytest.mark.parametrize(("cell", "norm", "n_in", "kept"), [
    *((cell, norm, 20, row.kept) for (cell, norm), row in COMPILED_WALKS.items()),
    ("lstm", "layer", FEW_INPUTS, 6)])
def test_memory_of_the_compiled_rules_for_the_gradient(cell, norm, n_in, kept, rng, numpy_backend):
    steps, batch, hidden = 40, 30, 16
    arguments = arguments_of(Problem(cell, norm, rng, steps=steps, batch=batch, n_in=n_in, hidden=hidden), "float32")
    _, saved = rule_of(cell, COMPILED).forward(numpy_backend, *arguments, **attributes(norm))
    per_step_and_row = _floats(saved, arguments) / (steps * batch)
    of_batch = 18 * hidden / batch if norm == "batch" else 0  # for each time step: the mean and rstd of each column
    assert kept * hidden <= per_step_and_row <= kept * hidden + 8 + of_batch  # and numbers of norms, and the weights once


@pytest.mark.parametrize(("name", "cell", "norm"), [
    (PLAIN, *variant) for variant in COMPILED_WALKS if variant not in FUSED])
def test_the_remaining_variants_are_left_to_the_composed_rule(name, cell, norm, rng, numpy_backend):
    rule, arguments = rule_of(cell, name), arguments_of(Problem(cell, norm, rng), "float32")
    assert norm in rule.supports(numpy_backend, *arguments, **attributes(norm))


@NEEDS_COMPILER
@pytest.mark.parametrize("cell", CELLS)
def test_statistics_of_one_row_are_left_to_the_composed_rule_which_refuses_them(cell, rng, numpy_backend):
    problem = Problem(cell, "batch", rng, batch=1)
    refusal = rule_of(cell, COMPILED).supports(numpy_backend, *arguments_of(problem, "float32"), **attributes("batch"))
    assert "one row" in refusal
    check_error(ShapeError, lambda: problem.op(*(duoln.tensor(a, numpy_backend) for a in problem.arrays)), "at least 2 rows")


@pytest.mark.parametrize("hidden", [15, 16, 33])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_an_infinite_gradient_that_is_limited_stays_finite(cell, hidden, rng, numpy_backend):
    """What fills up the last panel of units would make NaN of it at the next time step."""
    gates, weights = CELLS[cell].gates, np.ones((3, 2, hidden), np.float32)
    weights[2, 1, 0] = np.inf
    x, h, w_x, w_h, bias = (duoln.tensor((0.5 * rng.standard_normal(shape)).astype(np.float32), numpy_backend) for shape in (
        (3, 2, 4), (2, hidden), (4, gates * hidden), (hidden, gates * hidden), (gates * hidden,)))
    states = (h, h) if cell == "lstm" else (h,)

    def loss(x):
        return ops.sum(getattr(ops, cell)(x, *states, w_x, w_h, bias, gradient_limit=0.5)[0] * duoln.tensor(weights, numpy_backend))

    with np.errstate(invalid="ignore"):
        gradient = duoln.value_and_grad(loss)(x)[1].numpy()
        with composed_only():
            expected = duoln.value_and_grad(loss)(x)[1].numpy()
    assert np.isfinite(expected[:2]).all() or cell != "rnn"  # in other cells infinity times a slope of 0 is NaN
    np.testing.assert_allclose(gradient[:2], expected[:2], rtol=1e-4, atol=1e-6)


@NEEDS_COMPILER
@pytest.mark.parametrize("norm", FUSED_LSTM)
def test_one_time_step_of_many_rows_packs_no_weight_of_its_own(norm, rng, numpy_backend):
    for (rows, inputs, hidden), reverse, dtype in every_second(
            ((MOST_ROWS + 1, 20, 16), (33, 3, 21), (70, 130, 1)), BOTH, DTYPES):
        arguments = make_arguments("lstm", norm, rng, (1, rows, inputs, hidden), dtype)
        attrs = attributes(norm, reverse)
        assert ops.lstm.select(numpy_backend, arguments, attrs).name == "compiled step"
        _check("compiled step", "lstm", arguments, attrs, numpy_backend)
    for case in ({"gradient_limit": 0.5}, {"mask": np.arange(rows)[None] > 2}, {"rows": MOST_ROWS}):
        arguments = make_arguments("lstm", norm, rng, (1, case.get("rows", rows), 3, 4), "float32", case.get("mask"))
        attrs = attributes(norm, gradient_limit=case.get("gradient_limit"))
        assert ops.lstm.select(numpy_backend, arguments, attrs).name == (STEP if "rows" in case else COMPILED)


@NEEDS_COMPILER
@pytest.mark.parametrize(("cell", "norm"), WALKS)
def test_a_time_step_outside_of_a_gradient_has_the_bits_of_the_walk(cell, norm, rng, numpy_backend):
    for (rows, inputs, hidden), dtype in every_second(((1, 20, 16), (MOST_ROWS, 9, 5), (3, 20, 40)), DTYPES):
        sizes = enough_rows(norm, (1, rows, inputs, hidden))
        arguments, attrs = make_arguments(cell, norm, rng, sizes, dtype), attributes(norm)
        assert getattr(ops, cell).select(numpy_backend, arguments, attrs).name == STEP
        for given in (arguments, [np.asfortranarray(a) if a is not None and a.ndim == 2 else a for a in arguments]):
            gouts = gouts_of(cell, sizes, rng, dtype)
            by_step, by_walk = (results(rule_of(cell, name), numpy_backend, given, attrs, gouts) for name in (STEP, COMPILED))
            assert all(np.array_equal(a, b) for a, b in zip(by_step, by_walk, strict=True))


@NEEDS_COMPILER
@pytest.mark.parametrize("sizes", [(5, 3, 20, 9), (4, 20, 17, 32), (1, 3, 12, 5), (1, 12, 12, 5)], ids=str)
@pytest.mark.parametrize(("cell", "norm"), WALKS)
def test_weights_that_lie_transposed(cell, norm, sizes, rng, numpy_backend):
    """As PyTorch's do; their gradients lie alike."""
    sizes = enough_rows(norm, sizes)
    arguments, attrs = make_arguments(cell, norm, rng, sizes, "float64"), attributes(norm)
    places = [len(CELLS[cell].states) + 1, len(CELLS[cell].states) + 2]
    turned = [np.asfortranarray(a) if k in places else a for k, a in enumerate(arguments)]
    names = [COMPILED, "compiled step"] if cell == "lstm" and norm in FUSED_LSTM and sizes[:2] == (1, 12) else [COMPILED]
    gouts = gouts_of(cell, sizes, rng, "float64")
    for rule in (rule_of(cell, name) for name in names):
        expected, actual = (results(rule, numpy_backend, each, attrs, gouts) for each in (arguments, turned))
        for a, b in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)
        d_w_h = actual[len(CELLS[cell].states) + 1 + places[1]]
        assert d_w_h.shape == arguments[places[1]].shape and d_w_h.flags.f_contiguous


# On MLX -----------------------------------------------------------------------------------------------

@pytest.mark.long
@pytest.mark.usefixtures("differences_taken")
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_compiled_steps_of_mlx(cell, monkeypatch, rng):
    be = get_backend("mlx")
    monkeypatch.setattr(be, "on_gpu", True)  # compile, as on a GPU
    p = Problem(cell, "layer", rng, masked=True)
    check_op(p.op, p.arrays, p.reference, be, length=400)


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_one_rule_of_mlx_for_all_variants(cell):
    be, rules = get_backend("mlx"), getattr(ops, cell).rules("mlx")
    x, h = be.zeros((2, 3, 4)), be.zeros((3, 5))
    rule = next(r for r in rules if r.name == "steps without products")
    assert {rule.supports(be, x, h, norm=norm) for norm in ("none", "layer", "batch")} == {None}
    assert "no values" in rule.supports(be, x[:0], h, norm="layer")
    assert cell == "rnn" or "no Metal device" in rules[0].supports(be, x, h, norm="layer")


WIDTHS = [(3, 3, 2, hidden) for hidden in range(1, 68)]
"""Time steps, rows, inputs, hidden units: every width through four panels of 16."""
BATCHES = [(3, batch, 2, hidden) for batch in range(1, 34) for hidden in (5, 17)]
EPS = 0.1
"""Large, because a norm over few values with a small one multiplies rounding errors."""


@pytest.mark.few
@pytest.mark.parametrize("sizes", [WIDTHS, BATCHES], ids=["widths", "rows"])
@pytest.mark.parametrize(("name", "cell", "norm"), RULES)
def test_every_size_equals_the_composed_rule_in_float64(name, cell, norm, sizes, rng, numpy_backend):
    for given_size in sizes[::5] if name == PLAIN else sizes:  # the plain rule has no blocks
        size = enough_rows(norm, given_size)
        mask = None if sum(size) % 2 else rng.random(size[:2]) < 0.8
        arguments = make_arguments(cell, norm, rng, size, "float32", mask)
        gouts = gouts_of(cell, size, rng, "float32")
        attrs = attributes(norm, reverse=size[3] % 3 == 0, eps=EPS)
        expected = results(rule_of(cell, "composed"), numpy_backend, wide(arguments), attrs, wide(gouts))
        for dtype, given, d_given in (("float32", arguments, gouts), ("float64", wide(arguments), wide(gouts))):
            computed = results(rule_of(cell, name), numpy_backend, given, attrs, d_given)
            for k, (a, b) in enumerate(zip(computed, expected, strict=True)):
                assert a.dtype == dtype
                check_close(a, b, 8 * tolerance(dtype, 2000), f"{name} {dtype} {size} result {k}")


# Threads ---------------------------------------------------------------------------------------------------

SHARED = {"by units": (3, 12, 5, 300), "by rows": (3, 67, 5, 130)}
"""Sizes at which threads share the units of all rows, or the rows."""


def _bytes_with(monkeypatch, threads, cell, size, run):
    """The bytes of a run with so many threads, which the rule really asks for."""
    monkeypatch.setattr(host, "workers", lambda: threads)
    weights = np.empty((size[3], CELLS[cell].gates * size[3]), np.float32)
    asked, by_units = positions.threads(positions.Positions.of(*size[:2], None, False), weights)
    assert (asked, bool(by_units)) == (threads, size == SHARED["by units"] or weights.nbytes >= positions.WEIGHTS_READ_ONCE)
    return [a.tobytes() for a in run()]


def _runner(cell, norm, size, rng, backend):
    mask = rng.random(size[:2]) < 0.8
    arguments = make_arguments(cell, norm, rng, size, "float32", mask)
    gouts = gouts_of(cell, size, rng, "float32")
    return lambda: results(rule_of(cell, COMPILED), backend, arguments, attributes(norm), gouts)


@NEEDS_COMPILER
@pytest.mark.parametrize("size", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize(("cell", "norm"), WALKS)
def test_the_same_bits_for_any_number_of_threads(cell, norm, size, rng, numpy_backend, monkeypatch):
    run = _runner(cell, norm, size, rng, numpy_backend)
    one, *more = (_bytes_with(monkeypatch, threads, cell, size, run) for threads in (1, 2, 3, 8))
    assert all(several == one for several in more)


@NEEDS_COMPILER
@pytest.mark.parametrize(("cell", "norm"), WALKS)
def test_the_same_bits_by_rows_and_by_units(cell, norm, rng, numpy_backend, monkeypatch):
    """Many rows are shared by units, too, where the weights are large."""
    size = SHARED["by rows"]
    run = _runner(cell, norm, size, rng, numpy_backend)
    by_rows = _bytes_with(monkeypatch, 2, cell, size, run)
    monkeypatch.setattr(positions, "WEIGHTS_READ_ONCE", 1)
    assert all(_bytes_with(monkeypatch, threads, cell, size, run) == by_rows for threads in (1, 2, 3))


# Rows that do not know of each other -----------------------------------------------------------------------

@pytest.mark.few
@NEEDS_COMPILER
@pytest.mark.parametrize("n_in", [positions.FEW_INPUTS, 20])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cell", CELLS)
def test_rows_of_a_sequence_that_the_caches_do_not_hold(cell, dtype, n_in, threads, rng, numpy_backend):
    """They have the bits that they have among few rows."""
    size, few = (17, 72, n_in, 450), 32
    arguments, gouts = make_arguments(cell, "layer", rng, size, dtype), gouts_of(cell, size, rng, dtype)
    states = len(gouts) - 1

    def outputs_and_d_x(first, last):
        x, *rest = arguments
        own = [x[:, first:last], *(state[first:last] for state in rest[:states]), *rest[states:]]
        d_own = (gouts[0][:, first:last], *(d[first:last] for d in gouts[1:]))
        computed = results(rule_of(cell, COMPILED), numpy_backend, own, attributes("layer"), d_own)
        return computed[0], computed[states + 1]

    whole = outputs_and_d_x(0, size[1])
    for first in range(0, size[1], few):
        last = min(first + few, size[1])
        for of_all, of_few in zip(whole, outputs_and_d_x(first, last), strict=True):
            assert np.array_equal(of_all[:, first:last], of_few)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [(4, 5, 3, 7), (4, 21, 3, 18)], ids=["few rows", "many rows"])
@pytest.mark.parametrize(("name", "cell", "norm"), ROW_RULES)
def test_values_that_are_not_finite_stay_in_their_row(name, cell, norm, size, bad, rng, numpy_backend):
    arguments = make_arguments(cell, norm, rng, size, "float32")
    with_bad = [arguments[0].copy(), *arguments[1:]]
    with_bad[0][1, 3] = bad
    others = np.arange(size[1]) != 3
    gouts, n_states = gouts_of(cell, size, rng, "float32"), 2 if cell == "lstm" else 1
    with np.errstate(all="ignore"):
        good, ill = (results(rule_of(cell, name), numpy_backend, own, attributes(norm), gouts)
                     for own in (arguments, with_bad))
    of_rows = 2 * (n_states + 1)  # the outputs, and the gradients of x and the states
    for a, b in zip(good[:of_rows], ill[:of_rows], strict=True):
        np.testing.assert_array_equal(a[..., others, :], b[..., others, :])
    if np.isnan(bad):
        assert np.isnan(ill[0][1:, 3]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1], ids=["x", "first state"])
@pytest.mark.parametrize("size", [(4, 5, 3, 7), (3, 9, 3, 17), (4, 21, 3, 16)], ids=str)
@pytest.mark.parametrize(("name", "cell", "norm"), RULES)
def test_what_is_not_finite_goes_where_the_composed_rule_sends_it(name, cell, norm, size, place, bad, rng, numpy_backend):
    """The columns that fill up a gate in the arrays of a walk get products of zeros with such a value."""
    arguments = list(make_arguments(cell, norm, rng, size, "float32"))
    arguments[place] = arguments[place].copy()
    arguments[place][(1, 3, 0) if place == 0 else (3, 0)] = bad
    gouts = gouts_of(cell, size, rng, "float32")
    with np.errstate(all="ignore"):
        computed, expected = (results(rule_of(cell, each), numpy_backend, arguments, attributes(norm), gouts)
                              for each in (name, "composed"))
    for k, (a, b) in enumerate(zip(computed, expected, strict=True)):
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b), err_msg=f"result {k}")
