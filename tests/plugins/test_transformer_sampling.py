"""What is made of a trained Transformer: text, and the gradients of its blocks at the start."""

import json

import numpy as np
import pytest
from task_checks import short_run, untrained

from duoln import cli, runtime, tree
from duoln.errors import DataError, DivergedError, UsageError
from duoln.plugins.transformer import gradients
from duoln.plugins.transformer.corpus import ALPHABET
from duoln.plugins.transformer.sampling import Options, sample, write
from duoln.plugins.transformer.task import TransformerTask
from duoln.tasks import make_config
from duoln.testing import check_error
from duoln.training.trainer import Trainer

TASK = TransformerTask()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a few updates."""
    folder = tmp_path_factory.mktemp("run") / "pre"
    short_run(TASK, "pre", folder, updates=4)
    return folder


@pytest.fixture
def trained():
    return untrained(TASK, "pre")


def _with_bias(trained, bias):
    """The same model, whose logits are what `bias` says and nothing else."""
    output = trained.params["output"]
    like = runtime.to_tensors(np.asarray(bias, np.float32), "numpy")
    return {**trained.params, "output": {"weight": output["weight"] * 0.0, "bias": like}}


@pytest.mark.long
def test_characters_are_drawn_from_the_model(trained):
    """1,500 draws at two temperatures; the class of all other characters is never drawn, likely as it may be."""
    bias = np.full(ALPHABET.unknown + 1, -50.0)
    bias[:3], bias[ALPHABET.unknown] = np.log([0.5, 0.3, 0.2]), 5.0
    for temperature in (1.0, 0.5):
        text = write(trained.model, _with_bias(trained, bias), ALPHABET.encode("It"), 1500, temperature, 0)
        shares = np.array([0.5, 0.3, 0.2]) ** (1 / temperature)
        assert len(text) == 1500 and set(text) == set("abc")
        np.testing.assert_allclose([text.count(c) / 1500 for c in "abc"], shares / shares.sum(), atol=0.04)


def test_each_character_follows_from_the_last_window(trained, numpy_backend):
    """At a temperature near 0 each is the likeliest after those before it; the window moves on at `length`."""
    length = trained.model.length
    begin = "It was a robin "
    text = begin + write(trained.model, trained.params, ALPHABET.encode(begin), 2 * length, 1e-6, 0)
    for k in range(len(begin), len(text)):
        window = ALPHABET.encode(text[:k])[-length:].astype(np.int32)[None]
        logits = trained.model.logits(trained.params, runtime.tensor(window, numpy_backend)).numpy()[0, -1, :ALPHABET.unknown]
        assert text[k] == ALPHABET.characters[int(logits.argmax())]


@pytest.mark.long
def test_from_the_command_line(run, tmp_path, capsys):
    out = tmp_path / "deep" / "out.txt"
    argv = ["sample", str(run), "--backend", "numpy", "--out", str(out), "--characters", "30"]
    assert cli.main([*argv, "--text", "Robins sing"]) == 0
    text = out.read_text(encoding="utf-8")
    assert text.startswith("Robins sing") and len(text) == len("Robins sing") + 30 + 1
    for extra, words in ((["--text", "n\u00e9"], ["\u00e9", "position 1"]), (["--text", ""], ["at least one"]),
                         (["--temperature", "0"], ["temperature", "above 0"]), (["--temperature", "inf"], ["temperature"]),
                         (["--characters", "0"], ["characters", "found 0"])):
        capsys.readouterr()
        assert cli.main([*argv, *extra]) == 2, extra
        stderr = capsys.readouterr().err
        assert all(word in stderr for word in words), stderr


def test_models_that_cannot_write(trained, tmp_path):
    broken = trained._replace(params=_with_bias(trained, np.full(ALPHABET.unknown + 1, np.nan)))
    check_error(DivergedError, lambda: sample(broken, Options(), tmp_path / "a.txt"), "not finite", "character 1")
    assert not (tmp_path / "a.txt").exists()
    check_error(DataError, lambda: sample(trained, Options(characters=1), tmp_path), str(tmp_path), "cannot be written")


# The gradients of the blocks ----------------------------------------------------------------------------

@pytest.mark.parametrize("variant", ["pre", "post", "none"])
def test_norms_of_gradients_are_those_of_differences(variant):
    """Each norm by central differences of the loss in float64, along the gradient itself and across it."""
    cfg = make_config(TASK, variant, "smoke", {"width": 4, "hidden": 3, "length": 4, "batch_size": 2})
    model, batches = TASK.model(cfg), TASK.data(cfg).train
    start = tree.map(lambda a: a.astype(np.float64), model.init(0))
    batch = batches(0)

    def loss(params):
        tensors = runtime.to_tensors((params, batch), "numpy")
        return float(TASK.loss(model, *tensors))

    actual = gradients.norms(model, runtime.to_tensors(start, "numpy"), batches, 1)
    assert actual.shape == (2,)
    for k, norm in enumerate(actual):
        weight = start["blocks"][str(k)]["out"]["weight"]
        slopes = np.zeros_like(weight)
        for place in np.ndindex(weight.shape):
            values = []
            for move in (1e-5, -1e-5):
                kept, weight[place] = weight[place], weight[place] + move
                values.append(loss(start))
                weight[place] = kept
            slopes[place] = (values[0] - values[1]) / 2e-5
        assert norm == pytest.approx(np.linalg.norm(slopes), rel=1e-5)


def test_norms_are_averaged_over_batches(trained):
    batches = TASK.data(trained.config).train
    one, two = (gradients.norms(trained.model, trained.params, lambda step, k=k: batches(k), 1) for k in (0, 1))
    np.testing.assert_allclose(gradients.norms(trained.model, trained.params, batches, 2), (one + two) / 2, rtol=1e-6)
    check_error(UsageError, lambda: gradients.norms(trained.model, trained.params, batches, 0), "batches", "found 0")


def test_last_blocks_have_larger_gradients_after_the_sums_than_within():
    """Xiong et al. 2020, figure 3, in a model of six blocks: before the first update."""
    last = {}
    for variant in ("pre", "post"):
        cfg = make_config(TASK, variant, "smoke", {"blocks": 6, "width": 64, "hidden": 128})
        last[variant] = gradients.norms(TASK.model(cfg), runtime.to_tensors(TASK.model(cfg).init(0), "numpy"),
                                        TASK.data(cfg).train, 2)[-1]
    assert last["post"] > 1.5 * last["pre"]


def test_the_start_of_a_run_is_that_of_its_training(run, capsys):
    assert cli.main(["evaluate", str(run), "--backend", "numpy", "--json", "--batches", "1"]) == 0
    figures = json.loads(capsys.readouterr().out)
    cfg = make_config(TASK, "pre", "smoke", {"updates": 4})
    trainer = Trainer(TASK, "pre", cfg, TASK.data(cfg), runtime.backend("numpy"))
    expected = gradients.norms(trainer.model, trainer.state["params"], TASK.data(cfg).train, 1)
    text = json.dumps(figures)
    assert '"start"' in text and '"now"' in text
    np.testing.assert_allclose(_entry(figures, "start"), expected, rtol=1e-6)
    assert not np.allclose(_entry(figures, "now"), expected, rtol=1e-3)


def _entry(document, key):
    """The entry of a key, wherever it stands in the document."""
    if isinstance(document, dict):
        return document[key] if key in document else next(
            (e for e in (_entry(v, key) for v in document.values()) if e is not None), None)
    return None


def test_the_picture_of_several_runs(trained, tmp_path):
    models = {"pre": trained, "post": untrained(TASK, "post")}
    [path] = TASK.pictures(models, tmp_path)
    assert path.name == gradients.PICTURE and path.read_bytes()[:4] == b"\x89PNG"
