"""`duoln.summary`: sizes counted by hand, the forms of inputs, the text at every width, and errors that name the layer."""

import io

import numpy as np
import pytest

import duoln
from duoln import nn, ops
from duoln.core.footprint import kept_bytes
from duoln.errors import DtypeError, ShapeError
from duoln.testing import check_error
from duoln.training.summary import Row

F = 4
"""Bytes of a float32."""


def mlp():
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), ops.tanh, out=nn.Linear(7, 2, bias=False))


def test_every_figure_is_the_one_by_hand():
    made = duoln.summary(mlp(), (3, 5))
    assert made.rows == (
        Row("", "Sequential", (3, 2), 1, 0, 0, 0, 3), Row("0", "Linear", (3, 7), 1, 42, 42 * F, 21 * F, 0),
        Row("1", "LayerNorm", (3, 7), 1, 14, 14 * F, 21 * F, 0), Row("out", "Linear", (3, 2), 1, 14, 14 * F, 6 * F, 0))
    assert made.parameters == 70 and made.parameter_bytes == 70 * F and made.training_bytes == 3 * 70 * F
    least = (21 + 21 + 6) * F  # the input of the norm, that of the last layer, and the result
    assert least <= made.activation_bytes <= 3 * least, "what else a norm keeps depends on its rule"


def test_what_is_kept_is_that_of_a_training_step(numpy_backend):
    model, x = mlp(), duoln.tensor(np.ones((64, 5), np.float32), numpy_backend)
    params = duoln.to_tensors(model.init(0), numpy_backend)
    assert duoln.summary(model, x).activation_bytes == kept_bytes(lambda p: model(p, x), params)


def test_dropout_wants_no_masks_in_it():
    text = str(duoln.summary(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.LSTM(4, 4, layers=2, dropout=0.5)), (5, 2, 3)))
    assert "Dropout" in text and "(5, 2, 4)" in text


def test_the_sums_are_those_of_the_parameters():
    model = nn.Sequential(nn.Embedding(11, 6), lambda x: x, nn.LSTM(6, 4, norm="layer", layers=2, bidirectional=True), lambda pair: pair[0],
                          nn.Linear(8, 3))
    made = duoln.summary(model, ((9, 2), "int32"))
    leaves = duoln.tree.leaves(model.init(0))
    assert made.parameters == sum(a.size for a in leaves) and made.parameter_bytes == sum(a.nbytes for a in leaves)
    assert [row.path for row in made.rows] == ["", "0", "2", "2.forward0", "2.backward0", "2.forward1", "2.backward1", "4"]
    assert made.rows[-1].output == (9, 2, 3)


class Pair(nn.Module):
    def __init__(self):
        self.left, self.unused, self.twice = nn.Linear(2, 4), nn.Linear(3, 9), nn.LayerNorm(4)

    def __call__(self, params, x, scale, mask=None):
        y = self.twice(params["twice"], self.twice(params["twice"], self.left(params["left"], x))) * scale
        return y if mask is None else ops.where(mask, y, 0.0)


def test_several_calls_are_one_row_and_none_is_told():
    made = duoln.summary(Pair(), ((3, 2), (3, 1)))
    rows = {row.path: row for row in made.rows}
    assert rows["twice"].calls == 2 and rows["twice"].activation_bytes == 2 * 12 * F and rows["twice"].parameters == 8
    assert rows["unused"].calls == 0 and rows["unused"].output is None and rows["unused"].parameters == 36
    [line] = [line for line in str(made).splitlines() if "unused" in line]
    assert line.split() == ["unused", "Linear", "not", "called", "0", "36"]


@pytest.mark.parametrize("shapes", [
    ((3, 2), (3, 1)), [(3, 2), (3, 1)], ((3, 2), np.ones((3, 1), np.float32)), {"x": (3, 2), "scale": ((3, 1), "float32")},
    {"x": np.ones((3, 2), np.float32), "scale": (3, 1), "mask": ((3, 4), "bool")}, ([3, 2], (3, 1))])
def test_inputs_by_position_and_by_name(shapes):
    assert duoln.summary(Pair(), shapes).rows[0].output == (3, 4)


class OfBatch(nn.Module):
    def __init__(self):
        self.table = nn.Embedding(50, 3)

    def __call__(self, params, batch):
        return self.table(params["table"], batch["ids"]) * batch["weight"]


