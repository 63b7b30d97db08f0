"""Words and values of PyTorch in calls: the error names the word of duoln, or says what does the same."""

import inspect
import pydoc

import numpy as np
import pytest

import duoln
import duoln.tasks
from duoln import nn, ops, optim, testing
from duoln.core import pytorch_names
from duoln.data import Batches
from duoln.errors import CallError, CompileError, DtypeError, ShapeError, UsageError
from duoln.testing import check_error

X = duoln.tensor(np.ones((4, 2, 3), np.float32), "numpy")
LSTM = nn.LSTM(3, 5)
PARAMS = duoln.to_tensors(LSTM.init(0), "numpy")
ADAM = optim.Adam(1e-3)
H = duoln.tensor(np.ones((2, 5), np.float32), "numpy")

ROWS = {"x": np.ones((6, 2), np.float32)}


def _double(x):
    return 2 * x


class Own(nn.Module):
    def __init__(self, width, activation=ops.relu, scale=_double):
        self.width = width


LINES = {
    "x.size()": (CallError, lambda: X.size(), "[size] expected x.size, a number", "in duoln: `x.shape`"),
    "x.size(0)": (CallError, lambda: X.size(0), "[size]", "`x.shape[0]`"),
    "value_and_grad of (loss, aux)": (ShapeError, lambda: duoln.value_and_grad(lambda x: (ops.mean(x), x))(X), "[value_and_grad]", "found tuple",
                                      "value_and_grad(fn, has_aux=True) takes a pair (loss, aux)"),
    "value_and_grad of (loss, a, b)": (ShapeError, lambda: duoln.value_and_grad(lambda x: (ops.mean(x), x, x))(X), "has_aux=True", "aux may be a tuple"),
    "value_and_grad without a return": (ShapeError, lambda: duoln.value_and_grad(lambda x: None)(X), "found None; does the function lack a return?"),
    "a compiled step without a return": (CompileError, lambda: duoln.compile(lambda x: None)(X), "[compile]", "found None", "lack a return?"),
    "Adam.init(model)": (DtypeError, lambda: ADAM.init(LSTM), "[Adam] expected a duoln.Tensor", "found duoln.LSTM", "duoln.init(model, 0)"),
    "MultiHeadAttention(embed_dim=)": (TypeError, lambda: nn.MultiHeadAttention(embed_dim=8, num_heads=2), "did you mean 'width'?"),
    "compile(donate=)": (TypeError, lambda: duoln.compile(ops.sum, donate=True), "optim.Adam(1e-3, donate=True)"),
    "tensor(x, 'float32')": (UsageError, lambda: duoln.tensor([1.0], "float32"), "a dtype goes by name, dtype='float32'"),
    "labels of one_hot": (DtypeError, lambda: ops.softmax_cross_entropy(H, H), "[softmax_cross_entropy] labels", "found float32", "probability_cross_entropy takes probabilities"),
    "AdamW(model)": (DtypeError, lambda: optim.AdamW(LSTM), "[AdamW] learning_rate", "found duoln.LSTM", "init(params)", "optimizer = optim.AdamW(1e-3)"),
    "AdamW(params, lr=)": (DtypeError, lambda: optim.AdamW(PARAMS, lr=1e-3), "[AdamW] learning_rate", "found dict", "optim.AdamW(1e-3)"),
    "SGD(learning_rate=model)": (DtypeError, lambda: optim.SGD(learning_rate=LSTM), "[SGD] learning_rate", "found duoln.LSTM", "optim.SGD(1e-3)"),
    "update(lr=)": (TypeError, lambda: ADAM.update(PARAMS, PARAMS, ADAM.init(PARAMS), lr=1e-3), "did you mean 'rate'?"),
    "update in Optax's order": (ShapeError, lambda: ADAM.update(PARAMS, ADAM.init(PARAMS), PARAMS, 1e-3), "update(params, gradients, slots)"),
    "Adam(lr=)": (TypeError, lambda: optim.Adam(lr=1e-3), "did you mean 'learning_rate'?"),
    "RMSProp(alpha=)": (TypeError, lambda: optim.RMSProp(1e-3, alpha=0.99), "did you mean 'beta'?"),
    "RMSProp(decay=)": (TypeError, lambda: optim.RMSProp(1e-3, decay=0.99), "did you mean 'beta'?"),
    "Linear(activation='gelu')": (UsageError, lambda: nn.Linear(2, 3, activation="gelu"), "[Linear] expected activation 'relu', 'tanh' or None", "ops.gelu follows the layer"),
    "Linear(activation='rleu')": (UsageError, lambda: nn.Linear(2, 3, activation="rleu"), "did you mean 'relu'?"),
    "leaky_relu(negative_slope=)": (TypeError, lambda: ops.leaky_relu(X, negative_slope=0.1), "did you mean 'slope'?"),
    "leaky_relu(alpha=)": (TypeError, lambda: ops.leaky_relu(X, alpha=0.1), "did you mean 'slope'?"),
    "Adam(betas=)": (TypeError, lambda: optim.Adam(1e-3, betas=(0.9, 0.99)), "optim.Adam(1e-3, beta1=0.9, beta2=0.999)"),
    "cross_entropy(weight=)": (TypeError, lambda: ops.softmax_cross_entropy(X, X, weight=X), "did you mean 'class_weights'?"),
    "squared_error(input=, target=)": (TypeError, lambda: ops.squared_error(input=X, target=X), "did you mean 'predictions'?"),
    "LSTM()(lengths=)": (TypeError, lambda: LSTM(PARAMS, X, lengths=[4, 2]), "Recurrent.__call__() got an unexpected keyword argument 'lengths'",
                         "mask= is true at a sequence's own steps, `duoln.tensor(np.arange(len(x))[:, None] < lengths, x.backend)`"),
    "lstm(lengths=)": (TypeError, lambda: ops.lstm(X, lengths=[4, 2]), "mask= is true at a sequence's own steps"),
    "LSTM()(x, lengths)": (ShapeError, lambda: LSTM(PARAMS, X, X[0]), "[LSTM] states", "mask=duoln.tensor(np.arange(len(x))[:, None] < lengths, x.backend)"),
    "norm='ln'": (UsageError, lambda: nn.LSTM(2, 3, norm="ln"), "'ln'", "did you mean 'layer'?"),
    "norm='BN'": (UsageError, lambda: nn.GRU(2, 3, norm="BN"), "'BN'", "did you mean 'batch'?"),
    "norm=[]": (UsageError, lambda: nn.LSTM(2, 3, norm=["ln"]), "[LSTM]", "found list"),
    "backend('cuda')": (UsageError, lambda: duoln.backend("cuda"), "[backend]", "did you mean 'cupy'?"),
    "tensor(x, 'cuda:0')": (UsageError, lambda: duoln.tensor([1.0], "cuda:0"), "[backend]", "did you mean 'cupy'?"),
    "tensor(device=)": (TypeError, lambda: duoln.tensor([1.0], device="cuda"), "did you mean 'backend'?"),
    "dtype='double'": (DtypeError, lambda: duoln.tensor([1.0], "numpy", dtype="double"), "did you mean 'float64'?"),
    "astype('long')": (DtypeError, lambda: X.astype("long"), "[astype]", "did you mean 'int32'?"),
    "Adam(weight_decay=)": (TypeError, lambda: optim.Adam(0.1, weight_decay=0.01),
                            "in duoln: weight decay is a term of the loss"),
    "Adam(clip=5.0)": (DtypeError, lambda: optim.Adam(0.1, clip=5.0), "[Adam] clip", "5.0 (float)", "optim.clip_global_norm(5.0) is one"),
    "loss(reduction=)": (TypeError, lambda: ops.bce_with_logits(X, X, reduction="mean"), "ops.mean"),
    "BatchNorm(momentum=)": (TypeError, lambda: nn.BatchNorm(3, momentum=0.1), "nn.with_population"),
    "LSTM(weight_decay=)": (UsageError, lambda: nn.LSTM(2, 3, weight_decay=0.1), "a term of the loss"),
    "a mask as a list": (DtypeError, lambda: LSTM(PARAMS, X, mask=[[True, True]] * 4), "[lstm] mask", "found list", "duoln.tensor(x)"),
    "states of one layer": (ShapeError, lambda: LSTM(PARAMS, X, states=(H, H)), "[LSTM] states: expected [(h, c)]", "a tuple of 2 tensors"),
    "states of two layers": (ShapeError, lambda: nn.LSTM(3, 5, layers=2)({}, X, states=(H, H)), "[LSTM] states: expected [(h, c), (h, c)]",
                             "2 in all, found a tuple of 2 tensors"),
    "a state of a GRU": (ShapeError, lambda: nn.GRU(3, 5)({}, X, states=H), "[GRU] states: expected [(h,)]", "found duoln.Tensor"),
    "a state of a cell": (ShapeError, lambda: nn.LSTMCell(3, 5)({}, X[0], H), "[LSTMCell] states: expected (h, c), found duoln.Tensor"),
    "to_tensors(model)": (DtypeError, lambda: duoln.to_tensors(LSTM), "[tensor]", "found duoln.LSTM", "duoln.init(model, seed) gives"),
    "tensor('abc')": (DtypeError, lambda: duoln.tensor("abc"), "[tensor]", "found text"),
    "tensor(['abc'], dtype=)": (DtypeError, lambda: duoln.tensor(["abc"], dtype="float32"), "[tensor]", "found text"),
    "tensor(b'abc')": (DtypeError, lambda: duoln.tensor(b"abc"), "[tensor]", "found bytes"),
    "tree.map(params, f)": (DtypeError, lambda: duoln.tree.map({"w": X}, ops.relu), "[tree] expected tree.map(fn, tree, ...)", "found dict"),
    "tree.map(f, params, {})": (ShapeError, lambda: duoln.tree.map(ops.add, {"w": X}, {}), "expected keys w, found an empty dict"),
    "tree.map(f, {}, params)": (ShapeError, lambda: duoln.tree.map(ops.add, {}, {"w": X}), "expected an empty dict, found keys w"),
    "tree.map(f, {0: x}, {1: x})": (ShapeError, lambda: duoln.tree.map(ops.add, {0: X}, {1: X}), "expected keys 0, found keys 1"),
    "x.sum(dim=0)": (TypeError, lambda: X.sum(dim=0), "Tensor.sum() got an unexpected keyword argument 'dim'; did you mean 'axis'?"),
    "x.mean(keepdim=True)": (TypeError, lambda: X.mean(keepdim=True), "did you mean 'keepdims'?"),
    "tensor(requires_grad=True)": (TypeError, lambda: duoln.tensor([1.0], requires_grad=True), "'requires_grad'; in duoln: "),
    "Own(widht=3)": (TypeError, lambda: Own(widht=3), "did you mean 'width'?"),
    "Batches(shuffle=True)": (TypeError, lambda: Batches(ROWS, 2, 0, shuffle=True), "'shuffle'", "a new random order each epoch"),
    "Tensor([1.0])": (CallError, lambda: duoln.Tensor([1.0]), "[Tensor]", "duoln.tensor(x) makes a tensor"),
    "value_and_grad(loss)()": (CallError, lambda: duoln.value_and_grad(ops.sum)(), "[value_and_grad] expected argument 0 of sum, for its gradient",
                               "found 0 arguments by position and none by name"),
    "for batch in batches": (CallError, lambda: list(Batches(ROWS, 2, 0)), "[Batches] expected a call, batches(step)", "found iteration"),
    "len(batches)": (CallError, lambda: len(Batches(ROWS, 2, 0)), "[Batches]", "found len(batches)", "steps_per_epoch"),
    "batches[0]": (CallError, lambda: Batches(ROWS, 2, 0)[0], "[Batches] expected a call, batches(step)", "found batches[...]"),
}


