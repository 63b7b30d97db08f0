"""The compiled walks over a sequence: every width and number of rows about their blocks, and any number of threads."""

import sys
from functools import partial

import numpy as np
import pytest
from recurrent_cases import (
    COMPILED,
    NEEDS_COMPILER,
    PLAIN,
    ROW_RULES,
    RULES,
    WALKS,
    attributes,
    enough_rows,
    gouts_of,
    make_arguments,
    results,
    rule_of,
    wide,
)

from duoln.kernels import host, source
from duoln.kernels.recurrent import positions
from duoln.ops.recurrent.variants import CELLS
from duoln.testing.closeness import check_close, tolerance

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
        attrs = attributes(cell, norm, reverse=size[3] % 3 == 0, eps=EPS)
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
    return lambda: results(rule_of(cell, COMPILED), backend, arguments, attributes(cell, norm), gouts)


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


@NEEDS_COMPILER
@pytest.mark.minutes
@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("size", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize(("cell", "norm"), WALKS)
def test_the_same_bits_a_hundred_times(cell, norm, size, threads, rng, numpy_backend, monkeypatch):
    run = _runner(cell, norm, size, rng, numpy_backend)
    one = _bytes_with(monkeypatch, 1, cell, size, run)
    for _ in range(100):
        assert _bytes_with(monkeypatch, threads, cell, size, run) == one


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
        computed = results(rule_of(cell, COMPILED), numpy_backend, own, attributes(cell, "layer"), d_own)
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
        good, ill = (results(rule_of(cell, name), numpy_backend, own, attributes(cell, norm), gouts)
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
        computed, expected = (results(rule_of(cell, each), numpy_backend, arguments, attributes(cell, norm), gouts)
                              for each in (name, "composed"))
    for k, (a, b) in enumerate(zip(computed, expected, strict=True)):
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b), err_msg=f"result {k}")


# Python calls ----------------------------------------------------------------------------------------------

def _calls_in_kernels(run):
    """The functions of `kernels/` that are called."""
    calls = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(str(source.FOLDER)):
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


@NEEDS_COMPILER
@pytest.mark.parametrize("cell", CELLS)
def test_the_calls_of_python_do_not_grow_with_the_sequence(cell, rng, numpy_backend):
    rule, attrs, calls = rule_of(cell, COMPILED), attributes(cell, "layer"), {}
    for steps in (50, 500):
        run = partial(rule.forward, numpy_backend, *make_arguments(cell, "layer", rng, (steps, 3, 3, 8), "float32"), **attrs)
        run()  # compiles what is not compiled yet
        calls[steps] = _calls_in_kernels(run)
    assert 5 < len(calls[50]) <= len(calls[500]) <= len(calls[50]) + 4  # large arrays begin on a cache line
