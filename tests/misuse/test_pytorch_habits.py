"""What someone who knows PyTorch writes by habit: each line is an error that names duoln's way."""

import subprocess
import sys

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim
from duoln.core import pytorch_names
from duoln.errors import CallError, CompileError, DtypeError, ShapeError, UsageError
from duoln.testing import check_error


@pytest.fixture
def x(be):
    return duoln.tensor(np.ones((4, 2), np.float32), be)


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(2, 3), ops.relu, nn.Linear(3, 2))


# Names that duoln has not -----------------------------------------------------------------------------

NAMES = [
    (duoln, "exp", "duoln.ops.exp"), (duoln, "tensro", "did you mean 'tensor'"), (duoln, "randn", "Stream"), (nn, "Lienar", "did you mean 'Linear'"),
    (optim, "adam", "optim.Adam(1e-3)"), (optim, "sgd", "optim.SGD(0.1)"), (duoln, "topk", "np.argsort(-x.numpy()"), (duoln, "Linear", "duoln.nn.Linear"),
    (duoln, "AdamW", "duoln.optim.AdamW"), (duoln, "DataLoader", "duoln.data.Batches"), (nn, "relu", "duoln.ops.relu"),
    (duoln, "log2", "ops.log(x) / math.log(2)"), (ops, "log2", "ops.log(x) / math.log(2)"), (ops, "sofmax", "did you mean 'softmax'")]
"""Names that are near one of ours, or are elsewhere in duoln; `test_pytorch_hints.py` has those of PyTorch."""


@pytest.mark.parametrize(("module", "name", "way"), NAMES)
def test_names_of_modules(module, name, way):
    check_error(AttributeError, lambda: getattr(module, name), f"module '{module.__name__}' has no attribute '{name}'", way)
    assert not hasattr(module, name)


def test_modules_whose_names_are_pytorchs_are_imported_as_before():
    from duoln.ops.norm import layer_norm
    from duoln.optim.adam import Adam

    assert layer_norm is ops.layer_norm and Adam is optim.Adam


@pytest.mark.long
def test_what_a_hint_names_is_there_after_one_import():
    """`import duoln` alone, in a fresh process."""
    code = "import duoln; print(*(getattr(duoln, name).__name__ for name in ('tree', 'errors', 'tasks', 'optim')))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert told == ["duoln.tree", "duoln.errors", "duoln.tasks", "duoln.optim"]


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


def test_no_remedy_names_what_is_not_there():
    tables = (pytorch_names.OF_DUOLN, pytorch_names.OF_NN, pytorch_names.OF_OPS, pytorch_names.OF_OPTIM, pytorch_names.OF_TENSORS,
              pytorch_names.OF_MODULES, pytorch_names.OF_OPTIMIZERS)
    for place, names in (("ops", ops.__all__), ("nn", nn.__all__), ("optim", dir(optim)), ("duoln", dir(duoln))):
        for remedy in (remedy for table in tables for remedy in table.values()):
            for word in remedy.split(f"{place}.")[1:]:
                name = word[:next((k for k, c in enumerate(word) if not (c.isalnum() or c == "_")), len(word))]
                assert name in names or (place == "duoln" and name in ("runs", "tree")), remedy


# Parameters and arguments of another kind -------------------------------------------------------------

def test_parameters_that_are_numpy_arrays(model, x, be):
    raw = model.init(0)
    params = duoln.to_tensors(raw, be)
    adam = optim.Adam(1e-3)
    slots = adam.init(params)
    for call in (lambda: model(raw, x), lambda: duoln.value_and_grad(lambda p: model(p, x).mean())(raw), lambda: adam.init(raw),
                 lambda: adam.update(raw, params, slots, 1e-3), lambda: adam.update(params, raw, slots, 1e-3)):
        check_error(DtypeError, call, "expected a duoln.Tensor", "found numpy.ndarray", "duoln.to_tensors(params)")
    check_error(CompileError, lambda: duoln.compile(lambda params, x: model(params, x))(raw, x), "argument 'params', '0.weight'",
                "found numpy.ndarray", "duoln.to_tensors(params)")


