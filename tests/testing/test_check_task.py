"""`check_task` reports each error of a task."""

import dataclasses
import sys
from textwrap import dedent
from typing import ClassVar

import numpy as np
import pytest

from duoln import nn, ops, runtime
from duoln.core import stop_gradient
from duoln.data import Batches, read_npz, read_text
from duoln.data.npz import Expected
from duoln.errors import DataError, DataFormatError, GradientError, TaskError, UsageError
from duoln.examples.own_task import Spirals
from duoln.tasks import Column, Dataset, make_config, train
from duoln.tasks.registry import Registry
from duoln.tasks.task import selected_by
from duoln.testing import check_corpus, check_error, check_task
from duoln.training.trainer import Trainer


class Stopped(Spirals):
    """Half of its loss has no gradient."""

    def loss(self, model, params, batch):
        whole = super().loss(model, params, batch)
        return 0.5 * whole + 0.5 * stop_gradient(whole)


class Reads(Spirals):
    """Reads a value on the host within the step."""

    def loss(self, model, params, batch):
        whole = super().loss(model, params, batch)
        return whole * (1.0 if float(whole) > 0 else 2.0)


class Partial(Spirals):
    """Has another loss on one backend."""

    def loss(self, model, params, batch):
        whole = super().loss(model, params, batch)
        return whole if batch["x"].backend.name == "numpy" else whole * 1.001


class Random(Spirals):
    """Makes another batch at each call."""

    def data(self, cfg, root=None):
        splits, rng = super().data(cfg, root), np.random.default_rng()
        return type(splits)(splits.dataset, lambda step: splits.train(int(rng.integers(10**6))), splits.steps_per_epoch,
                            splits.evaluation)


def test_a_derivative_that_is_not_the_losss():
    check_error(GradientError, lambda: check_task(Stopped()), "loss of 'ln', in float64", "expected a derivative of")
    check_task(Stopped(), gradients=False)


def test_a_step_that_reads_on_the_host():
    check_error(TaskError, lambda: check_task(Reads(), gradients=False, agreement=False), "loss raised CompileError", "reads a value on the host")


def test_a_loss_that_differs_between_backends():
    if runtime.probe("mlx").backend is None:
        pytest.skip("a second backend is needed")
    with pytest.raises(AssertionError, match=r"agreement: 'ln', batch 0: expected one loss on every backend.* mlx"):
        check_task(Partial())
    with pytest.raises(AssertionError, match=r"agreement: .* on mlx and .* on numpy"):
        check_task(Partial(), backend="mlx")
    check_task(Partial(), agreement=False)


def test_data_that_are_no_function_of_the_step():
    with pytest.raises(AssertionError, match="differs when it is asked for again"):
        check_task(Random())


class Unseeded(Spirals):
    """Draws its data anew at each call."""

    def data(self, cfg, root=None):
        return super().data(dataclasses.replace(cfg, seed=int(np.random.default_rng().integers(2**31))), root)


class UnseededTest(Spirals):
    """Draws its test set anew at each call."""

    def data(self, cfg, root=None):
        splits = super().data(cfg, root)
        test = {**splits.evaluation["test"], "x": np.random.default_rng().standard_normal((512, 2)).astype(np.float32)}
        return dataclasses.replace(splits, evaluation={"test": test})


class Growing(Spirals):
    """Has more rows in each split that it makes."""

    rows = 0

    def data(self, cfg, root=None):
        Growing.rows += 1
        splits = super().data(cfg, root)
        test = {key: array[:100 + self.rows] for key, array in splits.evaluation["test"].items()}
        return dataclasses.replace(splits, evaluation={"test": test})


@pytest.mark.parametrize(("task", "where"), [(Unseeded, "batch 0 of training"), (UnseededTest, "split 'test'"), (Growing, "split 'test'")])
def test_data_that_are_drawn_without_the_seed(task, where):
    check_error(AssertionError, lambda: check_task(task(), gradients=False, agreement=False),
                f"data: {where}", "differs when data(cfg) is called again", "cfg.seed")


@pytest.mark.parametrize(("line", "module"), [
    ("import duoln.backends.numpy", "duoln.backends.numpy"), ("from duoln import kernels", "duoln.kernels"),
    ("from duoln.core.tape import Tape", "duoln.core.tape"), ("import numpy, mlx.core", "mlx.core"),
    ("from duoln.kernels.adam import cases", "duoln.kernels.adam"), ("def f():\n    import cupy", "cupy")])
