"""Mistakes of authors of operators, listeners and settings: each is an error that names what was expected and what was found."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import duoln
from duoln import extend, ops, optim
from duoln.bench import groups
from duoln.errors import (
    CallError,
    DtypeError,
    DuolnError,
    GradientError,
    KernelError,
    PluginError,
    ShapeError,
    UsageError,
)
from duoln.examples.own_task import Spirals, SpiralsConfig
from duoln.kernels import native
from duoln.tasks import Column, Config, Dataset, train
from duoln.tasks.contract import check_attributes
from duoln.tasks.events import Listener
from duoln.testing import check_error, check_op, check_rule, check_task, hostgpu
from duoln.testing.emulation import emulated

compiles = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")
X = [np.linspace(-2, 2, 6).reshape(2, 3)]


def operator(forward=lambda be, x: (x * x, x), vjp=lambda be, x, gout, needs: (2 * x * gout,), declaration="x: real[*shape] -> like x", fast=None):
    @extend.op(declaration)
    def square(x: extend.Tensor) -> extend.Tensor:
        """x^2."""

    square.add(extend.Rule("composed", forward, vjp))
    if fast is not None:
        square.add(fast, backend="numpy")
    return square


def gradient(op):
    return duoln.value_and_grad(lambda x: ops.sum(op(x)))(duoln.tensor(X[0].astype(np.float32), "numpy"))


def in_place(be, x, gout, needs):
    gout *= 2
    return (x * gout,)


def writes(be, x):
    x *= x
    return x, x


GRADIENTS = {  # by the gradient of a composed rule
    "another shape": (lambda x, g: (2 * x * g)[:, :1], "expected as gradient 0 one like its array, float32 of shape (2, 3); found float32 of shape (2, 1)"),
    "one axis more": (lambda x, g: (2 * x * g)[None], "found float32 of shape (1, 2, 3)"),
    "another dtype": (lambda x, g: (2 * x * g).astype(np.float64), "found float64 of shape (2, 3)"),
    "a number": (lambda x, g: 1.0, "found 1.0 (float)"),
    "a list": (lambda x, g: [1.0], "found list"),
    "a tensor": (lambda x, g: duoln.tensor(x, "numpy"), "one like its array, float32 of shape (2, 3); found duoln.Tensor"),
}


@pytest.mark.parametrize(("made", "words"), GRADIENTS.values(), ids=GRADIENTS)
def test_a_gradient_unlike_its_array(made, words):
    check_error(GradientError, lambda: gradient(operator(vjp=lambda be, x, g, needs: (made(x, g),))), "[square] rule 'composed'", words)


NUMBERS = {"none for two": ((), "a tuple of 0"), "two for one": ((1, 2), "a tuple of 2"), "no tuple": (3.0, "3.0")}


@pytest.mark.parametrize(("given", "words"), NUMBERS.values(), ids=NUMBERS)
def test_a_wrong_number_of_gradients(given, words):
    check_error(GradientError, lambda: gradient(operator(vjp=lambda be, x, g, needs: given)), "expected a tuple of 1 gradients", words)


RESULTS = {
    "no pair": (lambda be, x: x * x, UsageError, "expected the pair (value, what the gradient needs) of forward"),
    "another shape": (lambda be, x: ((x * x)[:1], x), ShapeError, "expected output 0 like array 0, float32 of shape (2, 3); found float32 of shape (1, 3)"),
    "another dtype": (lambda be, x: ((x * x).astype(np.float64), x), ShapeError, "found float64 of shape (2, 3)"),
    "a function that the backend has not": (lambda be, x: (be.square(x), x), AttributeError, "has no attribute 'square'"),
}


@pytest.mark.parametrize(("forward", "kind", "words"), RESULTS.values(), ids=RESULTS)
def test_a_wrong_result_of_forward(forward, kind, words):
    with pytest.raises(kind) as caught:
        operator(forward)(duoln.tensor(X[0].astype(np.float32), "numpy"))
    assert words in str(caught.value)


CHECKED = {  # what check_op finds in float64 on NumPy, the recipe of the page
    "a gradient's shape": (operator(vjp=lambda be, x, g, needs: ((2 * x * g)[None],)), GradientError, "found float64 of shape (1, 2, 3)"),
    "a gradient's dtype": (operator(vjp=lambda be, x, g, needs: ((2 * x * g).astype(np.float32),)), GradientError, "found float32"),
    "a gradient's values": (operator(vjp=lambda be, x, g, needs: (x * g,)), GradientError, "expected a derivative of"),
    "no gradient": (operator(vjp=lambda be, x, g, needs: (None,)), GradientError, "expected as gradient 0 one like its array, float64 of shape (2, 3); found None"),
    "gout is changed": (operator(vjp=in_place), AssertionError, "rule 'composed' wrote into its gout 0"),
    "an input is changed": (operator(writes), AssertionError, "rule 'composed' wrote into its input 0"),
    "contiguous memory": (operator(lambda be, x: (np.frombuffer(x.tobytes("A"), x.dtype).reshape(x.shape) ** 2, x)), AssertionError, "arrays in Fortran's order"),
    "random numbers": (operator(lambda be, x: (x * x + 1e-15 * np.random.default_rng().standard_normal(x.shape), x)), AssertionError, "of a second run differs"),
}


@pytest.mark.parametrize(("op", "kind", "words"), CHECKED.values(), ids=CHECKED)
def test_what_check_op_finds(op, kind, words):
    with pytest.raises(kind) as caught:
        check_op(op, X, lambda x: x * x, "numpy", dtype="float64")
    assert words in str(caught.value)


def test_check_op_passes_a_right_one():
    check_op(operator(), X, lambda x: x * x, "numpy", dtype="float64")
    check_op(operator(), X, lambda x: x * x, "numpy")


@pytest.mark.parametrize("reason", [True, False, 0, ["no"]])
def test_supports_gives_a_reason_or_none(reason):
    fast = extend.Rule("fast", lambda be, x: (x * x, x), supports=lambda be, x: reason)
    op, x = operator(fast=fast), duoln.tensor(X[0], "numpy")
    for call in (op, op.explain):
        check_error(DtypeError, lambda call=call: call(x), "rule 'fast': expected of supports None, or a text", "found list" if reason == ["no"] else repr(reason))


def test_check_rule_names_a_gradient_that_is_none():
    fast = extend.Rule("fast", lambda be, x: (x * x, x), lambda be, x, g, needs: (None,))
    with pytest.raises(AssertionError, match=r"gradient 0: expected an array, found None"):
        check_rule(operator(fast=fast), fast, [X[0].astype(np.float32)], "numpy")


DECLARATIONS = {
    "an unknown kind": "x: float[*shape] -> like x", "like nothing": "x: real[n] -> like y",
    "an axis of nothing": "x: real[n] -> real[m]", "another argument": "y: real[n] -> like y", "a bracket": "x: real[n -> like x", "no text": 3}


@pytest.mark.parametrize("declaration", DECLARATIONS.values(), ids=DECLARATIONS)
def test_a_declaration_that_is_none(declaration):
    with pytest.raises((DuolnError, ValueError)) as caught:
        operator(declaration=declaration)
    assert "expected" in str(caught.value)


ADDED = {
    "no rule": (lambda op: op.add(lambda be, x: x), DtypeError, "[square] add: expected a Rule"),
    "an unknown backend": (lambda op: op.add(extend.Rule("a", abs), backend="cuda"), UsageError, "expected a backend of numpy"),
    "a name that is none": (lambda op: extend.Rule(3, abs), DtypeError, "[Rule] name: expected a text"),
    "a forward that is none": (lambda op: extend.Rule("a", 3), DtypeError, "[Rule] forward: expected a function"),
    "a vjp that is none": (lambda op: extend.Rule("a", abs, 3), DtypeError, "[Rule] vjp: expected a function"),
    "a supports that is none": (lambda op: extend.Rule("a", abs, None, True), DtypeError, "[Rule] supports: expected a function"),
    "a call with an array": (lambda op: op(X[0]), DtypeError, "expected a duoln.Tensor"),
    "a call with two": (lambda op: op(1, 2), TypeError, "square()"),
    "no composed rule": (lambda op: extend.op("x: real[n] -> like x")(op.function)(duoln.tensor([1.0], "numpy")), DuolnError, "[square] has no composed rule"),
    "an attribute that there is not": (lambda op: check_op(op, X, lambda x: x * x, "numpy", attrs={"slope": 1}), (CallError, TypeError), "slope"),
    "an unknown device of check_op": (lambda op: check_op(op, X, lambda x: x, "cuda"), UsageError, "expected one of"),
    "a wrong formula": (lambda op: check_op(op, X, lambda x: x, "numpy"), AssertionError, "output 0 on numpy"),
}


@pytest.mark.parametrize(("act", "kind", "words"), ADDED.values(), ids=ADDED)
def test_a_wrong_call(act, kind, words):
    with pytest.raises(kind) as caught:
        act(operator())
    assert words in str(caught.value)


# Kernels ----------------------------------------------------------------------------------------------------

TEXT = '#include "common.h"\nENTRY(twice) {\n    for (index_t k = 0; k < size; ++k) y[k] = 2 * x[k];\n}\n'
DECLARED = "x: real[*size] -> y: like x"


def launch(folder, text=TEXT, declaration=DECLARED, entry="twice", dtype=np.float32, name="twice", x=None):
    file = folder / f"{name}.cpp"
    file.write_text(text)
    made = extend.Launch(file.with_suffix(""), entry, declaration)  # a path, too
    return made["numpy"](np.ones(3, dtype) if x is None else x)


LAUNCHES = {
    "a missing entry": ({"entry": "thrice"}, "[thrice] expected ENTRY(thrice) in a text"),
    "a header that there is not": ({"text": '#include "gone.h"\n' + TEXT}, "gone.h is neither beside twice.cpp nor one of duoln"),
    "a text that does not compile": ({"text": TEXT.replace("2 * x", "2 ** x")}, "twice.cpp:3"),
    "a name that is not declared": ({"text": TEXT.replace("< size", "< count")}, "count"),
    "an array of another dtype": ({"declaration": "x: real[*size], m: int32[*size] -> y: like x", "x": None}, "m"),
}


@compiles
@pytest.mark.parametrize(("given", "words"), LAUNCHES.values(), ids=LAUNCHES)
def test_a_wrong_kernel(given, words, tmp_path, capfd):
    """The compiler's words are on stderr as soon as there are any."""
    with pytest.raises((KernelError, TypeError)) as caught:
        launch(tmp_path, **given)
    assert words in f"{caught.value}{capfd.readouterr().err}"