def test_tensors_of_pytorch(model, x, be):
    torch = pytest.importorskip("torch")
    params = duoln.to_tensors(model.init(0), be)
    check_error(DtypeError, lambda: model(params, torch.ones(4, 2)), "[linear]", "found torch.Tensor", "duoln.tensor(x.detach()")
    check_error(DtypeError, lambda: x + torch.ones(4, 2), "[add]", "found torch.Tensor", "duoln.tensor(x.detach()")


@pytest.mark.parametrize(("rate", "words"), [(0.1, ["0.1 (float)", "constant", "duoln.tensor(0.1)"]), (1, ["1 (int)", "duoln.tensor(1)"]),
                                             (lambda update: 0.1, ["function", "schedule(update)"])])
def test_a_rate_that_a_compiled_step_cannot_take(x, rate, words):
    check_error(CompileError, lambda: duoln.compile(lambda w, rate: w * rate)(x, rate), "[compile] argument 'rate'", *words)


def test_a_compiled_step_with_names(x):
    assert duoln.compile(lambda w, rate: w * rate)(x, rate=x).tolist() == (x * x).tolist()


def test_a_gradient_takes_names(x):
    value, _ = duoln.value_and_grad(lambda w, scale: ops.sum(w * scale))(x, scale=2.0)
    assert value.item() == 16.0


def test_a_loss_that_is_no_scalar(x):
    check_error(ShapeError, lambda: duoln.value_and_grad(lambda w: w * 2.0)(x), "[value_and_grad]", "found shape (4, 2)", "ops.mean(loss)")
    check_error(ShapeError, lambda: duoln.value_and_grad(lambda w: (w, w))(x), "[value_and_grad]", "found tuple")


def test_a_rate_that_is_a_function(x):
    sgd = optim.SGD(lambda update: 0.1)
    check_error(DtypeError, lambda: sgd.update([x], [x], {}, sgd.rate_at), "[SGD] rate", "optim.SGD(schedule)")


def test_numpy_functions(x):
    check_error(DtypeError, lambda: np.exp(x), "[exp]", "found a duoln.Tensor", "ops.exp", "x.numpy()")
    check_error(DtypeError, lambda: np.power(x, 2), "[power]", "use ops.pow, or np.power(x.numpy())")
    check_error(DtypeError, lambda: np.sinh(x), "[sinh]", "found a duoln.Tensor; use np.sinh(x.numpy())")
    check_error(DtypeError, lambda: np.add.reduce(x), "[add]", "found a duoln.Tensor; use np.add.reduce(x.numpy())")
    check_error(DtypeError, lambda: np.add.reduce(x), "[add]", "found a duoln.Tensor")
    check_error(DtypeError, lambda: np.add(x, x), "[add]", "found a duoln.Tensor")
    assert np.array_equal((np.float32(2) * x).numpy(), 2 * x.numpy()) and (np.float32(2) > x).numpy().all()
    assert np.array_equal((np.float64(3) - x).numpy(), 3 - x.numpy()) and (np.float32(3) / x).dtype == "float32"


def test_an_assignment_to_a_part(x):
    def assign():
        x[0] = 1.0

    check_error(DtypeError, assign, "[setitem]", "immutable", "ops.where")


# Modules ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("seed", [(), (None,), ("0",), (0.0,), (True,), (np.random.default_rng(0),)])
def test_init_without_a_seed(model, seed):
    check_error(DtypeError, lambda: model.init(*seed), "[Sequential] rng: expected a seed, as in init(0)", "found")


@pytest.mark.parametrize("layer", [
    nn.Linear(2, 3), nn.Sequential(nn.Linear(2, 3)), nn.LayerNorm(2), nn.RMSNorm(2), nn.GroupNorm(1, 2), nn.InstanceNorm(2, affine=False), nn.BatchNorm(2), nn.Embedding(2, 3), nn.Conv2d(2, 3, 1), nn.WeightNorm(nn.Linear(2, 3)),
    nn.LSTM(2, 3), nn.GRUCell(2, 3)])
def test_a_layer_called_without_parameters(layer, x):
    check_error(ShapeError, lambda: layer(x), f"[{type(layer).__name__}] expected parameters", "found duoln.Tensor",
                "layer(params, x)", "duoln.init(layer, 0)")


