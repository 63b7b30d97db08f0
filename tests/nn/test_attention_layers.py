"""Multi-head attention and the Transformer's block: against their equations, with padding, memory and masks of dropout."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.testing import check_close, check_error

B, T, WIDTH, HEADS = 2, 5, 8, 2


def _params(layer, be, seed=0):
    """Parameters of which none is 0 or 1."""
    rng = np.random.default_rng(seed)
    return duoln.to_tensors(duoln.tree.map(lambda a: (a + 0.3 * rng.standard_normal(a.shape)).astype(np.float32), layer.init(0)), be)


def _x(rng, *shape):
    return rng.standard_normal(shape or (B, T, WIDTH)).astype(np.float32)


def _attention(p, x, memory, seen, heads=HEADS):
    """Vaswani et al. 2017, section 3.2.2, one head after another, in float64."""
    p, x, memory = ({k: {n: a.numpy().astype(np.float64) for n, a in v.items()} for k, v in p.items()}, x.astype(np.float64), memory.astype(np.float64))
    width = x.shape[-1]
    weights, biases = (np.split(p["projection"][name], 3, axis=-1) for name in ("weight", "bias"))
    query, key, value = (a @ w + b for a, w, b in zip((x, memory, memory), weights, biases, strict=True))
    out = []
    for h in range(heads):
        part = slice(h * width // heads, (h + 1) * width // heads)
        scores = np.where(seen, query[..., part] @ np.swapaxes(key[..., part], 1, 2) / np.sqrt(width // heads), -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        out.append(powers / powers.sum(-1, keepdims=True) @ value[..., part])
    return np.concatenate(out, -1) @ p["out"]["weight"] + p["out"]["bias"]


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_heads_are_those_of_the_equation(heads, be, rng):
    layer, x = nn.MultiHeadAttention(WIDTH, heads), _x(rng)
    p = _params(layer, be)
    check_close(layer(p, duoln.tensor(x, be)).numpy(), _attention(p, x, x, True, heads).astype(np.float32), 1e-5, "all")
    causal = np.tril(np.ones((T, T), bool))
    check_close(layer(p, duoln.tensor(x, be), causal=True).numpy(), _attention(p, x, x, causal, heads).astype(np.float32), 1e-5, "causal")


def test_padding_and_memory(be, rng):
    layer, x, memory = nn.MultiHeadAttention(WIDTH, HEADS), _x(rng), _x(rng, B, 3, WIDTH)
    p, real = _params(layer, be), np.array([[True, True, False], [True, False, False]])
    y = layer(p, duoln.tensor(x, be), duoln.tensor(real, be), memory=duoln.tensor(memory, be))
    check_close(y.numpy(), _attention(p, x, memory, real[:, None]).astype(np.float32), 1e-5, "padding")
    four = duoln.tensor(np.broadcast_to(real[:, None, None], (B, HEADS, T, 3)).copy(), be)
    np.testing.assert_array_equal(layer(p, duoln.tensor(x, be), four, memory=duoln.tensor(memory, be)).numpy(), y.numpy())


@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_blocks_are_those_of_their_equations(norm, place, be, rng):
    block = nn.TransformerBlock(WIDTH, HEADS, 12, norm=norm, place=place, activation="gelu", causal=True)
    p, x = _params(block, be), duoln.tensor(_x(rng), be)
    if norm == "none":
        def normed(name, y):
            return y
    else:
        def normed(name, y):
            return ops.layer_norm(y, p[name]["gain"], p[name]["bias"]) if norm == "layer" else ops.rms_norm(y, p[name]["gain"])

    def layers(y):
        return ops.linear(ops.gelu(ops.linear(y, p["hidden"]["weight"], p["hidden"]["bias"])), p["out"]["weight"], p["out"]["bias"])

    def attend(y):
        return block.attention(p["attention"], y, causal=True)

    if place == "post":
        middle = normed("attention_norm", x + attend(x))
        expected = normed("hidden_norm", middle + layers(middle))
    else:
        middle = x + attend(normed("attention_norm", x))
        expected = middle + layers(normed("hidden_norm", middle))
    check_close(block(p, x).numpy(), expected.numpy(), 1e-5, norm)
    assert set(block.init(0)) == {"attention", "hidden", "out"} | ({"attention_norm", "hidden_norm"} if norm != "none" else set())


@pytest.mark.parametrize(("norm", "place"), [("layer", "pre"), ("layer", "post"), ("none", "pre")])
def test_dropout_acts_on_what_is_added(norm, place, be, rng):
    block = nn.TransformerBlock(WIDTH, HEADS, norm=norm, place=place, dropout=0.25)
    p, x = _params(block, be), duoln.tensor(_x(rng), be)
    masks = nn.DropoutMasks(block, 0)(0, p, x)
    assert {path: m.shape for path, m in masks.items()} == dict.fromkeys(("attention_dropout", "hidden_dropout"), x.shape)
    ones, zeros = (nn.with_masks(p, {path: m * 0.0 + v for path, m in masks.items()}) for v in (1.0, 0.0))
    check_close(block(ones, x).numpy(), block(p, x).numpy(), 1e-6, "nothing dropped")
    nothing = block(zeros, x)
    if place == "post":
        kept = block.hidden_norm(p["hidden_norm"], block.attention_norm(p["attention_norm"], x))
        check_close(nothing.numpy(), kept.numpy(), 1e-6, "all dropped")
    else:
        np.testing.assert_array_equal(nothing.numpy(), x.numpy())


@pytest.mark.parametrize(("kind", "make", "words"), [
    (ShapeError, lambda: nn.MultiHeadAttention(8, 3), "[MultiHeadAttention] heads: expected a divisor of width, found 3 for 8"),
    (ShapeError, lambda: nn.TransformerBlock(8, 3), "found 3 for 8"), (ShapeError, lambda: nn.TransformerBlock(8, 2, 0), "hidden"),
    (UsageError, lambda: nn.TransformerBlock(8, 2, norm="pre"), "norm"), (UsageError, lambda: nn.TransformerBlock(8, 2, place="middle"), "place"),
    (TypeError, lambda: nn.TransformerBlock(8, 2, kind="rms"), "did you mean 'norm'?"),
    (UsageError, lambda: nn.TransformerBlock(8, 2, activation="tanh"), "activation"), (UsageError, lambda: nn.TransformerBlock(8, 2, dropout=1.0), "dropout"),
    (UsageError, lambda: nn.TransformerBlock(8, 2, eps=-1.0), "eps"), (DtypeError, lambda: nn.TransformerBlock(8, 2, causal=1), "causal")])
def test_settings_that_are_wrong(kind, make, words):
    check_error(kind, make, words)


def test_arrays_that_do_not_fit(be, rng):
    layer = nn.MultiHeadAttention(WIDTH, HEADS)
    p, x = _params(layer, be), duoln.tensor(_x(rng), be)
    rows = [(lambda: layer(p, x[0]), "x: expected shape (B, T, 8), found (5, 8)"), (lambda: layer(p, x[..., :4]), "found (2, 5, 4)"),
            (lambda: layer(p, x, memory=x[..., :4]), "memory: expected shape (B, T, 8)"), (lambda: layer({}, x), "'projection'"), (lambda: layer(x), "parameters"),
            (lambda: layer(p, x, duoln.tensor(np.ones((T, T), bool), be)), "mask: expected shape (2, 5) or four axes, found (5, 5)"),
            (lambda: layer(p, x, memory=x[:1]), "found")]
    for call, words in rows:
        check_error(ShapeError, call, words)
    check_error(DtypeError, lambda: layer(p, x, duoln.tensor(np.ones((B, T), np.float32), be)), "mask", "bool")


@pytest.mark.few
@pytest.mark.parametrize("layer", [nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH, activation="relu"), nn.LayerNorm((T, WIDTH)),
                                   nn.LayerNorm(WIDTH, affine=False), nn.RMSNorm(WIDTH), nn.RMSNorm((T, WIDTH)), nn.RMSNorm(WIDTH, affine=False)], ids=repr)
def test_the_norm_of_a_sum_is_that_of_the_sum(layer, be, rng):
    p, x, residual = _params(layer, be), duoln.tensor(_x(rng), be), duoln.tensor(_x(rng), be)
    y, total = layer.of_sum(p, x, residual)
    np.testing.assert_array_equal(total.numpy(), (x + residual).numpy())
    check_close(y.numpy(), layer(p, total).numpy(), 1e-6, "the norm")
