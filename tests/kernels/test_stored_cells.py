"""CUDA's rules of recurrent cells on values of 16 bits, run on the CPU from their own text.

The reference is float64 whose values are rounded where the rules store them (`stored_cells.py`): almost all values are
equal, and the rest, where float32 falls on the wrong side of a tie, differ by one unit in the last place of the largest.
"""

import sys

import numpy as np
import pytest
import stored_cells
from broken_text import break_text
from conftest import GPU, STAND_IN

import duoln
from duoln import ops, value_and_grad
from duoln.core.gradient import pullback
from duoln.kernels.recurrent.cases import recurrent
from duoln.kernels.registry import every_case

pytestmark = pytest.mark.skipif(GPU == STAND_IN and sys.platform != "linux", reason="kernels run on the CPU under Linux only")

UNITS = {"bfloat16": 2.0 ** -7, "float16": 2.0 ** -10}
"""One unit in the last place of values up to 2, as a share of 1."""
_EVERY = [c for c in every_case() if "norm" in c.attrs and not c.cpu]
CASES = [c for c in _EVERY if "in1 H1100" not in str(c) or c.op == "rnn"]
CASES += [recurrent(c.op, c.attrs["norm"], (2, 2, 3, 1100), "masked" in c.label, c.attrs["reverse"]) for c in _EVERY if str(c) not in {str(k) for k in CASES}]
"""Of wide rows those with three inputs: a norm takes out the part of the gradient of one input alone, and what is left is mostly rounding."""
LONG = [recurrent(cell, norm, (16, 3, 4, 9), masked, False) for cell, norm in (("lstm", "none"), ("lstm", "layer"), ("gru", "layer"), ("rnn", "layer"))
        for masked in (False, True)]
"""Many time steps, over which a state that is rounded at each of them would drift."""
ORDINARY = ("T3 B5 in3 H9", "B3 H9")
WIDE_ORDINARY = ("bfloat16 lstm layer T2 B2 in3 H1100 masked, reverse", "bfloat16 gru layer T2 B2 in3 H1100 masked, reverse",
                 "float16 rnn layer T4 B3 in2 H33 reverse, gradients within 0.05", "bfloat16 gru layer T4 B3 in2 H33 reverse, gradients within 0.05")
"""Compiled in the ordinary suite: each text for few hidden units, and one of the wide ones."""


def _pairs():
    for case in (*CASES, *LONG):
        for dtype in UNITS:
            name = f"{dtype} {case}"
            ordinary = name in WIDE_ORDINARY or (dtype == "bfloat16" and (case in LONG or any(words in name for words in ORDINARY)))
            yield pytest.param(case, dtype, id=name, marks=[] if ordinary else pytest.mark.minutes)


def _rule(case):
    return next(rule for rule in getattr(ops, case.op).rules("cupy") if rule.stored)


def _given(case, dtype, be):
    """The arrays as the rule takes them, and the same values in float64."""
    stored = _rule(case).stored
    wide = stored_cells.arrays_of(case, dtype, stored)
    natives = [None if a is None else be.asarray(a, dtype if k in stored else "float32") if a.dtype.kind == "f" else be.asarray(a) for k, a in enumerate(wide)]
    return natives, wide


def _results(case, dtype, be):
    """Outputs and gradients of the rule."""
    natives, _ = _given(case, dtype, be)
    op = getattr(ops, case.op)
    rule = op.select(be, natives, case.attrs)
    assert rule.name in ("cuda steps", "cuda step")
    outs, saved = rule.forward(be, *natives, **case.attrs)
    gouts = tuple(be.asarray(g, be.dtype(o)) for g, o in zip(_gouts(case, dtype, outs), outs, strict=True))
    needs = tuple(a is not None and a.dtype.kind == "f" for a in case.inputs)
    return outs, rule.vjp(be, saved, gouts, needs)


def _gouts(case, dtype, outs):
    rng = np.random.default_rng(7)
    first, *rest = (rng.standard_normal(o.shape).astype(np.float32) for o in outs)
    return [stored_cells.rounded(first, dtype), *rest]


def _expected(case, dtype):
    """The same by the reference."""
    tensors = stored_cells.as_tensors(stored_cells.arrays_of(case, dtype, _rule(case).stored))
    floats = [k for k, a in enumerate(case.inputs) if a is not None and a.dtype.kind == "f"]

    def call(params):
        arrays = list(tensors)
        for k, p in zip(floats, params, strict=True):
            arrays[k] = p
        return (stored_cells.cell if case.op == "lstm_cell" else lambda *a, **n: stored_cells.sequence(case.op, *a, **n))(arrays, dtype, **case.attrs)

    outs, back, tape = pullback(call, [tensors[k] for k in floats])
    gradients = back([stored_cells.NUMPY.asarray(g, "float64") for g in _gouts(case, dtype, outs)])
    tape.close()
    return [o.numpy() for o in outs], dict(zip(floats, gradients, strict=True))


