"""The remedies in messages of errors, and the hints for those who know PyTorch: each line of code runs, and each name is there."""

import ast
import copy
import math
import pkgutil
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim, stop_gradient, value_and_grad
from duoln.core import pytorch_names
from duoln.ops import where
from duoln.randomness import Stream
from duoln.testing import check_error

ROOT = Path(duoln.__file__).parent
FILES = [file for file in sorted(ROOT.rglob("*.py")) if not {"bench", "cli", "distributed", "docs", "tasks", "testing"} & set(file.relative_to(ROOT).parts)
         and file.name != "pytorch_names.py"]
CALL = re.compile(r"(?<![\w.{])(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*\((?:[^(){}]|\((?:[^(){}]|\([^(){}]*\))*\))*\)(?:\.\w+(?:\([^(){}]*\))?)*")
NAME = re.compile(r"(?<![\w.])(duoln(?:\.\w+)+|(?:ops|nn|optim)\.\w+)")
OF_OTHERS = {"x.cpu()", "x.get()", "x.to_dense()", "x.filled(value)", "x.detach().float()"}
"""Lines of other libraries."""
SIGNATURES = {"init(params)", "update(params, ...)", "update(params, gradients, slots)", "update(params, gradients, slots, rate)", "apply(params, gradients, slots, rate)", "duoln.tensor(x, dtype=...)", "init(0)"}
"""Not lines of code, but how a method is called."""


def literals(file):
    """The texts of a file that are no docstrings; for each value in them stands {}."""
    tree, done = ast.parse(file.read_text(encoding="utf-8")), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            done.add(node.value)
        elif isinstance(node, ast.JoinedStr | ast.Constant) and node not in done:
            done |= set(ast.walk(node))
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in parts if not isinstance(part, ast.Constant) or isinstance(part.value, str))
            if " " in text:
                yield text


MESSAGES = [text for file in FILES for text in literals(file)]
ROOTS = {"duoln", "nn", "ops", "optim", "np", "copy", "x", "p", "model", "layer", "cell", "dropout", "optimizer", "stop_gradient", "value_and_grad", "where"}
LINES = sorted({line for text in MESSAGES if ";" in text or "write " in text for line in CALL.findall(text) if re.split(r"[.(]", line)[0] in ROOTS} - OF_OTHERS - SIGNATURES)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """The values of the names in a line."""
    model, layer, cell = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), nn.Linear(3, 3), nn.LSTMCell(3, 4)
    x, y = duoln.tensor(np.ones((2, 3), np.float32), "numpy"), duoln.tensor(np.zeros((2, 3), np.float32), "numpy")
    params, dropout, optimizer, folder = duoln.to_tensors(model.init(0), "numpy"), nn.DropoutMasks(model, 0), optim.Adam(1e-3), tmp_path_factory.mktemp("remedies")
    duoln.save_state(folder, 1, params=params)
    duoln.save_pytorch(folder / "theirs", model, params)
    of_layer, of_cell = (duoln.to_tensors(each.init(0), "numpy") for each in (layer, cell))
    return {"duoln": duoln, "nn": nn, "ops": ops, "optim": optim, "np": np, "copy": copy, "x": x, "y": y, "mask": x > y, "backend": "numpy", "model": model,
            "layer": layer, "cell": cell, "params": params, "dropout": dropout, "masks": dropout(0, params, x), "update": 0, "updates": 5, "function": float, "optimizer": optimizer, "seed": 0, "self": SimpleNamespace(step=ops.square), "path": folder / "theirs",
            "loss": ops.square(x), "fn": lambda x: (ops.sum(x), x), "layers": [nn.Linear(3, 3)], "folder": folder, "p": np.ones((2, 3)), "lengths": [2, 1],
            "stop_gradient": stop_gradient, "value_and_grad": value_and_grad, "where": where,
            "in": {"layer(params, x)": {"params": of_layer}, "cell.sequence(params, x)": {"params": of_cell, "x": x[None]},
                   "nn.Sequential(**layers)": {"layers": {"one": layer}}}}  # lines in which a name has another value


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_a_message_runs(line, names):
    eval(line, {**names, **names["in"].get(line, {})})


def test_a_name_in_a_message_is_there():
    named = {name for text in MESSAGES for name in NAME.findall(text)}
    assert len(named) > 30
    for name in sorted(named):
        pkgutil.resolve_name(name if name.startswith("duoln.") else f"duoln.{name}")


# Hints for those who know PyTorch -----------------------------------------------------------------------

TABLES = {"duoln": pytorch_names.OF_DUOLN, "nn": pytorch_names.OF_NN, "ops": pytorch_names.OF_OPS, "optim": pytorch_names.OF_OPTIM,
          "tensor": pytorch_names.OF_TENSORS, "module": pytorch_names.OF_MODULES, "optimizer": pytorch_names.OF_OPTIMIZERS,
          "data": pytorch_names.OF_DATA, "init": pytorch_names.OF_INIT, "stream": pytorch_names.OF_STREAMS,
          "recurrent": pytorch_names.OF_RECURRENT, "argument": pytorch_names.NO_KEYWORDS,
          "python": {name: remedy for name, (_, remedy) in pytorch_names.OF_PYTHON.items()}}
