"""Generated models of PyTorch, read and written: never wrongly, with true answers to what is asked, and mostly not refused."""

import re

import numpy as np
import pytest

import duoln
from duoln import nn, ops
from duoln.errors import UsageError

torch = pytest.importorskip("torch")
tensors = pytest.importorskip("safetensors.torch")
import pytorch_models as models

pytestmark = pytest.mark.peers
_ASKED = re.compile(r"\] (\w+): .*?\b(flattened|unflattened)=\{'\w+': \d+\}")
PARTS = 10
"""Each test reads so many models."""


def read(model, path, **given):
    """The parameters, once all questions have true answers, with these answers; None where the model is refused."""
    answers = {"flattened": {}, "unflattened": {}}
    truth = {"flattened": model.flattened, "unflattened": model.unflattened}
    while True:
        try:
            return duoln.load_pytorch(path, model.ours, **given, **answers), answers
        except UsageError as error:
            asked = _ASKED.search(str(error))
            if asked is None or asked[1] in answers[asked[2]]:
                return None, str(error)
            answers[asked[2]][asked[1]] = truth[asked[2]].get(asked[1], 1)


def is_right(model, params):
    given = {k: duoln.tensor(x, "numpy") for k, x in model.inputs.items()}
    results = [y.numpy() for y in model.ours(duoln.to_tensors(params, "numpy"), **given)]
    return all(np.allclose(y, right, atol=2e-4 * np.abs(right).max()) for y, right in zip(results, model.right(), strict=True))


def outcome(seed, folder):
    model = models.Generated(seed)
    state = {name: array for name, array in model.theirs.state_dict().items() if not name.endswith("num_batches_tracked")}
    tensors.save_file(state, folder / "theirs")
    try:
        assert is_right(model, duoln.load_pytorch(folder / "theirs", model.ours)), f"seed {seed}: without shapes"
    except UsageError:
        pass  # it asks for them
    shapes = {name: x.shape for name, x in model.inputs.items()}
    params, answers = read(model, folder / "theirs", shapes=shapes)
    if params is None:
        return answers
    assert is_right(model, params), f"seed {seed}: with {answers}"
    duoln.save_pytorch(folder / "ours", model.ours, params, shapes=shapes, **answers)
    again = tensors.load_file(folder / "ours")
    assert all(torch.equal(again[name], array) for name, array in state.items() if "bias_" not in name), f"seed {seed}: written"
    return ""


@pytest.mark.parametrize("part", [pytest.param(k, marks=pytest.mark.long) if k > 1 else k for k in range(30)])
def test_generated_models_are_read_right_or_refused(part, tmp_path):
    refused = list(filter(None, [outcome(PARTS * part + k, tmp_path) for k in range(PARTS)]))
    assert len(refused) <= PARTS // 3, refused