def check(case, dtype, be):
    """Compare all outputs and gradients; gives the largest error in units of the largest value, and the share of hidden states that are equal."""
    (outs, gradients), (expected, exact) = _results(case, dtype, be), _expected(case, dtype)
    stored, worst = _rule(case).stored, 0.0
    # Of wide rows a gradient after a norm is read again as it is stored, which is one more rounding.
    limit = 2 if "H1100" in str(case) and "layer" in case.attrs["norm"] else 1
    pairs = [(f"output {k}", a, b, dtype if k == 0 else "float32") for k, (a, b) in enumerate(zip(outs, expected, strict=True))]
    pairs += [(f"gradient {k}", gradients[k], b, dtype if k in stored else "float32") for k, b in exact.items()]
    for name, mine, reference, kind in pairs:
        assert be.dtype(mine) == kind, name
        error = np.abs(be.to_numpy(mine).astype(np.float64) - reference).max() / max(np.abs(reference).max(), 1e-30) / UNITS[dtype]
        assert error <= limit, f"{name}: {error:.3g} units of the largest value"
        worst = max(worst, error)
    equal = np.mean(be.to_numpy(outs[0]).astype(np.float64) == expected[0])
    assert equal >= 0.95, f"{equal:.1%} of the hidden states are equal"
    return worst, equal


@pytest.mark.few
@pytest.mark.parametrize(("case", "dtype"), list(_pairs()))
def test_rounded_where_it_is_stored(case, dtype, gpu):
    check(case, dtype, gpu)


# Broken kernels: the case must fail ---------------------------------------------------------------------

def _case(*words):
    return next(c for c in (*LONG, *CASES) if all(w in str(c) for w in words))


BROKEN = [
    ("an LSTM's cell is rounded at each time step", _case("lstm layer T16"), "c[after * hidden + unit(u)] = masked ? c_before[0][u] : c_new[0][0][u];",
     "c[after * hidden + unit(u)] = loaded(stored(masked ? c_before[0][u] : c_new[0][0][u]));"),
    ("a GRU's state is rounded at each time step", _case("gru layer T16"), "h[(row + batch) * hidden + unit(u)] = h_new;", "h[(row + batch) * hidden + unit(u)] = loaded(stored(h_new));"),
    ("an RNN's sum is used before it is rounded", _case("rnn layer T16"), "v[0][0][u] = loaded(sum);", "v[0][0][u] += h_proj[at * hidden + unit(u)];"),
    ("the cell's norm sees a rounded cell", _case("lstm layer T16"), "c_new[0][0][u] = lstm_cell(s, c_before[0][u]);", "c_new[0][0][u] = loaded(stored(lstm_cell(s, c_before[0][u])));"),
    ("bits are read as numbers", _case("lstm none T16"), "upstream[0][u] += loaded(d_hs[row * hidden + unit(u)]);", "upstream[0][u] += d_hs[row * hidden + unit(u)];"),
    ("bits are cut off instead of rounded", _case("gru layer T16"), "+ 0x7fffu + (bits >> 16 & 1)", ""),
    ("the product takes a state that is not there yet", _case("gru layer T16"), "if (STORAGE) h_stored[(row + batch) * hidden + unit(u)]", "if (STORAGE) h_stored[row * hidden + unit(u)]")]


@pytest.mark.long
@pytest.mark.skipif(GPU != STAND_IN, reason="a broken kernel could take a real device with it")
@pytest.mark.parametrize(("what", "case", "old", "new"), BROKEN, ids=[b[0] for b in BROKEN])
def test_a_broken_kernel_fails_its_proof(what, case, old, new, gpu, monkeypatch):
    in_text = break_text(monkeypatch, old, new)
    try:
        check(case, "bfloat16", gpu)
    except AssertionError:
        assert any(in_text), "the text to break is not there any more"
    else:
        pytest.fail(f"nobody noticed: {what}")


# In what the arrays of a call are stored ----------------------------------------------------------------

