"""The examples in docstrings run, and the docstrings of recurrent layers and optimizers name every argument."""

import dataclasses
import doctest
import importlib
import inspect
import re

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim
from duoln.cli.help import MODULES, public_names
from duoln.nn import cells

NAMES = {"duoln": duoln, "np": np, "nn": nn, "ops": ops, "optim": optim}
EXAMPLES = {f"{module}.{name}": value for module in MODULES for name in public_names(importlib.import_module(module))
            if ">>>" in ((value := getattr(importlib.import_module(module), name)).__doc__ or "")}


def test_what_is_used_most_has_an_example():
    assert {"duoln.nn.Linear", "duoln.nn.LSTM", "duoln.nn.LayerNorm", "duoln.nn.BatchNorm", "duoln.nn.Embedding", "duoln.nn.Conv2d",
            "duoln.nn.TransformerBlock", "duoln.optim.Adam", "duoln.optim.SGD", "duoln.Tensor"} <= EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_says(name, monkeypatch):
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(EXAMPLES[name]), dict(NAMES), name, None, None)
    lines = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=lines.append)
    assert not lines, "".join(lines)


@pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM, nn.GRU])
def test_a_recurrent_layer_names_its_arguments(layer):
    text = layer.__doc__[layer.__doc__.index("Args:"):layer.__doc__.index("Shape:")]
    named = {name for names in re.findall(r"^        (\w[\w, ]*):", text, re.MULTILINE) for name in names.split(", ")}
    assert named == set(inspect.signature(layer).parameters)
    of_others = {"rnn": {"forget_bias", "update_gate"}, "lstm": {"update_gate"}, "gru": {"forget_bias"}}[layer.cell_type.cell]
    assert named & set(cells.OPTIONS) == inspect.signature(layer.cell_type).parameters.keys() & set(cells.OPTIONS) == set(cells.OPTIONS) - of_others


@pytest.mark.parametrize("kind", [optim.Optimizer, optim.SGD, optim.RMSProp, optim.Adam, optim.AdamW])
def test_an_optimizer_names_its_settings(kind):
    named = re.findall(r"^        (\w[\w, ]*):", kind.__doc__[kind.__doc__.index("Attributes:"):], re.MULTILINE)
    assert [name for names in named for name in names.split(", ")] == [field.name for field in dataclasses.fields(kind)]