def test_a_child_with_its_parents_parameters(be, x):
    class Parent(nn.Module):
        def __init__(self):
            self.out = nn.Linear(2, 3)

        def __call__(self, params, x):
            return self.out(params, x)

    parent = Parent()
    check_error(ShapeError, lambda: parent(duoln.to_tensors(parent.init(0), be), x), "[Linear]", "found out", "params['out']")


def test_a_forward_in_the_place_of_call():
    class Forward(nn.Module):
        def forward(self, x):
            return x

    check_error(CallError, lambda: Forward()({}, 1), "[Forward] expected a method __call__(self, params, x)", "found forward")


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


def test_what_sequential_does_not_take():
    check_error(UsageError, lambda: nn.Sequential([nn.Linear(2, 2)]), "[Sequential]", "found list", "nn.Sequential(*layers)")
    check_error(UsageError, lambda: nn.Sequential(nn.Linear), "[Sequential]", "found the class Linear", "Linear(...)")


# Calls ------------------------------------------------------------------------------------------------

def test_arguments_that_go_by_name(x):
    check_error(TypeError, lambda: ops.layer_norm(x, x[0], x[0], 1e-5), "layer_norm() takes from 1 to 3 positional arguments")
    check_error(TypeError, lambda: ops.sum(x, dim=0), "did you mean 'axis'")
    check_error(TypeError, lambda: ops.sum(x, axsi=0), "did you mean 'axis'")
    check_error(TypeError, lambda: ops.sum(x, x=x))
    check_error(TypeError, lambda: ops.conv2d(x))


def test_a_module_without_a_call_of_its_own(x):
    class Bare(nn.Module):
        pass

    check_error(TypeError, lambda: Bare()(x), "missing", "x")
    check_error(CallError, lambda: Bare()({}, x), "[Bare] expected a method __call__(self, params, x), found none")


@pytest.mark.parametrize(("call", "words"), [
    (lambda x: (x > 0) ^ (x > 1), ["[^]", "mask != other"]), (lambda x: x << 1, ["[<<]", "* 2 ** n"]), (lambda x: x >> 1, ["[>>]"])])
def test_operators_that_tensors_have_not(call, words, x):
    check_error(DtypeError, lambda: call(x), *words, "in duoln: ")
    with pytest.raises(DtypeError):
        x.__class__.__xor__(x, 2)


@pytest.mark.parametrize("look", [lambda m: m[0], lambda m: m["hidden"], list, lambda m: [*m], lambda m: m[:2]])
def test_layers_of_a_module_with_attributes_have_no_order(look):
    check_error(UsageError, lambda: look(nn.TransformerBlock(4, 2)), "[TransformerBlock]", "children()")


def test_a_type_error_inside_an_operator_stays_what_it_is(x):
    @duoln.extend.op
    def broken(x):
        return len(3)

    with pytest.raises(TypeError, match="has no len") as caught:
        broken(x)
    assert type(caught.value) is TypeError


def test_settings_of_optimizers_by_other_names(model, be):
    check_error(TypeError, lambda: optim.Adam(lr=1e-3), "did you mean 'learning_rate'")
    check_error(TypeError, lambda: optim.SGD(0.1, momentun=0.9), "did you mean 'momentum'")
    check_error(DtypeError, lambda: optim.Adam(duoln.to_tensors(model.init(0), be)), "[Adam] learning_rate", "found dict", "init(params)")


@pytest.mark.parametrize(("make", "words"), [
    (lambda: nn.Linear(2), ["Linear.__init__() missing", "n_out"]),
    (lambda: nn.Linear(in_features=2, out_features=3), ["Linear.__init__() got", "did you mean 'n_in'"]),
    (lambda: nn.Conv2d(1, 2, kernel_size=3), ["did you mean 'size'"]),
    (lambda: nn.Embedding(num_embeddings=3, embedding_dim=2), ["did you mean 'words'"]),
    (lambda: nn.LSTM(2), ["n_hidden"]), (lambda: nn.LayerNorm(), ["width"]),
    (lambda: nn.LayerNorm(normalized_shape=(2, 3)), ["did you mean 'width'"]), (lambda: nn.RMSNorm(3, elementwise_affine=False), ["did you mean 'affine'"]),
    (lambda: nn.GroupNorm(num_groups=2, num_channels=4), ["did you mean 'groups'"])])
def test_sizes_of_layers_that_are_missing_or_named_otherwise(make, words):
    check_error(TypeError, make, *words)


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