def _call(cell, be, **dtypes):
    """A call of a sequence operator: each array of float32 but those whose dtype is given."""
    case = next(c for c in CASES if str(c).startswith(f"{cell} layer T3 B5"))
    names = ["x", "h", *(["c"] if cell == "lstm" else []), "w_x", "w_h", "bias", "mask"]
    norms = {n: duoln.tensor(a, be) for n, a in zip(stored_cells.norms_by_name(cell, "layer", case.inputs[len(names):]), case.inputs[len(names):], strict=True)}
    params = {n: None if a is None else duoln.tensor(a, be, dtype=dtypes.get(n, "float32")) for n, a in zip(names, case.inputs, strict=False)}
    return params, lambda p: getattr(ops, cell)(*p.values(), norms, norm="layer")


STORED = {"x": "bfloat16", "w_x": "bfloat16", "w_h": "bfloat16"}


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_states_may_be_float32_or_stored(cell, gpu):
    """Results and gradients have the dtypes of their arrays, and the same values."""
    names = ["h", "c"] if cell == "lstm" else ["h"]
    gradients = {}
    for dtype in ("float32", "bfloat16"):
        params, call = _call(cell, gpu, **STORED, **dict.fromkeys(names, dtype))
        params = {n: p if n not in names else p.astype("bfloat16").astype(dtype) for n, p in params.items()}
        assert [o.dtype for o in call(params)] == ["bfloat16", *[dtype] * len(names)]
        floats = {n: p for n, p in params.items() if p is not None}
        gradients[dtype] = value_and_grad(lambda q, p=params, run=call: sum((ops.sum(o.astype("float32") * 0.3) for o in run({**p, **q})), 0.0))(floats)[1]
        assert {n: g.dtype for n, g in gradients[dtype].items()} == {n: p.dtype for n, p in floats.items()}
    for name, wide in gradients["float32"].items():
        mine = gradients["bfloat16"][name]
        np.testing.assert_allclose(mine.numpy(), (wide.astype("bfloat16") if name in names else wide).numpy(), rtol=1e-2, atol=2e-2 * np.abs(wide.numpy()).max())


def test_explain(gpu):
    for cell in ("rnn", "lstm", "gru"):
        op = getattr(ops, cell)
        for dtypes, rule in ((STORED, "cuda steps"), ({**STORED, "h": "bfloat16"}, "cuda steps"), ({}, "cuda steps"), ({**STORED, "w_h": "float32"}, "cuda steps, in float32"),
                             ({"x": "bfloat16"}, "cuda steps, in float32"), ({"h": "bfloat16"}, "cuda steps, in float32")):
            params, _ = _call(cell, gpu, **dtypes)
            explained = op.explain(*params.values(), {n: duoln.tensor(a, gpu) for n, a in _norms(cell).items()}, norm="layer")
            assert explained[-1] == (rule, "runs"), (cell, dtypes)


def _norms(cell):
    case = next(c for c in CASES if str(c).startswith(f"{cell} layer T3 B5"))
    return stored_cells.norms_by_name(cell, "layer", case.inputs[7 if cell == "lstm" else 6:])


@pytest.mark.long
@pytest.mark.parametrize("norm", ["none", pytest.param("layer", marks=pytest.mark.minutes), "layer-cell", pytest.param("layer-theano", marks=pytest.mark.minutes)])
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.minutes)])
def test_gradients_that_many_calls_of_a_cell_share(norm, dtype, gpu):
    """Those of parameters come from one launch for all calls; one call has no gradient of its hidden state."""
    case = next(c for c in CASES if str(c) == f"lstm_cell {norm} B3 H9")
    x, h, c, bias, *norms = case.inputs

    def gradients(be, kind, stored):
        names = stored_cells.norms_by_name("lstm", norm, tuple(norms))
        params = {"bias": duoln.tensor(bias.astype(kind), be), **{n: duoln.tensor(a.astype(kind), be) for n, a in names.items()}}
        given = [duoln.tensor(stored_cells.rounded(a.astype(np.float64), dtype).astype(kind), be) for a in (x, h)]

        def total(p):
            state, sums = duoln.tensor(c.astype(kind), be), []
            for t in range(4):
                out, state = ops.lstm_cell(*(stored(a) for a in given), state, p["bias"], {n: p[n] for n in names}, norm=norm, eps=case.attrs["eps"])
                sums += [ops.sum(out.astype(kind) * (0.5 + t))] if t != 2 else []
            return sum(sums, ops.sum(state * 0.3))

        return value_and_grad(total)(params)[1]

    mine, exact = gradients(gpu, "float32", lambda a: a.astype(dtype)), gradients(stored_cells.NUMPY, "float64", lambda a: a)
    for name, wide in exact.items():
        assert mine[name].dtype == "float32"
        np.testing.assert_allclose(mine[name].numpy(), wide.numpy(), atol=4 * UNITS[dtype] * np.abs(wide.numpy()).max())
