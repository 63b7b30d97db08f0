"""The settings of every task and preset: tables and curves were made with these, and a change shows here.

The defaults are the protocol of the paper, or of the code that made its figures; `paper` adds how long it trains. The
small presets are those of the tables in each plug-in's README.md and RESULTS.md.
"""

import dataclasses
import hashlib
import importlib
import json

import pytest

from duoln.tasks import registry

SETTINGS = {
    "attentive_reader": "cc0454164a18", "convnet": "e74ba5f3a1a0", "draw": "5a0c92432fb0", "handwriting": "fcaed11c086e",
    "las": "15aadbaedf23", "mnist": "ceab9a6ae074", "order_embeddings": "3259f51540f5", "sequential_mnist": "77501f76c0c5",
    "skip_thoughts": "60dc6c18264a",
    "transformer": "26c7520f9fac"}
"""The beginning of a hash of each task's defaults, presets and variants. A new one says that the protocol was changed on purpose."""
CONSTANTS = {
    "attentive_reader.model": {"LIMIT": 10.0}, "draw.model": {"LARGEST_NORM": 10.0},
    "handwriting.model": {"CLIP_OUTPUT": 100.0, "CLIP_STEPS": 10.0, "CLIP_WEIGHTS": 10.0, "ADAM_EPS": 1e-6},
    "las.model": {"CLIP": 1.0, "FORGET_BIAS": 1.0}, "order_embeddings.model": {"CLIP_EACH": 2.0},
    "skip_thoughts.model": {"FLOOR": 1e-8, "LARGEST_NORM": 5.0}, "transformer.model": {"BETA2": 0.98}}
"""Of each protocol what no run varies."""
SAMPLING = {
    "draw": {"count": 64, "seed": 0},
    "handwriting": {"text": "layer norm", "bias": 0.5, "seed": 0, "steps": None, "attention": None},
    "las": {"count": 4, "set": "test", "audio": None},
    "transformer": {"text": "It was", "characters": 400, "temperature": 0.8, "seed": 0},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_are_the_protocol(name):
    task = registry.find_task(name)
    text = json.dumps({"defaults": dataclasses.asdict(task.config()), **task.presets, "variants": task.variants}, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest().startswith(SETTINGS[name]), text


@pytest.mark.parametrize("name", SAMPLING)
def test_what_is_drawn_from_a_model_where_nothing_is_asked(name):
    assert dataclasses.asdict(registry.find_task(name).sampling()) == SAMPLING[name]


@pytest.mark.parametrize("module", CONSTANTS)
def test_the_constants_are_the_protocol(module):
    values = vars(importlib.import_module(f"duoln.plugins.{module}"))
    assert {name: values[name] for name in CONSTANTS[module]} == CONSTANTS[module]