@compiles
def test_a_text_that_changed_in_this_process(tmp_path):
    assert launch(tmp_path).tolist() == [2, 2, 2]
    check_error(KernelError, lambda: launch(tmp_path, TEXT.replace("2 *", "3 *")), "has changed since this process first read it", "start Python again")


@compiles
def test_statics_of_one_name_belong_to_each_library(tmp_path):
    text = '#include "common.h"\ninline T scale() { static T value = T(std::sqrt(FOUR)); return value; }\n' \
        "ENTRY(twice) {\n    for (index_t k = 0; k < size; ++k) y[k] = scale() * x[k];\n}\n"
    first = launch(tmp_path, text.replace("FOUR", "4.0"))
    assert first.tolist() == [2, 2, 2] and launch(tmp_path, text.replace("FOUR", "4.0"), dtype=np.float64).tolist() == [2, 2, 2]
    assert launch(tmp_path, text.replace("FOUR", "25.0"), name="another").tolist() == [5, 5, 5]


# Listeners and settings ---------------------------------------------------------------------------------------

def test_a_method_that_no_event_calls():
    for name, meant in (("on_evalution", "on_evaluation"), ("on_epoch_end", "")):
        check_error(UsageError, lambda name=name: type("Mine", (Listener,), {name: lambda self, event: None}),
                    f"[Listener] Mine: expected one of on_start, on_memory, on_update, on_evaluation, on_end; found '{name}'",
                    *([f"did you mean '{meant}'"] if meant else []))


