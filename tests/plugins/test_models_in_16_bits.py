"""Models of the plug-ins in 16 bits: a parameter in float32 makes no activation float32."""

import numpy as np
import pytest

import duoln
from duoln import nn
from duoln.plugins.attentive_reader.model import Reader
from duoln.plugins.convnet.model import ImageLayerNorm
from duoln.plugins.las.model import normalise_over_time
from duoln.plugins.skip_thoughts.model import SkipThoughts


def _observed(model, call, be):
    """The dtypes of what the layers of a model return, and the result of the call with parameters of 16 bits."""
    params, dtypes = nn.in_16_bits(duoln.to_tensors(model.init(0), be)), {}
    with duoln.observed(model, lambda path, layer, output: path and dtypes.setdefault(path, output.dtype)):
        return dtypes, call(params)


@pytest.mark.few
@pytest.mark.parametrize("gains", ["unit", "channel"])
def test_layer_norm_of_an_image(be, gains, rng):
    layer, x = ImageLayerNorm((3, 3, 2), gains), duoln.tensor(rng.standard_normal((4, 3, 3, 2)).astype(np.float32), be)
    params = duoln.to_tensors(layer.init(0), be)
    y = layer(params, x.astype("bfloat16"))
    assert y.dtype == "bfloat16"
    np.testing.assert_allclose(y.astype("float32").numpy(), layer(params, x).numpy(), atol=0.03)


def test_a_norm_over_time(be, rng):
    x, gain = (duoln.tensor(rng.standard_normal(shape).astype(np.float32), be) for shape in ((6, 4, 3), (3,)))
    assert normalise_over_time(x.astype("bfloat16"), gain, gain, 1e-5).dtype == "bfloat16"


def test_the_decoders_of_skip_thoughts(be, rng):
    model, ids = SkipThoughts(11, 5, 6, "layer-theano"), lambda *shape: duoln.tensor(rng.integers(0, 11, shape).astype(np.int32), be)
    mask = duoln.tensor(np.ones((4, 3), bool), be)
    dtypes, _ = _observed(model, lambda p: model.nats(p, ids(4, 3), mask, ids(2, 3, 3), ids(2, 4, 3)), be)
    assert {"previous", "next", "encoder", "embedding"} <= set(dtypes) and set(dtypes.values()) == {"bfloat16"}


@pytest.mark.few
@pytest.mark.parametrize("norm, everywhere", [("none", False), ("batch", True)])
def test_the_question_of_the_attentive_reader(be, rng, norm, everywhere):
    model = Reader(11, 4, 5, norm, everywhere)
    passage, question = (duoln.tensor(rng.integers(0, 11, (n, 3)).astype(np.int32), be) for n in (4, 2))
    masks = {f"{side}_mask": duoln.tensor(np.ones((n, 3), bool), be) for side, n in (("passage", 4), ("question", 2))}
    dtypes, _ = _observed(model, lambda p: model(p, {"passage": passage, "question": question, **masks}), be)
    after_sums = {"context", "mean", "output"}  # a sum is float32
    assert {dtype for path, dtype in dtypes.items() if path.split(".")[0] not in after_sums} == {"bfloat16"}
    params = nn.in_16_bits(duoln.to_tensors(model.init(0), be))
    x = duoln.tensor(rng.standard_normal((3, 5)).astype(np.float32), be).astype("bfloat16")
    assert model._term(params, "of_question", x).dtype == "bfloat16"
    assert model.question.read(params["question"], model.embedding(params["embedding"], question), masks["question_mask"])[1].dtype == "bfloat16"
