"""Generated models of PyTorch, read and written: never wrongly, with true answers to what is asked, and mostly not refused."""

import contextlib
import itertools
import re

import numpy as np
import pytest

import duoln
from duoln import nn, ops
from duoln.errors import UsageError
from duoln.testing import check_error

torch = pytest.importorskip("torch")
tensors = pytest.importorskip("safetensors.torch")
import pytorch_models as models

T = torch.nn
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
    with contextlib.suppress(UsageError):  # it asks for shapes
        assert is_right(model, duoln.load_pytorch(folder / "theirs", model.ours)), f"seed {seed}: without shapes"
    shapes = {name: x.shape for name, x in model.inputs.items()}
    params, answers = read(model, folder / "theirs", shapes=shapes)
    if params is None:
        return answers
    assert is_right(model, params), f"seed {seed}: with {answers}"
    check_written(model.ours, params, state, folder, shapes=shapes, **answers)
    for role, words in answers.items():
        for place in words:  # without any one of the answers nothing is written
            fewer = {**answers, role: {key: word for key, word in words.items() if key != place}}
            check_error(UsageError, lambda given=fewer: duoln.save_pytorch(folder / "ours", model.ours, params, shapes=shapes, **given), f"] {place}: ", f"{role}={{{place!r}: ")
    return ""


def check_written(model, params, state, folder, **given):
    """What is written has the bits of what was read; of two biases the sum is kept."""
    duoln.save_pytorch(folder / "ours", model, params, **given)
    again = tensors.load_file(folder / "ours")
    assert all(torch.equal(again[name], array) for name, array in state.items() if "bias_" not in name and "num_batches" not in name)


def sequential(seed):
    """The layers of a Sequential, PyTorch's and ours."""
    rng = np.random.default_rng(seed)
    row, sides, channels = rng.integers(4) == 0, 10, int(rng.integers(1, 4))
    x = rng.standard_normal((2, *((sides,) if row else (sides, sides - 1)), channels)).astype(np.float32)
    theirs, ours, shape = [], [], x.shape[1:]

    def put(their_layer, our_layer):
        theirs.append(their_layer)
        ours.append(our_layer)

    for kind in [0, *rng.integers(0, 6, rng.integers(1, 6))]:
        channels = shape[-1]
        if kind == 0 and min(shape[:-1]) > 2:
            wide = int(rng.integers(2, 6))
            put((T.Conv1d if row else T.Conv2d)(channels, wide, 2), (nn.Conv1d if row else nn.Conv2d)(channels, wide, 2))
            shape = (*(n - 1 for n in shape[:-1]), wide)
        elif kind == 4 and max(shape[:-1]) < 9:  # one position is left
            put((T.Conv1d if row else T.Conv2d)(channels, 3, shape[:-1]), (nn.Conv1d(channels, 3, *shape[:-1]) if row else nn.Conv2d(channels, 3, shape[:-1])))
            shape = (*(1 for _ in shape[:-1]), 3)
        elif kind == 1:
            put((T.BatchNorm1d if row else T.BatchNorm2d)(channels), nn.BatchNorm(channels))
        elif kind == 2:
            put(T.GroupNorm(1, channels), nn.GroupNorm(1, channels))
        elif kind == 3 and min(shape[:-1]) > 3:
            put((T.MaxPool1d if row else T.MaxPool2d)(2), (lambda x: ops.max_pool1d(x, size=2)) if row else lambda x: ops.max_pool2d(x, size=2))
            shape = (*(n // 2 for n in shape[:-1]), channels)
        else:
            put(T.ReLU(), ops.relu if rng.integers(2) else nn.ReLU())
    put(T.Flatten(), nn.Flatten())
    width = int(np.prod(shape))
    for kind in [*rng.integers(0, 4, rng.integers(0, 4)), 0]:
        if kind == 0:
            put(T.Linear(width, 7), nn.Linear(width, 7))
            width = 7
        elif kind == 1:
            put(T.BatchNorm1d(width), nn.BatchNorm(width))
        elif kind == 2:
            put(T.LayerNorm(width), nn.LayerNorm(width))
        else:
            put(T.Dropout(), nn.Dropout(0.5))
    cuts = sorted({0, len(theirs), *(int(rng.integers(1, len(theirs))) for _ in range(rng.integers(3)))})
    if len(cuts) > 2:
        theirs, ours = ([kind(*parts[a:b]) for a, b in itertools.pairwise(cuts)] for kind, parts in ((T.Sequential, theirs), (nn.Sequential, ours)))
    return T.Sequential(*theirs), nn.Sequential(*ours), x


@pytest.mark.parametrize("part", [pytest.param(k, marks=pytest.mark.long) if k > 1 else k for k in range(6)])
def test_a_generated_sequential_is_read_without_a_question(part, tmp_path):
    for seed in range(PARTS * part, PARTS * (part + 1)):
        theirs, ours, x = sequential(seed)
        models.fill(theirs, seed)
        tensors.save_file(theirs.state_dict(), tmp_path / "theirs")
        with torch.no_grad():
            right = theirs(torch.from_numpy(np.moveaxis(x, -1, 1).copy())).numpy()
        for given in ({}, {"shapes": x.shape}):
            params = duoln.load_pytorch(tmp_path / "theirs", ours, **given)
            y = ours(duoln.to_tensors(params, "numpy"), duoln.tensor(x, "numpy")).numpy()
            assert np.allclose(y, right, atol=2e-4 * np.abs(right).max()), (seed, given)
            check_written(ours, params, theirs.state_dict(), tmp_path, **given)


@pytest.mark.parametrize("part", [pytest.param(k, marks=pytest.mark.long) if k > 2 else k for k in range(30)])
def test_generated_models_are_read_right_or_refused(part, tmp_path):
    refused = list(filter(None, [outcome(PARTS * part + k, tmp_path) for k in range(PARTS)]))
    assert len(refused) <= PARTS // 3, refused
