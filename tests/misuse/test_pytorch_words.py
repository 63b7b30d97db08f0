"""What someone who knows PyTorch writes by habit: the error names the word of duoln, or says what does the same."""

import inspect
import operator

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
MODEL = nn.Sequential(nn.Linear(3, 4), ops.relu, nn.Linear(4, 2))
PARAMS = duoln.to_tensors(LSTM.init(0), "numpy")
ADAM = optim.Adam(1e-3)
H = duoln.tensor(np.ones((2, 5), np.float32), "numpy")

ROWS = {"x": np.ones((6, 2), np.float32)}


def _double(x):
    return 2 * x


def _scaled(w, rate):
    return w * rate


class Forward(nn.Module):
    def forward(self, x):
        return x


class Bare(nn.Module):
    pass


class Own(nn.Module):
    def __init__(self, width, activation=ops.relu, scale=_double):
        self.width = width


LINES = {
    "x.size()": (CallError, lambda: X.size(), "[size] expected x.size, a number", "in duoln: `x.shape`"),
    "x.size(0)": (CallError, lambda: X.size(0), "[size]", "`x.shape[0]`"),
    "value_and_grad of (loss, aux)": (ShapeError, lambda: duoln.value_and_grad(lambda x: (ops.mean(x), x))(X), "[value_and_grad]", "found tuple",
                                      "value_and_grad(fn, has_aux=True) takes a pair (loss, aux)"),
    "value_and_grad without a return": (ShapeError, lambda: duoln.value_and_grad(lambda x: None)(X), "found None; does the function lack a return?"),
    "a compiled step without a return": (CompileError, lambda: duoln.compile(lambda x: None)(X), "[compile]", "found None", "lack a return?"),
    "Adam.init(model)": (DtypeError, lambda: ADAM.init(LSTM), "[Adam] expected a duoln.Tensor", "found duoln.LSTM", "duoln.init(model, 0)"),
    "MultiHeadAttention(embed_dim=)": (TypeError, lambda: nn.MultiHeadAttention(embed_dim=8, num_heads=2), "did you mean 'width'?"),
    "compile(donate=)": (TypeError, lambda: duoln.compile(ops.sum, donate=True), "optim.Adam(1e-3, donate=True)"),
    "tensor(x, 'float32')": (UsageError, lambda: duoln.tensor([1.0], "float32"), "a dtype goes by name, dtype='float32'"),
    "labels of one_hot": (DtypeError, lambda: ops.softmax_cross_entropy(H, H), "[softmax_cross_entropy] labels", "found float32", "probability_cross_entropy takes probabilities"),
    "AdamW(model)": (DtypeError, lambda: optim.AdamW(LSTM), "[AdamW] learning_rate", "found duoln.LSTM", "init(params)", "optimizer = optim.AdamW(1e-3)"),
    "AdamW(params, lr=)": (DtypeError, lambda: optim.AdamW(PARAMS, lr=1e-3), "[AdamW] learning_rate", "found dict", "optim.AdamW(1e-3)"),
    "update(lr=)": (TypeError, lambda: ADAM.update(PARAMS, PARAMS, ADAM.init(PARAMS), lr=1e-3), "did you mean 'rate'?"),
    "update in Optax's order": (ShapeError, lambda: ADAM.update(PARAMS, ADAM.init(PARAMS), PARAMS, 1e-3), "update(params, gradients, slots)"),
    "Adam(lr=)": (TypeError, lambda: optim.Adam(lr=1e-3), "did you mean 'learning_rate'?"),
    "RMSProp(alpha=)": (TypeError, lambda: optim.RMSProp(1e-3, alpha=0.99), "did you mean 'beta'?"),
    "Linear(activation='gelu')": (UsageError, lambda: nn.Linear(2, 3, activation="gelu"), "[Linear] expected activation 'relu', 'tanh' or None", "ops.gelu follows the layer"),
    "Linear(activation='rleu')": (UsageError, lambda: nn.Linear(2, 3, activation="rleu"), "did you mean 'relu'?"),
    "leaky_relu(negative_slope=)": (TypeError, lambda: ops.leaky_relu(X, negative_slope=0.1), "did you mean 'slope'?"),
    "Adam(betas=)": (TypeError, lambda: optim.Adam(1e-3, betas=(0.9, 0.99)), "optim.Adam(1e-3, beta1=0.9, beta2=0.999)"),
    "cross_entropy(weight=)": (TypeError, lambda: ops.softmax_cross_entropy(X, X, weight=X), "did you mean 'class_weights'?"),
    "squared_error(input=, target=)": (TypeError, lambda: ops.squared_error(input=X, target=X), "did you mean 'predictions'?"),
    "LSTM()(lengths=)": (TypeError, lambda: LSTM(PARAMS, X, lengths=[4, 2]), "Recurrent.__call__() got an unexpected keyword argument 'lengths'",
                         "mask= is true at a sequence's own steps, `duoln.tensor(np.arange(len(x))[:, None] < lengths, x.backend)`"),
    "lstm(lengths=)": (TypeError, lambda: ops.lstm(X, lengths=[4, 2]), "mask= is true at a sequence's own steps"),
    "LSTM()(x, lengths)": (ShapeError, lambda: LSTM(PARAMS, X, X[0]), "[LSTM] states", "mask=duoln.tensor(np.arange(len(x))[:, None] < lengths, x.backend)"),
    "norm='ln'": (UsageError, lambda: nn.LSTM(2, 3, norm="ln"), "'ln'", "did you mean 'layer'?"),
    "backend('cuda')": (UsageError, lambda: duoln.backend("cuda"), "[backend]", "did you mean 'cupy'?"),
    "tensor(device=)": (TypeError, lambda: duoln.tensor([1.0], device="cuda"), "did you mean 'backend'?"),
    "dtype='double'": (DtypeError, lambda: duoln.tensor([1.0], "numpy", dtype="double"), "did you mean 'float64'?"),
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
    "tree.map(params, f)": (DtypeError, lambda: duoln.tree.map({"w": X}, ops.relu), "[tree] expected tree.map(fn, tree, ...)", "found dict"),
    "tree.map(f, params, {})": (ShapeError, lambda: duoln.tree.map(ops.add, {"w": X}, {}), "expected keys w, found an empty dict"),
    "x.sum(dim=0)": (TypeError, lambda: X.sum(dim=0), "Tensor.sum() got an unexpected keyword argument 'dim'; did you mean 'axis'?"),
    "tensor(requires_grad=True)": (TypeError, lambda: duoln.tensor([1.0], requires_grad=True), "'requires_grad'; in duoln: "),
    "Own(widht=3)": (TypeError, lambda: Own(widht=3), "did you mean 'width'?"),
    "Batches(shuffle=True)": (TypeError, lambda: Batches(ROWS, 2, 0, shuffle=True), "'shuffle'", "a new random order each epoch"),
    "Tensor([1.0])": (CallError, lambda: duoln.Tensor([1.0]), "[Tensor]", "duoln.tensor(x) makes a tensor"),
    "value_and_grad(loss)()": (CallError, lambda: duoln.value_and_grad(ops.sum)(), "[value_and_grad] expected argument 0 of sum, for its gradient",
                               "found 0 arguments by position and none by name"),
    "for batch in batches": (CallError, lambda: list(Batches(ROWS, 2, 0)), "[Batches] expected a call, batches(step)", "found iteration"),
    "len(batches)": (CallError, lambda: len(Batches(ROWS, 2, 0)), "[Batches]", "found len(batches)", "steps_per_epoch"),
    # Parameters and arguments of another kind
    "a rate of Python": (CompileError, lambda: duoln.compile(_scaled)(X, 0.1), "[compile] argument 'rate'", "0.1 (float)", "constant", "duoln.tensor(0.1)"),
    "a schedule as a rate": (CompileError, lambda: duoln.compile(_scaled)(X, lambda update: 0.1), "[compile] argument 'rate'", "function", "schedule(update)"),
    "a rate that is a function": (DtypeError, lambda: optim.SGD(0.1).update([X], [X], {}, optim.SGD(0.1).rate_at), "[SGD] rate", "optim.SGD(schedule)"),
    "a loss that is no scalar": (ShapeError, lambda: duoln.value_and_grad(lambda w: w * 2.0)(X), "[value_and_grad]", "found shape (4, 2, 3)", "ops.mean(loss)"),
    "np.exp(x)": (DtypeError, lambda: np.exp(X), "[exp]", "found a duoln.Tensor", "ops.exp", "x.numpy()"),
    "np.power(x, 2)": (DtypeError, lambda: np.power(X, 2), "[power]", "use ops.pow, or np.power(x.numpy())"),
    "np.sinh(x)": (DtypeError, lambda: np.sinh(X), "[sinh]", "found a duoln.Tensor; use np.sinh(x.numpy())"),
    "x[0] = 1.0": (DtypeError, lambda: operator.setitem(X, 0, 1.0), "[setitem]", "immutable", "ops.where"),
    **{sign: (DtypeError, call, f"[{sign}]", *words, "in duoln: ") for sign, call, words in (
        ("^", lambda: (X > 0) ^ (X > 1), ["mask != other"]), ("<<", lambda: X << 1, ["* 2 ** n"]), (">>", lambda: X >> 1, []))},
    # Modules
    **{f"init of {[type(s).__name__ for s in seed]}": (DtypeError, lambda s=seed: MODEL.init(*s), "[Sequential] rng: expected a seed, as in init(0)", "found")
       for seed in ((), (None,), ("0",), (0.0,), (True,), (np.random.default_rng(0),))},
    **{f"{layer}(x)": (ShapeError, lambda one=layer: one(X), f"[{type(layer).__name__}] expected parameters", "found duoln.Tensor", "layer(params, x)",
                       "duoln.init(layer, 0)") for layer in (
        nn.Linear(2, 3), nn.Sequential(nn.Linear(2, 3)), nn.LayerNorm(2), nn.RMSNorm(2), nn.GroupNorm(1, 2), nn.InstanceNorm(2, affine=False),
        nn.BatchNorm(2), nn.Embedding(2, 3), nn.Conv2d(2, 3, 1), nn.WeightNorm(nn.Linear(2, 3)), nn.LSTM(2, 3), nn.GRUCell(2, 3))},
    "forward": (CallError, lambda: Forward()({}, 1), "[Forward] expected a method __call__(self, params, x)", "found forward"),
    "no call": (CallError, lambda: Bare()({}, X), "[Bare] expected a method __call__(self, params, x), found none"),
    "Sequential([layer])": (UsageError, lambda: nn.Sequential([nn.Linear(2, 2)]), "[Sequential]", "found list", "nn.Sequential(*layers)"),
    **{f"layers by {k}": (UsageError, lambda look=look: look(nn.TransformerBlock(4, 2)), "[TransformerBlock]", "children()")
       for k, look in enumerate((lambda m: m[0], lambda m: m["hidden"], list, lambda m: [*m], lambda m: m[:2]))},
    # Calls
    "layer_norm(x, x, x, eps)": (TypeError, lambda: ops.layer_norm(X, X[0], X[0], 1e-5), "layer_norm() takes from 1 to 3 positional arguments"),
    "sum(dim=)": (TypeError, lambda: ops.sum(X, dim=0), "did you mean 'axis'"), "sum(axsi=)": (TypeError, lambda: ops.sum(X, axsi=0), "did you mean 'axis'"),
    "sum(x, x=)": (TypeError, lambda: ops.sum(X, x=X)), "conv2d(x)": (TypeError, lambda: ops.conv2d(X)),
    "SGD(momentun=)": (TypeError, lambda: optim.SGD(0.1, momentun=0.9), "did you mean 'momentum'"),
    **{words[-1]: (TypeError, make, *words) for make, words in (
        (lambda: nn.Linear(2), ["Linear.__init__() missing", "n_out"]), (lambda: nn.LSTM(2), ["n_hidden"]), (lambda: nn.LayerNorm(), ["width"]),
        (lambda: nn.Linear(in_features=2, out_features=3), ["Linear.__init__() got", "did you mean 'n_in'"]),
        (lambda: nn.Conv2d(1, 2, kernel_size=3), ["did you mean 'size'"]), (lambda: nn.Embedding(num_embeddings=3, embedding_dim=2), ["did you mean 'words'"]),
        (lambda: nn.LayerNorm(normalized_shape=(2, 3)), ["did you mean 'width'"]), (lambda: nn.RMSNorm(3, elementwise_affine=False), ["did you mean 'affine'"]),
        (lambda: nn.GroupNorm(num_groups=2, num_channels=4), ["did you mean 'groups'"]), (lambda: nn.GRU(8), ["GRU.__init__() missing", "'n_hidden'"]))},
    **{f"{kind.__name__}(num_layers=)": (UsageError, lambda kind=kind: kind(8, 16, num_layers=2), f"[{kind.__name__}]", "'num_layers'", "layers=2")
       for kind in (nn.LSTM, nn.GRU)},
    "LSTM(input_size=)": (UsageError, lambda: nn.LSTM(input_size=8, hidden_size=16), "[LSTM]", "'hidden_size'", "nn.LSTM(n_in=8, n_hidden=16)"),
    "layer_norm(list)": (DtypeError, lambda: ops.layer_norm([1.0]), "[layer_norm] expected a duoln.Tensor, found list"),
    "global_norm(dict)": (DtypeError, lambda: ops.global_norm({"w": X}), "[global_norm] expected a duoln.Tensor, found dict", "duoln.tree.leaves(x)"),
    "a gradient by integers": (DtypeError, lambda: duoln.value_and_grad(ops.sum)(X.astype("int32")), "[value_and_grad] params: expected a float dtype"),
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

    for call in (lambda: duoln.value_and_grad(loss)({"w": X}), lambda: duoln.extend.op(loss)(X)):
        with pytest.raises(TypeError, match="has no len") as caught:
            call()
        assert type(caught.value) is TypeError


FUNCTIONS = [(module.__name__, name, getattr(module, name)) for module in (duoln, duoln.data, duoln.tasks, ops, nn, nn.init, optim, testing)
             for name in sorted(getattr(module, "__all__", None) or dir(module))
             if not name.startswith("_") and inspect.isroutine(getattr(module, name))
             and getattr(module, name).__module__.startswith(module.__name__) and name != "hookspec"]


# Names that duoln has not -----------------------------------------------------------------------------

NAMES = [
    (duoln, "exp", "duoln.ops.exp"), (duoln, "tensro", "did you mean 'tensor'"), (duoln, "randn", "Stream"), (nn, "Lienar", "did you mean 'Linear'"),
    (optim, "adam", "optim.Adam(1e-3)"), (optim, "sgd", "optim.SGD(0.1)"), (duoln, "topk", "np.argsort(-x.numpy()"), (duoln, "Linear", "duoln.nn.Linear"),
    (duoln, "AdamW", "duoln.optim.AdamW"), (duoln, "DataLoader", "duoln.data.Batches"), (nn, "relu", "duoln.ops.relu"),
    (duoln, "log2", "ops.log(x) / math.log(2)"), (ops, "log2", "ops.log(x) / math.log(2)"), (ops, "sofmax", "did you mean 'softmax'")]
"""Names that are near one of ours, or are elsewhere in duoln; `test_remedies.py` has those of PyTorch."""


@pytest.mark.parametrize(("module", "name", "way"), NAMES)
def test_names_of_modules(module, name, way):
    check_error(AttributeError, lambda: getattr(module, name), f"module '{module.__name__}' has no attribute '{name}'", way)
    assert not hasattr(module, name)


def test_modules_whose_names_are_pytorchs_are_imported_as_before():
    from duoln.ops.norm import layer_norm
    from duoln.optim.adam import Adam

    assert layer_norm is ops.layer_norm and Adam is optim.Adam


def test_a_module_of_ones_own_may_use_these_names(be):
    class Own(nn.Module):
        def __init__(self):
            self.to, self.cpu = nn.Linear(2, 3), 5

        def train(self):
            return "trained"

        def __call__(self, params, x):
            return self.to(params["to"], x)

    own = Own()
    params = duoln.to_tensors(own.init(0), be)
    assert own.train() == "trained" and own.cpu == 5 and own(params, ops.ones((1, 2), be)).shape == (1, 3)


# What goes on as it did ---------------------------------------------------------------------------------

def test_parameters_that_are_numpy_arrays(be):
    raw, x, adam = MODEL.init(0), ops.ones((4, 3), be), optim.Adam(1e-3)
    params = duoln.to_tensors(raw, be)
    slots = adam.init(params)
    for call in (lambda: MODEL(raw, x), lambda: duoln.value_and_grad(lambda p: MODEL(p, x).mean())(raw), lambda: adam.init(raw),
                 lambda: adam.update(raw, params, slots, 1e-3), lambda: adam.update(params, raw, slots, 1e-3)):
        check_error(DtypeError, call, "expected a duoln.Tensor", "found numpy.ndarray", "duoln.to_tensors(params)")
    check_error(CompileError, lambda: duoln.compile(lambda params, x: MODEL(params, x))(raw, x), "argument 'params', '0.weight'",
                "found numpy.ndarray", "duoln.to_tensors(params)")


@pytest.mark.peers
def test_tensors_of_pytorch(be):
    torch, x = pytest.importorskip("torch"), ops.ones((4, 3), be)
    for call, name in ((lambda: MODEL(duoln.init(MODEL, 0, be), torch.ones(4, 3)), "linear"), (lambda: x + torch.ones(4, 3), "add")):
        check_error(DtypeError, call, f"[{name}]", "found torch.Tensor", "duoln.tensor(x.detach()")


def test_a_child_with_its_parents_parameters(be):
    class Parent(nn.Module):
        def __init__(self):
            self.out = nn.Linear(2, 3)

        def __call__(self, params, x):
            return self.out(params, x)

    parent = Parent()
    check_error(ShapeError, lambda: parent(duoln.to_tensors(parent.init(0), be), ops.ones((4, 2), be)), "[Linear]", "found out", "params['out']")


@pytest.mark.parametrize(("after", "name"), [(nn.Linear(3, 2), "Linear"), (ops.relu, "relu"), (nn.LayerNorm(3), "LayerNorm")])
def test_a_recurrent_layer_inside_sequential(be, after, name):
    steps = ops.ones((5, 4, 2), be)
    broken = nn.Sequential(nn.LSTM(2, 3), after)
    check_error(DtypeError, lambda: broken(duoln.to_tensors(broken.init(0), be), steps), f"[Sequential] layer 1 ({name})",
                "tuple that LSTM returns", "(outputs, states)", "lambda pair: pair[0]")
    mended = nn.Sequential(nn.LSTM(2, 3), lambda pair: pair[0], after)
    assert mended(duoln.to_tensors(mended.init(0), be), steps).shape[:2] == (5, 4)
    ends = nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 3))
    assert len(ends(duoln.to_tensors(ends.init(0), be), steps)) == 2


def test_constructors_of_modules_of_ones_own():
    class Own(nn.Module):
        def __init__(self, width, broken=False):
            """Made as usual."""
            self.width = width
            if broken:
                len(3)

    assert repr(Own(3)) == "Own(width=3)" and Own.__init__.__doc__ == "Made as usual."
    check_error(TypeError, Own)
    with pytest.raises(TypeError, match="has no len") as caught:
        Own(3, broken=True)
    assert type(caught.value) is TypeError