HINTS = {f"{table}.{name}": remedy for table, remedies in TABLES.items() for name, remedy in remedies.items()}
OWNERS = {"duoln": duoln, "nn": nn, "ops": ops, "optim": optim, "data": duoln.data, "init": nn.init, "stream": Stream(0, "noise"),
          "tensor": duoln.tensor([1.0], "numpy"), "module": nn.Sequential(nn.Linear(2, 3)), "optimizer": optim.Adam(1e-3)}
"""What has none of the names of a table."""
WITHOUT_CODE = {"nn.DataParallel", "duoln.pmap", "module.flatten_parameters", "nn.ConvTranspose2d", "nn.Conv3d", "nn.CTCLoss", "ops.conv_transpose2d", "ops.interpolate", "ops.ctc_loss",
                "ops.unique", "ops.masked_select", "duoln.checkpoint", "optim.GradScaler", *(f"argument.{name}" for name in (
    "amsgrad", "foreach", "fused", "inplace", "out", "shuffle", "drop_last", "num_workers", "pin_memory", "affine", "padding_mode", "max_norm"))}


def code_of(hint):
    """The lines of code of a hint, for the backend that is everywhere."""
    return [code.replace('"cupy"', '"numpy"') for code in re.findall(r"`([^`]+)`", HINTS[hint])]


class Model(nn.Module):
    def weights(self, rng):
        return {"w": np.full((6, 3), 0.5, np.float32)}

    def __call__(self, params, x):
        return x @ params["w"]


def arrays():
    """By name what both sides get."""
    rng = np.random.default_rng(0)
    floats = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in {
        "x": (4, 6), "y": (4, 6), "weight": (3, 6, 6), "bias": (3,), "logits": (4, 3), "predictions": (4, 3), "images": (2, 4, 4, 6),
        "sequence": (2, 4, 6), "volumes": (2, 2, 2, 2, 6), "features": (5, 2, 8), "row": (1, 6), "gradient": (6, 3),
        "square": (3, 3)}.items()}
    targets = rng.random((4, 3), np.float32)
    return {**floats, "w": np.full((6, 3), 0.5, np.float32), "positive": np.abs(floats["x"]) + 0.1, **dict.fromkeys(("targets", "probabilities"), targets / targets.sum(1, keepdims=True)),
            "log_predictions": np.log(targets), "zero_or_one": (targets > 0.5).astype(np.float32), "mask": floats["x"] > 0, "other": floats["y"] > 0,
            "indices": rng.integers(-6, 6, (4, 6)) % 6, "labels": np.array([0, 1, 2, 1]), "rows": np.array([2, 0])}


@pytest.fixture(scope="module")
def of_hints(tmp_path_factory):
    """What the line of a hint may name."""
    ours = {name: duoln.tensor(array, "numpy") for name, array in arrays().items()}
    x, logits, params, optimizer = ours["x"], ours["logits"], {"w": ours["w"]}, optim.Adam(0.1)
    return {
        **ours, "np": np, "math": math, "duoln": duoln, "nn": nn, "ops": ops, "optim": optim, "array": arrays()["x"], "values": [[1.0, 2.0]],
        "width": 6, "heads": 2, "hidden": 8, "keep": 0.5, "rate": 0.1, "decay": 0.01, "update": 0, "updates": 300, "n": 2, "lengths": [2, 1],
        "pos_weight": 3.0, "path": tmp_path_factory.mktemp("hints") / "ours.safetensors", "params": params, "gradients": {"w": ours["gradient"]},
        "model": Model(), "optimizer": optimizer, "slots": optimizer.init(params), "self": SimpleNamespace(), "batches": [x], "batch": {"mask": x},
        "losses": ops.bce_with_logits(logits, ours["zero_or_one"]), "tell": lambda path, layer, output: None, "step": lambda x, y=None: x * 2.0,
        "loss": lambda params, x: ops.mean(ops.square(Model()(params, x))), "layers": [nn.Linear(6, 6), nn.Linear(6, 6)],
        "layers_by_name": {"one": nn.Linear(6, 6), "two": nn.Linear(6, 6)}, "log_probabilities": ops.log_softmax(logits),
        "counted": ours["zero_or_one"], "states": duoln.tensor(np.zeros((5, 2, 16), np.float32), "numpy"), "function": lambda x: x * 2.0,
        "stream": Stream(0, "noise")}


@pytest.mark.parametrize("name", [name for name in HINTS if name.partition(".")[0] in OWNERS])
def test_a_name_that_duoln_has_not_is_an_error_with_its_hint(name):
    table, _, attribute = name.partition(".")
    check_error(AttributeError, lambda: getattr(OWNERS[table], attribute), f"has no attribute '{attribute}'", HINTS[name])
    assert not hasattr(OWNERS[table], attribute) and (table == "stream" or attribute not in dir(OWNERS[table]))


@pytest.mark.parametrize("name", HINTS)
def test_a_hint_runs(name, of_hints, monkeypatch):
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    lines = code_of(name)
    assert bool(lines) == (name not in WITHOUT_CODE)
    with np.errstate(invalid="ignore"):  # the logarithm of what is below 0
        for line in lines:
            exec(line, dict(of_hints))
