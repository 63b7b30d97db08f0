"""The cases of operators that one experiment alone uses: each with a plain NumPy reference, from the equation."""

from __future__ import annotations

from functools import partial

import numpy as np
from ops.cases import Case, gaussians

from duoln.extend import Case as RuleCase
from duoln.plugins.draw import ops as draw_ops
from duoln.plugins.draw.ops.cases import glimpse, latent
from duoln.plugins.handwriting import ops as handwriting_ops
from duoln.plugins.order_embeddings import ops as order_ops

CASES: list[Case] = []


def case(name, fn, inputs, reference, length=1):
    CASES.append(Case(name, fn, inputs, reference, length))


# DRAW
def _grids(n, pixels, size, inverse):
    """Banks of the rows and of the columns for each of n placements, filter by filter (Gregor et al. 2015)."""
    def reference(where):
        rows, columns = (np.zeros((n, size, pixels)) for _ in range(2))
        for b in range(n):
            gx, gy, log_variance, log_delta, log_gamma = np.clip(where[b], -20, 20)
            strength = np.exp(-log_gamma if inverse else log_gamma)
            stride = (pixels - 1) / (size - 1) * np.exp(log_delta)
            for bank, g, scale in ((rows, gy, strength), (columns, gx, 1.0)):
                for i in range(size):
                    mean = (g + 1) / 2 * pixels + (i - size / 2 + 0.5) * stride
                    f = np.exp(-(np.arange(pixels) - mean) ** 2 / (2 * np.exp(log_variance)))
                    bank[b, i] = scale * f / (f.sum() + 1e-4)
        return rows, columns

    return reference


for size, pixels, inverse in ((2, 28, False), (5, 28, True), (3, 7, True)):
    options = {"size": size, "pixels": pixels, "inverse": inverse}
    case(f"filterbank {size} {pixels}", partial(draw_ops.filterbank, **options),
         lambda rng: [0.5 * rng.standard_normal((4, 5))], _grids(4, **options), 100)


def _glimpse(read, write):
    def reference(canvas, image, looked):
        n, pixels, _ = canvas.shape
        wr, wc = _grids(n, pixels, write, True)(looked[:, 5:10])
        rr, rc = _grids(n, pixels, read, False)(looked[:, :5])
        drawn = np.stack([canvas[b] + wr[b].T @ looked[b, 10:].reshape(write, write) @ wc[b] for b in range(n)])
        error = image - 1 / (1 + np.exp(-drawn))
        seen = np.stack([np.concatenate([(rr[b] @ a[b] @ rc[b].T).ravel() for a in (image, error)]) for b in range(n)])
        return drawn, seen

    return reference


for read, write, pixels in ((2, 5, 28), (3, 2, 6)):
    options = {"read": read, "write": write}
    case(f"write_then_read {read} {write}", partial(draw_ops.write_then_read, **options),
         lambda rng, p=pixels, w=write: [rng.standard_normal((2, p, p)), rng.random((2, p, p)), 0.5 * rng.standard_normal((2, 10 + w * w))],
         _glimpse(**options), 1000)


def _latent(statistics, noise):
    mean, log_sigma = np.split(statistics, 2, axis=1)
    nats = np.zeros(len(mean))
    for k in range(mean.shape[1]):
        m, s = mean[:, k], np.exp(log_sigma[:, k])
        nats += 0.5 * (m * m + s * s - 1) - np.log(s)
    return mean + np.exp(log_sigma) * noise, nats


case("gaussian_latent", draw_ops.gaussian_latent, gaussians((3, 8), (3, 4)), _latent, 16)
case("gaussian_latent of one", draw_ops.gaussian_latent, gaussians((1, 2), (1, 1)), _latent, 16)


# Handwriting
def mixture_reference(output, points):
    """From Graves 2013, eq. 16-26, as they are printed."""
    count = output.shape[-1] // 6
    end = 1 / (1 + np.exp(output[..., 0]))
    p, m1, m2, s1, s2, r = np.split(output[..., 1:], 6, axis=-1)
    assert p.shape[-1] == count
    weight = np.exp(p) / np.exp(p).sum(-1, keepdims=True)
    s1, s2, rho = np.exp(s1), np.exp(s2), np.tanh(r)
    d1, d2 = points[..., :1] - m1, points[..., 1:2] - m2
    z = (d1 / s1) ** 2 + (d2 / s2) ** 2 - 2 * rho * d1 * d2 / (s1 * s2)
    density = np.exp(-z / (2 * (1 - rho ** 2))) / (2 * np.pi * s1 * s2 * np.sqrt(1 - rho ** 2))
    bit = points[..., 2]
    return -np.log((weight * density).sum(-1)) - bit * np.log(end) - (1 - bit) * np.log(1 - end)


def window_reference(raw, kappa, characters, advance=1.0):
    """Graves 2013, eq. 46-51, one number after another."""
    (batch, count), length = kappa.shape, characters.shape[1]
    new, phi = kappa.copy(), np.zeros((batch, length))
    for b in range(batch):
        for k in range(count):
            new[b, k] += advance * np.exp(raw[b, 2 * count + k])
            for u in range(length):
                phi[b, u] += np.exp(raw[b, k]) * np.exp(-np.exp(raw[b, count + k]) * (new[b, k] - (u + 1)) ** 2)
    return np.stack([phi[b] @ characters[b] for b in range(batch)]), new, phi


for shape, count in [((5,), 1), ((), 3), ((3, 4), 20), ((0,), 2)]:
    case(f"mixture_density{shape}{count}", handwriting_ops.mixture_density, gaussians((*shape, 1 + 6 * count), (*shape, 3)),
         mixture_reference, 40)
for count, length in [(1, 1), (3, 7)]:
    for advance in (1.0, 0.1):
        case(f"soft_window {count} {length} {advance}", partial(handwriting_ops.soft_window, advance=advance),
             gaussians((2, 3 * count), (2, count), (2, length, 5)), partial(window_reference, advance=advance), 16)


# Order embeddings
def order_violation_reference(captions, images):
    """Pair by pair (Vendrov et al. 2016, eq. 3)."""
    return np.array([[sum(max(0.0, s - m) ** 2 for s, m in zip(c, i, strict=True)) for i in images] for c in captions]).reshape(len(captions), len(images))


for n, m, d in [(1, 1, 1), (0, 3, 4), (3, 0, 4), (3, 4, 0), (5, 3, 7), (2, 9, 33), (33, 17, 5)]:
    case(f"order_violation{n}{m}{d}", order_ops.order_violation, gaussians((n, d), (m, d)), order_violation_reference, max(n, m, d))


LEAST = {"gaussian_latent": 20, "order_violation": 170, "write_then_read": 150}
"""The operators with a fused rule, and how many layouts there are of each one's cases at least."""


def layout_cases():
    """Every case for the table of layouts, at sizes that take no time, with the module that has its operator."""
    rng = np.random.default_rng(1)
    violations = [RuleCase("order_violation", f"{captions} {images} {width}", partial(list, [rng.standard_normal((n, width), np.float32) for n in (captions, images)]),
                           {}, 20) for captions, images, width in ((4, 3, 5), (1, 3, 2), (3, 1, 4), (2, 3, 1))]
    drawn = [glimpse(3, 6, 2, 3), glimpse(1, 7, 3, 2), latent(3, 5), latent(1, 4), latent(4, 1)]
    return [*((case, draw_ops) for case in drawn), *((case, order_ops) for case in violations)]