@pytest.mark.parametrize("given", [[Listener], Listener(), [3], "tensorboard"])
def test_listeners_that_are_none(given):
    check_error(UsageError, lambda: train(Spirals(), "ln", preset="smoke", listeners=given), "[train] listeners: expected a list of Listener objects")


def test_an_error_at_the_end_does_not_hide_the_first(tmp_path):
    class Both(Listener):
        def on_evaluation(self, event):
            raise RuntimeError("the first")

        def on_end(self, status, result):
            raise KeyError("the second")

    with pytest.raises(KeyError) as caught:
        train(Spirals(), "ln", preset="smoke", backend="numpy", listeners=[Both()])
    assert str(caught.value.__context__) == "the first"


def settings(**fields):
    """A task whose settings have these fields: by name a type and a default."""
    kind = dataclasses.make_dataclass("Own", [(name, of, dataclasses.field(default=value)) for name, (of, value) in fields.items()],
                                      bases=(SpiralsConfig,), frozen=True)
    return type("Mine", (Spirals,), {"config": kind})()


SETTINGS = {
    "epochs of another type": (settings(epochs=(float, 1.5)), "epochs: expected the type int, which every task has"),
    "a batch size that is a text": (settings(batch_size=(str, "1")), "batch_size: expected the type int, which every task has"),
    "a default of NumPy's": (settings(rate=(float, np.float32(0.5))), "rate: expected a default of Python's own types, found"),
    "a name of train": (settings(backend=(str, "numpy")), "expected another name than 'backend'"),
    "a path": (settings(file=(Path, Path())), "file: expected a type of int, float, bool"),
    "a dict": (settings(extra=(dict, None)), "extra: expected a type of int, float, bool"),
}