def test_a_batch_is_one_input():
    made = duoln.summary(OfBatch(), {"ids": ((8, 50), "int32"), "weight": (8, 50, 1)})
    assert made.rows[0].output == (8, 50, 3) and made.rows[1].calls == 1


@pytest.mark.parametrize("x", [(4,), (0, 4), (1, 4), np.ones((2, 4), np.float32), (np.int64(2), 4)])
def test_one_input(x, be):
    want = x.shape if isinstance(x, np.ndarray) else tuple(int(n) for n in x)
    assert duoln.summary(nn.LayerNorm(4), x).rows == (Row("", "LayerNorm", want, 1, 8, 32, int(np.prod(want)) * F, 0),)
    if isinstance(x, np.ndarray):
        assert duoln.summary(nn.LayerNorm(4), duoln.tensor(x, be)).rows[0].output == want


def test_a_model_without_parameters():
    made = duoln.summary(nn.Sequential(ops.tanh), (2, 3))
    assert (made.parameters, made.training_bytes, len(made.rows)) == (0, 0, 1)


@pytest.mark.parametrize("width", [45, 62, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    made = duoln.summary(mlp(), (3, 5))
    lines = made.text(width).splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for word in ("(3, 7)", "out", "parameters: 70, 280 bytes", "gradients and Adam's moments: 840 bytes"):
        assert word in text, (width, word)


def test_the_table_says_what_it_must():
    assert str(duoln.summary(mlp(), (3, 5))).splitlines()[:6] == [
        "layer  kind        output  calls  parameters  activations",
        "---------------------------------------------------------",
        "model  Sequential  (3, 2)      1",
        "  0    Linear      (3, 7)      1          42     84 bytes",
        "  1    LayerNorm   (3, 7)      1          14     84 bytes",
        "  out  Linear      (3, 2)      1          14     24 bytes"]


def test_where_there_is_less_room_there_are_fewer_columns():
    made = duoln.summary(Pair(), ((3, 2), (3, 1)))
    tables = [made.text(width).splitlines() for width in (80, 60, 54, 45)]
    assert [table[0].split() for table in tables] == [
        ["layer", "kind", "output", "calls", "parameters", "activations"], ["layer", "kind", "output", "parameters", "activations"],
        ["layer", "kind", "output", "parameters", "activations"], ["layer", "output", "parameters", "activations"]]
    for table in tables:
        [row] = [line.split() for line in table if "twice" in line]
        assert row == ["twice", *["LayerNorm"] * ("kind" in table[0]), "(3,", "4)", "2" if "calls" in table[0] else "x2", "8", "96", "bytes"]


@pytest.mark.parametrize("width", [60, 80])
def test_rich_prints_the_same_text_with_brackets_as_they_are(width):
    from rich.console import Console

    made = duoln.summary(nn.Sequential(**{"[red]": nn.Linear(2, 3)}), (4, 2))
    out = io.StringIO()
    Console(file=out, width=width).print(made)
    assert [line.rstrip() for line in out.getvalue().splitlines()] == made.text(width).splitlines() and "[red]" in out.getvalue()


@pytest.mark.parametrize(("error", "model", "shapes", "words"), [
    (ShapeError, mlp(), (3, 4), ("[0: Linear] given (3, 4) float32: [linear]", "expected", "(5, 7)")),
    (TypeError, Pair(), {"x": (3, 2), "scael": (3, 1)}, ("scael",)), (TypeError, Pair(), (3, 2), ("scale",)),
    (DtypeError, OfBatch(), {"ids": (8, 50), "weight": (8, 50, 1)}, ("[table: Embedding] given (8, 50) float32: [embedding]", "float32")),
    (DtypeError, mlp(), "3, 5", ("[summary] shapes: expected a shape", "'3, 5'")), (DtypeError, mlp(), None, ("[summary] shapes: expected a shape", "None")),
    (DtypeError, mlp(), ((3, 5), "int64"), ("[summary] shapes: expected a dtype of float32, int32, bool, found 'int64'",)),
    (ShapeError, mlp(), (3, -1), ("[summary] shapes: expected an integer of at least 0, found -1",)),
    (DtypeError, mlp(), {"x": 3.5}, ("[summary] shapes['x']: expected a shape", "3.5")), (DtypeError, nn.Linear, (3, 5), ("[summary] model: expected a Module",)),
    (TypeError, None, ..., ("shapes",))])
def test_wrong_calls(error, model, shapes, words):
    check_error(error, (lambda: duoln.summary(mlp())) if model is None else (lambda: duoln.summary(model, shapes)), *words)
