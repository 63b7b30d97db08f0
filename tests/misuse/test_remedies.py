"""The remedies in messages of errors: each line of code in a message runs, and each name in one is there.

The hints for those who know PyTorch are in `test_pytorch_hints.py`.
"""

import ast
import copy
import pkgutil
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim, stop_gradient, value_and_grad
from duoln.ops import where

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