@pytest.mark.parametrize(("task", "words"), SETTINGS.values(), ids=SETTINGS)
def test_settings_that_cannot_be(task, words):
    check_error(PluginError, lambda: check_attributes(task), "a task of class Mine: config: ", words)


def test_settings_without_the_decorator():
    class Own(Config):
        width: int = 3

    check_error(PluginError, lambda: check_attributes(type("Mine", (Spirals,), {"config": Own})()),
                "width: expected @dataclass(frozen=True) above Own, found none")


# Tasks ----------------------------------------------------------------------------------------------------------

def with_data(**fields):
    """A method `data` whose splits have other fields; those that are functions get the number of the update."""
    return lambda self, cfg, root=None: dataclasses.replace(Spirals.data(self, cfg, root), **fields)


BATCH = {"x": np.zeros((64, 2), np.float32), "label": np.zeros(64, np.int32)}
TASKS = {
    "a variant with an unknown setting": ({"variants": {"ln": {"nrom": True}}}, "variant 'ln': expected settings of seed, epochs"),
    "a variant with a value of another type": ({"variants": {"ln": {"norm": "yes"}}}, "norm: expected true or false, found 'yes'"),
    "a preset with an unknown setting": ({"presets": {"smoke": {"epoch": 1}}}, "preset 'smoke' or variant 'ln': expected settings of seed"),
    "no variants": ({"variants": {}}, "the task has no variants"),
    "no name": ({"name": ""}, "the task has no name"),
    "a name with blanks": ({"name": "my task"}, "expected a name of 1 to 64 letters"),
    "columns that are a text": ({"columns": "test_error"}, "columns: expected a tuple of Column, found 'test_error'"),
    "a column of no metric": ({"columns": (Column("test_mistake", "m", ".1%"),)}, "columns: expected some of the metrics test_error, found test_mistake"),
    "a column without a format": ({"columns": (Column("test_error", "m", "percent"),)}, "columns: ValueError: Invalid format specifier"),
    "a metric that is a tensor": ({"metrics": lambda self, p, s: {"error": duoln.tensor(0.5, "numpy")}}, "metrics: expected a number as 'error', found Tensor"),
    "a metric that is an array": ({"metrics": lambda self, p, s: {"error": np.ones(3)}}, "metrics: expected a number as 'error', found an array"),
    "metrics that are none": ({"metrics": lambda self, p, s: None}, "metrics: expected figures by name, found None"),
    "metrics that are one number": ({"metrics": lambda self, p, s: 0.5}, "metrics: expected figures by name, found 0.5"),
    "a metric that is NaN": ({"metrics": lambda self, p, s: {"error": float("nan")}}, "metrics: test_error is nan"),
    "a loss for each example": ({"loss": lambda self, m, p, b: ops.softmax_cross_entropy(m(p, b["x"]), b["label"])}, "ops.mean(loss) makes one of it"),
    "a loss of NumPy's": ({"loss": lambda self, m, p, b: np.float32(1)}, "loss: expected a Tensor, found float32; a loss of NumPy's would be a constant"),
    "a loss that is a number": ({"loss": lambda self, m, p, b: 1.0}, "loss: expected a Tensor, found 1.0"),
    "predictions of NumPy's": ({"predict": lambda self, m, p, b: m(p, b["x"]).numpy()}, "predict: expected an object of class Tensor"),
    "data that are a tuple": ({"data": lambda self, cfg, root=None: (1, 2)}, "data: expected Splits, found tuple"),
    "batches of float64": ({"data": with_data(train=lambda k: {**BATCH, "x": np.zeros((64, 2))})}, "'x': expected a NumPy array of float32, int32 or bool, found float64"),
    "labels of int64": ({"data": with_data(train=lambda k: {**BATCH, "label": np.zeros(64, np.int64)})}, "'label': expected a NumPy array of float32, int32 or bool, found int64"),
    "batches of lists": ({"data": with_data(train=lambda k: {"x": [[1.0, 2.0]], "label": [1]})}, "expected an array of numbers as 'x.0.0' of a batch"),
    "batches that differ each time": ({"data": with_data(train=lambda k: {**BATCH, "x": np.random.default_rng().standard_normal((64, 2)).astype(np.float32)})},
                                      "train(step) must depend on the step alone"),
    "labels out of range": ({"data": with_data(train=lambda k: {**BATCH, "label": np.full(64, 7, np.int32)})}, "labels: expected indices in 0 .. 1, found 7"),
    "no updates": ({"data": with_data(steps_per_epoch=0)}, "data: expected steps_per_epoch of at least 1, found 0"),
    "splits in a list": ({"data": with_data(evaluation=[1])}, "data: expected splits by name as evaluation, found list"),
    "a provenance of one's own": ({"data": with_data(dataset=Dataset("mine", "own"))}, "expected a provenance of original, substitute, synthetic"),
    "a model that is a function": ({"model": lambda self, cfg: ops.tanh}, "model: expected an object of class Module, found Op"),
    "a model that is its parameters": ({"model": lambda self, cfg: {"w": 1}}, "model: expected an object of class Module, found dict"),
    "an optimizer without updates": ({"optimizer": lambda self, cfg: optim.Adam(1e-3)}, "optimizer raised TypeError: "),
    "an optimizer that is a rate": ({"optimizer": lambda self, cfg, updates: 1e-3}, "optimizer: expected an object of class Optimizer, found 0.001"),
    "a selection of no metric": ({"selection": ("valid_error", "lowest")}, "selection: expected one of the metrics test_error; found 'valid_error'"),
    "a selection in other words": ({"selection": ("test_error", "smallest")}, "selection: expected None, or a metric and 'lowest' or 'highest'"),
    "options that are no dataclass": ({"sampling": dict}, "sampling: expected a dataclass or None, found type"),
    "an axis of one's own": ({"x_axis": "step"}, "x_axis: expected 'epoch' or 'update', found 'step'"),
    "a reference of no variant": ({"references": {"lm": "x"}}, "references: there is no variant 'lm'"),
}


