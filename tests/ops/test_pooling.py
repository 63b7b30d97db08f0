"""Max pooling with a border: it belongs to no pixel, so that no gradient is lost in it."""

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.core import composed_only

FILLS = {"ones": 1.0, "the lowest float": float(np.finfo(np.float32).min), "-infinity": -np.inf, "NaN": np.nan}


def of_windows(x, size, stride, padding):
    """The gradient of the sum: each window gives 1 to its greatest pixels, in equal shares."""
    rows, columns = x.shape
    dx = np.zeros(x.shape)
    for top in range(-padding, rows + padding - size + 1, stride):
        for left in range(-padding, columns + padding - size + 1, stride):
            place = slice(max(top, 0), top + size), slice(max(left, 0), left + size)
            window = x[place]
            greatest = ~(window < window.max())
            dx[place] += greatest / greatest.sum()
    return dx


@pytest.mark.parametrize("rules", ["fused", "composed"])
@pytest.mark.parametrize(("size", "stride", "padding"), [(2, 2, 1), (3, 2, 1), (3, 1, 1), (4, 3, 2), (2, 2, 0)])
@pytest.mark.parametrize("fill", FILLS)
def test_all_of_the_gradient_goes_to_pixels(be, fill, size, stride, padding, rules):
    images = np.full((2, 5, 6, 1), FILLS[fill], np.float32)
    images[1, 2, 3] = 2.0  # beside windows without it
    x = duoln.tensor(images, be)

    def total(x):
        return ops.sum(ops.max_pool2d(x, size=size, stride=stride, padding=padding))

    with np.errstate(invalid="ignore", over="ignore"):
        if rules == "composed":
            with composed_only():
                _, dx = duoln.value_and_grad(total)(x)
        else:
            _, dx = duoln.value_and_grad(total)(x)
        expected = np.stack([of_windows(image[..., 0], size, stride, padding) for image in images])
    np.testing.assert_allclose(dx.numpy()[..., 0], expected, rtol=1e-5)


def test_along_the_time(be):
    x = duoln.tensor(np.full((1, 5, 2), -np.inf, np.float32), be)
    _, dx = duoln.value_and_grad(lambda x: ops.sum(ops.max_pool1d(x, size=3, stride=2, padding=1)))(x)
    np.testing.assert_allclose(dx.numpy()[0, :, 0], [0.5, 0.5 + 1 / 3, 1 / 3, 1 / 3 + 0.5, 0.5], rtol=1e-6)