def test_a_module_that_imports_what_it_leaves_to_duoln(tmp_path, monkeypatch, line, module):
    (tmp_path / "low_task.py").write_text(dedent("""
        from duoln.core import Op, Rule, Tensor, op
        from duoln.examples.own_task import Spirals

        class Low(Spirals):
            pass

        if False:
        """) + "".join(f"    {part}\n" for part in line.splitlines()))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "low_task", raising=False)
    import low_task

    with pytest.raises(AssertionError, match=r"layering: .*low_task\.py:(9|10): expected") as caught:
        check_task(low_task.Low())
    assert str(caught.value).endswith(f"found {module}")
    monkeypatch.delitem(sys.modules, "low_task")


# Damaged data -------------------------------------------------------------------------------------------

class FromFile(Spirals):
    """Reads its points from `spirals/points.npz`, as it should."""

    def read(self, path):
        return read_npz(path, {"x": Expected("f4", 2), "label": Expected("i4", 1)})

    def data(self, cfg, root=None):
        splits = super().data(cfg, root)
        if root is None or not (root / "spirals").is_dir():
            return splits
        arrays = self.read(root / "spirals" / "points.npz")
        made = Batches({"x": arrays["x"], "label": arrays["label"]}, cfg.batch_size, cfg.seed)
        return dataclasses.replace(splits, dataset=Dataset("points", "original"), train=made)


class Traceback(FromFile):
    def read(self, path):
        return np.load(path)


class FallsBack(FromFile):
    def read(self, path):
        try:
            return super().read(path)
        except DataFormatError:
            return {"x": np.zeros((64, 2), np.float32), "label": np.zeros(64, np.int32)}


class Nameless(FromFile):
    def read(self, path):
        try:
            return super().read(path)
        except DataFormatError as error:
            raise DataError("the file is broken") from error


class Elsewhere(FromFile):
    def data(self, cfg, root=None):
        return Spirals.data(self, cfg, root)


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "spirals").mkdir()
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "spirals" / "points.npz", x=rng.standard_normal((80, 2)).astype(np.float32),
             label=rng.integers(0, 2, 80).astype(np.int32))
    return tmp_path


def test_a_task_that_refuses_damaged_files_passes(corpus):
    check_task(FromFile(), corpus=corpus)


@pytest.mark.parametrize(("task", "words"), [
    (Traceback, "points.npz empty: expected a DataError, found EOFError"), (FallsBack, "points.npz empty: expected a DataError, found no error"),
    (Nameless, "an error that names the file, found: the file is broken"), (Elsewhere, "found made data")])
def test_readers_that_are_wrong_are_seen(task, words, corpus):
    with pytest.raises(AssertionError, match=words):
        check_corpus(task(), make_config(task(), "ln", "smoke"), corpus)


class FromText(FromFile):
    """Reads the points of a plain text, a label and two numbers a line; any half of the text is a text."""

    def data(self, cfg, root=None):
        splits = Spirals.data(self, cfg, root)
        if root is None:
            return splits
        numbers = [[float(word) for word in line.split()] for line in read_text(root / "points.txt").splitlines()]
        rows = np.array([row for row in numbers if len(row) == 3], np.float32)
        made = Batches({"x": rows[:, 1:], "label": rows[:, 0].astype(np.int32)}, 2, cfg.seed)
        return dataclasses.replace(splits, dataset=Dataset("points", "original"), train=made)


TEXT = ("cut in half", "without its last byte")


@pytest.fixture
def text_corpus(tmp_path):
    (tmp_path / "points.txt").write_text("0 1 2\n1 3 4\n" * 6)
    return tmp_path


def test_half_of_a_text_is_a_text(text_corpus):
    check_task(FromText(), corpus=text_corpus, harmless=TEXT, gradients=False, agreement=False)
    with pytest.raises(AssertionError, match=r"points\.txt cut in half: expected a DataError, found no error"):
        check_task(FromText(), corpus=text_corpus, gradients=False, agreement=False)


def test_what_is_not_harmless_is_still_refused(text_corpus):
    class Replaces(FromText):
        def data(self, cfg, root=None):
            try:
                return super().data(cfg, root)
            except DataError:
                return Spirals.data(self, cfg)

    with pytest.raises(AssertionError, match=r"points\.txt empty: expected a DataError, found no error"):
        check_task(Replaces(), corpus=text_corpus, harmless=TEXT)