@pytest.mark.parametrize(("members", "words"), TASKS.values(), ids=TASKS)
def test_a_task_that_check_task_refuses(members, words):
    with pytest.raises((AssertionError, DuolnError)) as caught:
        check_task(type("Mine", (Spirals,), members)(), gradients=False, agreement=False, layering=False, steps=2)
    assert words in str(caught.value)


OF_LAUNCHES = {
    "an unknown kind": (lambda file: extend.Launch(file, "twice", "x: float[*size] -> y: like x"), "expected a kind of real, stored"),
    "an axis of no argument": (lambda file: extend.Launch(file, "twice", "x: real[*size] -> y: real[n]"), "expected a result in axes of the arguments"),
    "a plan of an unknown size": (lambda file: extend.Launch(file, "twice", DECLARED, lambda rows: extend.Layout((1,), (32,))), "[twice] plan: expected parameters of "),
    "a device in the place of a backend": (lambda file: extend.Launch(file, "twice", DECLARED)["cuda"], "expected the name of a backend, numpy, cupy, mlx; found 'cuda'"),
    "too few arguments": (lambda file: extend.Launch(file, "twice", DECLARED)["numpy"](), "missing 1 required positional argument: 'x'"),
    "too many arguments": (lambda file: extend.Launch(file, "twice", DECLARED)["numpy"](np.ones(3, np.float32), 1), "takes 1 positional argument but 2 were given"),
    "fused of no operator": (lambda file: extend.fused(3, None, None, extend.Launch(file, "twice", DECLARED)), "[fused] op: expected an extend.Op, found 3"),
    "fused of no launch": (lambda file: extend.fused(operator(), lambda be, x: (x, x), None, "twice"), "[fused] first: expected an extend.Launch"),
    "a time of no case": (lambda file: groups.of_operator(operator(), extend.Timed(lambda shape: 3, [], [], (2, 2), (1, 1)), (2, 3), True, True), "expected of Timed.case an extend.Case of it, found 3"),
    "a time of other axes": (lambda file: groups.of_operator(op := operator(), extend.Timed(lambda shape: extend.case(op, (3,)), [], [], (2, 2), (1, 1)), (2, 3), True, True),
                             "expected a first argument of (rows, width)"),
}


