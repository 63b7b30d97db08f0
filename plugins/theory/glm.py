"""Generalised linear models that share their inputs, plain and normalised (section 5.2, eq. 9-10), in float64.

The log-likelihood of output i given x is ((a_i + b_i) y_i - eta(a_i + b_i)) / phi + c(y_i, phi), where a_i is
w_i x, or its normalised form g_i (w_i x - mu_i) / sigma_i. The mean is f = eta', the variance phi f'. There is no
epsilon: it is the paper's formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np

from duoln import Stream, ops
from duoln.backends.protocol import Backend
from duoln.core import Tensor
from duoln.core.tape import Tape
from duoln.errors import BackendError, UsageError

Norm = Literal["none", "batch", "weight", "layer"]
NORMS: tuple[Norm, ...] = get_args(Norm)


class Family(NamedTuple):
    """An exponential family: its eta, f = eta', f' and the dispersion phi."""

    name: str
    log_partition: Callable[[np.ndarray], np.ndarray]
    mean: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    dispersion: float


def _sigmoid(s: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * s))


FAMILIES = {family.name: family for family in (
    Family("logistic", lambda s: np.logaddexp(0.0, s), _sigmoid, lambda s: _sigmoid(s) * _sigmoid(-s), 1.0),
    Family("gaussian", lambda s: 0.5 * s * s, lambda s: s, np.ones_like, 0.5),
    Family("poisson", np.exp, np.exp, np.exp, 1.0),
)}


class Glm(NamedTuple):
    """Models that share x (cases, inputs): weight (inputs, outputs), gain and bias (outputs,), all float64.

    A parameter vector has (w_i, b_i, g_i) for each output i in turn; the plain model, without a gain, (w_i, b_i).
    """

    norm: Norm
    x: np.ndarray
    weight: np.ndarray
    gain: np.ndarray
    bias: np.ndarray

    @property
    def inputs(self) -> int:
        count: int = self.weight.shape[0]
        return count

    @property
    def outputs(self) -> int:
        count: int = self.weight.shape[1]
        return count

    @property
    def width(self) -> int:
        """Parameters of one output."""
        return self.inputs + (1 if self.norm == "none" else 2)

    def moved(self, change: np.ndarray) -> Glm:
        """The model after a change of its parameters, a vector."""
        parts = change.reshape(self.outputs, self.width)
        gain = self.gain if self.norm == "none" else self.gain + parts[:, -1]
        return self._replace(weight=self.weight + parts[:, :self.inputs].T, bias=self.bias + parts[:, self.inputs],
                             gain=gain)


def check_exact(measure: str, backend: Backend, cases: int) -> None:
    """Check what an exact computation needs.

    Raises:
        BackendError: a backend without float64.
        UsageError: fewer than 10 cases, which say nothing about expectations.
    """
    if "float64" not in backend.dtypes:
        raise BackendError(f"[{measure}] expected a backend with float64, found {backend.name} on {backend.device}")
    if cases < 10:
        raise UsageError(f"[{measure}] expected at least 10 cases, found {cases}")


def random_glm(norm: Norm, seed: int, cases: int, inputs: int = 4, outputs: int = 3) -> Glm:
    """A model and data from a seed: inputs with means of their own, gains of 0.5 to 1.5."""
    rng = Stream(seed, "geometry")
    x = rng.gaussian((cases, inputs)) + 0.5 * rng.gaussian((inputs,))
    return Glm(norm, x, rng.gaussian((inputs, outputs)), 0.5 + rng.uniform((outputs,)), 0.5 * rng.gaussian((outputs,)))


def predict(norm: Norm, x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """The natural parameters a + b, (cases, outputs), by our operators."""
    if norm == "none":
        return ops.linear(x, weight, bias)
    if norm == "weight":
        return ops.linear(x, ops.weight_norm(weight, gain), bias)
    summed = ops.matmul(x, weight)
    if norm == "batch":
        return ops.batch_norm(summed, gain, bias, eps=0.0)[0]
    return ops.layer_norm(summed, gain, bias, eps=0.0)


def predictor(glm: Glm, backend: Backend) -> np.ndarray:
    """The natural parameters of a model on its data, (cases, outputs)."""
    return predict(glm.norm, *(_tensor(a, backend) for a in glm[1:])).numpy()


def jacobian(glm: Glm, backend: Backend) -> np.ndarray:
    """Derivatives of every natural parameter by every parameter: (cases, outputs, parameters).

    One walk of the tape for each natural parameter; the formulas of the derivatives are not used.
    """
    tape = Tape()
    x = _tensor(glm.x, backend)
    params = [Tensor(backend.asarray(a, "float64"), backend, tape.new_place()) for a in glm[2:]]
    out = predict(glm.norm, x, *params)
    tape.closed = True
    assert out.node is not None
    rows = np.zeros((*out.shape, glm.outputs, glm.width))
    seed = np.zeros(out.shape)
    for case, output in np.ndindex(out.shape):
        seed[case, output] = 1.0
        gradients = tape.backward(backend, {out.node.place: backend.asarray(seed, "float64")}, keep=True)
        seed[case, output] = 0.0
        weight, gain, bias = (gradients[p.node.place] if p.node else None for p in params)
        rows[case, output, :, :glm.inputs] = backend.to_numpy(weight).T
        rows[case, output, :, glm.inputs] = backend.to_numpy(bias)
        if glm.norm != "none":
            rows[case, output, :, -1] = backend.to_numpy(gain)
    return rows.reshape(*out.shape, -1)


def _tensor(array: np.ndarray, backend: Backend) -> Tensor:
    return Tensor(backend.asarray(array, "float64"), backend)