@pytest.mark.parametrize(("harmless", "words"), [
    (("cut in three",), ["'cut in half'", "found 'cut in three'"]), ("empty", ["in a tuple", "found the text 'empty'"]),
    (("empty", "of other bytes", *TEXT), ["left to check", "all of them"])])
def test_damages_that_there_are_not(text_corpus, harmless, words):
    check_error(UsageError, lambda: check_task(FromText(), corpus=text_corpus, harmless=harmless), "[check_corpus] harmless", *words)


class Tall(Spirals):
    """Its points lie along the second axis, but its `batch_axes` does not name that axis."""

    def data(self, cfg, root=None):
        splits = super().data(cfg, root)
        return dataclasses.replace(splits, train=lambda step: {**splits.train(step), "x": splits.train(step)["x"].T.copy()})


def test_examples_along_another_axis_are_to_be_said():
    with pytest.raises(AssertionError, match="batch_axes"):
        check_task(Tall())


# What must not hang on the seed, or on a test set -----------------------------------------------------------

class Seeded(Spirals):
    """Its test points are drawn by the seed of the run."""

    def data(self, cfg, root=None):
        splits = super().data(cfg, root)
        test = {**splits.evaluation["test"], "x": splits.evaluation["test"]["x"] + np.float32(cfg.seed)}
        return dataclasses.replace(splits, evaluation={"test": test})


class Select(Spirals):
    """Keeps the checkpoint that is the best on the test set."""

    selection = ("test_error", "lowest")


class Patient(Spirals):
    """Has no figure but that of the test set, and a preset that ends by it."""

    presets: ClassVar = {**Spirals.presets, "small": {"patience": 3}}


def test_held_out_data_that_hang_on_the_seed():
    with pytest.raises(AssertionError, match=r"split 'test' of 'ln' differs for another seed, at 'x'.*DATA_SEED"):
        check_task(Seeded(), gradients=False, agreement=False)


@pytest.mark.parametrize(("task", "actual"), [(Select, "test_error"), (Patient, "none")])
def test_a_task_that_selects_by_a_test_figure(task, actual):
    with pytest.raises(AssertionError, match=rf"selection: expected a metric of another set than test, found {actual}"):
        check_task(task(), gradients=False, agreement=False)
    cfg = make_config(task(), "ln", "smoke", {"patience": 2})
    check_error(UsageError, lambda: Trainer(task(), "ln", cfg, task().data(cfg), runtime.backend("numpy")), "[spirals] selection", actual)


def test_the_default_selection_is_the_first_column_of_no_test_set():
    class Several(Spirals):
        columns = (Column("test_error", "test"), Column("valid_error", "valid"))

    assert selected_by(Several(), Several.config(patience=1)) == ("valid_error", "lowest")
    assert selected_by(Spirals(), Spirals.config()) is None
    chosen = {name: selected_by(task, make_config(task, next(iter(task.variants)))) for name, (task, *_) in Registry().tasks.items()}
    assert chosen["draw"] == ("valid_bound", "lowest") and not any(key.startswith("test") for key, _ in filter(None, chosen.values()))


class Dropped(Spirals):
    def model(self, cfg):
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))

    def loss(self, model, params, batch):
        return ops.softmax_cross_entropy(model(params, batch["x"]), batch["label"]).mean()


def test_a_task_with_dropout_passes():
    """Its masks come with the batches of training; no check warns of a mask that is missing."""
    check_task(Dropped())


class Misspelt(Spirals):
    columns = (Column("test_mistake", "mistake"),)


class NotAveraged(Spirals):
    def loss(self, model, params, batch):
        return model(params, batch["x"])


def test_a_run_says_what_is_wrong_with_a_task_where_its_author_wrote_it(tmp_path):
    """A metric that is missing is told at the first evaluation; a wrong result by the line of the method that gave it."""
    check_error(TaskError, lambda: train(Misspelt(), variant="ln", preset="smoke", backend="numpy"), "[spirals] columns", "test_error", "found test_mistake")
    line = NotAveraged.loss.__code__.co_firstlineno
    check_error(TaskError, lambda: train(NotAveraged(), variant="ln", preset="smoke", backend="numpy"),
                f"{__file__}:{line}", "expected a loss of shape ()", "ops.mean(loss) makes one of it")
