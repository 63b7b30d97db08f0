"""Where weights start: moments, signs and the independence of rows, for every initialiser; masks; the user's arrays."""

from functools import partial
from math import sqrt

import numpy as np
import pytest

from duoln import nn
from duoln.errors import ShapeError
from duoln.nn import init
from duoln.randomness import Stream
from duoln.testing import check_error

SIGMAS = 5
"""The streams are fixed, so a start that is right stays within."""


def _at_most(value, deviation, count, what):
    """Whether the mean of `count` values of that deviation may be that far from 0."""
    assert abs(value) <= SIGMAS * deviation / sqrt(count), (what, value, SIGMAS * deviation / sqrt(count))


def _draws(start, shape, count):
    return np.stack([start(Stream(k, "starts"), shape) for k in range(count)]).astype(np.float64)


# Each start with a shape and the deviation of its entries.
STARTS = {
    "uniform": (init.uniform(0.3), (6, 4), 0.3 / sqrt(3)),
    "gaussian": (init.gaussian(0.2), (6, 4), 0.2),
    "glorot": (init.glorot, (6, 4), sqrt(2 / 10)),
    "glorot of a convolution": (init.glorot, (2, 2, 3, 4), sqrt(2 / (12 + 16))),
    "he": (init.he, (6, 4), sqrt(2 / 6)),
    "he of a convolution": (init.he, (2, 2, 3, 4), sqrt(2 / 12)),
    "orthogonal": (init.orthogonal, (4, 4), 1 / sqrt(4)),
    "orthogonal, tall": (init.orthogonal, (6, 4), 1 / sqrt(6)),
    "orthogonal, wide": (init.orthogonal, (4, 6), 1 / sqrt(6)),
    "orthogonal, 2 x 2": (init.orthogonal, (2, 2), 1 / sqrt(2)),
}


@pytest.mark.few
@pytest.mark.parametrize("name", STARTS)
def test_moments_signs_and_independence(name):
    """The mean, square and sign of every entry, and the products of every two, over 2,000 draws."""
    start, shape, deviation = STARTS[name]
    count = 2000
    entries = _draws(start, shape, count).reshape(count, -1) / deviation
    spread = np.std(entries ** 2)  # of the squares, for the error of their mean
    for role, values, sigma in (("mean", entries, 1.0), ("square", entries ** 2 - 1, spread), ("sign", np.sign(entries), 1.0)):
        for k, mean in enumerate(values.mean(0)):
            _at_most(mean, sigma, count, f"{role} of entry {k}")
    products = entries.T @ entries / count
    for i, j in zip(*np.triu_indices(entries.shape[1], 1), strict=True):
        _at_most(products[i, j], np.std(entries[:, i] * entries[:, j]), count, f"entries {i} and {j}")


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (7, 3), (3, 7)])
def test_orthonormal(shape):
    q = init.orthogonal(Stream(0, "q"), shape)
    assert q.shape == shape and q.dtype == np.float32
    small = q @ q.T if shape[0] <= shape[1] else q.T @ q
    np.testing.assert_allclose(small, np.eye(min(shape)), atol=1e-6)


@pytest.mark.parametrize("layer", [partial(nn.Conv2d, size=3), partial(nn.Conv1d, size=9)])
@pytest.mark.parametrize("groups", [1, 4, 64])
@pytest.mark.parametrize("start", [init.glorot, init.he])
def test_a_group_of_a_convolution_starts_as_a_convolution_of_its_own(layer, groups, start):
    """Glorot's bound for the fans of a group: 9 n / groups inputs, and as many outputs."""
    weight = layer(64, 64, groups=groups, weight_init=start).init(0)["weight"]
    fan = 9 * 64 // groups
    assert weight.shape[-2:] == (64 // groups, 64)
    if start is init.glorot:
        bound = sqrt(6 / (2 * fan))
        assert 0.9 * bound < np.abs(weight).max() <= bound * (1 + 1e-6)
    else:
        assert abs(weight.std() / sqrt(2 / fan) - 1) < SIGMAS / sqrt(2 * weight.size)
    apart = np.split(weight, groups, axis=-1)
    assert len({part.tobytes() for part in apart}) == groups


def test_padding_leaves_the_array_of_the_initialiser_as_it_is():
    table = np.ones((3, 2), np.float32)
    table.flags.writeable = False
    params = nn.Embedding(3, 2, table_init=lambda rng, shape: table, padding_idx=0).init(0)
    assert params["table"].tolist() == [[0, 0], [1, 1], [1, 1]] and table.all()


def test_fans_of_a_convolution_and_what_is_no_matrix():
    assert init.fans((3, 3, 16, 32)) == (144, 288)
    check_error(ShapeError, lambda: init.fans((3,)), "2 axes")
    check_error(ShapeError, lambda: init.orthogonal(Stream(0, "w"), (2, 2, 2)), "matrix")
    assert set(init.constant(0.1)(Stream(0, "w"), (3,))) == {np.float32(0.1)}
