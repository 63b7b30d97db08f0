"""Every rule of the recurrent operators on the CPU, compiled and plain: they agree with the composed rule, with any mask,
give the same bits on every run, and the compiled ones keep as little for the gradient as they promise.
"""

import itertools

import numpy as np
import pytest
from conftest import every_second, get_backend
from ops.test_rnn import Problem
from recurrent_cases import (
    COMPILED,
    NEEDS_COMPILER,
    PLAIN,
    ROW_RULES,
    RULES,
    WALKS,
    arguments_of,
    attributes,
    enough_rows,
    gouts_of,
    make_arguments,
    results,
    rule_of,
)

import duoln
from duoln import ops
from duoln.core import composed_only
from duoln.errors import ShapeError
from duoln.kernels.linear.few_rows import MOST_ROWS
from duoln.kernels.recurrent.cells import COMPILED_WALKS, FUSED
from duoln.kernels.recurrent.positions import FEW_INPUTS
from duoln.ops.recurrent.variants import CELLS
from duoln.testing import check_error, check_op, check_rule

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
               attributes(cell, norm, reverse, eps=eps), numpy_backend)


@pytest.mark.parametrize(("cell", "norm"), WALKS)
@NEEDS_COMPILER
def test_one_time_step_of_few_rows_or_more(cell, norm, rng, numpy_backend):
    """With few rows the weights are read unpacked; a unit that fills its vectors, or not; few inputs, and more."""
    for (rows, inputs, hidden), reverse, dtype in every_second(
            ((1, 20, 16), (MOST_ROWS, 2, 5), (3, 20, 21), (MOST_ROWS + 1, 20, 16)), BOTH, DTYPES):
        arguments = make_arguments(cell, norm, rng, enough_rows(norm, (1, rows, inputs, hidden)), dtype)
        attrs = attributes(cell, norm, reverse)
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
               attributes(cell, norm, masked, gradient_limit=limit), numpy_backend)


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
        _check(name, cell, arguments, attributes(cell, norm, reverse), numpy_backend)


@pytest.mark.parametrize(("name", "cell", "norm"), [*ROW_RULES, *(("composed", *variant) for variant in FUSED)])
def test_a_rule_takes_out_padding_itself(name, cell, norm, rng, numpy_backend):
    mask, gouts = _padding("any"), gouts_of(cell, (9, 7, 4, 6), rng, "float32")
    clean = make_arguments(cell, norm, rng, (9, 7, 4, 6), "float32", mask)
    hostile = [np.where(mask[..., None], clean[0], np.float32(np.nan)), *clean[1:]]
    of_both = (results(rule_of(cell, name), numpy_backend, arguments, attributes(cell, norm), gouts) for arguments in (hostile, clean))
    for a, b in zip(*of_both, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "cell", "norm"), ROW_RULES)
def test_rows_and_time_steps_that_are_all_masked(name, cell, norm, rng, numpy_backend):
    mask = rng.random((7, 5)) < 0.6
    mask[:, 2] = mask[3] = False
    arguments = make_arguments(cell, norm, rng, (7, 5, 4, 6), "float64", mask)
    attrs, gouts = attributes(cell, norm), gouts_of(cell, (7, 5, 4, 6), rng, "float64")
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
        fused, composed = (results(rule_of(cell, which), numpy_backend, arguments, attributes(cell, "layer"), gouts)
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
    _, saved = rule_of(cell, COMPILED).forward(numpy_backend, *arguments, **attributes(cell, norm))
    per_step_and_row = _floats(saved, arguments) / (steps * batch)
    of_batch = 18 * hidden / batch if norm == "batch" else 0  # for each time step: the mean and rstd of each column
    assert kept * hidden <= per_step_and_row <= kept * hidden + 8 + of_batch  # and numbers of norms, and the weights once


@pytest.mark.parametrize(("name", "cell", "norm"), [
    (PLAIN, *variant) for variant in COMPILED_WALKS if variant not in FUSED])
def test_the_remaining_variants_are_left_to_the_composed_rule(name, cell, norm, rng, numpy_backend):
    rule, arguments = rule_of(cell, name), arguments_of(Problem(cell, norm, rng), "float32")
    assert norm in rule.supports(numpy_backend, *arguments, **attributes(cell, norm))


@NEEDS_COMPILER
@pytest.mark.parametrize("cell", CELLS)
def test_statistics_of_one_row_are_left_to_the_composed_rule_which_refuses_them(cell, rng, numpy_backend):
    problem = Problem(cell, "batch", rng, batch=1)
    refusal = rule_of(cell, COMPILED).supports(numpy_backend, *arguments_of(problem, "float32"), **attributes(cell, "batch"))
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
        attrs = attributes("lstm", norm, reverse)
        assert ops.lstm.select(numpy_backend, arguments, attrs).name == "compiled step"
        _check("compiled step", "lstm", arguments, attrs, numpy_backend)
    for case in ({"gradient_limit": 0.5}, {"mask": np.arange(rows)[None] > 2}, {"rows": MOST_ROWS}):
        arguments = make_arguments("lstm", norm, rng, (1, case.get("rows", rows), 3, 4), "float32", case.get("mask"))
        attrs = attributes("lstm", norm, gradient_limit=case.get("gradient_limit"))
        assert ops.lstm.select(numpy_backend, arguments, attrs).name == (STEP if "rows" in case else COMPILED)


@NEEDS_COMPILER
@pytest.mark.parametrize(("cell", "norm"), WALKS)
def test_a_time_step_outside_of_a_gradient_has_the_bits_of_the_walk(cell, norm, rng, numpy_backend):
    for (rows, inputs, hidden), dtype in every_second(((1, 20, 16), (MOST_ROWS, 9, 5), (3, 20, 40)), DTYPES):
        sizes = enough_rows(norm, (1, rows, inputs, hidden))
        arguments, attrs = make_arguments(cell, norm, rng, sizes, dtype), attributes(cell, norm)
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
    arguments, attrs = make_arguments(cell, norm, rng, sizes, "float64"), attributes(cell, norm)
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