@compiles
@pytest.mark.parametrize(("act", "words"), OF_LAUNCHES.values(), ids=OF_LAUNCHES)
def test_a_wrong_launch_or_timing(act, words, tmp_path):
    (tmp_path / "twice.cpp").write_text(TEXT)
    with pytest.raises((DuolnError, ValueError, TypeError)) as caught:
        act(tmp_path / "twice")
    assert words in str(caught.value)


def test_what_the_emulated_device_says(tmp_path):
    (tmp_path / "same.cu").write_text("ENTRY(same) {\n  y[threadIdx.x] = x[threadIdx.x];\n}\n")
    for plan, x, kind, words in (
            (lambda size: ((1,), (32,)), np.ones(3, np.float32), KernelError, "plan: expected extend.Layout(blocks, threads) of two tuples, found"),
            (lambda size: extend.Layout((1,), (2048,)), np.ones(3, np.float32), hostgpu.HostGpuError, "blocks of 1024 threads"),
            (lambda size: extend.Layout((1,), (3,)), np.ones(3), DtypeError, "x: expected float32, found float64"),
            (lambda size: extend.Layout((1,), (32,)), np.ones(3, np.float32), hostgpu.HostGpuError, "an access ")):
        same = extend.Launch(tmp_path / "same", "same", DECLARED, plan)
        with emulated("cupy"), pytest.raises(kind) as caught:
            same["cupy"](x)
        assert words in str(caught.value)
