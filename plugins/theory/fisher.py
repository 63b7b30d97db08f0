"""The Fisher information of generalised linear models: exact, and by the paper's formula (eq. 8-14).

Matrices are (parameters, parameters) in the order of `glm.Glm`; expectations are means over its cases.
"""

from __future__ import annotations

import numpy as np

from duoln.plugins.theory.glm import Family, Glm


def covariance(family: Family, natural: np.ndarray, correlation: float = 0.0) -> np.ndarray:
    """Cov[y | x], (cases, outputs, outputs), from the natural parameters (cases, outputs).

    Independent outputs, as the paper has them, have a diagonal one; a correlation between -1/(outputs - 1) and 1
    shows what eq. 13 says of the other blocks.
    """
    deviation = np.sqrt(family.dispersion * family.slope(natural))
    outputs = natural.shape[1]
    mixed = (1.0 - correlation) * np.eye(outputs) + correlation
    return deviation[:, :, None] * deviation[:, None, :] * mixed


def fisher(jacobian: np.ndarray, covariances: np.ndarray, dispersion: float) -> np.ndarray:
    """E[J' Cov J] / phi^2: the covariance of the score, which is J' (y - f) / phi."""
    cases, outputs, parameters = jacobian.shape
    weighted = np.matmul(covariances, jacobian).reshape(cases * outputs, parameters)
    result: np.ndarray = jacobian.reshape(cases * outputs, parameters).T @ weighted / (cases * dispersion**2)
    return result


def normalised(glm: Glm) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(a - mu) / sigma and sigma, and the derivatives of mu_i and sigma_i by w_i, for the paper's chi (eq. 14).

    Layer norm's are by each output's own weights only, as the paper has them.

    Shape:
        -> (cases, outputs) twice, (cases, outputs, inputs) twice.
    """
    summed = glm.x @ glm.weight
    shape = (*summed.shape, glm.inputs)
    x = np.broadcast_to(glm.x[:, None, :], shape)
    if glm.norm == "weight":
        sigma = np.broadcast_to(np.linalg.norm(glm.weight, axis=0), summed.shape)
        return summed / sigma, sigma, np.zeros(shape), np.broadcast_to(glm.weight.T / sigma[0][:, None], shape)
    if glm.norm not in ("batch", "layer"):
        raise ValueError(f"[normalised] expected a norm of batch, weight, layer; found {glm.norm!r}")
    axis = 0 if glm.norm == "batch" else 1
    sigma = np.broadcast_to(summed.std(axis=axis, keepdims=True), summed.shape)
    unit = (summed - summed.mean(axis=axis, keepdims=True)) / sigma
    if glm.norm == "layer":
        return unit, sigma, x / glm.outputs, x * unit[:, :, None] / glm.outputs
    centre = glm.x.mean(axis=0)
    along = unit.T @ (glm.x - centre) / len(glm.x)
    return unit, sigma, np.broadcast_to(centre, shape), np.broadcast_to(along, shape)


def magnitudes(glm: Glm) -> np.ndarray:
    """For each output the direction in which the magnitude of its weights alone changes: (outputs, parameters).

    It is the gain of a normalised model, and w_i / |w_i| in the plain one.
    """
    along = np.zeros((glm.outputs, glm.outputs, glm.width))
    each = np.arange(glm.outputs)
    if glm.norm == "none":
        along[each, each, :glm.inputs] = (glm.weight / np.linalg.norm(glm.weight, axis=0)).T
    else:
        along[each, each, -1] = 1.0
    return along.reshape(glm.outputs, -1)


def paper_vectors(glm: Glm) -> np.ndarray:
    """v_i = ((g_i / sigma_i) chi_i, 1, (a_i - mu_i) / sigma_i) of eq. 13-14, or (x, 1) of eq. 12.

    chi_i = x - d mu_i / d w_i - (a_i - mu_i) / sigma_i d sigma_i / d w_i.

    Shape:
        -> (cases, outputs, width).
    """
    if glm.norm == "none":
        own = np.concatenate((glm.x, np.ones((len(glm.x), 1))), axis=1)
        return np.repeat(own[:, None, :], glm.outputs, axis=1)
    unit, sigma, of_mean, of_sigma = normalised(glm)
    chi = glm.x[:, None, :] - of_mean - unit[:, :, None] * of_sigma
    scaled = (glm.gain / sigma)[:, :, None] * chi
    return np.concatenate((scaled, np.ones((*unit.shape, 1)), unit[:, :, None]), axis=2)


def paper_fisher(glm: Glm, covariances: np.ndarray, dispersion: float) -> np.ndarray:
    """Eq. 12, or 13 of a normalised model: the block of outputs i and j is E[Cov(y_i, y_j | x) v_i v_j'] / phi^2."""
    vectors = paper_vectors(glm)
    blocks = np.einsum("nij,nip,njq->ipjq", covariances, vectors, vectors, optimize=True)
    size = glm.outputs * glm.width
    array: np.ndarray = blocks.reshape(size, size) / (len(glm.x) * dispersion**2)
    return array


def layer_norm_jacobian(glm: Glm) -> np.ndarray:
    """The Jacobian of layer norm. Eq. 13 leaves out that all outputs share mu and sigma, so w_i moves every output k.

    d a_k / d w_i = (g_k / sigma) x ([k = i] - 1 / H - u_k u_i / H) with u = (a - mu) / sigma and H outputs.

    Shape:
        -> (cases, outputs k, parameters), as `glm.jacobian`.
    """
    unit, sigma, _, _ = normalised(glm)
    outputs = glm.outputs
    shared = np.eye(outputs) - 1.0 / outputs - unit[:, :, None] * unit[:, None, :] / outputs
    rows = np.zeros((len(unit), outputs, outputs, glm.width))
    rows[..., :glm.inputs] = ((glm.gain / sigma)[:, :, None] * shared)[..., None] * glm.x[:, None, None, :]
    each = np.arange(outputs)
    rows[:, each, each, glm.inputs] = 1.0
    rows[:, each, each, -1] = unit
    return rows.reshape(len(unit), outputs, -1)


def divergence(family: Family, before: np.ndarray, after: np.ndarray) -> float:
    """E[KL(p(y | before) || p(y | after))] in nats, from natural parameters (cases, outputs); outputs independent.

    [eta(after) - eta(before) - f(before) (after - before)] / phi, summed over outputs.
    """
    gap = family.log_partition(after) - family.log_partition(before) - family.mean(before) * (after - before)
    return float(gap.sum(axis=1).mean() / family.dispersion)
