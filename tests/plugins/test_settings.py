"""The settings of every task and preset, one by one: tables and curves were made with these, and a change shows here.

The defaults are the protocol of the paper, or of the code that made its figures; `paper` adds how long it trains. The
small presets are those of the tables in each plug-in's README.md and RESULTS.md.
"""

import dataclasses
import importlib

import pytest

from duoln.tasks import registry

SETTINGS = {
    "attentive_reader": {
        "defaults": {
            "seed": 0, "epochs": 1, "batch_size": 64, "learning_rate": 8e-05, "evaluate_every": 0, "patience": 0,
            "norm": "layer-theano", "everywhere": False, "gain": None, "table": 65829, "min_count": 2,
            "vocabulary": None, "width": 240, "hidden": 240, "sentences": 4, "window": None, "within_from": None,
            "last_token": "dropped", "order": "sequential", "last_batch": "dropped", "pad_multiple": 1,
            "start": "paper", "tied": False, "dropout": "paper", "keep": 0.5, "clip": "paper",
            "likelihood": "paper",
            "source": "auto", "corpus": None, "questions": None, "evaluate_questions": 3924},
        "paper": {"epochs": 135, "evaluate_every": 1000},
        "small": {
            "epochs": 8, "batch_size": 32, "evaluate_every": 69, "learning_rate": 0.005, "table": 5000,
            "min_count": 10, "width": 64, "hidden": 64, "sentences": None, "window": 1, "within_from": 10,
            "last_token": "kept", "order": "by-length", "last_batch": "kept", "pad_multiple": 16, "start": "glorot",
            "tied": True, "dropout": "inverted", "keep": 0.9, "clip": "norm", "likelihood": "exact",
            "evaluate_questions": 128},
        "smoke": {
            "epochs": 4, "batch_size": 16, "table": 600, "width": 32, "hidden": 32, "sentences": 1, "window": 1,
            "last_token": "kept", "pad_multiple": 16, "start": "glorot", "tied": True, "dropout": "none",
            "clip": "norm", "likelihood": "exact", "learning_rate": 0.01, "source": "made", "evaluate_questions": 64},
    },
    "convnet": {
        "defaults": {
            "seed": 0, "epochs": 1, "batch_size": 100, "learning_rate": 0.001, "evaluate_every": 0, "patience": 0,
            "dataset": "cifar10", "norm": "layer", "gains": "unit", "channels": 96, "start": "gaussian",
            "noise": 0.15, "dropout": 0.5, "whitening": "zca", "zca_epsilon": 1e-05, "decay_from": 50000,
            "decay_to": 100000, "source": "auto", "rows": None, "evaluate_images": None},
        "paper": {"epochs": 200},
        "small": {
            "epochs": 6, "channels": 16, "start": "he", "batch_size": 50, "whitening": "mean",
            "evaluate_images": 1000},
        "small-mnist": {
            "dataset": "mnist", "epochs": 3, "channels": 16, "start": "he", "batch_size": 50, "whitening": "mean",
            "rows": 5000, "evaluate_every": 50, "evaluate_images": 1000},
        "smoke": {
            "epochs": 1, "channels": 4, "start": "he", "batch_size": 20, "whitening": "mean", "source": "made",
            "rows": 200, "evaluate_images": 100},
    },
    "draw": {
        "defaults": {
            "seed": 0, "epochs": 1, "batch_size": 128, "learning_rate": 0.001, "evaluate_every": 0, "patience": 0,
            "glimpses": 64, "hidden": 256, "latent": 100, "read": 2, "write": 5, "norm": "layer-cell",
            "start": "fan-in", "source": "auto", "rows": None, "evaluate_images": None},
        "paper": {"epochs": 200},
        "small": {
            "epochs": 5, "glimpses": 8, "hidden": 128, "latent": 32, "read": 5, "learning_rate": 0.002,
            "evaluate_every": 130, "evaluate_images": 1000},
        "smoke": {
            "epochs": 1, "glimpses": 3, "hidden": 16, "latent": 4, "batch_size": 20, "source": "made", "rows": 200,
            "evaluate_images": 100},
    },
    "handwriting": {
        "defaults": {
            "seed": 0, "epochs": 1, "batch_size": 8, "learning_rate": 0.0001, "evaluate_every": 0, "patience": 0,
            "norm": "layer", "hidden": 400, "gaussians": 10, "mixtures": 20, "length": 500, "text_length": 96,
            "order": "sequential", "window_advance": 1.0, "source": "auto", "lines": None, "evaluate_lines": None},
        "paper": {"epochs": 299, "evaluate_every": 2000},
        "small": {
            "epochs": 1, "hidden": 128, "gaussians": 6, "mixtures": 8, "length": 150, "lines": 3200,
            "learning_rate": 0.0005, "window_advance": 0.05, "evaluate_lines": 64,
            "evaluate_every": 50},
        "smoke": {
            "epochs": 1, "hidden": 16, "gaussians": 3, "mixtures": 3, "length": 24, "text_length": 12, "lines": 64,
            "learning_rate": 0.003, "source": "made", "evaluate_lines": 8},
    },
    "las": {
        "defaults": {
            "seed": 0, "epochs": 300, "batch_size": 128, "learning_rate": 0.001, "evaluate_every": 500,
            "patience": 3, "decay_steps": 8700, "source": "timit", "words": 1, "mels": 40, "noise": 0.6,
            "dropout": 0.5, "sampling": 0.1, "listener_hidden": 128, "pyramids": 2, "layers": 1,
            "speller_hidden": 128, "speller_layers": 2, "attention": 128, "listener_norm": "none",
            "constant": 0.0, "speller_norm": "none", "speller_state": "kept", "beam": 16, "length_penalty": 1.0,
            "longest": 100, "buckets": 16, "utterances": None, "evaluate_utterances": None},
        "paper": {},
        "small": {
            "epochs": 56, "batch_size": 32, "evaluate_every": 60, "patience": 4, "decay_steps": 840,
            "learning_rate": 0.003, "source": "auto", "mels": 23, "noise": 0.5, "dropout": 0.1,
            "listener_hidden": 48, "pyramids": 1, "speller_layers": 1, "attention": 64, "beam": 8, "longest": 10,
            "buckets": 5},
        "words": {
            "epochs": 60, "batch_size": 32, "evaluate_every": 60, "patience": 0, "decay_steps": 900,
            "learning_rate": 0.003, "source": "auto", "mels": 23, "noise": 0.5, "dropout": 0.1,
            "listener_hidden": 48, "pyramids": 1, "speller_layers": 1, "attention": 64, "beam": 8, "longest": 24,
            "buckets": 5, "words": 4},
        "librispeech": {
            "epochs": 50, "batch_size": 4, "decay_steps": 0, "source": "librispeech", "noise": 0.0, "longest": 600},
        "smoke": {
            "epochs": 6, "batch_size": 16, "evaluate_every": 0, "patience": 0, "decay_steps": 0,
            "learning_rate": 0.01, "source": "made", "mels": 8, "noise": 0.1, "dropout": 0.1, "listener_hidden": 8,
            "pyramids": 1, "speller_hidden": 12, "speller_layers": 1, "attention": 8, "beam": 3, "longest": 4,
            "buckets": 2},
    },
    "mnist": {
        "defaults": {
            "seed": 0, "epochs": 2, "batch_size": 128, "learning_rate": 0.001, "evaluate_every": 0, "patience": 0,
            "norm": "layer", "hidden": 1000, "dropout": 0.0, "source": "auto", "rows": None},
        "paper": {"epochs": 60},
        "small": {"epochs": 2},
        "smoke": {"epochs": 1, "hidden": 64, "source": "made", "rows": 2000},
    },
    "order_embeddings": {
        "defaults": {
            "seed": 0, "epochs": 1, "batch_size": 128, "learning_rate": 0.001, "evaluate_every": 0, "patience": 0,
            "norm": "none", "score": "order", "margin": 0.05, "joint_size": 1024, "word_size": 300,
            "image_size": 4096, "vocabulary": 32000, "bias_correction": "kiros2015", "source": "auto"},
        "paper": {"epochs": 100, "evaluate_every": 300},
        "small": {
            "epochs": 40, "batch_size": 64, "joint_size": 128, "word_size": 100, "image_size": 512,
            "vocabulary": 4000, "margin": 0.2, "evaluate_every": 22},
        "smoke": {
            "epochs": 4, "batch_size": 16, "joint_size": 32, "word_size": 16, "image_size": 288, "vocabulary": 40,
            "evaluate_every": 5, "learning_rate": 0.003, "source": "made"},
    },
    "skip_thoughts": {
        "defaults": {
            "seed": 0, "epochs": 1, "batch_size": 64, "learning_rate": 0.0002, "evaluate_every": 0, "patience": 0,
            "bias_correction": "kiros2015", "norm": "layer-theano", "hidden": 2400, "width": 620, "words": 20000,
            "longest": 30, "filtering": "batch", "lower_case": False, "source": "auto", "corpus": None,
            "vocabulary": None, "valid_share": 0.02, "valid_triplets": 1024, "judge": "nested", "sick_round": "keras0"},
        "paper": {"epochs": 1, "evaluate_every": 50000},
        "small": {
            "epochs": 3, "hidden": 200, "width": 120, "words": 4000, "longest": 21, "learning_rate": 0.001,
            "filtering": "corpus", "lower_case": True, "valid_triplets": 512, "judge": "fixed",
            "sick_round": "keras1", "evaluate_every": 336},
        "smoke": {
            "epochs": 1, "hidden": 12, "width": 8, "words": 60, "longest": 12, "learning_rate": 0.01,
            "batch_size": 16, "filtering": "corpus", "lower_case": True, "source": "made", "valid_share": 0.1,
            "valid_triplets": 32, "judge": "fixed", "sick_round": "keras1"},
    },
    "transformer": {
        "defaults": {
            "seed": 0, "epochs": 1, "batch_size": 16, "learning_rate": 0.001, "evaluate_every": 0, "patience": 0,
            "warm": False, "warmup": 4000, "norm": "pre", "kind": "layer", "blocks": 6, "width": 512,
            "heads": 4, "hidden": 1024, "length": 256, "updates": 1000, "windows": 256,
            "source": "auto", "corpus": None},
        "xiong2020": {"source": "novels100", "epochs": 100},
        "small": {
            "width": 128, "hidden": 256, "length": 64, "batch_size": 32, "learning_rate": 0.004, "warmup": 100,
            "updates": 400, "evaluate_every": 25},
        "smoke": {
            "blocks": 2, "width": 16, "heads": 2, "hidden": 32, "length": 24, "batch_size": 8, "warmup": 10,
            "learning_rate": 0.01, "updates": 40, "windows": 16, "source": "made"},
    },
}
CONSTANTS = {
    "attentive_reader.model": {"LIMIT": 10.0}, "draw.model": {"LARGEST_NORM": 10.0},
    "handwriting.model": {"CLIP_OUTPUT": 100.0, "CLIP_STEPS": 10.0, "CLIP_WEIGHTS": 10.0, "ADAM_EPS": 1e-6},
    "las.model": {"CLIP": 1.0, "FORGET_BIAS": 1.0}, "order_embeddings.model": {"CLIP_EACH": 2.0},
    "skip_thoughts.model": {"FLOOR": 1e-8, "LARGEST_NORM": 5.0}, "transformer.schedule": {"BETA2": 0.98}}
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
    assert {"defaults": dataclasses.asdict(task.config()), **task.presets} == SETTINGS[name]


@pytest.mark.parametrize("name", SAMPLING)
def test_what_is_drawn_from_a_model_where_nothing_is_asked(name):
    assert dataclasses.asdict(registry.find_task(name).sampling()) == SAMPLING[name]


@pytest.mark.parametrize("module", CONSTANTS)
def test_the_constants_are_the_protocol(module):
    values = vars(importlib.import_module(f"duoln.plugins.{module}"))
    assert {name: values[name] for name in CONSTANTS[module]} == CONSTANTS[module]