@pytest.mark.parametrize("name", LINES)
def test_line(name):
    kind, call, *words = LINES[name]
    check_error(kind, call, *words)


def test_an_argument_has_one_way_of_duoln():
    assert pytorch_names.NO_KEYWORDS.keys() & pytorch_names.KEYWORDS.keys() <= {"max_norm"}


def test_a_size_is_an_integer():
    assert X.size == 24 and isinstance(X.size, int) and repr(X.size) == "24" and ops.reshape(X, (X.size,)).shape == (24,)


def test_what_bool_advises_does_what_it_says():
    assert bool(ops.any(X > 0)) and bool(ops.all(X > 0))
    check_error(ShapeError, lambda: bool(X > 0), "[bool] expected one value", "ops.any", "ops.all")


def test_errors_inside_a_function_stay_what_they_are():
    def loss(params):
        return len(3)

    with pytest.raises(TypeError, match="has no len") as caught:
        duoln.value_and_grad(loss)({"w": X})
    assert type(caught.value) is TypeError


def test_batches_are_still_true():
    assert Batches(ROWS, 2, 0)


FUNCTIONS = [(module.__name__, name, getattr(module, name)) for module in (duoln, duoln.data, duoln.tasks, ops, nn, nn.init, optim, testing)
             for name in sorted(getattr(module, "__all__", None) or dir(module))
             if not name.startswith("_") and inspect.isroutine(getattr(module, name))
             and getattr(module, name).__module__.startswith(module.__name__) and name != "hookspec"]


@pytest.mark.parametrize("place", range(len(FUNCTIONS)), ids=lambda k: f"{FUNCTIONS[k][0]}.{FUNCTIONS[k][1]}")
def test_no_address_of_memory_is_in_a_signature(place):
    assert " at 0x" not in str(inspect.signature(FUNCTIONS[place][2]))


@pytest.mark.parametrize("layer", [getattr(nn, name) for name in nn.__all__ if inspect.isclass(getattr(nn, name))])
def test_no_address_of_memory_is_in_the_help_of_a_layer(layer):
    assert " at 0x" not in pydoc.plain(pydoc.render_doc(layer))
