"""Rules that their authors wrote wrongly, and modules that would lose parameters: named where they are used."""

import numpy as np
import pytest

import duoln
from duoln import extend, nn, ops
from duoln.errors import DtypeError, GradientError, ShapeError, UsageError
from duoln.testing import check_error, check_op


def _op(forward, vjp=None):
    @extend.op
    def squash(x: extend.Tensor) -> extend.Tensor:
        """X / (1 + |x|)."""
        return squash.apply(x)

    squash.add(extend.Rule("composed", forward, vjp))
    return squash


def _forward(be, x):
    scale = 1 / (1 + be.abs(x))
    return x * scale, scale


def _reference(x):
    return x / (1 + np.abs(x))


@pytest.mark.parametrize(("vjp", "words"), [
    (lambda be, s, gout, needs: (gout * s,), ["[gradcheck]", "expected a derivative"]),
    (lambda be, s, gout, needs: (gout * 0,), ["[gradcheck]"]), (lambda be, s, gout, needs: (None,), ["expected as gradient 0 one like its array", "found None"]),
    (lambda be, s, gout, needs: gout * s * s, ["'composed'", "a tuple of 1 gradients", "ndarray"]),
    (lambda be, s, gout, needs: (gout, gout), ["'composed'", "a tuple of 1 gradients", "a tuple of 2"])])
def test_a_wrong_gradient_is_found_at_the_usual_dtype(vjp, words, be):
    op = _op(_forward, vjp)
    check_error(GradientError, lambda: check_op(op, [np.linspace(-3, 3, 7)], _reference, be), *words)


def test_a_right_gradient_is_let_through(be):
    check_op(_op(_forward, lambda be, s, gout, needs: (gout * s * s,)), [np.linspace(-3, 3, 7)], _reference, be)


def test_rules_that_are_none(be):
    x = duoln.tensor([1.0], be)
    check_error(UsageError, lambda: _op(lambda be, x: x)(x), "[squash] rule 'composed'", "the pair")
    check_error(DtypeError, lambda: extend.Rule("a", 1), "[Rule] forward", "1 (int)")
    check_error(DtypeError, lambda: extend.Rule("a", _forward, 2), "[Rule] vjp", "2 (int)")
    check_error(DtypeError, lambda: ops.relu.add(print), "[relu] add: expected a Rule")
    check_error(UsageError, lambda: ops.relu.add(ops.relu.rules("numpy")[0], "numpi"), "[relu] add", "numpy, cupy, mlx", "'numpi'")


@pytest.mark.parametrize("layers", [{nn.Linear(2, 3)}, (nn.Linear(2, 3), None), {"a": {nn.Linear(2, 3)}}])
def test_modules_in_sets_and_beside_other_things_would_lose_their_parameters(layers):
    class Model(nn.Module):
        def __init__(self):
            self.layers = layers

    check_error(UsageError, lambda: Model().init(0), "[Model] layers", f"a {type(layers).__name__} of modules")


def test_recurrent_layers_name_options_and_masks(be):
    check_error(UsageError, lambda: nn.LSTM(8, 16, num_layers=2), "[LSTM]", "'num_layers'", "layers=2")
    check_error(UsageError, lambda: nn.GRU(8, 16, num_layers=2), "[GRU]", "'num_layers'", "layers=2")
    check_error(UsageError, lambda: nn.RNN(8, 16, layesr=2), "[RNN]", "'layesr'", "did you mean 'layers'")
    layer = nn.LSTM(2, 3)
    x, mask = duoln.tensor(np.ones((4, 2, 2), np.float32), be), duoln.tensor(np.ones((4, 2), bool), be)
    check_error(ShapeError, lambda: layer(duoln.to_tensors(layer.init(0), be), x, mask), "[LSTM] states", "(h, c) for each layer", "mask=")


@pytest.mark.parametrize("name", ["relu", "add", "logical_not"])
def test_errors_about_missing_arguments_name_the_operator(name):
    check_error(TypeError, getattr(ops, name))


@pytest.mark.parametrize(("declaration", "words"), [
    ("y: real[*shape] -> like y", ["arguments of the function, x, gain", "'y'"]),
    ("", ["expected arguments"]), ("x: real[n], x: real[n] -> like x", ["a name of its own"]),
    ("x: real[2.5] -> like x", ["expected axes", "2.5"]), ("x: real[n-1] -> like x", ["expected axes", "n-1"]),
    ("x: real[*a, *b] -> like x", ["at most one *rows"]), ("x: float32[n] -> like x", ["real, int32, bool, any", "'float32'"]),
    ("x: sum[n] -> like x", ["real, int32, bool, any", "'sum'"]), ("x: real[n] or one -> like x", ["'real or one'"]),
    ("x: real[n]?, gain: real[n] -> like gain", ["a first array that is never None"]),
    ("x: reel[n] -> like x", ["expected a kind", "'reel'"]), ("x: real[n] -> real[m]", ["axes of the arguments", "'m'"]),
    ("x real", ["expected 'name: kind'"])])
def test_wrong_declarations_are_named_where_they_stand(declaration, words):
    def squash(x, gain=None):
        """X / (1 + |x|)."""

    check_error(UsageError, lambda: extend.op(declaration)(squash), "[squash] declaration", *words)


def test_what_is_no_function_with_a_name_or_no_declaration():
    check_error(UsageError, lambda: extend.op("x: real -> like x")(lambda x: None), "[op] expected a function with a name", "<lambda>")
    check_error(DtypeError, lambda: extend.op("x: real -> like x")(5), "[op] function", "5 (int)")
    check_error(DtypeError, lambda: extend.op(5), "[op] expected a declaration", "5 (int)")


def test_the_error_of_a_forward_has_no_hint_for_an_argument_of_the_operator(be):
    @extend.op("x: real[*shape] -> like x")
    def scaled(x: extend.Tensor, *, scale: extend.Finite = 1.0) -> extend.Tensor:
        """X times the scale."""

    scaled.add(extend.Rule("composed", lambda be, x: (x, None)))
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'scale'$"):
        scaled(duoln.tensor([1.0], be))


def test_pytorchs_names_of_required_arguments():
    check_error(UsageError, lambda: nn.LSTM(input_size=8, hidden_size=16), "[LSTM]", "'hidden_size'", "nn.LSTM(n_in=8, n_hidden=16)")
    check_error(TypeError, lambda: nn.GRU(8), "GRU.__init__() missing", "'n_hidden'")


def test_what_is_no_tensor_is_named_with_its_argument(be):
    x = duoln.tensor(np.ones((2, 3), np.float32), be)
    check_error(DtypeError, lambda: ops.linear(x, np.ones((3, 4))), "[linear] weight: expected a duoln.Tensor, found numpy.ndarray")
    check_error(DtypeError, lambda: ops.layer_norm(x, [1.0, 1.0, 1.0]), "[layer_norm] gain: expected a duoln.Tensor, found list")
    check_error(DtypeError, lambda: ops.layer_norm([1.0]), "[layer_norm] expected a duoln.Tensor, found list")
    check_error(DtypeError, lambda: ops.global_norm({"w": x}), "[global_norm] expected a duoln.Tensor, found dict", "duoln.tree.leaves(x)")
    check_error(DtypeError, lambda: duoln.value_and_grad(ops.sum)(x.astype("int32")), "[value_and_grad] params: expected a float dtype")
